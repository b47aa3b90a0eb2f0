#!/usr/bin/env python3
"""Batches of texts on a cluster of network namespaces, and random faults meanwhile. Needs root.

    batch_faults.py [--faults N] [--seed S] [--record FILE]     ("make soak" runs a few)
    batch_faults.py --sum FILE...                               the distribution of several records
    batch_faults.py --cases                                     single faults, among them of the only worker

Every text must be what its prompt gets alone by --resident, and main may be silent for HANG_S at most. A pause is the longest
time without a token of any text from a fault until tokens appear again, by main's own trace. One worker that can serve is
always left alone, except when main's own link is down. What a failure needs to be seen again is printed with it."""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integ"))
import cluster_util  # noqa: E402
from cluster_util import TMP, generate, pack  # noqa: E402
from netns_lan import Lan, Node, Unavailable, ip, tc  # noqa: E402

HANG_S = 90  # without a token: main's own bounds are 6 s for workers that are away, and 3 s for each kind of silence
LONG_S = 4.5  # a pause to look into: 3 s until a dead data port is known, then one load
STARVED = 100  # times its own time that a computation of 3 ms takes: other work held the processors, so pauses say little
WORKERS = ["w0", "w1", "w2", "w3"]
NODES = {"main": 1, "shadow": 2, **{w: 11 + i for i, w in enumerate(WORKERS)}}
NET = "10.213.78"
DATA_PORT = 5801
PREFIX = "odbf"
LOAD = ["--load-time", "6"]  # so that a batch takes time, not processor
OPTIONS = [["--slots", "1"], ["--slots", "2"], ["--slots", "4"], ["--cache-mib", "4", "--slots", "2"],
           ["--resident-form", "bf16"], ["--resident-form", "planes"], ["--cpu", "avx2", "--read-threads", "1"], []]
WORDS = ("once upon a time there was king who had three sons and the eldest went into dark forest to find golden bird that "
         "sang only at night").split()
N_TEXTS = 16
bad = 0


def report(ok, text):
    global bad
    bad += not ok
    print(("ok - " if ok else "NOT OK - ") + text, flush=True)


# ---- The network ----

class FaultyLan(Lan):
    """Links of 1 Gbit/s that lose packets when told."""

    def __init__(self):
        super().__init__(PREFIX, NET, NODES)
        self.shape("1gbit")
        self.can_drop = self.make_sink()

    def make_sink(self):
        """Packets to drop are sent there by filters of the switch's ports: neither end learns of it."""
        ip("-n", self.switch, "link", "add", "sink", "type", "veth", "peer", "name", "sink1")
        ip("-n", self.switch, "link", "set", "sink", "up")
        ip("-n", self.switch, "link", "set", "sink1", "up")
        good = all(tc("-n", self.switch, "qdisc", "add", "dev", w, "clsact") for w in [*WORKERS, "shadow"])
        good = good and self.drop("w0", "in", False)
        self.let_through("w0")
        return good

    def drop(self, node, direction, data_only):
        """direction: as the host sees it."""
        if data_only:
            match = ["match", "ip", "protocol", "6", "0xff", "match", "ip", "dport" if direction == "in" else "sport",
                     str(DATA_PORT), "0xffff"]
        else:
            match = ["match", "u32", "0", "0"]
        return tc("-n", self.switch, "filter", "add", "dev", node, "egress" if direction == "in" else "ingress", "protocol",
                  "ip", "prio", "1", "u32", *match, "action", "mirred", "egress", "redirect", "dev", "sink")

    def let_through(self, node):
        for side in "ingress", "egress":
            tc("-n", self.switch, "filter", "del", "dev", node, side)

    def heal(self):
        for node in NODES:
            ip("-n", self.switch, "link", "set", node, "up")
            ip("-n", self.name(node), "link", "set", "eth0", "up")
            self.let_through(node)


def make_node(lan, name):
    if name == "shadow":
        return Node(lan, name, "--data-port", DATA_PORT)
    return Node(lan, name, "--data-port", DATA_PORT, *LOAD, options=["--slots", "2"])


# ---- Faults: what begins, for how long, and what ends it ----

class Fault:
    def __init__(self, kind, node, seconds, begin, end, delay=0.0):
        self.kind, self.node, self.seconds, self.begin, self.end, self.delay = kind, node, seconds, begin, end, delay

    def __str__(self):
        return f"{self.kind}, {self.node}, {self.seconds:.1f} s"


def killed(c, rng, node):
    n = c.node[node]
    return Fault(f"kill {n.role}", node, rng.uniform(0, 3), n.kill, n.start)


def stopped(c, rng, node):
    n = c.node[node]
    return Fault(f"stop {n.role}", node, rng.uniform(0.1, 6), lambda: n.signal(signal.SIGSTOP),
                 lambda: n.signal(signal.SIGCONT))


def restarted(c, rng, node):
    n = c.node[node]

    def again():
        n.options = rng.choice(OPTIONS)
        n.start()
    return Fault("restart with other options", node, 0, n.kill, again)


def cable(c, rng, node):
    def link(state):
        ip("-n", c.lan.switch, "link", "set", node, state)
    who = node if node in ("main", "shadow") else "worker"
    longest = 3 if node == "main" else 5  # main waits 6 s for workers when none is there
    return Fault(f"cable of {who}", node, rng.uniform(0.1, longest), lambda: link("down"), lambda: link("up"))


def interface(c, rng, node):
    def link(state):
        ip("-n", c.lan.name(node), "link", "set", "eth0", state)
    return Fault(f"interface of {c.node[node].role}", node, rng.uniform(0.1, 5), lambda: link("down"), lambda: link("up"))


def dropped(what, directions, data_only):
    def make(c, rng, node):
        def begin():
            for d in directions:
                c.lan.drop(node, d, data_only)
        return Fault(what, node, rng.uniform(0.1, 6), begin, lambda: c.lan.let_through(node))
    return make


def hosts_changed(c, rng, node):
    def without():
        order = [n for n in c.order if n != node]
        rng.shuffle(order)
        c.write_hosts(order)

    def with_it():
        order = [*c.order, node] if node not in c.order else list(c.order)
        rng.shuffle(order)
        c.write_hosts(order)
    return Fault("SIGHUP, worker leaves the file", node, rng.uniform(0.1, 4), without, with_it)


WORKER_FAULTS = [killed, stopped, stopped, restarted, cable, interface, hosts_changed]
DROPS = [dropped("packets to worker dropped", ["in"], False), dropped("packets from worker dropped", ["out"], False),
         dropped("data port to worker dropped", ["in"], True), dropped("data port from worker dropped", ["out"], True),
         dropped("data port dropped", ["in", "out"], True)]
SHADOW_FAULTS = [killed, stopped, cable, interface]


# ---- One batch ----

class Tokens:
    """When tokens appeared, from the trace that main is writing: each computation of logits ends with some."""
    HEAD = re.compile(r'"name":"head","ph":"X","ts":([\d.]+),"dur":([\d.]+)')

    def __init__(self, path):
        self.path, self.at, self.rest, self.times = path, 0, "", []

    def read(self):
        try:
            with open(self.path) as f:
                f.seek(self.at)
                text = f.read()
        except FileNotFoundError:
            return self.times
        self.at += len(text)
        lines = (self.rest + text).split("\n")
        self.rest = lines.pop()
        for line in lines:
            m = self.HEAD.search(line)
            if m:
                self.times.append((float(m[1]) + float(m[2])) / 1e6)
        return self.times

    def pause(self, begin, end):
        """Longest time between two tokens of which a part lies within."""
        longest = 0.0
        for a, b in zip(self.times, self.times[1:]):
            if b > begin and a < end:
                longest = max(longest, b - a)
        return longest


class Machine(threading.Thread):
    """How much slower than alone a computation is, now and then: a pause may be other work on the same processors. On each
    of them, for work of real-time priority holds one and leaves the others alone."""
    WORK_S = 0.003

    def __init__(self, cpu, seen):
        super().__init__(daemon=True)
        self.cpu, self.seen = cpu, seen
        self.start()

    def run(self):
        os.sched_setaffinity(0, {self.cpu})  # of this thread
        while True:
            wall, own = time.monotonic(), time.thread_time()
            while time.thread_time() - own < self.WORK_S:
                pass
            self.seen.append((wall, (time.monotonic() - wall) / self.WORK_S))
            time.sleep(0.2)


class Machines:
    def __init__(self):
        self.seen = []
        self.probes = [Machine(cpu, self.seen) for cpu in sorted(os.sched_getaffinity(0))]

    def slowest(self, begin, end):
        return max((x for t, x in list(self.seen) if begin <= t <= end), default=0)


class Batch:
    def __init__(self, c, prompts, parallel, number):
        self.path = os.path.join(TMP, f"batch{number}.jsonl")
        with open(self.path, "w") as f:
            f.write("".join(json.dumps(p) + "\n" for p in prompts))
        c.write_hosts([n for n in c.order])
        trace = os.path.join(TMP, f"batch{number}.trace")
        self.tokens = Tokens(trace)
        self.answers, self.log, self.exiled = {}, [], {}
        self.last = time.monotonic()
        self.p = c.lan.start("main", "od-main", "--pack", pack(), "--json", "--threads", 1, "--workers", c.hosts, "--insecure",
                             "--prompts", self.path, "--parallel", parallel, "--trace", trace, "--ignore-eos", stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        cluster_util._children.append(self)
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.read_answers, self.read_log)]
        for t in self.threads:
            t.start()

    def read_answers(self):
        for line in self.p.stdout:
            o = json.loads(line)
            self.answers[o["index"]] = o

    def read_log(self):
        for line in self.p.stderr:
            now = time.monotonic()
            self.log.append((now, line.rstrip()))
            m = re.search(rf"worker {NET}\.(\d+):\d+ is lost: .* used again in (\d+) s", line)
            if m:
                self.exiled[f"w{int(m[1]) - 11}"] = now + int(m[2])

    def running(self):
        return self.p.poll() is None

    def hangs(self):
        times = self.tokens.read()
        return time.monotonic() - max([self.last, *times[-1:]]) > HANG_S

    def wait(self, until, after=None):
        """Until then, or, with after, until there is a token from after then. False: the batch has ended, or hangs."""
        while self.running() and not self.hangs():
            times = self.tokens.read()
            if after is None and time.monotonic() >= until:
                return True
            if after is not None and times and times[-1] > after:
                return True
            time.sleep(0.02)
        return False

    def said(self, begin, end):
        return "".join(f"    {t - begin:6.2f} {line}\n" for t, line in self.log if begin - 0.5 <= t <= end)

    def kill(self):
        if self.running():
            self.p.kill()
        self.p.wait()


class Campaign:
    def __init__(self, seed, lan):
        self.rng = random.Random(seed)
        self.seed = seed
        self.lan = lan
        self.hosts = os.path.join(TMP, "hosts.txt")
        self.order = ["shadow", *WORKERS]
        self.node = {n: make_node(self.lan, n) for n in self.order}
        self.batch = None
        self.machine = Machines()
        self.touched = {w: -100.0 for w in WORKERS}  # when its last fault ended
        self.records = []
        self.prompts = [self.some_prompt() for _ in range(3 * N_TEXTS)]
        self.alone = {}
        if not self.lan.can_drop:
            print("SKIP: this kernel cannot drop packets by tc filters; data ports and directions are not dropped", flush=True)

    def some_prompt(self):
        rng = self.rng
        words = rng.choice([1, 1, 2, 5, 10, 30, 60, 120, 300])
        o = {"prompt": " ".join(rng.choice(WORDS) for _ in range(words)).capitalize(), "max_tokens": rng.randrange(150, 400)}
        if rng.random() < 0.5:
            o |= {"temperature": rng.choice([0.7, 1.2]), "seed": rng.randrange(1000), "top_p": rng.choice([1, 0.9]),
                  "top_k": rng.choice([0, 50])}
        return o

    def expected(self, prompt):
        key = json.dumps(prompt, sort_keys=True)
        if key not in self.alone:
            args = ["--resident", "--ignore-eos", "--threads", 1]
            for option in "temperature", "seed", "top_p", "top_k":
                if option in prompt:
                    args += ["--" + option.replace("_", "-"), prompt[option]]
            self.alone[key] = generate(*args, prompt=prompt["prompt"], tokens=prompt["max_tokens"])
        return self.alone[key]

    def write_hosts(self, order):
        new = self.hosts + ".new"
        with open(new, "w") as f:
            for n in order:
                f.write(f"{'shadow' if n == 'shadow' else 'worker'} {NET}.{NODES[n]}\n")
        os.rename(new, self.hosts)
        if self.batch is not None and self.batch.running():
            self.batch.p.send_signal(signal.SIGHUP)

    # -- choosing --

    def can_serve(self, worker):
        """Back for long enough to be joined, and not exiled."""
        now = time.monotonic()
        return now > self.touched[worker] + 3 and now > self.batch.exiled.get(worker, 0) + 1.5

    def victims(self, n):
        """Different nodes, such that one worker that can serve is left; fewer if there are not so many."""
        able = [w for w in WORKERS if self.can_serve(w)]
        if not able:
            return []
        spared = self.rng.choice(able)
        others = [w for w in WORKERS if w != spared]
        return [self.rng.choice(["shadow", *others, *others]) if i == 0 else self.rng.choice(others) for i in range(n)]

    def choose(self):
        victims = self.victims(2 if self.rng.random() < 0.4 else 1)
        if victims and self.rng.random() < 0.05:
            return [cable(self, self.rng, "main")]
        faults = []
        for node in victims:
            if any(f.node == node for f in faults):
                continue
            kinds = SHADOW_FAULTS if node == "shadow" else WORKER_FAULTS + (DROPS if self.lan.can_drop else [])
            make = self.rng.choice(kinds)
            if make is hosts_changed and any(f.kind.startswith("SIGHUP") for f in faults):
                make = killed
            f = make(self, self.rng, node)
            f.delay = self.rng.uniform(0, 1) if faults else 0
            faults.append(f)
        return faults

    # -- inflicting --

    def inflict(self, faults):
        """All of them, overlapping. Returns when the last has ended."""
        start = time.monotonic()
        events = [(f.delay, f.begin, f) for f in faults] + [(f.delay + f.seconds, f.end, f) for f in faults]
        for at, what, f in sorted(events, key=lambda e: e[0]):
            time.sleep(max(0, start + at - time.monotonic()))
            what()
        end = time.monotonic()
        for f in faults:
            for w in WORKERS if f.node == "main" else [f.node]:
                if w in self.touched:
                    self.touched[w] = end
        return start, end

    def strike(self):
        """One fault or two, and what came of it. False: the batch is over."""
        b = self.batch
        faults = self.choose()
        if not faults:
            return b.wait(time.monotonic() + 0.3)
        start, end = self.inflict(faults)
        went_on = b.wait(None, after=end)
        settled = time.monotonic()
        if not went_on and not b.hangs():
            b.wait(None, after=1e18)  # it ended, or is about to: the trace has the rest then
        pause = b.tokens.pause(start, settled)
        if b.hangs():
            report(False, f"no token for {HANG_S} s since: " + " + ".join(str(f) for f in faults))
        if went_on or pause > 0:
            self.note(faults, pause, start, settled)
        return went_on and b.wait(time.monotonic() + self.rng.uniform(0.2, 1.2))

    def note(self, faults, pause, start, settled):
        n = sum(len(r["kinds"]) for r in self.records) + 1
        alone = all(f.node != "main" for f in faults)
        slow = round(self.machine.slowest(start - pause, settled), 1)
        self.records.append({"kinds": [f.kind for f in faults], "pause_s": round(pause, 3), "server_left": alone,
                             "slowed": slow})
        text = " + ".join(str(f) for f in faults)
        long = pause > LONG_S and alone and slow < STARVED
        print(f"fault {n}{f' to {n + 1}' if len(faults) > 1 else ''}: {text}: pause {pause:.2f} s{'  LONG' if long else ''}",
              flush=True)
        if long:
            print(f"    a computation took up to {slow} times its time on a processor of its own\n"
                  + self.batch.said(start, settled), end="", flush=True)

    # -- the whole --

    def run_batch(self, number, faults_left):
        rng = self.rng
        prompts = rng.sample(self.prompts, N_TEXTS)
        expected = [self.expected(p) for p in prompts]
        for n in self.node.values():
            assert n.alive(), f"{n.name} has died"
        self.touched = {w: -100.0 for w in WORKERS}
        self.batch = None
        self.batch = b = Batch(self, prompts, rng.choice([8, 16]), number)
        before = len(self.records)
        more = b.wait(None, after=0)
        while more and sum(len(r["kinds"]) for r in self.records[before:]) < faults_left:
            more = self.strike()
        b.wait(None, after=1e18)
        hung = b.running()
        b.kill()
        for t in b.threads:
            t.join(10)
        self.lan.heal()
        wrong = [i for i, e in enumerate(expected, 1) if b.answers.get(i, {}).get("token_ids") != e["token_ids"]]
        ok = not hung and not wrong and b.p.returncode == 0
        report(ok, f"batch {number} of seed {self.seed}: {N_TEXTS} texts, "
               f"{sum(len(e['token_ids']) for e in expected)} tokens"
               + (", it hangs" if hung else f", texts {wrong} are wrong, status {b.p.returncode}" if not ok else ""))
        if not ok:
            print(b.said(0, 1e18)[-6000:], end="", flush=True)
        return sum(len(r["kinds"]) for r in self.records[before:])

    def run(self, faults):
        done, number = 0, 0
        while done < faults and bad < 3:
            number += 1
            done += self.run_batch(number, faults - done)


# ---- Single cases, which have a table of their own in docs/BENCHMARKS.md ----

class Case:
    """A new main with these workers, and something that befalls them when it writes."""

    def __init__(self, c, number, workers, begin):
        self.c = c
        c.order = ["shadow", *workers]
        c.batch = None
        prompts = [{"prompt": p["prompt"][:60], "max_tokens": 900} for p in c.prompts[:N_TEXTS]]
        c.batch = self.b = Batch(c, prompts, N_TEXTS, f"-case{number}")
        self.b.wait(None, after=0)
        self.b.wait(time.monotonic() + 2)
        self.start = time.monotonic()
        begin()

    def wait(self, seconds):
        self.b.wait(self.start + seconds)
        return self

    def ended_after(self):
        seconds = time.monotonic() - self.start
        return f"error after {seconds:.1f} s" if not self.b.running() else "NO END"

    def pause(self, begin, end):
        self.b.tokens.read()
        return self.b.tokens.pause(self.start + begin, self.start + end)

    def close(self, name, found):
        slow = self.c.machine.slowest(self.start, time.monotonic())
        self.b.kill()
        self.c.lan.heal()
        for w in WORKERS:
            self.c.node[w].signal(signal.SIGCONT)
        time.sleep(2)
        print(f"| {name} | {found} |" + (f" (the machine was busy: {slow:.0f})" if slow >= STARVED else ""), flush=True)


def cases(c):
    def drop(*workers):
        return lambda: [c.lan.drop(w, d, True) for w in workers for d in ("in", "out")]

    def stop(*workers):
        return lambda: [c.node[w].signal(signal.SIGSTOP) for w in workers]

    for number, lost in (1, WORKERS[1:2]), (2, WORKERS[1:]):
        k = Case(c, number, WORKERS, drop(*lost)).wait(30)
        k.close(f"data ports of {len(lost)} of 4 workers dropped for 30 s",
                f"{k.pause(0, 6):.1f} s, later at most {k.pause(6.5, 30):.1f} s")
    k = Case(c, 3, WORKERS[:1], drop("w0")).wait(30)
    k.close("data port of the only worker dropped", k.ended_after())
    k = Case(c, 4, WORKERS[:1], stop("w0")).wait(30)
    k.close("the only worker stopped", k.ended_after())
    k = Case(c, 5, WORKERS[:1], stop("w0")).wait(6)
    c.node["w0"].signal(signal.SIGCONT)
    pause = k.wait(12).pause(0, 12)
    k.close("the only worker stopped for 6 s", f"{pause:.1f} s" if k.b.running() else k.ended_after())
    k = Case(c, 6, WORKERS[:2], lambda: None)
    for i in range(5):
        drop("w1")()
        k.wait(14 * i + 5)
        c.lan.let_through("w1")
        k.wait(14 * i + 14)
    exiles = re.findall(r"used again in (\d+) s", k.b.said(k.start, 1e18))
    k.close("data port of one of 2 workers dropped for 5 s, 5 times: exiles", ", ".join(exiles) + " s")


def summary(records):
    def row(name, pauses):
        s = sorted(pauses)
        at = [s[min(len(s) - 1, int(q * len(s)))] for q in (0.5, 0.9, 0.99)]
        print(f"| {name} | {len(s)} | " + " | ".join(f"{x:.2f}" for x in [*at, s[-1]]) + " |")
    print(f"{sum(len(r['kinds']) for r in records)} faults at {len(records)} moments", end="")
    starved = sum(r["slowed"] >= STARVED for r in records)
    print(f"; at {starved} of these other work held the processors: their pauses are left out" if starved else "")
    records = [r for r in records if r["slowed"] < STARVED]
    single = [r for r in records if len(r["kinds"]) == 1]
    print("| fault | count | median s | 90th | 99th | max |\n|---|---|---|---|---|---|")
    for kind in sorted({r["kinds"][0] for r in single}):
        row(kind, [r["pause_s"] for r in single if r["kinds"][0] == kind])
    double = [r["pause_s"] for r in records if len(r["kinds"]) == 2]
    if double:
        row("two at a time", double)
    if records:
        row("all", [r["pause_s"] for r in records])
    long = [r for r in records if r["server_left"] and r["pause_s"] > LONG_S]
    print(f"{len(long)} pauses above {LONG_S} s while a worker could serve", flush=True)


def interrupted(number, frame):
    sys.exit(128 + number)  # and so the namespaces go


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", help="append a JSON object for each moment to this file")
    parser.add_argument("--sum", nargs="+")
    parser.add_argument("--cases", action="store_true")
    args = parser.parse_args()
    if args.sum:
        summary([json.loads(line) for name in args.sum for line in open(name)])
        return
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, interrupted)
    try:
        lan = FaultyLan()
    except Unavailable as e:
        print(f"SKIP: {e}")
        return
    c = Campaign(args.seed, lan)
    if args.cases:
        cases(c)
        return
    c.run(args.faults)
    if args.record:
        with open(args.record, "a") as f:
            f.write("".join(json.dumps(r) + "\n" for r in c.records))
    summary(c.records)
    print(f"{bad} failed" if bad else "all well")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
