#!/usr/bin/env python3
"""Writes quant_table.h: small quantised matrices, packed as common/compute/quant.h says, and what their products with
some rows are to the bit, in exact arithmetic with one rounding where the text has one; for test_compute_quant.c. Run by
hand (tests/unit/quant_table.py > tests/unit/quant_table.h); the output is committed."""
import random
from fractions import Fraction as F

N_IN, N_OUT, N_ROWS = 200, 5, 2
GROUPS = -(-N_IN // 64)
NF4 = [F(v) for v in (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)]


def f32(x):
    """To the nearest f32, ties to even; within its range."""
    if x == 0:
        return F(0)
    e = 0
    while abs(x) >= F(2) ** (e + 1):
        e += 1
    while abs(x) < F(2) ** e:
        e -= 1
    unit = F(2) ** max(e - 23, -149)
    return round(x / unit) * unit  # a Fraction's round is half to even


def fma(a, b, c):
    return f32(a * b + c)


def fold(lane):
    n = 8
    while n:
        lane = [f32(lane[i] + lane[i + n]) for i in range(n)]
        n //= 2
    return lane[0]


def dot_f32(value, scale, x):
    lane = [F(0)] * 16
    for g in range(GROUPS):
        part = [F(0)] * 16
        for k in range(64 * g, min(64 * g + 64, N_IN)):
            part[k % 16] = fma(value[k], x[k], part[k % 16])
        lane = [fma(p, scale[g], s) for p, s in zip(part, lane)]
    return fold(lane)


def round_int8(x, nf4):
    q, scales = [], []
    for g in range(GROUPS):
        block = x[64 * g:64 * g + 64]
        s = f32(max(abs(v) for v in block) / 127)
        q += [max(-127, min(127, round(f32(v / s)))) if s else 0 for v in block]
        scales.append(f32(s / 127) if nf4 else s)
    return q, scales


def dot_int8(value, scale, x, nf4):
    q, q_scale = round_int8(x, nf4)
    if nf4:
        value = [round(127 * v) for v in value]
    lane = [F(0)] * 16
    for g in range(GROUPS):
        total = [0] * 16
        for k in range(64 * g, min(64 * g + 64, N_IN)):
            i = k % 16 if nf4 else k % 64 // 4
            total[i] += int(value[k]) * q[k]
        lane = [fma(F(t), f32(q_scale[g] * scale[g]), s) for t, s in zip(total, lane)]
    return fold(lane)


def pack_nf4(codes):
    out = b""
    for piece in range(0, N_IN, 128):
        words = [0] * 16
        for j in range(8):
            for i in range(16):
                k = piece + 16 * (j // 2) + 64 * (j % 2) + i
                words[i] |= (codes[k] if k < N_IN else 7) << 4 * j
        out += b"".join(w.to_bytes(4, "little") for w in words)
    return out


def real(rng, size):
    return f32(F(rng.uniform(-size, size)))


def print_bytes(ctype, name, data):
    print("static const %s %s[] = {" % (ctype, name))
    for i in range(0, len(data), 24):
        print("\t" + " ".join("%d," % b for b in data[i:i + 24]))
    print("};\n")


def print_reals(name, data):
    print("static const float %s[] = {" % name)
    for i in range(0, len(data), 6):
        print("\t" + " ".join("%sf," % float(v).hex() for v in data[i:i + 6]))
    print("};\n")


def main():
    rng = random.Random(11)
    x = [[real(rng, 2) for _ in range(N_IN)] for _ in range(N_ROWS)]
    for k in range(64, 128):
        x[1][k] = F(0)  # a block of zeros
    int8 = [[rng.randint(-128, 127) for _ in range(N_IN)] for _ in range(N_OUT)]
    codes = [[rng.randint(0, 15) for _ in range(N_IN)] for _ in range(N_OUT)]
    scale = [abs(real(rng, 1)) for _ in range(N_OUT * GROUPS)]

    print("/* Made by quant_table.py. */")
    print("enum { QT_IN = %d, QT_OUT = %d, QT_ROWS = %d };\n" % (N_IN, N_OUT, N_ROWS))
    print_reals("qt_x", sum(x, []))
    print_bytes("int8_t", "qt_int8", sum(int8, []))
    print_bytes("uint8_t", "qt_nf4", b"".join(pack_nf4(c) for c in codes))
    print_reals("qt_scale", scale)

    int8 = [[F(v) for v in r] for r in int8]
    codes = [[NF4[c] for c in r] for r in codes]
    grouped = [scale[GROUPS * o:GROUPS * o + GROUPS] for o in range(N_OUT)]
    print_reals("qt_y_nf4", [dot_f32(v, s, r) for r in x for v, s in zip(codes, grouped)])
    # INT8 has one scale per output row: the first of those.
    for name, values, scales in (("row", int8, [[s] * GROUPS for s in scale[:N_OUT]]), ("nf4", codes, grouped)):
        print_reals("qt_y8_" + name, [dot_int8(v, s, r, values is codes) for r in x for v, s in zip(values, scales)])


main()
