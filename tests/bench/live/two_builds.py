#!/usr/bin/env python3
"""Two builds of od-moe in turns, say of two commits: the ratio of their speeds, pair by pair.

    two_builds.py --old DIR --new DIR --checkpoint DIR [--case NAME,...] [--threads 1,2] [--pairs 21] [--arg=--cpu --arg=avx2]

DIR of a build holds its programs; each makes its own pack, for their formats may differ. Cases: decode (resident, 400
tokens), prefill (resident, 512 tokens of a prompt), local (decoding with --local 4), first-4, first-1 (time to the first token
of 512, with --local 4 and with --local 1 and one slot), load (od-bench load). Each line has the median of new / old, above 1
when the new build is faster, and its 95 % interval (bootstrap over pairs). Tokens of the two must be equal."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

WORDS = "the old man said that she was".split()
LOCAL = ["--local", "4"]
ONE_SLOT = ["--local", "1", "--predictor", "none", "--worker-arg", "--slots=1"]
CASES = {  # options, words of the prompt, tokens, what counts
    "decode": (["--resident"], 4, 400, "decode"),
    "prefill": (["--resident"], 512, 1, "prefill"),
    "local": (LOCAL, 4, 200, "decode"),
    "first-4": (LOCAL, 512, 1, "prefill"),
    "first-1": (ONE_SLOT, 512, 1, "prefill"),
}


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def generate(build, pack, case, profile, threads, more):
    options, words, tokens, what = CASES[case]
    if "--worker-arg" in options and "--worker-arg" not in output_of([os.path.join(build, "od-main"), "--help"]):
        options = [*options[:-2], "--slots", "1"]  # up to c23ab9a
    if "--local" in options and "--draft" in output_of([os.path.join(build, "od-main"), "--help"]):
        options = [*options, "--draft", "off"]  # a step of one token, as in builds without drafts
    prompt = " ".join(WORDS[i % len(WORDS)] for i in range(words))
    said = json.loads(output_of([os.path.join(build, "od-main"), *options, "--pack", pack, "--prompt", prompt, "--temperature", "0",
                                 "--max-tokens", str(tokens), "--ignore-eos", "--threads", str(threads), "--profile", profile,
                                 "--json", *more]).splitlines()[-1])
    speed = said["tok_per_s"] if what == "decode" else said["prompt_tokens"] / said["prefill_s"]
    return {(case, profile, threads): speed}, said["token_ids"]


def load(build, pack, threads):
    said = json.loads(output_of([os.path.join(build, "od-bench"), "load", "--pack", pack, "--source", "cache,paced", "--pace",
                                 "3.5GB/s,25GB/s", "--load-threads", ",".join(map(str, threads)), "--rounds", "3", "--json"]))
    return {("load", f"{x['source']} as {x['form']}", x["load_threads"]): x["published_gbps"] for x in said["loads"]}, None


def pairs_of(args, measure):
    ratios, seen = {}, {}
    for i in range(args.pairs):
        got = {}
        for which in ("old", "new") if i % 2 else ("new", "old"):
            got[which], tokens = measure(which)
            if seen.setdefault("tokens", tokens) != tokens:
                sys.exit(f"the {which} build has other tokens")
        for key, speed in got["new"].items():
            ratios.setdefault(key, []).append(speed / got["old"][key])
            seen.setdefault(key, []).append(speed)
    for key, r in ratios.items():
        boot = sorted(statistics.median(random.choices(r, k=len(r))) for _ in range(4000))
        print(f"{key[0]:8} {key[1]:22} threads {key[2]}   new / old {statistics.median(r):.3f} ({boot[100]:.3f} to {boot[3899]:.3f})"
              f"   new {statistics.median(seen[key]):.1f} {'GB/s' if key[0] == 'load' else 'tok/s'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--case", default=",".join(CASES) + ",load")
    parser.add_argument("--profile", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--arg", action="append", default=[], help="passed to od-main as it is")
    args = parser.parse_args()
    build = {"old": args.old, "new": args.new}
    threads = [int(t) for t in args.threads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        pack = {which: os.path.join(folder, which) for which in build}
        for which in build:
            output_of([os.path.join(build[which], "od-pack"), args.checkpoint, pack[which]])
        for case in args.case.split(","):
            if case == "load":
                pairs_of(args, lambda w: load(build[w], pack[w], threads))
                continue
            if case not in CASES:
                sys.exit(f"case: expected some of {', '.join(CASES)}, load, found {case}")
            for profile in args.profile.split(","):
                for t in threads:
                    pairs_of(args, lambda w: generate(build[w], pack[w], case, profile, t, args.arg))


if __name__ == "__main__":
    main()
