#!/usr/bin/env python3
"""How fast a worker pulls its experts, beside what plain TCP moves over the same link: two network namespaces, joined by
a link that is shaped to a rate. Runs are interleaved; medians. Needs root, iproute2 and the programs of `make`.

    tests/bench/live/pull_bench.py [--rate 1gbit] [--runs 5] [--pack PACK] [--json]

Without --pack a synthetic one is made (about 460 MB)."""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BIN = os.path.join(os.environ.get("B", "build"), "bin")
ID = f"odp{os.getpid() % 100000}"
MAIN, WORKER = f"{ID}m", f"{ID}w"
HOST = {MAIN: "10.213.78.1", WORKER: "10.213.78.2"}
STORE_PORT, WORKER_PORT, TCP_PORT = 5702, 5701, 5999
PIECE = 1 << 20


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def make_link(rate, burst):
    for ns in MAIN, WORKER:
        ip("netns", "add", ns)
        ip("-n", ns, "link", "set", "lo", "up")
    ip("-n", MAIN, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", WORKER)
    for ns in MAIN, WORKER:
        ip("-n", ns, "addr", "add", f"{HOST[ns]}/24", "dev", "eth0")
        ip("-n", ns, "link", "set", "eth0", "up")
        subprocess.run(["ip", "netns", "exec", ns, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate,
                        "burst", burst, "latency", "50ms"], check=True)


def take_down():
    for ns in MAIN, WORKER:
        subprocess.run(["ip", "netns", "del", ns], capture_output=True)


def on(ns, *args, **kw):
    return subprocess.Popen(["ip", "netns", "exec", ns, *map(str, args)], **kw)


# Plain TCP: one connection, the sender out of memory, the receiver into a buffer. Started as this file's own child, so
# that it runs in the namespace.

def tcp_send(n):
    with socket.create_server((HOST[MAIN], TCP_PORT)) as server:
        print("ready", flush=True)
        s, _ = server.accept()
        data = os.urandom(PIECE)
        with s:
            while n > 0:
                s.sendall(data[:min(n, PIECE)])
                n -= min(n, PIECE)


def tcp_receive(n):
    buffer = bytearray(PIECE)
    with socket.create_connection((HOST[MAIN], TCP_PORT)) as s:
        begin = time.monotonic()
        while n > 0:
            got = s.recv_into(buffer)
            if got == 0:
                sys.exit("the connection ended")
            n -= got
        print(time.monotonic() - begin)


def run_tcp(n):
    sender = on(MAIN, sys.executable, __file__, "--tcp-send", n, stdout=subprocess.PIPE, text=True)
    sender.stdout.readline()
    receiver = on(WORKER, sys.executable, __file__, "--tcp-receive", n, stdout=subprocess.PIPE, text=True)
    out, _ = receiver.communicate()
    sender.wait()
    return float(out)


class Lines:
    """When a process first said what."""

    def __init__(self, stream):
        self.seen, self.text, self.changed = {}, "", threading.Condition()
        threading.Thread(target=self.read, args=(stream,), daemon=True).start()

    def read(self, stream):
        for line in stream:
            with self.changed:
                self.text += line
                self.seen[line] = time.monotonic()
                self.changed.notify_all()

    def when(self, what):
        with self.changed:
            while True:
                for line, at in self.seen.items():
                    if what in line:
                        return at
                if not self.changed.wait(300):
                    sys.exit(f"nothing more comes; expected \"{what}\" in:\n{self.text}")


def run_pull(pack, folder):
    """Seconds from PLACE to the last expert on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    hosts = folder + ".hosts"
    with open(hosts, "w") as f:
        f.write(f"{HOST[WORKER]}:{WORKER_PORT}\n")
    main = on(MAIN, os.path.join(BIN, "od-main"), "--pack", pack, "--workers", hosts, "--serve-store", HOST[MAIN],
              "--insecure", "--predictor", "none", "--ctx-size", 16, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
              stderr=subprocess.PIPE, text=True)
    main_log = Lines(main.stderr)
    main_log.when("the store listens")
    worker = on(WORKER, os.path.join(BIN, "od-worker"), "--store", HOST[MAIN], "--spool", folder, "--insecure",
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = Lines(worker.stderr)
    begin, end = log.when("share of worker"), log.when("is complete")
    worker.terminate()
    worker.wait()
    main.stdin.close()
    main.wait()
    return end - begin


def make_pack(folder):
    checkpoint = os.path.join(folder, "model")
    subprocess.run([os.path.join(BIN, "od-bench"), "synth", checkpoint, "--preset", "small", "--layers", "4", "--hidden",
                    "1024", "--intermediate", "3584", "--heads", "16", "--kv-heads", "4", "--vocab", "512"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([os.path.join(BIN, "od-pack"), "--shadow", "none", checkpoint, checkpoint + ".pack"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(checkpoint)
    return checkpoint + ".pack"


def bench(a, folder):
    pack = os.path.abspath(a.pack) if a.pack else make_pack(folder)
    info = json.loads(subprocess.run([os.path.join(BIN, "od-pack"), "info", "--json", pack], check=True,
                                     capture_output=True, text=True).stdout)
    n = info["expert_stored_bytes"]
    make_link(a.rate, a.burst)
    tcp, pull = [], []
    for run in range(a.runs):
        tcp.append(n / run_tcp(n) / 1e6)
        pull.append(n / run_pull(pack, os.path.join(folder, "spool")) / 1e6)
        if not a.json:
            print(f"run {run + 1}: plain TCP {tcp[-1]:.1f} MB/s, pulling {pull[-1]:.1f} MB/s "
                  f"({100 * pull[-1] / tcp[-1]:.1f} %)", flush=True)
    r = {"rate": a.rate, "bytes": n, "tcp_mb_per_s": tcp, "pull_mb_per_s": pull,
         "tcp_median": statistics.median(tcp), "pull_median": statistics.median(pull),
         "ratio": statistics.median(p / t for p, t in zip(pull, tcp)), "load": os.getloadavg()[0]}
    if a.json:
        print(json.dumps(r))
    else:
        print(f"{n / 1e6:.0f} MB at {a.rate}, medians of {a.runs}: plain TCP {r['tcp_median']:.1f} MB/s, pulling "
              f"{r['pull_median']:.1f} MB/s, ratio {r['ratio']:.3f} (machine's load {r['load']:.1f})")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--burst", default="3100")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--pack")
    p.add_argument("--json", action="store_true")
    p.add_argument("--tcp-send", type=int, help=argparse.SUPPRESS)
    p.add_argument("--tcp-receive", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.tcp_send:
        return tcp_send(a.tcp_send)
    if a.tcp_receive:
        return tcp_receive(a.tcp_receive)
    if os.geteuid() != 0:
        sys.exit("this needs root, to make network namespaces")
    folder = tempfile.mkdtemp(prefix="od-pull-")
    try:
        bench(a, folder)
    finally:
        take_down()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
