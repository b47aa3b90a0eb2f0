#!/usr/bin/env python3
"""make soak: every cluster shape against resident mode, and faults at random moments. Takes about a quarter of an hour.

    soak.py [shapes|faults] [--moments N] [--seed S]

What a failure needs to be seen again (case, seed, moment) is printed with it."""
import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integ"))
from cluster_util import HANG_S, Daemon, generate, hosts_file, main_args  # noqa: E402

PROMPT = "Once upon a time there was a king"
bad = 0


def report(ok, text):
    global bad
    bad += not ok
    print(("ok - " if ok else "NOT OK - ") + text, flush=True)


def shapes():
    reference = {p: generate("--resident", "--profile", p, prompt=PROMPT)["token_ids"] for p in ("f32", "bf16")}
    cases = itertools.product((1, 2, 3, 5, 8), (1, 2, 3), (1, 2), ("shadow", "next-gate", "none"), (1, 2),
                              ("f32", "bf16"))
    for n, (workers, group, slots, predictor, threads, profile) in enumerate(cases, 1):
        text = f"{n}: {workers} workers, G {group}, {slots} slots, {predictor}, {threads} threads, {profile}"
        try:
            r = generate("--local", workers, "--group-size", group, "--worker-arg", f"--slots={slots}", "--predictor",
                         predictor, "--threads", threads, "--profile", profile, prompt=PROMPT)
            report(r["token_ids"] == reference[profile], text)
        except (AssertionError, subprocess.TimeoutExpired) as e:
            report(False, f"{text}: {e}")


class Cluster:
    def __init__(self, tokens):
        self.nodes = [Daemon("shadow")] + [Daemon("worker", "--slots", 1 + i % 2) for i in range(3)]
        argv = main_args("--workers", hosts_file(self.nodes, "soak-hosts.txt"), tokens=tokens)
        at = argv.index("--prompt")
        del argv[at:at + 2]
        self.main = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                     stderr=subprocess.DEVNULL)

    def ask(self):
        self.main.stdin.write(PROMPT + "\n")
        self.main.stdin.flush()

    def answer(self):
        line = self.main.stdout.readline()
        if not line:
            raise AssertionError(f"main ended with status {self.main.wait()}")
        return json.loads(line)


def faults(moments, seed, tokens=150):
    rng = random.Random(seed)
    want = generate("--resident", prompt=PROMPT, tokens=tokens)["token_ids"]
    c = Cluster(tokens)
    c.ask()
    c.answer()
    recovered = 0
    for i in range(moments):
        victim = rng.choice(c.nodes)
        kill = rng.random() < 0.6
        c.ask()
        time.sleep(rng.random() * 1.2)
        victim.kill() if kill else victim.signal(signal.SIGSTOP)
        r = c.answer()
        recovered += r["recovered_runs"]
        victim.start() if kill else victim.signal(signal.SIGCONT)
        report(r["token_ids"] == want, f"moment {i} of seed {seed}: {victim.role} {'killed' if kill else 'stopped'}")
    for _ in range(20):  # everybody is used again in the end
        c.ask()
        r = c.answer()
        if r["workers"] == 3 and r["predicted_uses"] > 0 and all(n["alive"] for n in r["nodes"]):
            break
    report(r["workers"] == 3 and r["predicted_uses"] > 0, "everybody is used again")
    report(recovered > 0, f"{recovered} runs were sent again to another worker")
    c.main.stdin.close()
    report(c.main.wait(timeout=HANG_S) == 0, "main ends well")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["shapes", "faults"])
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.what in (None, "shapes"):
        shapes()
    if args.what in (None, "faults"):
        faults(args.moments, args.seed)
    print(f"{bad} failed" if bad else "all well")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
