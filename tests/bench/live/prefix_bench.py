#!/usr/bin/env python3
"""What the prefix cache of od-main serve gives and costs: servers with and without it, in turns, the same requests.

    prefix_bench.py --bin build/bin --pack PACK [--rounds 20] [--words 300] [--tokens 64] [--dir DIR] [--server=--local --server=2]

Each round has a conversation of its own: a prompt, of which nothing is known, an answer, and a follow-up turn. Lines: time to the
first token of the follow-up; time, and CPU time of od-main, of all of the first turn, where nothing is shared; with --dir also
the follow-up after a restart. Medians of pairs with 95 % intervals (bootstrap). Answers must be equal. CPU time says more on a
machine that others use; it has what is written behind the answer, too."""
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
import time

WORDS = "the old man said that she was a king and went into forest house bird gold water night child wolf bread stone".split()


class Server:
    def __init__(self, args, *more):
        log = tempfile.TemporaryFile("w+")  # not a pipe, which would be full after some hundred answers
        self.p = subprocess.Popen([os.path.join(args.bin, "od-main"), "serve", "--pack", args.pack, "--listen", "127.0.0.1:0",
                                   "--log-format", "kv", *(args.server or ["--resident"]), *more], stderr=log)
        said = ""
        while 'msg="ready"' not in said:
            if self.p.poll() is not None:
                sys.exit(f"od-main serve did not start:\n{said}")
            time.sleep(0.05)
            said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        self.port = int(re.search(r"page and API at http://127.0.0.1:(\d+)", said).group(1))

    def ask(self, prompt, tokens):
        """(text, cached tokens, seconds to the first token, to the last)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        begin = time.monotonic()
        c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                                         "stream": True, "stream_options": {"include_usage": True}}),
                  {"Content-Type": "application/json"})
        text, first, cached = "", None, 0
        for line in c.getresponse():
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic() - begin
            o = json.loads(line[6:])
            text += "".join(x["text"] for x in o["choices"])
            cached = o["usage"]["prompt_tokens_details"]["cached_tokens"] if o.get("usage") else cached
        return text, cached, first, time.monotonic() - begin

    def cpu_s(self):
        return time.clock_gettime(~self.p.pid << 3 | 2)  # the process's clock, as clock_getcpuclockid makes it

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


def report(what, without, having, rng):
    ratios = [a / b for a, b in zip(without, having)]
    draws = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(f"{what}: {1e3 * statistics.median(without):.1f} ms without, {1e3 * statistics.median(having):.1f} ms with; "
          f"without / with {statistics.median(ratios):.3f} [{draws[50]:.3f}, {draws[1949]:.3f}]", flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", required=True)
    a.add_argument("--pack", required=True)
    a.add_argument("--rounds", type=int, default=20)
    a.add_argument("--words", type=int, default=300)
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--dir", action="store_true", help="keep files, in a folder under /tmp, and restart")
    a.add_argument("--server", action="append", help="a word of the servers' command lines (default: --resident)")
    args = a.parse_args()
    rng = random.Random(1)
    where = tempfile.mkdtemp()
    files = ["--prefix-cache", where] if args.dir else []
    without, having = Server(args, "--prefix-cache-mib", "0"), Server(args, *files)
    fresh, cpu, follow, again, talks = ([], []), ([], []), ([], []), ([], []), []
    for i in range(args.rounds):
        prompt = " ".join(rng.choices(WORDS, k=args.words))
        pair = [(0, without), (1, having)]
        text = {}
        for k, s in pair if i % 2 else pair[::-1]:
            begin = s.cpu_s()
            text[k], _, _, whole = s.ask(prompt, args.tokens)
            fresh[k].append(whole)
            time.sleep(0.1)
            cpu[k].append(s.cpu_s() - begin)
        turn = prompt + text[0] + " Then the king said:"
        for k, s in pair if i % 2 else pair[::-1]:
            text[2 + k], cached, first, _ = s.ask(turn, 8)
            follow[k].append(first)
            assert (cached > 0) == (k == 1), cached
        assert text[0] == text[1] and text[2] == text[3], text
        talks.append((turn, text[2]))
    report("follow-up, first token", *follow, rng)
    report("nothing shared, all of it", *fresh, rng)
    report("nothing shared, CPU time", *cpu, rng)
    having.stop()
    if args.dir:
        having = Server(args, *files)
        for i, (turn, text) in enumerate(talks):
            pair = [(0, without), (1, having)]
            for k, s in pair if i % 2 else pair[::-1]:
                more, cached, first, _ = s.ask(turn, 8)
                again[k].append(first)
                assert more == text and (cached > 0) == (k == 1), cached
        report("follow-up after a restart, first token", *again, rng)
        having.stop()
    without.stop()
    subprocess.run(["rm", "-rf", where], check=True)


main()
