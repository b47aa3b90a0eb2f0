#!/usr/bin/env python3
"""What verified drafts bring on a paced cluster of this machine: tokens a second with and without them, beside the limits.

    draft_bench.py --bin DIR --pack PACK [--shadow 1,1.5,2,3,5] [--drafts off,auto,1,2,4] [--stretch 1,4] [--load-ms 2]
                   [--run-ms 0.5] [--main-ms 1] [--workers 4] [--net MBIT] [--parallel N] [--precision int8] [--tokens 200]
                   [--rounds 3] [--svg FILE] [--calibration]

Main, shadow and workers are paced (od-bench decode --layer-time, od-worker --load-time and --run-time, od-shadow --layer-time), so
that two cores stand for many machines. --shadow: speed of the shadow as a multiple of cached decoding, in which a layer takes
main's time and the time of the experts of a row. --stretch multiplies all times. --net: main and each daemon in a network
namespace of its own, links of MBIT Mbit/s each way (needs root). --parallel: texts at once; tokens a second are of all of them,
and a step's tokens, too. Settings and drafts take turns; medians over rounds, in brackets the least and the most. The limits of a
line, in tokens a second, by its own tokens a step, loads a token and bytes a token:
  loads    the workers' load rate over loads a token
  wire     main's link over the bytes a token, prompts left out, in the direction that has more
  compute  tokens a step over the layers' time of main and of the busiest worker of a group
  shadow   the shadow's rows a second, one row of each text at a time
--shadow 0: nothing is paced, and of the limits there is only the wire.
With fixed lengths among the drafts, auto is compared with the best of them. One process writes --runs texts one after the
other, and what the policy learns stays: long texts show what it is worth once it has learnt. --calibration: how often draft tokens
were right, beside how often they should have been, by margin (all drafts of the shadow, one text at a time)."""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys

for folder in ("..", "..", "integ"), ("..", "report"):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), *folder))
import netns_lan  # noqa: E402
from cluster_util import TMP  # noqa: E402
from draw_plots import line, plot  # noqa: E402

NET = "10.213.79"
_lans = {}


# ---- One measurement ----

def shadow_options(args, shadow, stretch):
    return [f"--precision={args.precision}"] + ([f"--layer-time={cached_layer_ms(args) * stretch / shadow}"] if shadow > 0 else [])


def worker_options(args, shadow, stretch):
    return [f"--load-time={args.load_ms * stretch}", f"--run-time={args.run_ms * stretch}"] if shadow > 0 else []


def lan_of(args):
    """The same namespaces for all settings of so many workers."""
    if args.workers not in _lans:
        nodes = {"main": 1, "shadow": 2, **{f"w{i}": 11 + i for i in range(args.workers)}}
        try:
            _lans[args.workers] = netns_lan.Lan("oddb", NET, nodes)
        except netns_lan.Unavailable as e:
            sys.exit(str(e))
    lan = _lans[args.workers]
    if not lan.shape(f"{args.net}mbit"):
        sys.exit(f"cannot shape links to {args.net} Mbit/s here: tc failed")
    return lan


def output_of(command):
    """od-bench's JSON, and the bytes of its link if it is in a namespace."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def run_on_lan(args, shadow, stretch, command):
    lan = lan_of(args)
    nodes, hosts = [], os.path.join(TMP, "hosts.txt")
    try:
        for name in lan.nodes:
            if name == "main":
                continue
            options = (shadow_options if name == "shadow" else worker_options)(args, shadow, stretch)
            nodes.append(netns_lan.Node(lan, name, "--quiet", *options, pack_dir=args.pack, folder=args.bin))
        with open(hosts, "w", encoding="utf-8") as f:
            f.write("".join(f"{n.role} {lan.address(n.name)}\n" for n in nodes))
        before = lan.bytes_of("main")
        said = output_of(["ip", "netns", "exec", lan.name("main"), *command, "--workers", hosts, "--insecure"])
        said["wire_bytes"] = max(b - a for a, b in zip(before, lan.bytes_of("main")))
    finally:
        for n in nodes:
            n.kill()
            n.forget()
    return said


def run_of(args, shadow, draft, stretch):
    """Sums over the texts of one process."""
    command = [os.path.join(args.bin, "od-bench"), "decode", "--pack", args.pack, "--tokens", str(args.tokens), "--runs", str(args.runs),
               "--json", "--draft", draft, "--temperature", str(args.temperature)]
    command += ["--prompt-tokens", str(args.prompt_tokens)] if args.prompt_tokens else ["--prompts", args.prompts]
    command += ["--parallel", str(args.parallel)] if args.parallel else ["--baseline", "none"]
    if shadow > 0:
        command += ["--layer-time", str(args.main_ms * stretch)]
    if args.net:
        said = run_on_lan(args, shadow, stretch, command)
    else:
        said = output_of([*command, "--local", str(args.workers), *(f"--shadow-arg={o}" for o in shadow_options(args, shadow, stretch)),
                          *(f"--worker-arg={o}" for o in worker_options(args, shadow, stretch))])
    return total_of(args, said)


def total_of(args, said):
    rows = said["cluster_by_round" if args.parallel else "cluster_by_run"]
    total = {name: sum(r[name] for r in rows) for name in rows[0]}
    total["decoded"] = total["tokens"] - len(rows) * (args.parallel or 1)  # the first token of a text is the prompt's
    if args.parallel:  # steps of all texts, and the time of these
        timed = {name: sum(r[name] for r in said["by_round"]) for name in ("steps", "step_tokens", "steps_s")}
        total |= {"timed_tokens": timed["step_tokens"], "timed_steps": timed["steps"], "timed_s": timed["steps_s"]}
    else:
        total |= {"timed_tokens": total["decoded"], "timed_steps": total["decode_layers"] / args.layers, "timed_s": total["decode_s"]}
    if "wire_bytes" in said:
        rows_decoded = (total["decoded"] + total["drafted_tokens"] - total["accepted_tokens"]) * args.layers * args.top_k
        total["wire_bytes"] = said["wire_bytes"] * rows_decoded / said["worker_rows_in_all"]
    total["margins"] = said.get("drafts_by_margin", [])
    return total


# ---- Limits ----

def cached_layer_ms(args):
    return args.main_ms + args.run_ms * args.top_k


def cached_tok_per_s(args, stretch):
    return 1e3 / (args.layers * stretch * cached_layer_ms(args))


def tok_per_s(r):
    return r["timed_tokens"] / r["timed_s"]


def summary(args, shadow, stretch, runs):
    """Medians of the rounds of one setting."""
    def median(f):
        return statistics.median(f(r) for r in runs)

    speeds = [tok_per_s(r) for r in runs]
    out = {"tok_per_s": statistics.median(speeds), "least": min(speeds), "most": max(speeds),
           "tokens_per_step": median(lambda r: r["timed_tokens"] / r["timed_steps"]),
           "loads_per_token": median(lambda r: r["decode_loads"] / r["decoded"]),
           "drafted_per_token": median(lambda r: r["drafted_tokens"] / r["decoded"]),
           "right": median(lambda r: r["accepted_tokens"] / max(1, r["drafted_tokens"])), "limits": {}}
    if args.net:
        out["bytes_per_token"] = median(lambda r: r["wire_bytes"] / r["decoded"])
        out["limits"]["wire"] = args.net * 1e6 / 8 / out["bytes_per_token"]
    if shadow > 0:
        runs_a_layer = out["loads_per_token"] * out["tokens_per_step"] / args.layers / min(args.top_k, args.workers)
        out["limits"] |= {
            "loads": args.workers * 1e3 / (args.load_ms * stretch) / out["loads_per_token"],
            "compute": out["tokens_per_step"] * 1e3 / (args.layers * stretch * (args.main_ms + args.run_ms * runs_a_layer)),
            "shadow": (args.parallel or 1) * cached_tok_per_s(args, stretch) * shadow}
    return out


# ---- What is shown ----

def line_of(args, key, x):
    shadow, draft, stretch = key
    text = f"shadow {shadow:g}, stretch {stretch:g}, drafts {draft:6} {x['tok_per_s']:7.2f} tok/s ({x['least']:.2f} to {x['most']:.2f})"
    if shadow > 0:
        text += f", {x['tok_per_s'] / cached_tok_per_s(args, stretch):.2f} of cached decoding"
    text += (f"; {x['tokens_per_step']:.2f} tokens a step, {x['drafted_per_token']:.2f} drafted a token, {100 * x['right']:.1f} % right, "
             f"{x['loads_per_token']:.1f} loads a token")
    if "bytes_per_token" in x:
        text += f", {x['bytes_per_token']:.0f} bytes a token"
    if x["limits"]:
        text += "; limits " + ", ".join(f"{n} {v:.1f}" for n, v in x["limits"].items())
        text += f": {x['tok_per_s'] / min(x['limits'].values()):.2f} of the lowest"
    return text


def print_best(lines):
    """Auto beside the best fixed length of each setting."""
    for shadow, draft, stretch in lines:
        fixed = {d: x["tok_per_s"] for (s, d, t), x in lines.items() if (s, t) == (shadow, stretch) and d.isdigit()}
        if draft != "auto" or not fixed:
            continue
        best = max(fixed, key=fixed.get)
        print(f"shadow {shadow:g}, stretch {stretch:g}: auto {lines[shadow, draft, stretch]['tok_per_s'] / fixed[best]:.3f} of the best fixed "
              f"length, {best}")


def draw(args, lines):
    drafts = sorted({k[1] for k in lines})
    stretch = max(k[2] for k in lines)
    cached = cached_tok_per_s(args, stretch)
    last = "auto" if "auto" in drafts else drafts[-1]
    curves = {f"drafts: {d}": [(s, lines[s, d, stretch]["tok_per_s"] / cached) for s in args.shadow] for d in drafts}
    curves["lowest limit with drafts"] = [(s, min(lines[s, last, stretch]["limits"].values()) / cached) for s in args.shadow]
    draw_curves(args.svg, curves)


def draw_curves(path, curves):
    limit = len(curves) - 1
    series = [(title, line(6, 2) if i == limit else line(i % 6), points) for i, (title, points) in enumerate(curves.items())]
    plot(path, "Speed with and without drafts", "speed of the shadow / cached decoding", "speed / cached decoding", series,
         "set xrange [0.9:*]; set yrange [0:*]")


def interval(right, n):
    """Of the true share, 95 % (Wilson)."""
    z = 1.96
    middle, half = (right + z * z / 2) / (n + z * z), z / (n + z * z) * (right * (n - right) / n + z * z / 4) ** 0.5
    return max(0, middle - half), min(1, middle + half)


def margins_of(runs):
    """[(end of the margin's bin or None, tokens, right, expected)] of all runs, bins that have any."""
    out = []
    for rows in zip(*(r["margins"] for r in runs if r["margins"])):
        n, right, expected = (sum(r[name] for r in rows) for name in ("tokens", "right", "expected"))
        if n > 0:
            out.append((rows[0].get("margin_below"), n, right, expected))
    return out


def calibrate(args, runs):
    bins = margins_of(runs)
    if not bins:
        sys.exit("--calibration: no draft token was verified")
    print("margin below   tokens    right  95 % interval   expected")
    for end, n, right, expected in bins:
        low, high = interval(right, n)
        print(f"{end or 'any':>12}  {n:7d}  {right / n:7.3f}  {low:.3f} to {high:.3f}  {expected / n:9.3f}")
    n, right, expected = (sum(b[i] for b in bins) for i in (1, 2, 3))
    print(f"{'all':>12}  {n:7d}  {right / n:7.3f}                  {expected / n:9.3f}")


# ---- The command line ----

def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--prompts", default="tests/bench/prompts.jsonl")
    parser.add_argument("--prompt-tokens", type=int, help="instead of --prompts: random tokens, which give texts of another kind")
    parser.add_argument("--shadow", default="1,1.5,2,3,5")
    parser.add_argument("--drafts", default="off,auto")
    parser.add_argument("--stretch", default="1")
    parser.add_argument("--load-ms", type=float, default=2)
    parser.add_argument("--run-ms", type=float, default=0.5)
    parser.add_argument("--main-ms", type=float, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--net", type=float, help="Mbit/s of each link; default: all on loopback")
    parser.add_argument("--parallel", type=int, help="default: one text after the other")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=200, help="with the prompt at most the model's context plus one")
    parser.add_argument("--runs", type=int, default=3, help="texts of a measurement; with --parallel, times so many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg")
    parser.add_argument("--calibration", action="store_true")
    args = parser.parse_args(argv)
    if args.calibration and args.parallel:
        parser.error("--calibration is for one text at a time; leave --parallel out")
    if args.svg and "0" in args.shadow.split(","):
        parser.error("--svg has the shadow's speed on its axis; leave --shadow 0 out")
    args.bin, args.pack = os.path.abspath(args.bin), os.path.abspath(args.pack)
    args.shadow = [float(x) for x in args.shadow.split(",")]
    with open(os.path.join(args.pack, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    args.layers, args.top_k = config["num_hidden_layers"], config["num_experts_per_tok"]
    return args


def end_on_signals():
    """So that namespaces and daemons go."""
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda n, _: sys.exit(128 + n))


def main():
    args = parse()
    end_on_signals()
    keys = [(s, d, float(x)) for x in args.stretch.split(",") for s in args.shadow for d in args.drafts.split(",")]
    runs = {k: [] for k in keys}
    for _ in range(args.rounds):
        for k in keys:
            runs[k].append(run_of(args, *k))
    lines = {k: summary(args, k[0], k[2], runs[k]) for k in keys}
    for k, x in lines.items():
        print(line_of(args, k, x), flush=True)
    print_best(lines)
    if args.svg:
        draw(args, lines)
    if args.calibration:
        calibrate(args, [r for k in keys if k[1] not in ("off", "lookup") for r in runs[k]])


if __name__ == "__main__":
    main()
