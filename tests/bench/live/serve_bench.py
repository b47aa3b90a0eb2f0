#!/usr/bin/env python3
"""Tokens a second through HTTP, relative to od-main --prompts --parallel with the same prompts.

    serve_bench.py --bin DIR --pack PACK [--prompts prompts.jsonl] [--at-once 4,16] [--rounds 5] [--tokens 64] [--health 1000] [-- MODE...]

MODE: od-main's options for where experts run (default: --resident). A round is four runs: od-main writes all texts, od-main serve
does for clients that want whole answers and for clients that want streams, od-main does again; odd rounds go the other way. No start
counts. There are as many clients as texts at once; each sends its next request when it has its answer. A client only stores bytes:
they are looked at when all are there, so that it takes little time from the server. While clients are served, /health is asked
--health times in all; no answer may be other than 200. All texts must be equal.
Before each start a process writes to --touch-mib of memory and ends: a virtual machine's host takes back free memory, whose next first
use costs up to 30 times more, which would count against the server alone, as it keeps ended texts.
Printed: medians, of a round's ratios too, and the slowest answer of /health. Status 1: a ratio of both kinds together below 0.95, a
text that differs, or a /health that failed."""
import argparse
import http.client
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HOST = "127.0.0.1"
BOUND = 0.95
ORDER = ("plain", "whole", "stream", "plain")
KINDS = ORDER[:3]


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--pack", required=True)
    p.add_argument("--prompts", default=os.path.join(os.path.dirname(__file__), "..", "prompts.jsonl"))
    p.add_argument("--at-once", default="4,16", type=lambda s: [int(n) for n in s.split(",")])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--texts", type=int, default=48, help="prompts of the file that are used")
    p.add_argument("--health", type=int, default=1000)
    p.add_argument("--touch-mib", type=int, default=1536)
    p.add_argument("mode", nargs="*", default=["--resident"])
    return p.parse_args(argv)


def read_prompts(o):
    with open(o.prompts) as f:
        rows = [json.loads(line) for line in f]
    rows = [r for r in rows if r.get("tokens", 0) <= 256] or rows
    return [r.get("text", r.get("prompt")) for r in rows][:o.texts]


def touch_memory(mib):
    subprocess.run([sys.executable, "-c", "import mmap, sys\n"
                    "m = mmap.mmap(-1, int(sys.argv[1]) << 20)\n"
                    "m.madvise(mmap.MADV_HUGEPAGE)\n"
                    "for at in range(0, len(m), 4096): m[at] = 1", str(mib)], check=True)


def plain(o, prompts, at_once):
    """(tokens a second, texts in the order of the prompts) of od-main --prompts."""
    touch_memory(o.touch_mib)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for text in prompts:
            f.write(json.dumps({"prompt": text, "max_tokens": o.tokens, "temperature": 0}) + "\n")
        f.flush()
        p = subprocess.run([os.path.join(o.bin, "od-main"), "--pack", o.pack, *o.mode, "--prompts", f.name, "--parallel", str(at_once),
                            "--ignore-eos"], capture_output=True, text=True, check=True)
    rate = float(re.search(r"([\d.]+) tok/s\s*$", p.stderr).group(1))
    return rate, [text[:-1] for text in re.split(r"(?m)^==> line \d+ <==\n", p.stdout)[1:]]


class Client:
    """One connection, kept open; sends requests one after another."""

    def __init__(self, port, jobs, stream):
        self.k = socket.create_connection((HOST, port))
        self.jobs, self.stream, self.got = jobs, stream, b""
        self.answers = {}
        self.index = None

    def next(self):
        """Sends the next request; False: there is none."""
        if not self.jobs:
            return False
        self.index, body = self.jobs.pop(0)
        self.got = b""
        self.k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
        return True

    def complete(self):
        if self.stream:
            return self.got.endswith(b"0\r\n\r\n")
        head, _, body = self.got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return length is not None and len(body) >= int(length.group(1))

    def take(self):
        piece = self.k.recv(1 << 16)
        assert piece, f"hung up: {self.got[-300:]!r}"
        self.got += piece
        if not self.complete():
            return True
        self.answers[self.index] = self.got
        return self.next()


def text_of(answer, stream):
    """The text of an answer's bytes, and its number of tokens."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer[:500]
    if not stream:
        o = json.loads(body)
        return o["choices"][0]["text"], o["usage"]["completion_tokens"]
    plain_body = b""
    while body:  # chunks
        size, _, body = body.partition(b"\r\n")
        plain_body, body = plain_body + body[:int(size, 16)], body[int(size, 16) + 2:]
    events = [json.loads(line[6:]) for line in plain_body.decode().split("\n") if line.startswith("data: {")]
    return "".join(e["choices"][0]["text"] for e in events if e["choices"]), events[-1]["usage"]["completion_tokens"]


class Health(threading.Thread):
    """Asks /health again and again, on one connection."""

    def __init__(self, port, most):
        super().__init__()
        self.port, self.most, self.seconds, self.bad, self.stop = port, most, [], [], threading.Event()

    def run(self):
        c = http.client.HTTPConnection(HOST, self.port)
        while len(self.seconds) < self.most and not self.stop.wait(0.01):
            begin = time.monotonic()
            c.request("GET", "/health")
            r = c.getresponse()
            body = r.read()
            self.seconds.append(time.monotonic() - begin)
            if r.status != 200:
                self.bad.append((r.status, body))


def served(o, prompts, at_once, stream, health):
    """(tokens a second, texts) of od-main serve; adds to health, a list of seconds."""
    touch_memory(o.touch_mib)
    p = subprocess.Popen([os.path.join(o.bin, "od-main"), "serve", "--pack", o.pack, *o.mode, "--parallel", str(at_once), "--listen",
                          f"{HOST}:0"], stderr=subprocess.PIPE, text=True)
    try:
        log = ""
        while "ready" not in log:
            line = p.stderr.readline()
            assert line, log
            log += line
        threading.Thread(target=p.stderr.read, daemon=True).start()
        port = int(re.search(r"page and API at .*:(\d+)", log).group(1))
        options = {"max_tokens": o.tokens, "temperature": 0, "ignore_eos": True,
                   **({"stream": True, "stream_options": {"include_usage": True}} if stream else {})}
        jobs = [(i, json.dumps({"prompt": text, **options}).encode()) for i, text in enumerate(prompts)]
        clients = [Client(port, jobs, stream) for _ in range(at_once)]
        watch = Health(port, o.health - len(health))
        watch.start()
        events = selectors.DefaultSelector()
        begin = time.monotonic()
        for c in clients:
            if c.next():
                events.register(c.k, selectors.EVENT_READ, c)
        while events.get_map():
            for key, _ in events.select():
                if not key.data.take():
                    events.unregister(key.fileobj)
        seconds = time.monotonic() - begin
        watch.stop.set()
        watch.join()
        assert not watch.bad, watch.bad[0]
        health += watch.seconds
        answers = {i: text_of(a, stream) for c in clients for i, a in c.answers.items()}
        return sum(n for _, n in answers.values()) / seconds, [answers[i][0] for i in range(len(prompts))]
    finally:
        p.terminate()
        p.wait()


def main(argv):
    o = parse(argv)
    prompts = read_prompts(o)
    health, good, first = [], True, None
    for at_once in o.at_once:
        rates = {kind: [] for kind in KINDS}
        ratios = {"whole": [], "stream": [], "both": []}
        for i in range(o.rounds):
            found = {kind: [] for kind in KINDS}
            for kind in ORDER[::-1] if i % 2 else ORDER:
                rate, texts = plain(o, prompts, at_once) if kind == "plain" else served(o, prompts, at_once, kind == "stream", health)
                found[kind].append(rate)
                first = first or texts
                if texts != first:
                    print(f"round {i}, {kind}: {next((a, b) for a, b in zip(first, texts) if a != b)} differ")
                    good = False
            mean = {kind: statistics.harmonic_mean(rate) for kind, rate in found.items()}
            for kind in KINDS:
                rates[kind].append(mean[kind])
            for kind in ("whole", "stream"):
                ratios[kind].append(mean[kind] / mean["plain"])
            ratios["both"].append(statistics.harmonic_mean([mean["whole"], mean["stream"]]) / mean["plain"])
        ratio = {kind: statistics.median(r) for kind, r in ratios.items()}
        good = good and ratio["both"] >= BOUND
        print(f"{at_once:3d} at once: " + ", ".join(f"{kind} {statistics.median(r):.0f}" for kind, r in rates.items()) + " tok/s; of plain: " +
              ", ".join(f"{kind} {ratio[kind]:.3f} (rounds {min(r):.3f} to {max(r):.3f})" for kind, r in ratios.items()), flush=True)
    if health:
        print(f"/health: {len(health)} answers, median {1e3 * statistics.median(health):.2f} ms, slowest {1e3 * max(health):.1f} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
