#!/usr/bin/env python3
"""Writes sampler.json: logits, options, and what numpy makes of them, by definition and without any shortcut.

Each case has the distribution after all filters, and the first tokens that a seed gives: xoshiro256++ seeded by
splitmix64, 53 bits to [0, 1), candidates in order (best first where top-k or top-p sorts them, else highest id
first). Needs numpy."""
import json
import os

import numpy as np

M = (1 << 64) - 1


def splitmix(seed):
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & M
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
        yield z ^ (z >> 31)


def uniform(seed):
    g = splitmix(seed)
    s = [next(g) for _ in range(4)]
    rot = lambda v, n: ((v << n) | (v >> (64 - n))) & M
    while True:
        out = (rot((s[0] + s[3]) & M, 23) + s[0]) & M
        t = (s[1] << 17) & M
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rot(s[3], 45)
        yield (out >> 11) / (1 << 53)


def distribution(logits, o, recent):
    """Probabilities by definition, and the order in which a draw goes through the candidates."""
    x = logits.astype(np.float64)
    n = len(x)
    w = o["repetition_window"]
    for t in set(t for t in (recent[-w:] if w else recent)):
        x[t] = np.float32(x[t] / o["repetition_penalty"] if x[t] > 0 else x[t] * o["repetition_penalty"])
    order = sorted(range(n), key=lambda i: (-x[i], i))
    if o["temperature"] == 0:
        p = np.zeros(n)
        p[order[0]] = 1
        return p, order
    p = np.exp((x - x.max()) / o["temperature"])
    sorts = 0 < o["top_k"] < n or o["top_p"] < 1
    keep = set(order[: o["top_k"]] if o["top_k"] else order)
    p = np.array([p[i] if i in keep else 0 for i in range(n)])
    p /= p.sum()
    if o["top_p"] < 1:
        before, nucleus = 0.0, set()
        for rank, i in enumerate(order):
            if rank > 0 and before >= o["top_p"]:
                break
            nucleus.add(i)
            before += p[i]
        p = np.array([p[i] if i in nucleus else 0 for i in range(n)])
    p[p < o["min_p"] * p.max()] = 0
    return p / p.sum(), order if sorts else list(range(n - 1, -1, -1))


def tokens(p, order, seed, count):
    out = []
    u = uniform(seed)
    for _ in range(count):
        x, pick = next(u), None
        for i in order:
            if p[i] > 0:
                pick = i
                x -= p[i]
                if x < 0:
                    break
        out.append(int(pick))
    return out


def main():
    rng = np.random.default_rng(17)
    base = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, repetition_window=0)
    variants = [
        {}, {"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 1}, {"top_k": 5},
        {"top_k": 1000}, {"top_p": 0.7}, {"top_p": 0.0}, {"top_p": 0.95, "temperature": 1.5}, {"min_p": 0.1},
        {"top_k": 8, "top_p": 0.8, "min_p": 0.2, "temperature": 1.3},
        {"repetition_penalty": 1.8}, {"repetition_penalty": 0.6, "repetition_window": 3},
        {"repetition_penalty": 2.0, "repetition_window": 2, "top_k": 4, "temperature": 0.8},
    ]
    cases = []
    for i, v in enumerate(variants):
        o = dict(base, **v)
        n = 12 + 5 * (i % 4)
        logits = rng.normal(0, 2, n).astype(np.float32)
        if i % 3 == 2:  # ties
            logits[n // 2] = logits[1] = logits.max()
        recent = [int(t) for t in rng.integers(0, n, 6)]
        recent[-1] = int(np.argmax(logits))
        p, order = distribution(logits, o, recent)
        seed = 1000003 * i + 7
        cases.append(dict(options=o, seed=seed, logits=[float(x) for x in logits], recent=recent,
                          probabilities=[round(float(x), 12) for x in p], tokens=tokens(p, order, seed, 40)))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampler.json")
    with open(path, "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


main()
