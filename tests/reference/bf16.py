#!/usr/bin/env python3
"""How the profile bf16 agrees with transformers in bfloat16: a table for each family.

    build/reference/bin/python tests/reference/bf16.py [--seed N] [--rounds N] [--bin DIR] [FAMILY ...]

Random BF16 checkpoints, texts of 300 tokens. At each position: is the most probable next token the same, and how far are the two
distributions apart (KL over the 20 most probable tokens of od-moe and the rest, in nats)? The same between transformers in
bfloat16 and in float32 shows how much of it is bfloat16 itself."""
import argparse
import math
import random
import shutil
import tempfile

import torch

from families import FAMILIES
from random_case import Case, some_text
from reference_model import load, whole

TEXTS, LENGTH, TOP = 4, 300, 20


def kl(top, reference):
    """Of od-moe's distribution from the reference's, its tokens beyond the best taken together."""
    p = [math.exp(x) for _, x in top]
    q = [math.exp(reference[i]) for i, _ in top]
    p, q = p + [max(1 - sum(p), 1e-12)], q + [max(1 - sum(q), 1e-12)]
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)


def best(row):
    """As od-moe tells it."""
    top = row.topk(TOP)
    return list(zip(top.indices.tolist(), top.values.tolist()))


def check(family, seed, folder, bin_dir):
    case = Case(family, seed, folder, bin_dir, dtype="BF16")
    half, texts = load(case.path, torch.bfloat16), [some_text(case.tokenizer, LENGTH, case.rng) for _ in range(TEXTS)]
    ask = [{"prompt": t, "max_tokens": 1, "temperature": 0, "logprobs": TOP, "prompt_logprobs": True} for t in texts]
    sums = {"ours, transformers": [0, 0.0], "ours, float32": [0, 0.0], "transformers, float32": [0, 0.0]}
    n = 0
    for text, told in zip(texts, case.texts(ask, "--resident", "--profile", "bf16")):
        ids = case.tokenizer.encode(text).ids
        assert told["prompt_ids"] == ids
        low, exact = (torch.from_numpy(whole(m, ids)).log_softmax(-1) for m in (half, case.model))
        for i, t in enumerate(told["logprobs"][1:]):
            for name, top, reference in (("ours, transformers", t["top"], low), ("ours, float32", t["top"], exact),
                                         ("transformers, float32", best(low[i]), exact)):
                sums[name][0] += top[0][0] == reference[i].argmax().item()
                sums[name][1] += kl(top, reference[i].tolist())
            n += 1
    return n, sums


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--bin", default="build/bin")
    a.add_argument("family", nargs="*")
    a = a.parse_args()
    print(f"seed {a.seed}\n\n| family | positions | od-moe as transformers, % | KL | od-moe as float32, % | KL | transformers as float32, % | KL |"
          "\n|---|---|---|---|---|---|---|---|")
    folder = tempfile.mkdtemp(prefix="od-bf16-")
    for family in a.family or FAMILIES:
        n, total = 0, {}
        for seed in range(a.seed, a.seed + a.rounds):
            m, sums = check(family, seed, folder, a.bin)
            n += m
            for name, (same, apart) in sums.items():
                total[name] = total.get(name, (0, 0.0))[0] + same, total.get(name, (0, 0.0))[1] + apart
        print(f"| {family} | {n} | " + " | ".join(f"{100 * s / n:.2f} | {d / n:.1e}" for s, d in total.values()) + " |", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
