#!/usr/bin/env python3
"""Writes trig_table.h: sin, cos and exp to 50 digits, by power series in decimal arithmetic, for
test_compute.c. Run by hand (tests/unit/trig_table.py > tests/unit/trig_table.h); the output is committed."""
import random
import struct
from decimal import Decimal, getcontext

getcontext().prec = 80
EPS = Decimal(10) ** -75


def series(x, first, step):
    """Sum of first * prod(step(k))."""
    total = term = first
    k = 0
    while abs(term) > EPS:
        k += 1
        term *= step(x, k)
        total += term
    return total


def arctan_inv(n):
    """arctan(1/n)"""
    total, power, k = Decimal(0), Decimal(1) / n, 0
    while power > EPS:
        total += (-1) ** k * power / (2 * k + 1)
        power /= n * n
        k += 1
    return total


PI = 4 * (4 * arctan_inv(5) - arctan_inv(239))  # Machin


def sin_cos(x):
    r = Decimal(x) - (Decimal(x) / (2 * PI)).to_integral_value() * 2 * PI
    s = series(r, r, lambda r, k: -r * r / ((2 * k) * (2 * k + 1)))
    c = series(r, Decimal(1), lambda r, k: -r * r / ((2 * k - 1) * (2 * k)))
    return float(s), float(c)


def exp(x):
    if x < 0:
        return float(1 / exp_pos(-Decimal(x)))
    return float(exp_pos(Decimal(x)))


def exp_pos(x):
    n = int(x)
    e = series(Decimal(1), Decimal(1), lambda _, k: Decimal(1) / k)
    return e ** n * series(x - n, Decimal(1), lambda r, k: r / k)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def main():
    rng = random.Random(7)
    angles = [0.0, 1e-300, 1e-9, 0.5, 1.0, 2.0, 3.0, 100.0, 1048575.0, -1048575.75]
    for k in (1, 2, 3, 4, 5, 6, 7, 355, 1000, 12345, 667543):  # where one of the two is nearly zero
        x = float(PI / 4 * k)
        angles += [x, -x]
    angles += [rng.uniform(-10, 10) for _ in range(40)] + [rng.uniform(-(2**20), 2**20) for _ in range(80)]
    angles += [p * 10000.0 ** (-2 * i / 128) for p in (1, 977, 32767, 131071) for i in (0, 5, 23, 63)]
    powers = [f32(x) for x in (0.0, 1e-8, -1e-8, 0.34657, -0.34657, 0.3466, 1, -1, 88.7, 88.72283, -87.33, -87.4,
                               -95.0, -103.0, -103.9)]
    powers += [f32(rng.uniform(-104, 88.7)) for _ in range(80)] + [f32(rng.uniform(-1, 1)) for _ in range(40)]

    print("/* Made by trig_table.py: x, sin x, cos x; x, exp x. */")
    print("static const struct {\n\tdouble x, sin_x, cos_x;\n} trig_table[] = {")
    for x in angles:
        s, c = sin_cos(x)
        print("\t{ %s, %s, %s }," % (x.hex(), s.hex(), c.hex()))
    print("};\n\nstatic const struct {\n\tfloat x;\n\tdouble exp_x;\n} exp_table[] = {")
    for x in powers:
        print("\t{ %sf, %s }," % (x.hex(), exp(x).hex()))
    print("};")


main()
