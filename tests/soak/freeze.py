#!/usr/bin/env python3
"""Runs test programs and takes the CPU away from one of their processes after another, as a starved machine does. Needs root.

    freeze.py [--runs N] [--hold A,B] [--gap A,B] [--busy N] [--jobs N] [--seed S] [--logs FOLDER] PROGRAM...     (make soak-freeze)

PROGRAM: tests/integ/test_chat.py, build/tests/test_answer. A frozen process (the program, its children and theirs) gets no CPU for
--hold seconds, and the next one is frozen --gap seconds later. The kernel's freezer (cgroup v2) is used, and not SIGSTOP: a parent
does not see it, and what a test stops stays stopped. As with SIGSTOP, recv() with a timeout ends with EINTR. --busy: so many busy
loops run meanwhile."""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

HUNG_S = 3600
stopped = threading.Event()


def cgroup_root():
    with open("/proc/mounts") as f:
        found = [line.split()[1] for line in f if line.split()[2] == "cgroup2"]
    if not found or os.geteuid() != 0:
        sys.exit("freeze.py needs root and cgroup v2")
    return found[0]


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


class Freezer:
    """A cgroup for one process at a time."""

    def __init__(self, name):
        self.root = cgroup_root()
        self.path = os.path.join(self.root, f"od-freeze-{os.getpid()}-{name}")
        os.mkdir(self.path)

    def group_of(self, pid):
        with open(f"/proc/{pid}/cgroup") as f:
            return next(line.rstrip("\n").split("::", 1)[1] for line in f if line.startswith("0::"))

    def hold(self, pid, seconds, ended):
        """False: the process has gone."""
        try:
            home = self.group_of(pid)
            write(os.path.join(self.path, "cgroup.procs"), str(pid))
        except OSError:
            return False
        write(os.path.join(self.path, "cgroup.freeze"), "1")
        ended.wait(seconds)
        write(os.path.join(self.path, "cgroup.freeze"), "0")
        with open(os.path.join(self.path, "cgroup.procs")) as f:
            inside = f.read().split()  # children that it has started meanwhile, too
        for p in inside:
            try:
                write(os.path.join(self.root, home.lstrip("/"), "cgroup.procs"), p)
            except OSError:  # it has gone
                pass
        return True

    def close(self):
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:  # a process that is ending
                time.sleep(0.05)


def family(pid):
    """The process and its descendants, with their names."""
    parents, names = {}, {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f:
                head, rest = f.read().rsplit(")", 1)
        except OSError:
            continue
        if rest.split()[0] != "Z":
            names[int(p)] = head.split("(", 1)[1]
            parents.setdefault(int(rest.split()[1]), []).append(int(p))
    found, at = [pid], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return [(p, names[p]) for p in found if p in names]


def run(program, number, args):
    """(name, seconds, freezes, passed, failures, log)"""
    rng = random.Random(f"{args.seed} {program} {number}")
    name = os.path.basename(program)
    argv = ["python3", program] if program.endswith(".py") else [program]
    log = os.path.join(args.logs, f"{name}.{number}.log")
    held = []
    begin = time.monotonic()
    with open(log, "w") as f:
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                             env={**os.environ, "CMOCKA_MESSAGE_OUTPUT": "TAP"})
    ended = threading.Event()

    def freeze():
        freezer = Freezer(f"{name}-{number}")
        while not ended.wait(rng.uniform(*args.gap)) and not stopped.is_set():
            who = family(p.pid)
            if who:
                pid, what = rng.choice(who)
                at, seconds = time.monotonic() - begin, rng.uniform(*args.hold)
                if freezer.hold(pid, seconds, ended):
                    held.append(f"# at {at:.2f} s: {what} ({pid}) had no CPU for {seconds:.2f} s")
        freezer.close()

    thread = threading.Thread(target=freeze)
    if args.hold[1] > 0:
        thread.start()
    status = None
    while status is None and time.monotonic() - begin < HUNG_S and not stopped.is_set():
        try:
            status = p.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            pass
    if status is None:
        status = "none: it hung, or was stopped"
        for pid, _ in family(p.pid):
            os.kill(pid, signal.SIGKILL)
        p.wait()
    took = time.monotonic() - begin
    ended.set()
    if args.hold[1] > 0:
        thread.join()
    with open(log, "a") as f:
        f.write("".join(line + "\n" for line in held))
    with open(log, errors="replace") as f:
        text = f.read()
    failures = re.findall(r"^not ok (?!\d+ # SKIP).*", text, re.M)
    if status != 0 and not failures:
        failures = [f"status {status}"]
    passed = len(re.findall(r"^ok ", text, re.M))
    print(f"{'FAILED' if failures else 'ok':6} {name:32} run {number}: {took:6.1f} s, {len(held):3} freezes, {passed} passed, "
          f"{len(failures)} failed" + "".join(f"\n       {f}" for f in failures) + (f"\n       see {log}" if failures else ""), flush=True)
    return len(held), not failures


def pair(text):
    a, b = text.split(",")
    return float(a), float(b)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hold", type=pair, default=(1.5, 2), help="seconds without CPU; 0,0: freeze nothing")
    parser.add_argument("--gap", type=pair, default=(0, 6), help="seconds between freezes")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="programs that run at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", default=tempfile.gettempdir() + "/od-freeze")
    args = parser.parse_args()
    os.makedirs(args.logs, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    cgroup_root()
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(args.busy)]
    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda r: run(*r, args), [(p, n) for n in range(1, args.runs + 1) for p in args.programs]))
    finally:
        for b in busy:
            b.kill()
            b.wait()
    n_bad = sum(not good for _, good in results)
    print(f"{len(results)} runs, {sum(n for n, _ in results)} freezes, {n_bad} runs failed (seed {args.seed})")
    sys.exit(n_bad != 0)


if __name__ == "__main__":
    main()
