#!/usr/bin/env python3
"""How much of GGUF's blocks can be compressed: entropy of their bytes, and what zstd and od-pack's coder reach, on Gaussian weights.

    block_entropy.py		(Python packages gguf and numpy, libzstd)

The blocks are those of `gguf`, llama.cpp's package, which cannot write all types: the others are listed. od-pack's coder is zstd
without a search for matches (common/pack/codec.c), on chunks of 524,288 weights. A row of the table for each type."""
import ctypes

import gguf
import numpy as np

N_CHUNKS, CHUNK, ROW = 8, 524288, 2048
PARAMETERS = {100: 1, 107: 1, 106: 131072, 1002: 1, 101: 23}  # level 1, fast, no matches, literals coded, window

zstd = ctypes.CDLL("libzstd.so.1")
for name in "ZSTD_createCCtx", "ZSTD_compress2", "ZSTD_compress", "ZSTD_compressBound":
    getattr(zstd, name).restype = ctypes.c_void_p if name == "ZSTD_createCCtx" else ctypes.c_size_t
zstd.ZSTD_compress2.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
zstd.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
zstd.ZSTD_CCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
zstd.ZSTD_CCtx_setParameter.restype = ctypes.c_size_t
zstd.ZSTD_isError.argtypes = [ctypes.c_size_t]


def entropy(data):
    p = np.bincount(np.frombuffer(data, np.uint8), minlength=256) / len(data)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def coder(data):
    ctx = zstd.ZSTD_createCCtx()
    for parameter, value in PARAMETERS.items():
        assert not zstd.ZSTD_isError(zstd.ZSTD_CCtx_setParameter(ctx, parameter, value)), parameter
    out = ctypes.create_string_buffer(len(data) + len(data) // 128 + 1024)
    n = zstd.ZSTD_compress2(ctx, out, len(out), data, len(data))
    assert not zstd.ZSTD_isError(n)
    return n


def plain(data, level):
    out = ctypes.create_string_buffer(len(data) + len(data) // 128 + 1024)
    n = zstd.ZSTD_compress(out, len(out), data, len(data), level)
    assert not zstd.ZSTD_isError(n)
    return n


def main():
    weights = np.random.default_rng(1).normal(0, 0.02, (N_CHUNKS, CHUNK // ROW, ROW)).astype(np.float32)
    missing = []
    print("| type | bits a weight | entropy, bits a byte | zstd -3 | zstd -19 | od-pack's coder | stored |\n|---|---|---|---|---|---|---|")
    for kind in gguf.GGMLQuantizationType:
        if kind not in gguf.GGML_QUANT_SIZES or kind.name.startswith(("I8", "I16", "I32", "I64", "F64", "F32", "F16")):
            continue
        try:
            chunks = [gguf.quants.quantize(w, kind).tobytes() for w in weights]
        except (NotImplementedError, KeyError, AttributeError):
            missing.append(kind.name)
            continue
        size = sum(map(len, chunks))
        own = sum(map(coder, chunks)) / size
        of_size = [sum(plain(c, level) for c in chunks) / size for level in (3, 19)] + [own]
        stored = "planes" if kind.name == "BF16" else "zstd" if own < 0.97 else "raw"
        print("| %s | %.2f | %.2f | %s | %s |" % (kind.name, 8 * size / (N_CHUNKS * CHUNK), entropy(b"".join(chunks)),
                                                " | ".join("%.1f%%" % (100 * x) for x in of_size), stored))
    print("\nNot measured, because `gguf` cannot write them: %s." % ", ".join(missing))


if __name__ == "__main__":
    main()
