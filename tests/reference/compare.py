#!/usr/bin/env python3
"""od-moe against transformers, live: random checkpoints of every family with new settings each time.

    make check-reference                         all families, a new seed
    make check-reference SEED=7                  the same again
    build/reference/bin/python tests/reference/compare.py [--seed N] [--rounds N] [--bin DIR] [--keep DIR] [FAMILY ...]

For each checkpoint: prompts of 1, 17 and 300 tokens and three more, 64 greedy tokens each. Tokens, chosen experts, their weights and
logits (to 1e-4 of the row's largest) must be those of transformers, in one process and on three workers with a shadow, with
drafts, on the far device (tests/gpu/far_device.h), for several --prefill-rows, and with four texts at once while prompts come in."""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import traceback

import numpy as np

from families import FAMILIES
from random_case import ROUTE_TIE, TOKEN_TIE, TOKENS, TOLERANCE, Case

SHOWN = 8  # failures of a checkpoint


def settings(rng, bin_dir):
    """Where and how the model runs: arguments and environment."""
    far = {"OD_DEVICE": "cuda", "OD_CUDA_PLUGIN": os.path.abspath(os.path.join(bin_dir, "..", "lib", "libod_far.so"))}
    rows = lambda: rng.choice([2, 3, 7, 16, 63, 64, 65, 100])
    yield ("--resident",), {}
    yield ("--resident", "--prefill-rows", 1), {}
    yield ("--resident", "--prefill-rows", 128), far
    yield ("--resident", "--prefill-rows", rows()), {}
    yield ("--local", 3, "--threads", 1, "--prefill-rows", rows()), {}
    yield ("--local", 3, "--threads", 1, "--draft", 4, "--prefill-rows", 128), {}
    yield ("--local", 3, "--threads", 1, "--draft", 4, "--prefill-rows", rows()), far


def conform(case, args, env):
    """Problems, tokens compared, the worst logit error."""
    p = case.run("od-bench", "conform", "--golden", case.golden, "--pack", case.pack, "--json", *args, ok=False, env=env)
    if not p.stdout:
        return [p.stderr.strip()], 0, 0
    r = json.loads(p.stdout)
    bad = [f"{d['name']}: {d['where']}" for d in r.get("differences", []) if d["kind"] == "failure"]
    if p.returncode != 0 and not bad:
        bad = [p.stderr.strip()]
    return bad, sum(row["tokens_compared"] for row in r["prompts"]), r["max_logit_error"] or 0


def tie_before(e, i):
    """A choice of the reference that was nearly one of two, up to its i-th token."""
    routes = [m for layer in e["route_margin_prefill"] for m in layer] + [m for s in e["route_margin_decode"][:i] for m in s]
    return min(routes) < ROUTE_TIE or e["margins"][i] < TOKEN_TIE


def wrong_logprobs(found, e, case, n):
    """Log probabilities of the best tokens, as far as the tokens are equal, from the reference's logits."""
    logits = np.fromfile(os.path.join(case.golden, e["decode_logits_file"]), "<f4").reshape(e["decode_logits_shape"]).astype("f8")
    for i, t in enumerate(found["logprobs"][:n]):
        expected = logits[i] - np.log(np.exp(logits[i] - logits[i].max()).sum()) - logits[i].max()
        for token, x in t["top"]:
            if abs(x - expected[token]) > 2 * TOLERANCE * abs(logits[i]).max() and not tie_before(e, i):
                return [f"log probability {i} of token {token} is {x}, not {expected[token]}"]
    return []


def batch(case, args, env):
    """All texts, four at once: while some are written, prompts of others come in."""
    prompts = [{"prompt": e["prompt_text"], "max_tokens": TOKENS, "logprobs": 5} for e in case.entries for _ in range(2)]
    case.rng.shuffle(prompts)
    bad, n = [], 0
    for p, found in zip(prompts, case.texts(prompts, "--parallel", 4, "--temperature", 0, *args, env=env)):
        e = next(e for e in case.entries if e["prompt_text"] == p["prompt"])
        ids, want = found["token_ids"], e["greedy_ids"]
        same = next((i for i, (a, b) in enumerate(zip(ids, want)) if a != b), min(len(ids), len(want)))
        n += same
        if found["prompt_ids"] != e["prompt_ids"]:
            bad.append(f"{e['name']}: the prompt is encoded as {found['prompt_ids']}")
            continue
        bad += [f"{e['name']}, {' '.join(map(str, args))}: {x}" for x in wrong_logprobs(found, e, case, same)]
        if same < len(want) and not tie_before(e, same):
            bad.append(f"{e['name']}, {' '.join(map(str, args))}: token {same} is {ids[same:same + 1]}, not {want[same]}")
    return bad, n


def about(case):
    """The settings that differ from those of a checkpoint that was drawn otherwise."""
    left_out = "architectures", "initializer_range", "quantization_config"
    c = {k: v for k, v in case.cfg.items() if not isinstance(v, str) and k not in left_out}
    return f"{case.dtype} " + json.dumps(c)


def check(family, seed, folder, bin_dir, verbose):
    case = Case(family, seed, folder, bin_dir)
    case.write_golden()
    if verbose:
        print(f"  {about(case)}", flush=True)
    bad, tokens, worst, rng = [], 0, 0.0, random.Random(f"{family} {seed} settings")
    for args, env in settings(rng, bin_dir):
        b, n, error = conform(case, args, env)
        bad += [f"{' '.join([*env.values(), *map(str, args)])}: {x}" for x in b]
        tokens, worst = tokens + n, max(worst, error)
    for args, env in (((("--resident", "--prefill-rows", 16), {}), (("--local", 3, "--threads", 1, "--draft", 4), {}),
                       (("--local", 3, "--threads", 1, "--draft", "off", "--prefill-rows", 32), {}))):
        b, n = batch(case, args, env)
        bad, tokens = bad + b, tokens + n
    expected = len(case.entries) * TOKENS * (7 + 3 * 2)
    print(f"{'FAILS' if bad else 'ok':6} {family} {seed}: {tokens} of {expected} tokens compared, logits to {worst:.1e}", flush=True)
    if bad:
        print(f"  {about(case)}")
    for line in bad[:SHOWN]:
        print(f"  {line}")
    if len(bad) > SHOWN:
        print(f"  and {len(bad) - SHOWN} more")
    return not bad and tokens > expected / 2


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int)
    a.add_argument("--rounds", type=int, default=1, help="checkpoints of each family: seeds N, N + 1 ...")
    a.add_argument("--bin", default="build/bin")
    a.add_argument("--keep", help="leave checkpoints and goldens here")
    a.add_argument("--verbose", action="store_true")
    a.add_argument("family", nargs="*")
    a = a.parse_args()
    if set(a.family) - set(FAMILIES):
        sys.exit(f"no such family: {sorted(set(a.family) - set(FAMILIES))}; there are {list(FAMILIES)}")
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}: SEED={seed} repeats this", flush=True)
    folder = a.keep or tempfile.mkdtemp(prefix="od-reference-")
    failed = []
    for round_ in range(a.rounds):
        for family in a.family or FAMILIES:
            try:
                good = check(family, seed + round_, folder, a.bin, a.verbose)
            except Exception:
                traceback.print_exc()
                good = False
            failed += [] if good else [f"{family} {seed + round_}"]
    if not a.keep:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"failed: {', '.join(failed)}" if failed else "all equal")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
