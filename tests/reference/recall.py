#!/usr/bin/env python3
"""Recall of INT8 and NF4 shadows against transformers with weights that are quantised in the same way (shadow.py).

    build/reference/bin/python tests/reference/recall.py [--seed N] [--bin DIR] [FAMILY ...]

Texts are written greedily by the full model. At each token the shadow gets that token and the full model's keys and values of all
earlier ones (T1_KV1, departure late). With recurrent layers it has run the prompt itself and keeps its own recurrent state; its other
layers get the full model's keys and values of what came after the prompt. Recall is predicted-and-used experts over used experts, summed over texts, steps and layers
(OD-MoE, Eq. 2 and 3). With long RoPE a text ends at the original context, as in od-bench recall.
od-bench recall must agree to half a point."""
import argparse
import copy
import json
import random
import shutil
import sys
import tempfile

import torch

import shadow
from checkpoint import plain
from families import FAMILIES
from random_case import Case, some_text
from reference_model import Routes, border, load

POINT = 0.005
TEXTS, PROMPT, TOKENS = 12, 24, 64


class Aligned:
    """What a shadow starts a token from."""

    def __init__(self, model, prompt, full):
        self.model, self.fixed = model, "linear_attention" in (getattr(model.config, "layer_types", None) or [])
        self.cache = model(prompt, use_cache=True).past_key_values if self.fixed else copy.deepcopy(full)

    def run(self, token):
        self.model(token, past_key_values=self.cache, use_cache=True)

    def align(self, full):
        """After the token: the full model's cache has it too."""
        if not self.fixed:
            self.cache = copy.deepcopy(full)
            return
        for kind, mine, its in zip(self.model.config.layer_types, self.cache.layers, full.layers):
            if kind == "full_attention":
                mine.keys[:, :, -1:], mine.values[:, :, -1:] = its.keys[:, :, -1:], its.values[:, :, -1:]


@torch.no_grad()
def count(case, shadows, texts):
    """{precision: (used, recalled)} of all texts."""
    full, n = case.model, case.model.config.num_hidden_layers
    sums = {p: [0, 0] for p in shadows}
    for text in texts:
        prompt = torch.tensor([case.tokenizer.encode(text).ids])
        out = full(prompt, use_cache=True)
        aligned = {p: Aligned(model, prompt, out.past_key_values) for p, (model, _) in shadows.items()}
        for _ in range(min(TOKENS, border(full) - prompt.shape[1] + 1) - 1):
            token = out.logits[:, -1:].argmax(-1)
            predicted = {}
            for precision, (_, routes) in shadows.items():
                aligned[precision].run(token)
                predicted[precision] = [set(layer[0][0]) for layer in routes.rows(n)]
            out = full(token, past_key_values=out.past_key_values, use_cache=True)
            for a in aligned.values():
                a.align(out.past_key_values)
            for i, layer in enumerate(case.routes.rows(n)):
                for precision, sets in predicted.items():
                    sums[precision][0] += len(layer[0][0])
                    sums[precision][1] += len(sets[i] & set(layer[0][0]))
    return sums


def check(family, seed, folder, bin_dir):
    case = Case(family, seed, folder, bin_dir)
    texts = [some_text(case.tokenizer, PROMPT, case.rng) for _ in range(TEXTS)]
    path, shadows = case.path + ".prompts", {}
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(dict(name=str(i), text=t)) + "\n" for i, t in enumerate(texts))
    for precision in shadow.HOW:
        assert shadow.write(plain(case.path), precision, case.path + "-" + precision) > 0
        model = load(case.path + "-" + precision)
        shadows[precision] = model, Routes(model, case.cfg)
    found = json.loads(case.run("od-bench", "recall", "--pack", case.pack, "--prompts", path, "--tokens", TOKENS, "--precision",
                                ",".join(shadows), "--departure", "late", "--json").stdout)
    good = True
    for precision, (used, recalled) in count(case, shadows, texts).items():
        c = next(c for c in found["configurations"] if c["configuration"] == precision + " T1_KV1")
        same = c["predicted_uses"] == used and abs(c["recalled_uses"] / used - recalled / used) <= POINT
        good = good and same
        print(f"{'ok' if same else 'FAILS':6} {family} {seed} {precision}: {100 * recalled / used:.3f} % of {used} uses, od-bench "
              f"{100 * c['recall']:.3f} % of {c['predicted_uses']}", flush=True)
    return good


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    a.add_argument("--bin", default="build/bin")
    a.add_argument("family", nargs="*")
    a = a.parse_args()
    print(f"seed {a.seed}", flush=True)
    folder = tempfile.mkdtemp(prefix="od-recall-")
    try:
        good = [check(family, a.seed, folder, a.bin) for family in a.family or FAMILIES]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
