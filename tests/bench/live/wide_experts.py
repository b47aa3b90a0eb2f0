#!/usr/bin/env python3
"""Makes the experts of a small checkpoint wider, without another result: its routes, with experts as large as a disk's rate should count.

    wide_experts.py CHECKPOINT OUT [--times 16]

Each expert gets TIMES as many intermediate channels. New ones have weights of old ones in another order, and 2^-40 times as much of them in up_proj,
which is less than a float32 sum can hold: the model chooses the same experts and writes the same text. One file of Qwen3-MoE's names in BF16 (talebook-fine). Needs numpy (Debian: python3-numpy)."""
import argparse
import json
import os
import shutil

import numpy as np

SHIFT = 40


def read(path):
    """Every tensor of a safetensors file, as numbers of its dtype's size."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    head.pop("__metadata__", None)
    return {name: (t, np.frombuffer(data[slice(*t["data_offsets"])], np.uint8)) for name, t in head.items()}


def widen(name, matrix, times, rng):
    """matrix: BF16 as uint16. Old channels come first."""
    if name.endswith("down_proj.weight"):
        return np.concatenate([matrix, *(rng.permuted(matrix, axis=1) for _ in range(times - 1))], axis=1)
    more = np.concatenate([rng.permuted(matrix, axis=1) for _ in range(times - 1)])
    if name.endswith("up_proj.weight"):
        exponent = (more >> 7) & 0xff
        more = np.where(exponent > SHIFT, more - (SHIFT << 7), more & 0x8000).astype(np.uint16)
    return np.concatenate([matrix, more])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint")
    p.add_argument("out")
    p.add_argument("--times", type=int, default=16)
    a = p.parse_args()
    rng, head, parts, at = np.random.default_rng(1), {}, [], 0
    for name, (t, data) in read(os.path.join(a.checkpoint, "model.safetensors")).items():
        if ".experts." in name:
            matrix = widen(name, data.view(np.uint16).reshape(t["shape"]), a.times, rng)
            t["shape"], data = list(matrix.shape), np.ascontiguousarray(matrix).view(np.uint8).ravel()
        head[name] = {**t, "data_offsets": [at, at + data.nbytes]}
        parts.append(data)
        at += data.nbytes
    os.makedirs(a.out, exist_ok=True)
    for file in os.listdir(a.checkpoint):
        if file.endswith(".json") and file != "config.json":
            shutil.copy(os.path.join(a.checkpoint, file), a.out)
    with open(os.path.join(a.checkpoint, "config.json")) as f:
        config = json.load(f)
    config["moe_intermediate_size"] *= a.times
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    text = json.dumps(head).encode()
    with open(os.path.join(a.out, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for data in parts:
            f.write(data)


if __name__ == "__main__":
    main()
