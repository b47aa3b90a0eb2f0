"""A random checkpoint of a family, its pack, and texts that transformers continued: what the comparisons start from."""
import json
import os
import random
import subprocess

import torch

import publish
from checkpoint import TEXT, TYPES, dump, plain, write_checkpoint
from families import FAMILIES
from reference_model import Routes, generate, load, read_config, write_entry

TOKENS, TOLERANCE = 64, 1e-4
LENGTHS = 1, 17, 300, 5, 40, 121  # the last three fill up batches
ROUTE_TIE, TOKEN_TIE = 1e-5, 1e-3  # od-bench conform's
WORDS = TEXT.split()


def some_text(t, length, rng):
    """Text that becomes so many tokens, BOS among them if there is one."""
    while True:
        text = " ".join(rng.choice(WORDS) for _ in range(length))
        ids = t.encode(text, add_special_tokens=False).ids[:length - len(t.encode("").ids)]
        text = t.decode(ids)
        if len(t.encode(text).ids) == length:
            return text


def clear(found):
    """How far the nearest tie is away, in ties; below 1 there is one."""
    e = found[0]
    routes = [m for layer in e["route_margin_prefill"] for m in layer] + [m for step in e["route_margin_decode"] for m in step]
    return min(min(routes) / ROUTE_TIE, min(e["margins"]) / TOKEN_TIE)


def some_prompt(t, model, routes, length, rng, tokens=TOKENS):
    """The first of some texts without a tie, else the one whose nearest tie is widest."""
    best = None
    for _ in range(1 if length == 1 else 8):
        text = some_text(t, length, rng)
        found = generate(model, routes, t.encode(text).ids, tokens)
        if best is None or clear(found) > clear(best[1]):
            best = text, found
        if clear(found) >= 2:
            break
    return best


class Case:
    """Everything follows from the family's name and the seed."""

    def __init__(self, family, seed, folder, bin_dir, dtype=None):
        self.family, self.bin = family, bin_dir
        self.rng = random.Random(f"{family} {seed}")
        cfg = FAMILIES[family].draw(self.rng)
        spec = dict(cfg=cfg, seed=self.rng.randrange(1 << 31), dtype=self.rng.choice(sorted(TYPES)), shards=self.rng.choice([1, 3]))
        if hasattr(FAMILIES[family], "one_by_one"):
            spec["one_by_one"] = self.rng.random() < 0.5
        if dtype:
            spec["dtype"] = dtype
        elif "quantization_config" not in cfg and self.rng.random() < 0.4:
            spec["published"] = self.rng.choice(sorted(publish.HOW))
        self.path = os.path.join(folder, f"{family}-{seed}")
        self.pack, self.golden = self.path + ".pack", os.path.join(self.path, "golden")
        self.tokenizer, self.ends = write_checkpoint(spec, self.path)
        self.cfg, self.dtype = read_config(self.path), spec.get("published", spec["dtype"])
        self.run("od-pack", self.path, self.pack, "--shadow", "int8,nf4")
        self.model = load(plain(self.path))
        self.routes = Routes(self.model, self.cfg)

    def write_golden(self, lengths=LENGTHS, tokens=TOKENS):
        os.makedirs(self.golden)
        self.entries = []
        for n in lengths:
            text, found = some_prompt(self.tokenizer, self.model, self.routes, n, self.rng, tokens)
            self.entries.append(write_entry(self.golden, f"p{n}", text, TOLERANCE, found, ("logits", "decode_logits"),
                                            self.tokenizer))
        dump(os.path.join(self.golden, "golden.json"), self.entries)

    def run(self, name, *args, ok=True, env={}):
        p = subprocess.run([os.path.join(self.bin, name), *map(str, args)], capture_output=True, text=True, timeout=600,
                           env=dict(os.environ, **env))
        if ok and p.returncode != 0:
            raise AssertionError(f"{name} {' '.join(map(str, args))}: {p.stderr.strip()}")
        return p

    def texts(self, prompts, *args, env={}):
        """od-main's answers to objects with "prompt", in their order."""
        path = self.path + ".jsonl"
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(p) + "\n" for p in prompts)
        p = self.run("od-main", "--pack", self.pack, "--prompts", path, "--json", "--ignore-eos", *args, env=env)
        found = {o["index"]: o for o in map(json.loads, p.stdout.split("\n")[:-1])}
        return [found[i + 1] for i in range(len(prompts))]
