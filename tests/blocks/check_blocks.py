#!/usr/bin/env python3
"""Random blocks of each of GGUF's formats: the decoders of all instruction sets give the same bits (random_blocks.c), and those of PyPI's
gguf, where it has the format and can be imported. NaN compares as NaN.
  check_blocks.py PROGRAM BLOCKS [FORMAT...]"""
import subprocess
import sys
import time

try:
    import gguf
    import numpy as np
except ImportError:
    gguf = None

PIECE = 4096  # as in random_blocks.c


def references():
    """name -> function of an array of blocks; gguf lacks some."""
    if gguf is None:
        return {}
    kinds = {t.name: t for t in gguf.GGMLQuantizationType}
    return {name: lambda rows, t=t: gguf.quants.dequantize(rows, t) for name, t in kinds.items() if gguf.quants._type_traits.get(t)}


def same(got, want):
    """Bits, NaN as NaN."""
    a, b = got.view(np.uint32), want.view(np.uint32)
    different = (a != b) & ~(np.isnan(got) & np.isnan(want))
    return not different.any()


def check(program, name, weights, size, n, reference):
    """An error's text, or None."""
    p = subprocess.Popen([program, name, str(n)], stdout=subprocess.PIPE)
    wrong = None
    for at in range(0, n, PIECE):
        piece = min(PIECE, n - at)
        blocks, values = p.stdout.read(piece * size), p.stdout.read(piece * weights * 4)
        if len(values) < piece * weights * 4:
            break
        if reference is None or wrong:
            continue
        want = reference(np.frombuffer(blocks, np.uint8).reshape(piece, size)).astype(np.float32, copy=False)
        if not same(np.frombuffer(values, np.float32), np.ascontiguousarray(want).reshape(-1)):
            wrong = "differs from gguf's within blocks %d to %d" % (at, at + piece - 1)
    return "the decoders differ, or one did what C does not define" if p.wait() != 0 else wrong


def main():
    program, n, only = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    *formats, decoders = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    known, bad = references(), 0
    print("decoders: " + decoders + ("" if gguf else "; gguf cannot be imported: they are compared with each other only"))
    for name, weights, size in (line.split() for line in formats):
        if only and name not in only:
            continue
        begin = time.monotonic()
        with np.errstate(all="ignore") if gguf else open("/dev/null"):
            wrong = check(program, name, int(weights), int(size), n, known.get(name))
        bad += wrong is not None
        print("%-8s %d blocks: %s (%s, %.0f s)" % (name, n, wrong or "the same", "and gguf's" if name in known else
                                                   "gguf lacks it: our decoders only", time.monotonic() - begin), flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
