#!/usr/bin/env python3
"""A part of the experts on one machine: od-bench residency on published layer shapes, as BF16 and as Q4_K_M.

    residency_shapes.py --llama-quantize PROGRAM [--bin DIR] [--dir DIR] [--budgets 10,22,33,44,60] [SHAPE ...]

For each shape: od-bench synth writes a checkpoint of few layers (SHAPES). It is measured as a pack (BF16, planes), and as a GGUF file that
llama.cpp's llama-quantize makes of it (Q4_K_M; without --llama-quantize this is left out). Files (up to 12 GB at a time) are deleted when
they have been measured. All reads go past the page cache."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "integ"))
import gguf_checkpoint as gg

# The experts of DeepSeek-V2-Lite, behind Mixtral's attention; Qwen1.5-MoE-A2.7B; Mixtral-8x7B.
SHAPES = {
    "deepseek-v2-lite": "--hidden 2048 --intermediate 1408 --experts 64 --top-k 6 --heads 16 --kv-heads 16 --vocab 32000 --layers 3",
    "qwen1.5-moe": "--family qwen2_moe --layers 2",
    "mixtral-8x7b": "--preset mixtral-8x7b --layers 1",
}


def run(*args):
    p = subprocess.run(list(map(str, args)), capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}\n{p.stderr[-4000:]}")
    return p.stdout


def write_gguf(checkpoint, path):
    """Writes a checkpoint as a file for llama.cpp, in its own types."""
    kv, tensors = gg.convert(checkpoint)
    kv["tokenizer.ggml.model"] = (gg.STRING, "no_vocab")
    gg.write_file(path, kv, tensors)


def quantised(o, checkpoint, where):
    """Q4_K_M of a checkpoint."""
    bf16, q4 = os.path.join(where, "bf16.gguf"), os.path.join(where, "q4_k_m.gguf")
    write_gguf(checkpoint, bf16)
    run(o.llama_quantize, bf16, q4, "Q4_K_M")
    os.remove(bf16)
    return q4


def measure(o, shape, form, path):
    r = json.loads(run(os.path.join(o.bin, "od-bench"), "residency", "--pack", path, "--budgets", o.budgets, "--tokens", o.tokens, "--runs",
                       o.runs, "--ctx-size", 512, "--read-mode", "direct", "--json"))
    if r["texts_with_other_tokens"]:
        sys.exit(f"{shape} {form}: {r['texts_with_other_tokens']} texts are not those of --resident")
    for b in r["by_budget"]:
        print(f"| {shape} {form} | {r['all_bytes'] / 2**20:.0f} MiB | {b['budget']:g} % | {b['tok_per_s']:.1f} | {b['to_resident']:.2f} | "
              f"{b['to_bound']:.2f} | {b['ttft_ms']:.0f} | {b['hits']:.0f} % | {b['bytes_per_token'] / 2**20:.1f} MiB | {b['disk_share']:.2f} | "
              f"{b['bytes'] or 0:.2f} | {b['belady_bytes'] or 0:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-quantize")
    p.add_argument("--bin", default="build/bin")
    p.add_argument("--dir")
    p.add_argument("--budgets", default="10,22,33,44,60")
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("shape", nargs="*", choices=[*SHAPES, []])
    o = p.parse_args()
    print("| shape | experts | budget | tok/s | of resident | of bound | first token, ms | hits | read a token | of the disk | read / best online | "
          "Belady |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    for shape in o.shape or SHAPES:
        where = tempfile.mkdtemp(dir=o.dir, prefix="od-shape-")
        checkpoint, pack = os.path.join(where, "checkpoint"), os.path.join(where, "pack")
        try:
            run(os.path.join(o.bin, "od-bench"), "synth", checkpoint, *SHAPES[shape].split())
            run(os.path.join(o.bin, "od-pack"), checkpoint, pack, "--shadow", "none")
            measure(o, shape, "BF16", pack)
            shutil.rmtree(pack)
            if o.llama_quantize:
                measure(o, shape, "Q4_K_M", quantised(o, checkpoint, where))
        finally:
            shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
