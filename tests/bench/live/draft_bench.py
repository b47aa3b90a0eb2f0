#!/usr/bin/env python3
"""What verified drafts bring on a paced local cluster: tokens a second with and without them, beside the limits.

    draft_bench.py --bin DIR --pack PACK [--shadow 1,1.5,2,3,5] [--drafts off,auto] [--stretch 1,4] [--load-ms 2] [--run-ms 0.5]
                   [--main-ms 1] [--workers 4] [--precision int8] [--tokens 200] [--rounds 3] [--svg FILE]

Main, shadow and workers are paced (od-bench decode --layer-time, od-worker --load-time and --run-time, od-shadow --layer-time), so
that two cores stand for many machines. --shadow: speed of the shadow as a multiple of cached decoding, in which a layer takes
main's time and the time of the experts of a row. --stretch multiplies all times. Settings and drafts take turns; medians over
rounds. The limits of a line, in tokens a second, by its own tokens a step and loads a token:
  loads    the workers' load rate over loads a token
  compute  tokens a step over the layers' time of main and of the busiest worker of a group
  shadow   the shadow's rows a second
--shadow 0: nothing is paced and there are no limits."""
import argparse
import json
import os
import statistics
import subprocess
import sys


def run_of(args, shadow, draft, stretch):
    command = [os.path.join(args.bin, "od-bench"), "decode", "--pack", args.pack, "--local", str(args.workers), "--baseline", "none",
               "--prompts", args.prompts, "--tokens", str(args.tokens), "--runs", str(args.runs), "--json", "--draft", draft,
               f"--shadow-arg=--precision={args.precision}", "--temperature", str(args.temperature)]
    if shadow > 0:
        command += ["--layer-time", str(args.main_ms * stretch), f"--worker-arg=--load-time={args.load_ms * stretch}",
                    f"--worker-arg=--run-time={args.run_ms * stretch}",
                    f"--shadow-arg=--layer-time={cached_layer_ms(args) * stretch / shadow}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    said = json.loads(done.stdout)
    total = {name: sum(r[name] for r in said["cluster_by_run"]) for name in said["cluster_by_run"][0]}
    total["texts"] = len(said["cluster_by_run"])
    return total


def model_of(args):
    with open(os.path.join(args.pack, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    return config["num_hidden_layers"], config["num_experts_per_tok"]


def cached_layer_ms(args):
    return args.main_ms + args.run_ms * args.top_k


def summary(args, shadow, stretch, runs):
    """Medians of the rounds of one setting."""
    def median(f):
        return statistics.median(f(r) for r in runs)

    decoded = lambda r: r["tokens"] - r["texts"]  # the first token of a text is the prompt's
    steps = lambda r: r["decode_layers"] / args.layers
    out = {"tok_per_s": median(lambda r: decoded(r) / r["decode_s"]), "tokens_per_step": median(lambda r: decoded(r) / steps(r)),
           "loads_per_token": median(lambda r: r["decode_loads"] / decoded(r)),
           "right": median(lambda r: r["accepted_tokens"] / max(1, r["drafted_tokens"])), "limits": {}}
    if shadow > 0:
        group = min(args.top_k, args.workers)
        runs_a_layer = out["loads_per_token"] * out["tokens_per_step"] / args.layers / group
        out["limits"] = {
            "loads": args.workers * 1e3 / (args.load_ms * stretch) / out["loads_per_token"],
            "compute": out["tokens_per_step"] * 1e3 / (args.layers * stretch * (args.main_ms + args.run_ms * runs_a_layer)),
            "shadow": 1e3 / (args.layers * stretch * cached_layer_ms(args) / shadow)}
    return out


def draw(args, lines):
    import shutil
    if shutil.which("gnuplot") is None:
        sys.exit("--svg needs gnuplot")
    drafts = sorted({k[1] for k in lines})
    stretch = max(k[2] for k in lines)
    cached = 1e3 / (args.layers * stretch * cached_layer_ms(args))
    script = [f'set terminal svg size 720,420 font "sans,13"; set output "{args.svg}"',
              'set xlabel "speed of the shadow / cached decoding"; set ylabel "speed / cached decoding"; set key left top; set grid',
              "set xrange [0.9:*]; set yrange [0:*]"]
    plots, data = [], []
    for d in drafts:
        plots.append(f"'-' with linespoints pt 7 lw 2 title 'drafts: {d}'")
        data += [f"{s} {lines[s, d, stretch]['tok_per_s'] / cached}" for s in args.shadow] + ["e"]
    plots.append("'-' with linespoints pt 6 dt 2 lc 'gray40' title 'lowest limit with drafts'")
    last = "auto" if "auto" in drafts else drafts[-1]
    data += [f"{s} {min(lines[s, last, stretch]['limits'].values()) / cached}" for s in args.shadow] + ["e"]
    script += ["plot " + ", ".join(plots), *data]
    subprocess.run(["gnuplot"], input="\n".join(script), text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--prompts", default="tests/bench/prompts.jsonl")
    parser.add_argument("--shadow", default="1,1.5,2,3,5")
    parser.add_argument("--drafts", default="off,auto")
    parser.add_argument("--stretch", default="1")
    parser.add_argument("--load-ms", type=float, default=2)
    parser.add_argument("--run-ms", type=float, default=0.5)
    parser.add_argument("--main-ms", type=float, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3, help="texts of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg")
    args = parser.parse_args()
    args.shadow = [float(x) for x in args.shadow.split(",")]
    args.layers, args.top_k = model_of(args)
    keys = [(s, d, float(x)) for x in args.stretch.split(",") for s in args.shadow for d in args.drafts.split(",")]
    runs = {k: [] for k in keys}
    for _ in range(args.rounds):
        for k in keys:
            runs[k].append(run_of(args, *k))
    lines = {k: summary(args, k[0], k[2], runs[k]) for k in keys}
    for (shadow, draft, stretch), x in lines.items():
        limits = x["limits"]
        cached = 1e3 / (args.layers * stretch * cached_layer_ms(args))
        text = f"shadow {shadow:g}, stretch {stretch:g}, drafts {draft:6} {x['tok_per_s']:7.2f} tok/s"
        if limits:
            text += f", {x['tok_per_s'] / cached:.2f} of cached decoding"
        text += f"; {x['tokens_per_step']:.2f} tokens a step, {100 * x['right']:.1f} % right, {x['loads_per_token']:.1f} loads a token"
        if limits:
            text += "; limits " + ", ".join(f"{n} {v:.1f}" for n, v in limits.items())
            text += f": {x['tok_per_s'] / min(limits.values()):.2f} of the lowest"
        print(text, flush=True)
    if args.svg:
        draw(args, lines)


if __name__ == "__main__":
    main()
