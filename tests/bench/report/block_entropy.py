#!/usr/bin/env python3
"""How much of GGUF's blocks can be compressed: entropy of their bytes, and what zstd and od-pack's coder reach, on Gaussian weights.

    block_entropy.py LIBGGML_BASE       (llama.cpp's libggml-base.so, Python's numpy, libzstd)

llama.cpp writes the blocks; types that ask how much each column counts are told that all count alike. od-pack's coder is zstd without a
search for matches (common/pack/codec.c), on chunks of 524,288 weights. A row of the table for each type."""
import ctypes
import sys

import numpy as np

N_CHUNKS, CHUNK, ROW = 4, 524288, 2048
BF16, QUANTISED = 30, (2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 29, 34, 35, 39, 40)  # as ggml numbers them
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


def open_ggml(path):
    ggml = ctypes.CDLL(path)
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    pointer = ctypes.POINTER(ctypes.c_float)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer]
    return ggml


def blocks(ggml, kind, weights, alike):
    out = ctypes.create_string_buffer(CHUNK // ggml.ggml_blck_size(kind) * ggml.ggml_type_size(kind))
    pointer = ctypes.POINTER(ctypes.c_float)
    n = ggml.ggml_quantize_chunk(kind, weights.ctypes.data_as(pointer), out, 0, CHUNK // ROW, ROW, alike.ctypes.data_as(pointer))
    assert n == len(out), kind
    return out.raw


def main():
    ggml = open_ggml(sys.argv[1])
    weights = np.random.default_rng(1).normal(0, 0.02, (N_CHUNKS, CHUNK // ROW, ROW)).astype(np.float32)
    alike = np.ones(ROW, np.float32)
    print("| type | bits a weight | entropy, bits a byte | zstd -3 | zstd -19 | od-pack's coder | stored |\n|---|---|---|---|---|---|---|")
    for kind in (*QUANTISED, BF16):
        chunks = [blocks(ggml, kind, w, alike) for w in weights]
        size = sum(map(len, chunks))
        own = sum(map(coder, chunks)) / size
        of_size = [sum(plain(c, level) for c in chunks) / size for level in (3, 19)] + [own]
        stored = "planes" if kind == BF16 else "zstd" if own < 0.97 else "raw"
        print("| %s | %.2f | %.2f | %s | %s |" % (ggml.ggml_type_name(kind).decode().upper(), 8 * size / (N_CHUNKS * CHUNK),
                                                entropy(b"".join(chunks)), " | ".join("%.1f%%" % (100 * x) for x in of_size), stored),
              flush=True)


if __name__ == "__main__":
    main()
