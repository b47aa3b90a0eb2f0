#!/usr/bin/env python3
"""Writes tests/golden/formats/NAME.bin for each of GGUF's formats of blocks: BLOCKS blocks, then their values as float32, as the package
gguf computes them (pip install gguf). tests/unit/test_blocks.c reads them.

    tests/golden/formats/make_blocks.py [FOLDER]

The blocks are random bytes; the scales of half of them are small numbers, those of the others anything: infinite, NaN, subnormal."""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 6
NAMES = ("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 "
         "MXFP4 NVFP4").split()
# Where a block's float16 numbers are, in bytes from its start.
HALVES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ1_M": [],
          "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": []}
ODD = [0x7c00, 0xfc00, 0x7e01, 0x0001, 0x8000]  # infinite, NaN, subnormal, -0


def blocks(name, rng):
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    b = rng.integers(0, 256, (BLOCKS, size), np.uint8)
    for at in HALVES.get(name, [0]):
        halves = rng.normal(0, 0.01, BLOCKS).astype(np.float16).view(np.uint16)
        halves[BLOCKS // 2:] = rng.choice(ODD, BLOCKS - BLOCKS // 2)
        b[:, at], b[:, at + 1] = halves & 255, halves >> 8
    if name == "MXFP4":
        b[:, 0] = [120, 127, 0, 1, 254, 255]
    if name == "NVFP4":
        b[:, 0] = [0x38, 0x7e, 0, 1, 0x7f, 0xff]
    return b


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/formats"
    for i, name in enumerate(NAMES):
        b = blocks(name, np.random.default_rng(i))
        with np.errstate(all="ignore"):
            values = quants.dequantize(b, GGMLQuantizationType[name])
        with open(f"{folder}/{name}.bin", "wb") as f:
            f.write(b.tobytes() + values.astype("<f4").tobytes())


main()
