#!/usr/bin/env python3
"""Batches on one machine with less memory than the model, on published layer shapes: od-main beside llama.cpp with mmap, and policies.

    batch_shapes.py --llama-batched-bench PROGRAM --dir DIR [--bin DIR] [--parts batches,lengths,policies] [OPTIONS] [SHAPE ...]

ZipMoE (arXiv 2601.21198) measures time to the first token and between tokens by memory (its figure 7), throughput of 1, 4, 16 texts (8), latency
by output length (9) and policies of its cache (10). Here od-bench decode --memory and llama-batched-bench do the same in turns: all texts of a
batch begin together with random prompts. Both are in one control group (budget_bench.py: root, a memory controller), whose limit is a percentage
of the BF16 checkpoint, page cache included. The page cache is dropped before each process. policies replays the routes of the same batches
(od-bench cache) with as many experts kept as od-main kept, which batches has measured.

llama.cpp's page faults read as much as the block device's read_ahead_kb says: its speed depends on that, od-main's does not.

DIR keeps the files of a shape (4 GB: pack, GGUF, routes) and DIR/results.jsonl, so that a machine that others use can be measured in short pieces:
every call adds its rounds, and prints the tables of all of them."""
import argparse
import json
import os
import re
import shutil
import statistics

import budget_bench
from residency_shapes import SHAPES, run, write_gguf

CUT = "--layers 2 --vocab 32000"  # ends the options of a shape: the last one of a name counts
PROMPT_TOKENS = 16
PLANES = 10.72 / 16  # od-bench cache takes an expert as planes to be this part of BF16
POLICIES = {"lrfu": "LRFU (od-main)", "rank": "rank (ZipMoE)", "lru": "LRU", "marking": "Marking", "fifo": "FIFO", "belady": "Belady's oracle"}


class Files:
    """Holds a shape's pack, GGUF file and routes, which are made when they are missing."""

    def __init__(self, o, shape):
        self.shape, base = shape, os.path.join(o.dir, shape)
        self.pack, self.gguf, self.routes = base + ".pack", os.path.join(o.gguf_dir or o.dir, shape + ".gguf"), base + ".routes"
        if not os.path.exists(self.routes):
            self.make(o, base)
        self.weights = os.path.getsize(self.gguf)
        self.experts = os.path.getsize(os.path.join(self.pack, "experts.bin"))

    def make(self, o, checkpoint):
        od_bench = os.path.join(o.bin, "od-bench")
        run(od_bench, "synth", checkpoint, "--force", *SHAPES[self.shape].split(), *CUT.split())
        run(os.path.join(o.bin, "od-pack"), checkpoint, self.pack, "--shadow", "none", "--force")
        write_gguf(checkpoint, self.gguf)
        shutil.rmtree(checkpoint)
        run(od_bench, "cache", "--record", self.routes, "--pack", self.pack, "--limit", 4 * max(o.texts), "--prompt-tokens", PROMPT_TOKENS,
            "--tokens", o.tokens)


class Results:
    def __init__(self, path):
        self.path, self.rows = path, []
        if os.path.exists(path):
            with open(path) as f:
                self.rows = [json.loads(line) for line in f]

    def add(self, **row):
        self.rows.append(row)
        with open(self.path, "a") as f:
            print(json.dumps(row), file=f)

    def of(self, **keys):
        return [r for r in self.rows if all(r.get(k) == v for k, v in keys.items())]

    def values(self, key, **keys):
        """Lists one figure in the order of the rounds."""
        return [r[key] for r in self.of(**keys)]


# ---- Measuring ----

class Group:
    """Runs both programs under a limit; each returns {texts: figures}."""

    def __init__(self, o, files, percent):
        self.o, self.files, self.mib = o, files, int(files.weights * percent / 100) >> 20
        self.folder, limit = budget_bench.group_folder()
        budget_bench.write(os.path.join(self.folder, limit), str(self.mib << 20))

    def od_main(self, texts, tokens, seed):
        said, beside = budget_bench.run(self.folder, [
            os.path.join(self.o.bin, "od-bench"), "decode", "--pack", self.files.pack, "--memory", f"{self.mib}MiB", "--parallel",
            ",".join(map(str, texts)), "--prompt-tokens", str(PROMPT_TOKENS), "--tokens", str(tokens), "--runs", "1", "--seed", str(seed), "--ctx-size",
            str(PROMPT_TOKENS + tokens), "--draft", "off", "--json"])
        kept = re.search(r"experts: ([\d.]+) ([MG])iB of memory to keep them", beside)
        bytes_kept = float(kept[1]) * 2 ** (20 if kept[2] == "M" else 30) if kept else self.files.experts
        return {r["parallel"]: dict(ttft_ms=r["ttft_ms"], tpot_ms=1e3 * r["parallel"] / r["tok_per_s"], tok_per_s=r["tok_per_s"],
                                    s=r["parallel"] * tokens / r["wall_tok_per_s"], loads=r["loads_per_token"],
                                    kept=100 * min(bytes_kept / self.files.experts, 1)) for r in json.loads(said)["by_number"]}

    def llama(self, texts, tokens, _seed):
        said, _ = budget_bench.run(self.folder, [
            self.o.llama_batched_bench, "-m", self.files.gguf, "-t", str(os.cpu_count()), "-kvu", "-c", str(max(texts) * (PROMPT_TOKENS + tokens)),
            "-b", "256", "-ub", "256", "-npp", str(PROMPT_TOKENS), "-ntg", str(tokens - 1), "-npl", ",".join(map(str, texts)), "--output-format",
            "jsonl"])
        return {r["pl"]: dict(ttft_ms=1e3 * r["t_pp"], tpot_ms=1e3 * r["t_tg"] / r["tg"], tok_per_s=r["speed_tg"], s=r["t"])
                for r in map(json.loads, filter(lambda line: line.startswith("{"), said.splitlines()))}

    def both(self, results, part, texts, tokens, round_, llama_tokens, **keys):
        """Measures both systems; they take turns in being the first."""
        systems = [("od-main", self.od_main, tokens), ("llama.cpp", self.llama, llama_tokens)]
        for system, measure, n in systems[::1 if round_ % 2 else -1]:
            for number, figures in measure(texts, n, round_).items():
                results.add(part=part, shape=self.files.shape, system=system, texts=number, tokens=n, round=round_, **keys, **figures)

    def close(self):
        os.rmdir(self.folder)


def batches(o, files, results):
    for percent in o.limits:
        group = Group(o, files, percent)
        for _ in range(o.rounds):
            round_ = 1 + max(results.values("round", part="batches", shape=files.shape, limit=percent), default=0)
            group.both(results, "batches", o.texts, o.tokens, round_, o.llama_tokens, limit=percent, mib=group.mib)
        group.close()


def lengths(o, files, results):
    group = Group(o, files, o.length_limit)
    for n in o.lengths:
        group.both(results, "lengths", [1], n, 1, n, limit=o.length_limit, mib=group.mib)
    group.close()


def policies(o, files, results):
    limits = [p for p in o.limits if results.of(part="batches", shape=files.shape, limit=p, system="od-main")]
    kept = {p: statistics.median(results.values("kept", part="batches", shape=files.shape, limit=p, system="od-main")) for p in limits}
    for texts in o.texts:
        said = json.loads(run(os.path.join(o.bin, "od-bench"), "cache", "--routes", files.routes, "--batch", texts, "--budget",
                              ",".join(f"{PLANES * k:.4f}%" for k in kept.values()), "--json"))
        for i, row in enumerate(said["caches"]):
            percent = limits[i // (len(said["caches"]) // len(limits))]
            results.add(part="policies", shape=files.shape, limit=percent, texts=texts, policy=row["policy"], kept=kept[percent],
                        reads=row["missed_bytes_percent"] / 100, uses=said["uses"] / said["decode_steps"] / texts)


# ---- Tables ----

def ratio(results, key, keys):
    """Divides llama.cpp's figures by od-main's, round by round: median, least, most."""
    a, b = (results.values(key, **keys, system=s) for s in ("llama.cpp", "od-main"))
    x = [p / q for p, q in zip(a, b)]
    return f"**{statistics.median(x):.1f}** ({min(x):.1f} to {max(x):.1f})" if x else "-"


def table_of_batches(results, shapes):
    print("| shape | limit | experts kept | texts | od-main: first token, ms | between tokens, ms | tok/s | loads a token | llama.cpp: first token, ms "
          "| between tokens, ms | tok/s | first token, ratio | between tokens, ratio |\n" + "|---" * 13 + "|")
    for shape in shapes:
        found = results.of(part="batches", shape=shape)
        for limit, texts in sorted({(r["limit"], r["texts"]) for r in found}):
            keys = dict(part="batches", shape=shape, limit=limit, texts=texts)
            own, llama = ({k: statistics.median(results.values(k, **keys, system=s)) for k in ("ttft_ms", "tpot_ms", "tok_per_s")}
                          for s in ("od-main", "llama.cpp"))
            kept, loads = (statistics.median(results.values(k, **keys, system="od-main")) for k in ("kept", "loads"))
            print(f"| {shape} | {limit} %, {results.values('mib', **keys)[0]} MiB | {kept:.0f} % | {texts} | {own['ttft_ms']:.0f} | "
                  f"{own['tpot_ms']:.0f} | {own['tok_per_s']:.1f} | {loads:.2f} | {llama['ttft_ms']:.0f} | {llama['tpot_ms']:.0f} | "
                  f"{llama['tok_per_s']:.1f} | {ratio(results, 'ttft_ms', keys)} | {ratio(results, 'tpot_ms', keys)} |")


def table_of_lengths(results, shapes):
    numbers = sorted({r["tokens"] for r in results.of(part="lengths")})
    print(f"\n| shape | limit | latency of one text, s | {' | '.join(f'{n} tokens' for n in numbers)} |\n" + "|---" * (3 + len(numbers)) + "|")
    for shape in shapes:
        for limit, system in sorted({(r["limit"], r["system"]) for r in results.of(part="lengths", shape=shape)}, reverse=True):
            found = [results.values("s", part="lengths", shape=shape, limit=limit, system=system, tokens=n) for n in numbers]
            print(f"| {shape} | {limit} % | {system} | {' | '.join(f'{statistics.median(x):.1f}' if x else '-' for x in found)} |")


def table_of_policies(results, shapes):
    print("\n| shape | experts kept | texts | uses a token | od-main, measured | " + " | ".join(POLICIES.values()) + " |\n" + "|---" * (5 + len(POLICIES)) + "|")
    for shape in shapes:
        for limit, texts in sorted({(r["limit"], r["texts"]) for r in results.of(part="policies", shape=shape)}):
            keys = dict(shape=shape, limit=limit, texts=texts)
            own = {r["policy"]: r for r in results.of(part="policies", **keys)}  # the last replay counts
            loads = statistics.median(results.values("loads", part="batches", **keys, system="od-main"))
            uses = own["lrfu"]["uses"]
            print(f"| {shape} | {own['lrfu']['kept']:.0f} % | {texts} | {uses:.2f} | {loads / uses:.3f} | "
                  + " | ".join(f"{own[p]['reads']:.3f}" for p in POLICIES) + " |")


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-batched-bench", required=True)
    p.add_argument("--bin", default="build/bin")
    p.add_argument("--dir", required=True)
    p.add_argument("--gguf-dir", help="folder of llama.cpp's files, for a file system with another read-ahead")
    p.add_argument("--parts", default="batches,lengths,policies", help="some of these; none: only the tables")
    p.add_argument("--limits", type=numbers, default="30,45,60", help="of the group, percent of the checkpoint")
    p.add_argument("--texts", type=numbers, default="1,4,16")
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--llama-tokens", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--lengths", type=numbers, default="64,128,256,512")
    p.add_argument("--length-limit", type=int, default=45)
    p.add_argument("shape", nargs="*", choices=[*SHAPES, []])
    o = p.parse_args()
    os.makedirs(o.dir, exist_ok=True)
    results = Results(os.path.join(o.dir, "results.jsonl"))
    shapes = o.shape or ["deepseek-v2-lite", "qwen1.5-moe"]
    for shape in shapes if o.parts else []:
        files = Files(o, shape)
        for part in o.parts.split(","):
            {"batches": batches, "lengths": lengths, "policies": policies, "files": lambda *_: None}[part](o, files, results)
    table_of_batches(results, shapes)
    table_of_lengths(results, shapes)
    table_of_policies(results, shapes)


if __name__ == "__main__":
    main()
