#!/usr/bin/env python3
"""Writes rope_table.h: frequencies of rotary embeddings in double precision, for test_rope.c. YaRN is arXiv 2309.00071,
section 3.2, with the borders rounded to whole pairs as in DeepSeek's published code, or not, as in GPT-OSS: pairs that turn more than beta_fast
times within the original context keep their frequency, those of fewer than beta_slow turns are divided by the factor, and
between them a ramp mixes both. Run by hand (tests/unit/rope_table.py > tests/unit/rope_table.h); the output is committed."""
import math

# dims, theta, factor (0: plain), beta_fast, beta_slow, original context, borders between pairs
CASES = [
    (64, 1e4, 0, 0, 0, 0),
    (128, 1e6, 0, 0, 0, 0),
    (6, 500000.0, 0, 0, 0, 0),
    (64, 1e4, 40, 32, 1, 4096),  # DeepSeek-V2
    (128, 1e6, 4, 32, 1, 32768),  # Qwen3, as its model card has it for long texts
    (16, 5e5, 2.5, 24, 0.75, 1000),
    (8, 1e4, 8, 32, 1, 6),  # no pair between the borders
    (64, 1e4, 1, 32, 1, 4096),  # a factor that changes nothing
    (64, 150000.0, 32, 32, 1, 4096, True),  # GPT-OSS
    (16, 5e5, 2.5, 24, 0.75, 1000, True),
]


def frequencies(dims, theta, factor, fast, slow, original, between):
    plain = [math.exp(-2 * i / dims * math.log(theta)) for i in range(dims // 2)]
    if factor == 0:
        return plain

    def pair(turns):
        """Where a pair would stand that turns so often: original * theta^(-2i/dims) = 2 pi turns."""
        return dims / 2 * math.log(original / (2 * math.pi * turns)) / math.log(theta)

    low, high = (pair(fast), pair(slow)) if between else (math.floor(pair(fast)), math.ceil(pair(slow)))
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(dims // 2)]
    return [f * (1 - r) + f / factor * r for f, r in zip(plain, ramp)]


def main():
    print("/* Made by rope_table.py. */")
    print("static const struct {")
    print("\tuint32_t dims;\n\tdouble theta, factor, beta_fast, beta_slow;\n\tuint32_t original_ctx;\n\tbool between;\n\tdouble freq[64]; "
          "/* [dims / 2] */")
    print("} rope_table[] = {")
    for case in CASES:
        case = case if len(case) == 7 else (*case, False)
        freq = ["%.17g" % f for f in frequencies(*case)]
        print("\t{ %d, %.17g, %.17g, %.17g, %.17g, %d, %d,\n\t  { %s" % (*case, freq[0]), end="")
        for i, f in enumerate(freq[1:], 1):
            print(",%s%s" % ("\n\t    " if i % 4 == 0 else " ", f), end="")
        print(" } },")
    print("};")


if __name__ == "__main__":
    main()
