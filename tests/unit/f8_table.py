#!/usr/bin/env python3
"""Writes f8_table.h: what each of the 256 patterns of E4M3 and E5M2 is, from the definitions of the OCP 8-bit floating
point specification in exact arithmetic, as bits of an f32 (every NaN as 7fc00000); for test_compute_matmul.c and
test_quant_rows.c. Run by hand (tests/unit/f8_table.py > tests/unit/f8_table.h); the output is committed."""
import struct
from fractions import Fraction as F


def value(pattern, exponent_bits, bias, special):
    """special: what exponents of ones only mean, by mantissa, or None where they are numbers as others are."""
    mantissa_bits = 7 - exponent_bits
    sign, rest = pattern >> 7, pattern & 127
    exponent, mantissa = rest >> mantissa_bits, F(rest & ((1 << mantissa_bits) - 1), 1 << mantissa_bits)
    if exponent == (1 << exponent_bits) - 1 and special(mantissa) is not None:
        size = special(mantissa)
    elif exponent == 0:
        size = float(mantissa * F(2) ** (1 - bias))
    else:
        size = float((1 + mantissa) * F(2) ** (exponent - bias))
    return -size if sign else size


def e4m3(pattern):
    return value(pattern, 4, 7, lambda m: float("nan") if m == F(7, 8) else None)


def e5m2(pattern):
    return value(pattern, 5, 15, lambda m: float("nan") if m else float("inf"))


def bits(x):
    return 0x7fc00000 if x != x else struct.unpack("<I", struct.pack("<f", x))[0]


def main():
    print("/* Made by f8_table.py. */")
    print("#include <stdint.h>")
    for f in (e4m3, e5m2):
        print("\nstatic const uint32_t %s_bits[256] = {" % f.__name__)
        for at in range(0, 256, 8):
            print("\t" + " ".join("0x%08xu," % bits(f(p)) for p in range(at, at + 8)))
        print("};")


if __name__ == "__main__":
    main()
