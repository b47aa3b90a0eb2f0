#!/usr/bin/env python3
"""Are verified drafts never worse than plain decoding? Twelve settings of a paced cluster in network namespaces, with --draft off
and auto in turns. Needs root.

    never_worse.py --bin DIR --pack PACK [--rounds 5] [--tokens 200] [--runs 2] [--only 3,7]

Every value meets several others:
  shadow   wrong on 0, about 50 and 100 % of tokens: the last layers of its copy have other weights (wrong_shadow.py; --wrong-layers
           says how many, the default is right for talebook)
  loads    0.5, 1 and 2 windows: the time of a load, relative to M (t_main + t_worker) with M groups and an expert a worker
  links    1 Gbit/s and 100 Mbit/s
  texts    1 and 4 at once
A line has the medians of the rounds, and the ratio of auto to off; the last line has the smallest ratio. Status 1: a ratio is below
0.97. The speed of the shadow and other times are draft_bench.py's, whose options can be given with --arg."""
import argparse
import os
import shutil
import statistics
import sys
import tempfile

import draft_bench

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "integ"))
import wrong_shadow  # noqa: E402

WRONG, LOADS = (0, 50, 100), (0.5, 1, 2)
PLACES = ((1000, 1), (1000, 4), (100, 1), (100, 4))  # Mbit/s, texts
# Each shadow meets each place, each load each place, and each shadow each load at least once.
SETTINGS = [(wrong, LOADS[(i + j) % 3], net, texts) for i, wrong in enumerate(WRONG) for j, (net, texts) in enumerate(PLACES)]
BOUND = 0.97


def make_packs(pack, folder, half_layers):
    packs = {0: pack}
    for wrong, layers in (50, half_layers), (100, None):
        packs[wrong] = os.path.join(folder, f"wrong{wrong}.pack")
        wrong_shadow.make(pack, packs[wrong], layers)
    return packs


def options_of(args, pack, setting):
    """Of draft_bench.py."""
    _, windows, net, texts = setting
    argv = ["--bin", args.bin, "--pack", pack, "--shadow", str(args.shadow), "--tokens", str(args.tokens), "--runs", str(args.runs),
            "--net", str(net), *args.arg]
    o = draft_bench.parse(argv + (["--parallel", str(texts)] if texts > 1 else []))
    groups = max(1, o.workers // o.top_k)
    o.load_ms = windows * groups * (o.main_ms + o.run_ms)
    return o


def describe(setting):
    wrong, windows, net, texts = setting
    return f"wrong {wrong:3d} %, loads {windows:3g} windows, {net:4d} Mbit/s, {texts} text{'s' if texts > 1 else ' '}"


def line_of(runs):
    def median(draft, f):
        return statistics.median(f(r) for r in runs[draft])

    speed = {d: median(d, draft_bench.tok_per_s) for d in runs}
    loads = {d: median(d, lambda r: r["decode_loads"] / r["decoded"]) for d in runs}
    ratio = speed["auto"] / speed["off"]
    pairs = sorted(draft_bench.tok_per_s(a) / draft_bench.tok_per_s(b) for a, b in zip(runs["auto"], runs["off"]))
    return ratio, (f"off {speed['off']:7.2f}, auto {speed['auto']:7.2f} tok/s: {ratio:.3f} (rounds {pairs[0]:.3f} to {pairs[-1]:.3f}); "
                   f"{median('auto', lambda r: r['drafted_tokens'] / r['decoded']):.2f} drafted a token, "
                   f"{100 * median('auto', lambda r: r['accepted_tokens'] / max(1, r['drafted_tokens'])):.0f} % right; loads a token "
                   f"{loads['off']:.1f} and {loads['auto']:.1f}")


def measure(args, packs, chosen):
    runs = {i: {"off": [], "auto": []} for i in chosen}
    for n in range(args.rounds):
        for i in chosen:
            o = options_of(args, packs[SETTINGS[i][0]], SETTINGS[i])
            for draft in ("off", "auto") if n % 2 == 0 else ("auto", "off"):
                runs[i][draft].append(draft_bench.run_of(o, args.shadow, draft, 1))
            print(f"round {n + 1}, {i + 1:2d}: {describe(SETTINGS[i])}: off {draft_bench.tok_per_s(runs[i]['off'][-1]):.2f}, auto "
                  f"{draft_bench.tok_per_s(runs[i]['auto'][-1]):.2f} tok/s", file=sys.stderr, flush=True)
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=2, help="texts of a measurement; times so many at once")
    parser.add_argument("--shadow", type=float, default=2.2, help="its speed, relative to cached decoding")
    parser.add_argument("--wrong-layers", type=int, default=2, help="of the shadow that is wrong on about half of the tokens")
    parser.add_argument("--only", default=",".join(str(i + 1) for i in range(len(SETTINGS))), help="numbers of settings")
    parser.add_argument("--arg", action="append", default=[], help="passed to draft_bench.py as it is: --arg=--temperature=0.8")
    args = parser.parse_args()
    args.pack = os.path.abspath(args.pack)
    chosen = [int(x) - 1 for x in args.only.split(",")]
    if not all(0 <= i < len(SETTINGS) for i in chosen):
        parser.error(f"--only: expected numbers from 1 to {len(SETTINGS)}")
    draft_bench.end_on_signals()
    folder = tempfile.mkdtemp(prefix="never-worse-", dir=os.path.dirname(args.pack))  # links cannot leave the file system
    try:
        runs = measure(args, make_packs(args.pack, folder, args.wrong_layers), chosen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    least = None
    for i in chosen:
        ratio, text = line_of(runs[i])
        least = min(least or (ratio, i), (ratio, i))
        print(f"{i + 1:2d}: {describe(SETTINGS[i])}: {text}")
    print(f"smallest ratio {least[0]:.3f}, of setting {least[1] + 1}; required {BOUND}")
    sys.exit(least[0] < BOUND)


if __name__ == "__main__":
    main()
