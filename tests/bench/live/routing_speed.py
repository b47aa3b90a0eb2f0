#!/usr/bin/env python3
"""Speed by --routing, on a machine that reads experts from a disk ("Mixture of Cache-Conditional Experts", arXiv 2412.00099, figure 8).

    routing_speed.py --pack PACK --prompts tests/bench/prompts.jsonl [--lambdas 0.1,0.2] [--budgets 50] [--rounds 6]
                     [--prompt-tokens 128] [--disk-mbps 300] [--json]

Each round runs od-bench residency without the prior and with each lambda, in turns: experts are read past the page cache, the second of two texts
is measured. Prompts are cut to --prompt-tokens, or repeated up to it; texts are sampled (temperature 0.8), because greedy ones repeat themselves. --disk-mbps
limits what the disk reads by a control group of version 1 (root). Printed are medians over the rounds: tokens a second, their ratio to the
router's in the same round, hits and bytes a token, and what LRU and Belady's rule would read for the router's own routes."""
import argparse
import atexit
import json
import os
import statistics
import subprocess
import tempfile

GROUP = "/sys/fs/cgroup/blkio/od-routing-speed"


def limit_disk(path, mbps):
    device = os.stat(path).st_dev
    folder = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not os.path.exists(os.path.join(folder, "dev")):
        raise SystemExit(f"--disk-mbps: {path} is on device {os.major(device)}:{os.minor(device)}, which is no disk; expected a file system on one")
    if os.path.exists(os.path.join(folder, "partition")):
        folder = os.path.dirname(folder)
    with open(os.path.join(folder, "dev")) as f:
        whole = f.read().strip()
    os.makedirs(GROUP, exist_ok=True)
    with open(os.path.join(GROUP, "blkio.throttle.read_bps_device"), "w") as f:
        f.write(f"{whole} {mbps * 1000000}")
    atexit.register(os.rmdir, GROUP)


def enter_group():
    with open(os.path.join(GROUP, "cgroup.procs"), "w") as f:
        f.write(str(os.getpid()))


def two_prompts(prompts, at, n):
    """A file with two prompts of n tokens."""
    f = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for i in range(2):
        ids = prompts[(2 * at + i) % len(prompts)]["ids"]
        f.write(json.dumps({"ids": (ids + ids[1:] * (n // len(ids) + 1))[:n]}) + "\n")
    f.flush()
    return f


def measure(a, prompts, routing, seed):
    with two_prompts(prompts, seed, a.prompt_tokens) as f:
        command = [os.path.join(a.bin, "od-bench"), "residency", "--pack", a.pack, "--runs", "1", "--seed", str(seed + 1), "--tokens", str(a.tokens),
                   "--temperature", "0.8", "--budgets", a.budgets, "--prompts", f.name, "--read-mode", "direct", "--routing", routing, "--json"]
        p = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter_group if a.disk_mbps else None)
    if p.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{p.stderr[-4000:]}")
    return json.loads(p.stdout)


def row(budget, routing, runs, router):
    median = lambda key: statistics.median(r[key] for r in runs)
    ratios = [r["tok_per_s"] / b["tok_per_s"] for r, b in zip(runs, router)]
    rival = lambda key: statistics.median([r["bytes_per_token"] / r["bytes"] * r[key] for r in router if r["bytes"]] or [0])
    return {"budget": budget, "routing": routing, "tok_per_s": median("tok_per_s"), "to_router": statistics.median(ratios), "least": min(ratios),
            "most": max(ratios), "hits": median("hits"), "bytes_per_token": median("bytes_per_token"), "disk_share": median("disk_share"),
            "lru_bytes": rival("lru_bytes"), "belady_bytes": rival("belady_bytes")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pack", required=True)
    p.add_argument("--prompts", required=True)
    p.add_argument("--bin", default="build/bin")
    p.add_argument("--lambdas", default="0.05,0.1,0.2,0.3,0.5")
    p.add_argument("--budgets", default="50")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--prompt-tokens", type=int, default=128)
    p.add_argument("--disk-mbps", type=int, default=0)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    with open(a.prompts, encoding="utf-8") as f:
        prompts = [json.loads(line) for line in f if line.strip()]
    prompts = [q for q in prompts if len(q.get("ids", [])) >= min(a.prompt_tokens, 128)]
    if not prompts:
        raise SystemExit(f"{a.prompts}: expected prompts with \"ids\", of at least {min(a.prompt_tokens, 128)} tokens, by the tokenizer of the pack")
    if a.disk_mbps:
        limit_disk(a.pack, a.disk_mbps)
    ways = ["router"] + [f"cache-prior:{v}" for v in a.lambdas.split(",")]
    runs = {w: [] for w in ways}
    for i in range(a.rounds):
        for w in ways if i % 2 == 0 else reversed(ways):
            runs[w].append(measure(a, prompts, w, i)["by_budget"])
    rows = [row(b["budget"], w, [r[k] for r in runs[w]], [r[k] for r in runs["router"]]) for k, b in enumerate(runs["router"][0]) for w in ways]
    if a.json:
        print(json.dumps({"pack": a.pack, "prompt_tokens": a.prompt_tokens, "disk_mbps": a.disk_mbps, "rounds": a.rounds, "by_routing": rows}, indent=1))
        return
    print("budget  routing            tok/s  / router (least, most)  hits %  KiB a token  of the disk  router's routes: LRU, Belady")
    for r in rows:
        print(f"{r['budget']:4d} %  {r['routing']:16s} {r['tok_per_s']:7.1f}  {r['to_router']:.2f} ({r['least']:.2f}, {r['most']:.2f})  {r['hits']:13.1f}"
              f"  {r['bytes_per_token'] / 1024:11.0f}  {r['disk_share']:11.2f}  {r['lru_bytes'] / 1024:22.0f}  {r['belady_bytes'] / 1024:.0f}")


if __name__ == "__main__":
    main()
