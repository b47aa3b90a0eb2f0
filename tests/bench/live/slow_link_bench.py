#!/usr/bin/env python3
"""What a slow worker costs: tokens per second and time to the first token of a cluster with slow workers, beside the same cluster
without them. Hosts are network namespaces whose links are shaped. Both clusters are up all the time, and texts are asked of them in
turns; medians, and the ratio of each pair. Needs root, iproute2 and the programs of `make`.

    tests/bench/live/slow_link_bench.py [--rates 10mbit,1mbit,256kbit] [--good 1] [--slow 1] [--way both|up|down] [--shadow]
                                        [--rounds 5] [--loss PERCENT] [--pack PACK] [--json]

--loss: packets that are lost each way, after the first text (with --rates any: the rate is not limited).
--change: the link is good at first and slows down within the second text; then how long it takes until the worker is used again
once the link is good."""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "integ"))
from cluster_util import PROMPT, TMP, pack  # noqa: E402
import lossy_link  # noqa: E402
from netns_lan import Lan, Node, Unavailable  # noqa: E402

NET = "10.213.79"
LONG = " ".join(["Once upon a time there was a king who had a daughter, and she was so beautiful that nobody could look at her."] * 8)
ENGLISH = {"both": "both ways", "up": "from the worker", "down": "to the worker"}


class Cluster:
    def __init__(self, lan, main, nodes, pack_dir, options, shadow):
        self.log = open(os.path.join(TMP, f"{main}.log"), "w+")
        path = os.path.join(TMP, f"{main}-hosts.txt")
        with open(path, "w") as f:
            f.write("".join(f"{'shadow ' if n.startswith('shadow') else ''}{lan.address(n)}\n" for n in nodes))
        self.process = lan.start(main, "od-main", "--workers", path, "--insecure", "--json", "--pack", pack_dir, *options,
                                 *([] if shadow else ["--predictor", "none"]),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def ask(self, prompt):
        self.begin(prompt)
        return self.answer()

    def begin(self, prompt):
        self.process.stdin.write(prompt + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, open(self.log.name).read()
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(lan, args, rate, losers):
    good = [f"g{i}" for i in range(args.good)]
    with_slow = [f"h{i}" for i in range(args.good)]
    slow = [f"s{i}" for i in range(args.slow)]
    extra = ["--max-tokens", str(args.tokens), *args.main_arg]
    nodes = [Node(lan, n, pack_dir=args.pack) for n in good + with_slow + slow + (["shadow0", "shadow1"] if args.shadow else [])]
    for n in slow + (["shadow1"] if args.slow_shadow else []) if rate != "any" else []:
        lan.limit(n, rate, up=args.way != "down", down=args.way != "up")
    alone = Cluster(lan, "main0", good + (["shadow0"] if args.shadow else []), args.pack, extra, args.shadow)
    mixed = Cluster(lan, "main1", with_slow + slow + (["shadow1"] if args.shadow else []), args.pack, extra, args.shadow)
    speed, ttft = ([], []), ([], [])
    first = [c.ask(LONG) for c in (alone, mixed)]
    for process in losers:
        process.send_signal(signal.SIGUSR1)
    for i in range(args.rounds):
        results = [c.ask(PROMPT) for c in (alone, mixed)]
        for j, r in enumerate(results):
            speed[j].append(r["tok_per_s"])
        assert results[0]["token_ids"] == results[1]["token_ids"]
        for j, c in enumerate((alone, mixed)):
            ttft[j].append(c.ask(LONG)["ttft_s"])
    row = {"rate": rate, "way": args.way, "good": args.good, "slow": args.slow, "shadow": args.shadow,
           "tok_per_s_without": round(statistics.median(speed[0]), 1), "tok_per_s_with": round(statistics.median(speed[1]), 1),
           "speed_ratio": round(statistics.median(b / a for a, b in zip(*speed)), 3),
           "ttft_without_s": round(statistics.median(ttft[0]), 4), "ttft_with_s": round(statistics.median(ttft[1]), 4),
           "ttft_ratio": round(statistics.median(b / a for a, b in zip(*ttft)), 3), "prompt_tokens": first[0]["prompt_tokens"], "first_ttft_s": [round(r["ttft_s"], 3) for r in first]}
    alone.close()
    mixed.close()
    row["log"] = open(mixed.log.name).read()[-1500:] if args.verbose else ""
    for n in nodes:
        n.kill()
        n.forget()
    return row


def change(lan, args, rate):
    """The link slows down in the middle of a text, and recovers."""
    nodes = [Node(lan, n, pack_dir=args.pack) for n in ("h0", "s0")]
    lan.limit("s0", None)
    main = Cluster(lan, "main1", ["h0", "s0"], args.pack, ["--max-tokens", "400", *args.main_arg], False)
    whole = [main.ask(PROMPT)["decode_s"] for _ in range(3)]
    main.begin(PROMPT)
    time.sleep(min(whole) / 4)
    lan.limit("s0", rate)
    slowed = main.answer()["decode_s"]
    after = main.ask(PROMPT)["decode_s"]
    lan.limit("s0", None)
    begin = time.monotonic()
    while "is used again" not in open(main.log.name).read() and time.monotonic() < begin + 10:
        time.sleep(0.01)
    row = {"rate": rate, "text_s": round(statistics.median(whole), 3), "slowed_s": round(slowed, 3), "next_s": round(after, 3),
           "used_again_s": round(time.monotonic() - begin, 2)}
    main.close()
    row["log"] = open(main.log.name).read()[-1500:] if args.verbose else ""
    for n in nodes:
        n.kill()
        n.forget()
    return row


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rates", default="10mbit,1mbit,256kbit")
    p.add_argument("--good", type=int, default=1)
    p.add_argument("--slow", type=int, default=1)
    p.add_argument("--way", choices=ENGLISH, default="both")
    p.add_argument("--shadow", action="store_true")
    p.add_argument("--slow-shadow", action="store_true")
    p.add_argument("--loss", type=float, default=0)
    p.add_argument("--change", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=100)
    p.add_argument("--pack")
    p.add_argument("--main-arg", action="append", default=[])
    p.add_argument("--json", action="store_true")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    args.shadow = args.shadow or args.slow_shadow
    args.pack = args.pack or pack()
    names = ["main0", "main1", "shadow0", "shadow1", *(f"{k}{i}" for k in "ghs" for i in range(max(args.good, args.slow)))]
    try:
        lan = Lan("lkb", NET, {n: i + 1 for i, n in enumerate(names)})
    except Unavailable as e:
        sys.exit(str(e))
    losers = [lossy_link.lose(lan, f"s{i}", args.loss) for i in range(args.slow) if args.loss > 0]
    for rate in args.rates.split(","):
        row = change(lan, args, rate) if args.change else measure(lan, args, rate, losers)
        log = row.pop("log")
        print(json.dumps(row) if args.json else "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
        if log:
            print(log)
    for process in losers:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
