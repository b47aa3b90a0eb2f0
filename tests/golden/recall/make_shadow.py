#!/usr/bin/python3
"""Writes shadow.json beside this file: what quantised copies of talebook must foresee, by precision and alignment, for the
first prompts of tests/bench/prompts.jsonl (Debian: apt install python3-torch). tests/integ/test_bench_recall.py compares
od-bench recall with it.

Both models run here in float32 PyTorch; weights are quantised from the definitions in docs/PACK-FORMAT.md and widened
again. Alignment is written down from its definition (main-node/cluster/shadow_link.h), on whole lists of keys and values. Nothing
shares code with the product.
"""
import copy
import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../predict"))
from make_rivals import Model  # noqa: E402

PROMPTS, TOKENS = 3, 24
ALIGN = ["T1_KV1", "T1_KV3", "T1_KV0", "T2_KV1", "T0_KV1", "T3_KV2", "T0_KV0"]
NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                    0.7229568362236023, 1.0])


def int8(w):
    scale = w.abs().amax(-1, keepdim=True) / 127
    code = torch.where(scale > 0, w / scale, torch.zeros(())).round().clamp(-127, 127)  # round: half to even
    return code * scale


def nf4(w):
    out, width = w.shape
    b = torch.nn.functional.pad(w, (0, -width % 64)).view(out, -1, 64)
    scale = b.abs().amax(-1, keepdim=True)
    x = torch.where(scale > 0, b / scale, torch.zeros(()))
    code = (x[..., None] - NF4).abs().argmin(-1)
    return (NF4[code] * scale).view(out, -1)[:, :width]


QUANTISE = {
    "bf16": lambda w: w,
    "fp16": lambda w: w.half().float(),
    "int8": int8,
    "nf4": nf4,
}


def quantised(true, experts, dense):
    shadow = copy.copy(true)
    shadow.w = {}
    for name, w in true.w.items():
        f = QUANTISE[experts if ".experts." in name else dense if "self_attn." in name else "bf16"]
        shadow.w[name] = f(w)
    return shadow


def chosen(seen):
    """Per layer the two experts of the greatest probabilities, best first."""
    return [sorted(range(len(p)), key=lambda e: (-p[e], e))[:2] for _, p, _ in seen[0][1]]


def same_past(past):
    return [([torch.cat(k)], [torch.cat(v)]) for k, v in past]


def true_run(true, ids):
    """Tokens, and per position from the prompt's end on what the routers chose; the past after each of these."""
    true.forget()
    logits, _ = true.step(ids)
    tokens, routes, pasts = [], [], [same_past(true.past)]
    while True:
        tokens.append(int(logits.argmax()))
        if tokens[-1] == true.cfg["eos_token_id"] or len(tokens) == TOKENS:
            return tokens, routes, pasts
        logits, seen = true.step(tokens[-1:])
        routes.append(chosen(seen))
        pasts.append(same_past(true.past))


def foreseen(shadow, ids, tokens, pasts, t, kv):
    """What the shadow's routers choose in each step, aligned every t and every kv steps."""
    shadow.forget()
    if kv > 0:
        shadow.past, shadow.length = copy.deepcopy(pasts[0]), len(ids)
    else:
        shadow.step(ids)
    own, said = None, []
    for n in range(1, len(tokens)):
        given = (n - 1) % t == 0 if t > 0 else n == 1
        logits, seen = shadow.step([tokens[n - 1] if given else own])
        said.append(chosen(seen))
        own = int(logits.argmax())
        if kv > 0 and n % kv == 0:
            shadow.past = copy.deepcopy(pasts[n])
    return said


def digits(steps):
    """Experts of a step's layers, two digits a layer."""
    return ["".join(str(e) for experts in layers for e in experts) for layers in steps]


def main():
    torch.manual_seed(0)
    true = Model()
    with open(os.path.join(HERE, "../../bench/prompts.jsonl")) as f:
        prompts = [json.loads(line) for line in f][:PROMPTS]
    runs = [true_run(true, p["ids"]) for p in prompts]
    out = {"tokens": TOKENS, "align": ALIGN,
           "prompts": [{"name": p["name"], "tokens": r[0], "used": digits(r[1])} for p, r in zip(prompts, runs)],
           "shadows": {}}
    for name in "int8", "nf4", "nf4+bf16":
        experts, dense = (name + "+" + name).split("+")[:2]
        shadow = quantised(true, experts, dense)
        for align in ALIGN:
            t, kv = (int(x) for x in align[1:].split("_KV"))
            said = [foreseen(shadow, p["ids"], r[0], r[2], t, kv) for p, r in zip(prompts, runs)]
            out["shadows"][f"{name} {align}"] = [digits(s) for s in said]
            hits = sum(len(set(a) & set(b)) for s, r in zip(said, runs) for x, y in zip(s, r[1])
                       for a, b in zip(x, y))
            uses = sum(2 * len(y) for r in runs for y in r[1])
            print(name, align, hits, uses, hits / uses, flush=True)
    with open(os.path.join(HERE, "shadow.json"), "w") as f:
        json.dump(out, f, indent=0)


if __name__ == "__main__":
    main()
