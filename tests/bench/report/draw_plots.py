#!/usr/bin/env python3
"""Draws docs/plots from what od-bench prints with --json (needs gnuplot).

    od-bench recall --sweep all --json ... > RECALL.json; draw_plots.py recall RECALL.json DIR
    od-bench load --json ... > LOAD.json;                 draw_plots.py load LOAD.json DIR
    od-bench residency --json ... > PART.json;            draw_plots.py residency PART.json DIR
    od-bench routing --cache 2,4,8,16,24 --json ... > ROUTING.json; draw_plots.py routing ROUTING.json DIR
    routing_speed.py --json ... > SPEED.json;             draw_plots.py routing-speed SPEED.json DIR

recall: DIR/recall-fig3-SHADOW.svg, recall-fig6-SHADOW.svg of each shadow and recall-table1.svg, of those that the sweep has.
load: DIR/load.svg. residency: DIR/residency-speed.svg, residency-bytes.svg. routing: DIR/routing.svg, with the size of the cache that is next to half of the experts, and
routing-cache.svg. routing-speed: DIR/routing-speed.svg. A bar at a point is its 95 % interval over prompts; of routing-speed the least and the most of all rounds. Colours are Okabe and Ito's, safe for colour-blind readers."""
import json
import os
import shutil
import subprocess
import sys

STYLE = ["set encoding utf8", "set border 3 lc rgb '#444444'", "set grid ytics lc rgb '#dddddd' lt 1 lw 0.7",
         "set tics nomirror scale 0.5 textcolor rgb '#000000'", "set key outside below center horizontal Left reverse samplen 2.5",
         "set style fill solid 0.85 noborder", "set offsets graph 0.03, graph 0.03, 0, 0"]
COLOURS = [("#0072B2", 7), ("#D55E00", 5), ("#009E73", 9), ("#CC79A7", 11), ("#E69F00", 13), ("#56B4E9", 6), ("#000000", 4)]  # and a marker
NEVER = 64  # where a period of 0 stands on an axis of 1 to 32
BIN_TOKENS = 8


def gnuplot(path, title, script):
    if shutil.which("gnuplot") is None:
        sys.exit("plots need gnuplot, which is not installed; on Debian: apt-get install gnuplot-nox")
    head = ['set terminal svg size 800,500 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2',
            f'set output "{path}"', *STYLE, f'set title "{title}"']
    subprocess.run(["gnuplot"], input="\n".join(head + script), text=True, check=True)


def plot(path, title, x, y, series, *settings):
    """series: [(title, how, points)]; points: [(x, y)], or with the ends of an interval [(x, y, low, high)]."""
    data, elements = [], []
    for i, (name, how, points) in enumerate(series):
        data += [f"$s{i} << END", *(" ".join(f"{v:.9g}" for v in p) for p in points), "END"]
        elements.append(f"$s{i} using 1:2 {how} title \"{name}\"")
        if len(points[0]) == 4:  # gnuplot's own error bars have a hole around the point
            elements.append(f"$s{i} using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb '#444444' notitle")
    gnuplot(path, title, [f'set xlabel "{x}\\n"; set ylabel "{y}"', *settings, *data, "plot " + ", ".join(elements)])


def line(i, dash=1):
    colour, marker = COLOURS[i % len(COLOURS)]
    return f"with linespoints lw 2 dt {dash} pt {marker} ps 0.8 lc rgb '{colour}'"


def boxes(i):
    return f"with boxes lc rgb '{COLOURS[i % len(COLOURS)][0]}'"


def ticks(names):
    return "set xtics nomirror scale 0.5 (" + ", ".join(f'"{n}" {x}' for x, n in names) + ")"


def draw_fig3(r, shadow, out):
    series = []
    for align, name in ("T1_KV1", "token, keys and values"), ("T1_KV0", "token"), ("T0_KV1", "keys and values"), ("T0_KV0", "nothing aligned"):
        sums = {}
        for t in r["by_token_index"]:
            if t["configuration"] == f"{shadow} {align}":
                at = sums.setdefault((t["index"] - 1) // BIN_TOKENS, [0, 0])
                at[0] += t["recalled"]
                at[1] += t["uses"]
        points = [((b + 0.5) * BIN_TOKENS + 0.5, right / uses) for b, (right, uses) in sorted(sums.items()) if uses > 0]
        series.append((name, line(len(series)), points))
    plot(f"{out}/recall-fig3-{shadow}.svg", f"Recall against token index, {shadow} shadow",
         f"index of the generated token (means of {BIN_TOKENS})", "recall", series, "set yrange [0:1]")


def draw_fig6(r, shadow, out):
    found = {c["configuration"]: c for c in r["configurations"]}
    periods = [1, 2, 4, 8, 16, 32, 0]
    series = []
    for name, align in (("of keys and values, token every step", "T1_KV{0}"), ("of the token, keys and values every step", "T{0}_KV1"),
                        ("of both", "T{0}_KV{0}")):
        rows = [(p or NEVER, found[f"{shadow} {align.format(p)}"]) for p in periods]
        series.append((name, line(len(series)), [(x, c["recall"], c["recall_low"], c["recall_high"]) for x, c in rows]))
    plot(f"{out}/recall-fig6-{shadow}.svg", f"Recall by alignment period, {shadow} shadow", "period, steps", "recall", series,
         "set logscale x 2", f"set xrange [0.8:{NEVER * 1.25}]", "set yrange [*:1]", ticks([(p or NEVER, p or "never") for p in periods]))


def draw_table1(r, out):
    found = {c["configuration"]: c for c in r["configurations"]}
    rows = [(i, t["predictor"].removesuffix(" T1_KV1"), found[t["predictor"]], t["recall_of_all_uses"]) for i, t in enumerate(r["table1"])]
    plot(f"{out}/recall-table1.svg", "Recall of the shadow and of other predictors", "shadow, by its precision, and predictors in main",
         "recall", [("of expert uses that they predict", boxes(0), [(i - 0.2, c["recall"], c["recall_low"], c["recall_high"]) for i, _, c, _ in rows]),
                    ("of all expert uses", boxes(1), [(i + 0.2, share) for i, _, _, share in rows])],
         "set boxwidth 0.37", "set yrange [0:1]", "set tics font ',11'", ticks([(i, name) for i, name, _, _ in rows]))


def draw_recall(r, out):
    for shadow in dict.fromkeys(x["shadow"] for x in r.get("fig3", [])):
        draw_fig3(r, shadow, out)
    for shadow in dict.fromkeys(x["shadow"] for x in r.get("fig6", [])):
        draw_fig6(r, shadow, out)
    if "table1" in r:
        draw_table1(r, out)


def draw_load(r, out):
    sources = list(dict.fromkeys(x["source"] for x in r["loads"]))
    kinds = list(dict.fromkeys((x["codec"], x["form"], x["load_threads"]) for x in r["loads"]))
    width = 0.8 / len(kinds)
    series = [(f"{kind[0]} as {kind[1]}, load threads: {kind[2]}", boxes(i),
               [(sources.index(x["source"]) + (i - (len(kinds) - 1) / 2) * width, x["ratio"]) for x in r["loads"]
                if (x["codec"], x["form"], x["load_threads"]) == kind]) for i, kind in enumerate(kinds)]
    plot(f"{out}/load.svg", "Loading experts", "source", "published GB/s over raw GB/s", series, f"set boxwidth {width * 0.92}",
         "set yrange [0:*]", ticks(list(enumerate(sources))))


def draw_residency(r, out):
    rows = r["by_budget"]
    x = "memory for kept experts, % of all"
    bound = [(b["budget"], b["to_resident"] / b["to_bound"]) for b in rows]
    plot(f"{out}/residency-speed.svg", "A part of the experts in memory: speed", x, "tokens per second over resident",
         [("od-main", line(0), [(b["budget"], b["to_resident"]) for b in rows]), ("disk or resident, whichever binds", line(6, 2), bound)],
         "set yrange [0:*]")
    some = [b for b in rows if b["bytes"] is not None]  # at others nothing is read
    kinds = [("od-main", "bytes"), ("LRFU", "lrfu_bytes"), ("LFU", "lfu_bytes"), ("LRU", "lru_bytes"), ("Belady's oracle", "belady_bytes")]
    plot(f"{out}/residency-bytes.svg", "A part of the experts in memory: bytes read", x, "bytes a token, MiB",
         [(name, line(i), [(b["budget"], b["bytes_per_token"] / b["bytes"] * b[key] / 2**20) for b in some])
          for i, (name, key) in enumerate(kinds)], "set yrange [0:*]")


WORST = 16  # percent of perplexity: what costs more is not drawn


def draw_routing(r, out):
    """Figures 4 and 9 of "Mixture of Cache-Conditional Experts", and 10."""
    if any(x["change_percent"] is None for x in r["by_way"]):
        sys.exit("routing: expected a perplexity of each way, found none; were the texts long enough?")
    sizes = sorted({x["cache"] for x in r["by_way"]})
    half = min(sizes, key=lambda c: abs(c - r["experts"] / 2))
    rows = [x for x in r["by_way"] if x["cache"] == half and x["change_percent"] <= WORST]
    series = []
    for way in ("od-main", "max-rank", "cumulative", "prune"):
        points = sorted((x["miss_rate"], x["change_percent"]) for x in rows if x["way"] in (way, "router"))
        if any(x["way"] == way for x in rows):
            series.append((way, line(len(series)), points))
    base = next(x for x in rows if x["way"] == "router")
    series.append(("the router's routes, oracle", "with points pt 4 ps 1.2 lw 2 lc rgb '#000000'", [(base["oracle_miss_rate"], 0)]))
    plot(f"{out}/routing.svg", f"Perplexity against misses, {half} of {r['experts']} experts cached", "miss rate", "perplexity, change in %", series,
         "set yrange [*:*]")
    base = {x["cache"]: x for x in r["by_way"] if x["way"] == "router"}
    ours = [x for x in r["by_way"] if x["way"] == "od-main"]
    best = lambda c, most: min((x["miss_rate"] for x in ours if x["cache"] == c and x["change_percent"] <= most), default=base[c]["miss_rate"])
    plot(f"{out}/routing-cache.svg", "Misses by size of the cache", "cached experts of a layer", "miss rate",
         [("router, LRU", line(0), [(c, base[c]["miss_rate"]) for c in sizes]), ("router, oracle", line(6, 2), [(c, base[c]["oracle_miss_rate"]) for c in sizes])]
         + [(f"od-main, perplexity up to +{most} %", line(i + 1), [(c, best(c, most)) for c in sizes]) for i, most in enumerate((1, 5, 10))],
         "set yrange [0:*]")


def draw_routing_speed(r, out):
    """Figure 8."""
    series = []
    for budget in sorted({x["budget"] for x in r["by_routing"]}):
        rows = [x for x in r["by_routing"] if x["budget"] == budget]
        series.append((f"{budget} % of the experts in memory", line(len(series)), [(x["hits"], x["to_router"], x["least"], x["most"]) for x in rows]))
    plot(f"{out}/routing-speed.svg", "Speed by hits, of growing lambda", "expert uses that hit the cache, %", "tokens a second, of the router's", series)


def main():
    draw = {"recall": draw_recall, "load": draw_load, "residency": draw_residency, "routing": draw_routing, "routing-speed": draw_routing_speed}
    if len(sys.argv) != 4 or sys.argv[1] not in draw:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as f:
        r = json.load(f)
    os.makedirs(sys.argv[3], exist_ok=True)
    draw[sys.argv[1]](r, sys.argv[3])


if __name__ == "__main__":
    main()
