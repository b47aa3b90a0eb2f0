#!/usr/bin/env python3
"""Writes llama.json: what llama.cpp's own samplers leave of logits, in the order of common/model/sampler.h.

usage: make_llama_golden.py LIBLLAMA.SO     (of llama-cpp-python 0.3.36, for one; no model is needed)

llama.cpp says which tokens are left, and at which temperature; weights are then computed in double precision. DRY, which
wants a vocabulary there, is computed by its definition without any shortcut. Draws, seeds and margins are those of
make_sampler_golden.py; XTC acts in a draw whose number of the id 2^32 - 1 is at most its probability. A logit of null is
minus infinity: such tokens are left out before all. Needs numpy."""
import ctypes
import json
import math
import os
import sys

import numpy as np

from make_sampler_golden import splitmix, uniform

DEFAULTS = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, top_n_sigma=-1.0, xtc_probability=0.0,
                xtc_threshold=0.1, dynatemp_range=0.0, dynatemp_exponent=1.0, dry_multiplier=0.0, dry_base=1.75,
                dry_allowed_length=2, dry_penalty_last_n=64)


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool)]


class Llama:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.POINTER(TokenDataArray)]
        self.lib.llama_sampler_free.argtypes = [ctypes.c_void_p]

    def apply(self, name, kinds, args, left):
        """A sampler made by llama_sampler_init_NAME, applied to {id: logit}. Minus infinity is left out."""
        init = getattr(self.lib, "llama_sampler_init_" + name)
        init.restype = ctypes.c_void_p
        init.argtypes = list(kinds)
        sampler = init(*args)
        data = (TokenData * len(left))(*[TokenData(i, x, 0) for i, x in left.items()])
        array = TokenDataArray(data, len(left), -1, False)
        self.lib.llama_sampler_apply(sampler, ctypes.byref(array))
        self.lib.llama_sampler_free(sampler)
        after = [array.data[i] for i in range(array.size)]
        return {d.id: d.logit for d in after if d.logit != -math.inf}

    def keep(self, name, kinds, args, left):
        """The tokens that it keeps, with the logits that they had."""
        kept = self.apply(name, kinds, args, left)
        return {i: left[i] for i in left if i in kept}


FLOAT, SIZE, INT, UINT = ctypes.c_float, ctypes.c_size_t, ctypes.c_int32, ctypes.c_uint32


def match_limit(text, breakers):
    """Tokens behind the last breaker: the one that begins last; of those that begin there the longest."""
    for start in range(len(text) - 1, -1, -1):
        fits = [len(b) for b in breakers if text[start:start + len(b)] == b]
        if fits:
            return len(text) - start - max(fits)
    return len(text)


def dry_penalties(o, recent, breakers):
    window = recent[-o["dry_penalty_last_n"]:] if o["dry_penalty_last_n"] else []
    allowed, n = o["dry_allowed_length"], len(window)
    limit = match_limit(window, breakers)
    longest = {}
    if o["dry_multiplier"] == 0 or n <= allowed or limit < allowed:
        return {}
    for end in range(n - 1):  # a place whose token is followed by another one
        match = 0
        while match < min(limit, end + 1) and window[end - match] == window[n - 1 - match]:
            match += 1
        if match >= allowed:
            longest[window[end + 1]] = max(longest.get(window[end + 1], 0), match)
    most = int(88.7228391 / math.log(o["dry_base"])) if o["dry_base"] > 1.000001 else 0
    return {t: np.float32(o["dry_multiplier"] * o["dry_base"] ** (min(m - allowed, most) if most else m - allowed))
            for t, m in longest.items() if [t] not in breakers}


def dynamic_temperature(o, left):
    low, high = max(0.0, o["temperature"] - o["dynatemp_range"]), o["temperature"] + o["dynatemp_range"]
    x = np.array(list(left.values()), dtype=np.float64)
    p = np.exp(x - x.max())
    p /= p.sum()
    part = float(-(p * np.log(p)).sum() / math.log(len(x))) if len(x) > 1 else 0.0
    return low + (high - low) * part ** o["dynatemp_exponent"]


def check_temperature(llama, o, left, temperature):
    """llama.cpp's temperature is ours, as far as floats tell."""
    after = llama.apply("temp_ext", [FLOAT] * 3, [o["temperature"], o["dynatemp_range"], o["dynatemp_exponent"]], left)
    if len(after) < 2:
        return
    high, low = max(left, key=left.get), min(left, key=left.get)
    assert abs((left[high] - left[low]) / (after[high] - after[low]) / temperature - 1) < 1e-4


def weights(left, temperature, n):
    p = np.zeros(n)
    if temperature == 0:
        p[min(left, key=lambda i: (-left[i], i))] = 1
        return p
    x = np.array(list(left.values()), dtype=np.float64)
    p[list(left)] = np.exp((x - x.max()) / temperature)
    return p / p.sum()


def distribution(llama, o, logits, recent, breakers, xtc):
    """Tokens that are left with their logits, and the temperature."""
    x = [np.float32(v) if v is not None else -np.inf for v in logits]
    for t, penalty in dry_penalties(o, recent, breakers).items():
        x[t] = np.float32(x[t]) - penalty
    left = {i: float(v) for i, v in enumerate(x) if v != -np.inf}
    left = llama.keep("top_n_sigma", [FLOAT], [o["top_n_sigma"]], left)
    late = o["typical_p"] < 1 or o["dynatemp_range"] > 0 or (o["xtc_probability"] > 0 and o["xtc_threshold"] <= 0.5)
    scaled = left
    if not late and o["temperature"] > 0:
        scaled = llama.apply("temp", [FLOAT], [o["temperature"]], left)
    if late or o["temperature"] > 0:
        scaled = llama.keep("top_k", [INT], [o["top_k"]], scaled)
        scaled = llama.keep("typical", [FLOAT, SIZE], [o["typical_p"], 0], scaled)
        scaled = llama.keep("top_p", [FLOAT, SIZE], [o["top_p"], 0], scaled)
        scaled = llama.keep("min_p", [FLOAT, SIZE], [o["min_p"], 0], scaled)
    if xtc:
        scaled = llama.keep("xtc", [FLOAT, FLOAT, SIZE, UINT], [1.0, o["xtc_threshold"], 0, 0], scaled)
    left = {i: left[i] for i in scaled}
    if o["dynatemp_range"] == 0:
        return left, o["temperature"]
    temperature = dynamic_temperature(o, left)
    check_temperature(llama, o, left, temperature)
    return left, temperature


def draw(left, temperature, p, seed, number):
    """Token and margin."""
    if temperature == 0:
        order = sorted(left, key=lambda i: (-left[i], i))
        return order[0], left[order[0]] - left[order[1]] if len(order) > 1 else None
    times = np.full(len(p), np.inf)
    times[p > 0] = -np.log(uniform(seed, number, len(p))[p > 0]) / p[p > 0]
    order = sorted(range(len(p)), key=lambda i: (times[i], i))
    margin = temperature * (np.log(times[order[1]]) - np.log(times[order[0]]))
    return int(order[0]), round(float(margin), 9) if np.isfinite(margin) else None


def make_case(llama, number, options, rng, recent, breakers, flat, holes):
    o = dict(DEFAULTS, **options)
    n = 150 if number % 6 == 5 else 12 + 5 * (number % 4)
    logits = [float(v) for v in rng.normal(0, 0.4 if flat else 2, n).astype(np.float32)]
    for hole in range(holes):
        logits[(3 * hole + number) % n] = None
    seed = 1000003 * number + 11
    recent = [t % n for t in recent]
    breakers = [[t % n for t in b] for b in breakers]
    both = [distribution(llama, o, logits, recent, breakers, xtc) for xtc in (False, True)]
    p = [weights(left, temperature, n) for left, temperature in both]
    share = o["xtc_probability"] if o["xtc_threshold"] <= 0.5 else 0.0
    tokens, margins = [], []
    for d in range(40):
        stream = splitmix(splitmix(seed, 1), d)
        acts = share > 0 and (2 * (splitmix(stream, (1 << 32) - 1) >> 12) + 1) / (1 << 53) <= share
        token, margin = draw(*both[acts], p[acts], seed, d)
        tokens.append(token)
        margins.append(margin)
    case = dict(options=o, seed=seed, logits=logits, recent=recent, prompt=len(recent) // 2,
                probabilities=[round(float(v), 12) for v in (1 - share) * p[0] + share * p[1]], tokens=tokens,
                margins=margins)
    if breakers:
        case["breakers"] = [v for b in breakers for v in [len(b)] + b]
    return case


SAMPLING = [
    {"top_n_sigma": 1.0}, {"top_n_sigma": 0.5, "temperature": 1.7}, {"top_n_sigma": 2.0, "top_p": 0.9},
    {"top_n_sigma": 1.5, "temperature": 0.0},
    {"typical_p": 0.9}, {"typical_p": 0.5, "temperature": 1.5}, {"typical_p": 0.2}, {"typical_p": 0.0},
    {"typical_p": 0.6, "top_k": 7, "top_p": 0.9}, {"typical_p": 0.4, "min_p": 0.5}, {"typical_p": 0.3, "temperature": 0.0},
    {"xtc_probability": 1.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 1.4},
    {"xtc_probability": 0.5, "xtc_threshold": 0.08}, {"xtc_probability": 0.3, "top_p": 0.8, "temperature": 2.0},
    {"xtc_probability": 0.6, "min_p": 0.1, "temperature": 0.6}, {"xtc_probability": 0.5, "top_k": 5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.51}, {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 0.7, "xtc_threshold": 0.06, "temperature": 0.0},
    {"dynatemp_range": 0.5}, {"dynatemp_range": 1.5, "dynatemp_exponent": 2.0}, {"dynatemp_range": 0.7, "temperature": 0.0},
    {"dynatemp_range": 0.4, "top_k": 6, "temperature": 0.8, "dynatemp_exponent": 0.5},
    {"dynatemp_range": 0.9, "top_p": 0.7, "min_p": 0.1, "temperature": 1.2}, {"dynatemp_range": 0.5, "top_k": 1},
    {"dynatemp_range": 0.3, "dynatemp_exponent": 0.0},
    {"top_n_sigma": 1.8, "typical_p": 0.85, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "xtc_probability": 0.5,
     "xtc_threshold": 0.12, "dynatemp_range": 0.6, "temperature": 0.9},
    {"top_n_sigma": 1.2, "dynatemp_range": 0.6},
]
DRY = {"dry_multiplier": 0.8}
REPEATS = [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 2, 3, 4, 9, 1, 2, 3]
TEXTS = [
    (DRY, REPEATS, []), (dict(DRY, temperature=0.0), REPEATS, []), (dict(DRY, dry_allowed_length=1), REPEATS, []),
    (dict(DRY, dry_allowed_length=3), REPEATS, []), (dict(DRY, dry_allowed_length=0), [3, 5, 3], []),
    (dict(DRY, dry_base=1.0), REPEATS, []), (dict(DRY, dry_multiplier=3.0, dry_base=4.0), [8] * 30, []),
    (dict(DRY, dry_penalty_last_n=8), REPEATS, []), (dict(DRY, dry_penalty_last_n=0), REPEATS, []),
    (DRY, REPEATS, [[2]]), (DRY, REPEATS, [[4]]), (DRY, REPEATS, [[9, 1], [6]]), (DRY, REPEATS, [[1, 2], [1], [7, 7]]),
    (dict(DRY, dry_allowed_length=1), REPEATS, [[9, 1, 2, 3]]), (DRY, REPEATS, [[3, 8]]),
    (dict(DRY, dry_allowed_length=1), REPEATS, [[1, 2, 3], [1, 2], [1, 2, 3, 9]]),
    (dict(DRY, dry_base=90.0, dry_multiplier=1.0), [8, 9] * 40, []), (DRY, [], []), (DRY, [4, 4], []),
    (dict(DRY, typical_p=0.7, xtc_probability=0.5, top_n_sigma=2.0, temperature=1.3), REPEATS, [[10]]),
]


def main():
    llama, rng = Llama(sys.argv[1]), np.random.default_rng(23)
    cases = [make_case(llama, i, o, rng, [], [], i % 2 == 1, i % 3) for i, o in enumerate(SAMPLING)]
    cases += [make_case(llama, i, o, rng, text, breakers, i % 3 == 0, 0) for i, (o, text, breakers) in enumerate(TEXTS)]
    for i in range(12):  # few different tokens: many repetitions
        text = [int(t) for t in rng.integers(0, 3, 40)]
        o = dict(DRY, dry_allowed_length=i % 4, dry_penalty_last_n=[64, 20][i % 2], dry_multiplier=0.3)
        cases.append(make_case(llama, i, o, rng, text, [[[], [[2, 2]], [[0, 1, 2], [1, 1, 1]]][i % 3]][0], False, 0))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama.json")
    with open(path, "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
