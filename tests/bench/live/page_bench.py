#!/usr/bin/env python3
"""What watching the cluster costs: tokens a second of one server, with and without watchers of /cluster/events, in turns.

    page_bench.py --bin build/bin --pack build/talebook.pack [--rounds 100] [--watchers 1] [--tokens 300] [--texts 1] [--server=--local --server=4]

Each round has the same texts twice, watched and not, in an order that changes; watchers read all events. Speeds are the server's own
timings of the text (predicted_per_second). Prints medians, and the median of the pairs' ratios with its 95 % interval (bootstrap);
and the same of od-main's CPU time, which says more on a machine that others use."""
import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BODY = {"prompt": "Once upon a time there was a king who had three daughters, and the", "temperature": 0, "ignore_eos": True}


class BenchServer:
    def __init__(self, args):
        log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([os.path.join(args.bin, "od-main"), "serve", "--pack", args.pack, "--listen", "127.0.0.1:0",
                                   "--log-format", "kv", *(args.server or ["--local", "4"])], stderr=log)
        said = ""
        while 'msg="ready"' not in said:
            if self.p.poll() is not None:
                sys.exit(f"od-main serve did not start:\n{said}")
            time.sleep(0.05)
            said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        self.port = int(re.search(r"page and API at http://127.0.0.1:(\d+)/", said).group(1))

    def cpu_s(self):
        return time.clock_gettime(~self.p.pid << 3 | 2)  # the process's clock, as clock_getcpuclockid makes it

    def measure(self, tokens, texts):
        """(tokens a second of all texts together, CPU milliseconds of od-main)"""
        speeds, begin = [0.0] * texts, self.cpu_s()

        def ask(i):
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            c.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": tokens}), {"Content-Type": "application/json"})
            o = json.load(c.getresponse())
            assert o["usage"]["completion_tokens"] == tokens, o
            speeds[i] = o["timings"]["predicted_per_second"]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(texts)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return sum(speeds), 1e3 * (self.cpu_s() - begin)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


class Watchers:
    """Programs of their own, as browsers are: they read and throw away."""

    def __init__(self, port, n):
        self.p = [subprocess.Popen(["curl", "-sN", f"http://127.0.0.1:{port}/cluster/events"], stdout=subprocess.DEVNULL) for _ in range(n)]
        time.sleep(0.3)

    def stop(self):
        for p in self.p:
            p.terminate()
            p.wait()
        time.sleep(0.1)


def interval(values):
    draws = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(2000))
    return draws[50], draws[-51]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--pack", required=True)
    p.add_argument("--rounds", type=int, default=100)
    p.add_argument("--watchers", type=int, default=1)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--texts", type=int, default=1, help="at once")
    p.add_argument("--server", action="append", help="an option of od-main serve; repeatable (default: --local 4)")
    args = p.parse_args()
    s = BenchServer(args)
    s.measure(args.tokens, args.texts)  # warm
    plain, watched = [], []
    for i in range(args.rounds):
        for with_watchers in (True, False) if i % 2 else (False, True):
            w = Watchers(s.port, args.watchers if with_watchers else 0)
            (watched if with_watchers else plain).append(s.measure(args.tokens, args.texts))
            w.stop()
    s.stop()
    for i, what in enumerate(("tokens a second", "CPU ms of od-main")):
        a, b = [x[i] for x in plain], [x[i] for x in watched]
        ratios = [y / x for x, y in zip(a, b)]
        low, high = interval(ratios)
        print(f"{what}, medians of {args.rounds}: unwatched {statistics.median(a):.1f}, with {args.watchers} watchers "
              f"{statistics.median(b):.1f}; ratio {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
