"""Weights in GGUF's formats of blocks whose values are known: the blocks of tests/golden/formats, whose scales are multiplied by powers of
two and -1. Standard library only."""
import functools
import math
import os
import struct

from gguf_checkpoint import TYPES, as_f32

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "formats")
NAMES = [n for n, (_, weights, _) in TYPES.items() if weights > 1]
# Where a block's float16 numbers are; all are multiplied alike. Formats without have scales of their own kind.
HALVES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52],
          "TQ2_0": [64]}
LEAST_HALF, DEVIATION = 2.0 ** -14, 0.04


def times_half(raw, factor):
    value = struct.unpack("<e", raw)[0] * factor
    return struct.pack("<e", value) if value == 0 or LEAST_HALF <= abs(value) < 65504 else None


def halves(name, block, factor):
    out = bytearray(block)
    for at in HALVES.get(name, [0]):
        half = times_half(block[at:at + 2], factor)
        if half is None:
            return None
        out[at:at + 2] = half
    return bytes(out)


def iq1_m(_, block, factor):
    """Its float16 number has four bits in each of four scales."""
    scale = list(struct.unpack_from("<4H", block, 48))
    half = times_half(struct.pack("<H", sum((s >> 12) << 4 * i for i, s in enumerate(scale))), factor)
    if half is None:
        return None
    bits = struct.unpack("<H", half)[0]
    return block[:48] + struct.pack("<4H", *(s & 0xfff | (bits >> 4 * i & 15) << 12 for i, s in enumerate(scale)))


def mxfp4(_, block, factor):
    e = block[0] + round(math.log2(abs(factor)))
    return bytes([e]) + block[1:] if factor > 0 and 1 < block[0] < 254 and 1 < e < 254 else None


def scaled(name):
    """(block, values) whose values are of a size as weights have, for formats with one scale a block."""
    _, weights, each = TYPES[name]
    times = {"IQ1_M": iq1_m, "MXFP4": mxfp4}.get(name, halves)
    for block, values in read(name, each, weights):
        size = math.sqrt(sum(v * v for v in values) / weights)
        if 0 < size < math.inf:
            near = round(math.log2(DEVIATION / size))
            for factor in (s * 2.0 ** e for e in (near, near - 1, near + 1) for s in (1, -1)):
                changed = times(name, block, factor)
                if changed is not None:
                    yield changed, [v * factor for v in values]


def nvfp4():
    """A scale for 16 weights: 4 bits of exponent, 3 of mantissa; those without exponent, and all ones, are other numbers."""
    for block, values in read("NVFP4", 36, 64):
        exponents = [b >> 3 & 15 for b in block[:4]]
        if all(exponents) and all(b & 0x7f != 0x7f for b in block[:4]):
            for new in 1, 2, 3:
                changed = bytes(b & 0x87 | new << 3 for b in block[:4]) + block[4:]
                yield changed, [v * 2.0 ** (new - exponents[i // 16]) for i, v in enumerate(values)]


def read(name, each, weights):
    with open(os.path.join(FOLDER, name + ".bin"), "rb") as f:
        raw = f.read()
    n = len(raw) // (each + 4 * weights)
    for i in range(n):
        yield raw[i * each:(i + 1) * each], struct.unpack_from("<%df" % weights, raw, n * each + 4 * weights * i)


@functools.cache
def blocks(name):
    out = list(nvfp4() if name == "NVFP4" else scaled(name))
    assert len(out) >= 2, name
    return out


def matrix(name, n_out, n_in, rng):
    """(bytes in the format, the same as F32)."""
    _, weights, _ = TYPES[name]
    chosen = [rng.choice(blocks(name)) for _ in range(n_out * (n_in // weights))]
    return b"".join(b for b, _ in chosen), b"".join(as_f32(v) for _, v in chosen)
