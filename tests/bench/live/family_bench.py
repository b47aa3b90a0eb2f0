#!/usr/bin/env python3
"""Decoding of every family's published layer shapes against memory bandwidth.

    family_bench.py --bin DIR [--dir DIR] [--runs 5] [--threads 1] [--profile f32] [FAMILY ...]

For each family: od-bench synth writes a checkpoint with the real shape of a layer, few layers and as many experts as fit (SHAPES),
od-pack packs it, and od-bench decode measures what a token reads against the memory bandwidth read in turns with it. Checkpoint and
pack (up to 12 GB together) are deleted when they have been measured. Status 1: a family below 0.80."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

BOUND = 0.80
# Of the first layers some are dense in DeepSeek-V2, V3 and GLM; Qwen3-Next, Qwen3.5 and Gemma 4 mix two kinds of layers.
SHAPES = {
    "mixtral": (2, None), "qwen3_moe": (4, None), "qwen2_moe": (4, None), "olmoe": (4, None), "deepseek_v2": (4, None),
    "deepseek_v3": (5, 32), "glm4_moe": (4, 64), "glm4_moe_lite": (4, None), "minimax_m2": (2, 128), "phimoe": (2, None),
    "gpt_oss": (8, None), "qwen3_next": (4, 128), "qwen3_5_moe": (4, 128), "gemma4": (6, 32),
}


def run(*args):
    p = subprocess.run(list(map(str, args)), capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}\n{p.stderr}")
    return p.stdout


def measure(o, family):
    layers, experts = SHAPES[family]
    where = tempfile.mkdtemp(dir=o.dir, prefix="od-family-")
    checkpoint, pack = os.path.join(where, "checkpoint"), os.path.join(where, "pack")
    try:
        run(os.path.join(o.bin, "od-bench"), "synth", checkpoint, "--family", family, "--layers", layers,
            *(["--experts", experts] if experts else []))
        run(os.path.join(o.bin, "od-pack"), checkpoint, pack, "--shadow", "none")
        shutil.rmtree(checkpoint)
        return json.loads(run(os.path.join(o.bin, "od-bench"), "decode", "--pack", pack, "--resident", "--threads", o.threads, "--profile",
                              o.profile, "--prompt-tokens", 16, "--tokens", 48, "--runs", o.runs, "--temperature", 0, "--json"))
    finally:
        shutil.rmtree(where, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--dir")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--profile", default="f32")
    p.add_argument("family", nargs="*", choices=[*SHAPES, []])
    o = p.parse_args()
    good = True
    print("| family | layers | experts | MiB a token | tok/s | weights, GB/s | memory, GB/s | share |\n|---|---|---|---|---|---|---|---|")
    for family in o.family or SHAPES:
        d = measure(o, family)
        share = sorted(r["resident_tok_per_s"] * d["weight_bytes_per_token"] / r["membw_gbps"] / 1e9 for r in d["by_run"])
        print(f"| {family} | {SHAPES[family][0]} | {SHAPES[family][1] or 'all'} | {d['weight_bytes_per_token'] / 2**20:.0f} | "
              f"{d['resident_tok_per_s']:.1f} | {d['weights_gbps']:.1f} | {d['membw_gbps']:.1f} | **{d['share']:.2f}** "
              f"({share[0]:.2f} to {share[-1]:.2f}) |", flush=True)
        good = good and d["share"] >= BOUND
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
