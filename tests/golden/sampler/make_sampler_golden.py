#!/usr/bin/env python3
"""Writes sampler.json: logits, options, and what numpy makes of them, by definition and without any shortcut.

Each case has the distribution after all filters, the first tokens that a seed gives, and their margins. The first `prompt`
tokens of `recent` are the prompt's, the others were chosen. A draw is an
exponential race: for draw d, token i has the number u_i, and the smallest -log(u_i) / p_i wins. u_i comes from number i of
the splitmix64 stream whose first state is number d of a stream that the seed gives. Needs numpy."""
import json
import os

import numpy as np

M = (1 << 64) - 1


def splitmix(state, i):
    """Number i, from 0, of the stream whose first state is `state`."""
    z = (state + i * 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def uniform(seed, draw, n):
    """n numbers in (0, 1): 52 bits, and a half."""
    stream = splitmix(splitmix(seed, 1), draw)
    return np.array([(2 * (splitmix(stream, i) >> 12) + 1) / (1 << 53) for i in range(n)])


def subtract_penalties(x, o, chosen):
    """OpenAI's definition, in float32 as vLLM computes it, of the tokens that were chosen."""
    f, p = np.float32(o.get("frequency_penalty", 0)), np.float32(o.get("presence_penalty", 0))
    for t in set(chosen):
        x[t] = np.float32(x[t]) - f * np.float32(chosen.count(t))
        x[t] = np.float32(x[t]) - p


def distribution(logits, o, recent, prompt):
    """Probabilities by definition, and the logits after bias and penalties."""
    x = logits.astype(np.float64)
    n = len(x)
    for t, bias in o.get("logit_bias", []):
        x[t] = np.float32(x[t]) + np.float32(bias)
    w = o["repetition_window"]
    for t in set(t for t in (recent[-w:] if w else recent)):
        x[t] = np.float32(x[t] / o["repetition_penalty"] if x[t] > 0 else x[t] * o["repetition_penalty"])
    subtract_penalties(x, o, recent[prompt:])
    order = sorted(range(n), key=lambda i: (-x[i], i))
    if o["temperature"] == 0:
        p = np.zeros(n)
        p[order[0]] = 1
        return p, x
    p = np.exp((x - x.max()) / o["temperature"])
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
    return p / p.sum(), x


def draws(p, x, temperature, seed, count):
    """Tokens and margins. Greedy: the best logit less the second; else the distance of the first two times in logits."""
    tokens, margins = [], []
    for d in range(count):
        times = np.full(len(p), np.inf)
        times[p > 0] = -np.log(uniform(seed, d, len(p))[p > 0]) / p[p > 0]
        order = sorted(range(len(p)), key=lambda i: (times[i], i))
        if temperature == 0:
            order = sorted(range(len(p)), key=lambda i: (-x[i], i))
            margin = x[order[0]] - x[order[1]]
        else:
            margin = temperature * (np.log(times[order[1]]) - np.log(times[order[0]]))
        tokens.append(int(order[0]))
        margins.append(round(float(margin), 9) if np.isfinite(margin) else None)
    return tokens, margins


def main():
    rng = np.random.default_rng(17)
    base = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, repetition_window=0)
    variants = [
        {}, {"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 1}, {"top_k": 5},
        {"top_k": 1000}, {"top_p": 0.7}, {"top_p": 0.0}, {"top_p": 0.95, "temperature": 1.5}, {"min_p": 0.1},
        {"top_k": 8, "top_p": 0.8, "min_p": 0.2, "temperature": 1.3},
        {"repetition_penalty": 1.8}, {"repetition_penalty": 0.6, "repetition_window": 3},
        {"repetition_penalty": 2.0, "repetition_window": 2, "top_k": 4, "temperature": 0.8},
        {"frequency_penalty": 0.7}, {"presence_penalty": 1.3}, {"frequency_penalty": -0.9, "presence_penalty": 0.31},
        {"frequency_penalty": 0.1, "presence_penalty": -2.0, "temperature": 0.0},
        {"frequency_penalty": 2.0, "presence_penalty": 0.77, "temperature": 0.7, "top_k": 6},
        {"frequency_penalty": 0.33, "presence_penalty": 0.2, "repetition_penalty": 1.4, "top_p": 0.8},
        {"logit_bias": [[3, -100.0], [0, 1.7]]}, {"logit_bias": [[5, 100.0]], "temperature": 2.0},
        {"logit_bias": [[2, -100.0], [1, 0.1], [7, -1.25]], "temperature": 0.0},
        {"logit_bias": [[4, 3.3], [9, -2.2]], "repetition_penalty": 1.5, "frequency_penalty": 0.9, "presence_penalty": 0.6,
         "temperature": 0.9, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
        {"logit_bias": [[0, 1.5], [2, 2.5], [6, 2.0], [8, 1.0], [10, 3.0], [11, -1.0]], "repetition_penalty": 3.0},
        {"logit_bias": [[4, 6.6]], "repetition_penalty": 1.9, "frequency_penalty": 0.5, "presence_penalty": 0.4, "temperature": 0.0},
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
        prompt = 0
        if i >= 15:  # a token stands in both parts, two were chosen, one of them three times
            recent = [recent[-1], recent[0], recent[1], recent[-1], 4, recent[2], recent[-1], 4, recent[-1]]
            prompt = 2
        p, x = distribution(logits, o, recent, prompt)
        seed = 1000003 * i + 7
        chosen, margins = draws(p, x, o["temperature"], seed, 40)
        cases.append(dict(options=o, seed=seed, logits=[float(v) for v in logits], recent=recent,
                          **({"prompt": prompt} if prompt else {}),
                          probabilities=[round(float(v), 12) for v in p], tokens=chosen, margins=margins))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampler.json")
    with open(path, "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
