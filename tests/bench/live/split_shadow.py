#!/usr/bin/env python3
"""A shadow that fits no host, on two. Each host has a network namespace on a bridge; those of the shadow also a memory cgroup, and
od-shadow the same --memory-limit. Needs root, iproute2, the memory controller of cgroup v1, and as much memory as the shadow takes.

    split_shadow.py --bin DIR --pack PACK --limits 16GB,16GB [--cut N] [--ram 12GB,10GB] [--load-time MS] [--tokens 32]

--cut: the first layer of the second host (default: the first host holds the layers that od-shadow says fit there).
--ram: less than the limits, for a machine that has less memory than its hosts: the rest is in swap.
--load-time: as od-worker has it. Main does not wait for predictions, so a shadow in swap is too late for it without.

First od-shadow is started for the whole model on one host, which must refuse it. Then both parts run, and a text is written; its
tokens must be those of --resident. While more texts are written, each part is killed once and started again; main must go on with the
same tokens, and hear predictions again. A host's limit is of memory and swap together."""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "integ"))
import cluster_util  # noqa: E402
from cluster_util import TMP  # noqa: E402
from netns_lan import LimitedLan, Node  # noqa: E402

SHADOWS, WORKERS = ("shadow0", "shadow1"), ("w0", "w1")
NODES = {"main": 1, "shadow0": 2, "shadow1": 3, "w0": 11, "w1": 12}
PORT = {"shadow": 5700, "worker": 5701}
WORKER_LIMIT = "500MB"
PROMPT = "Once upon a time there was"
UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def bytes_of(size):
    number, unit = re.fullmatch(r"([\d.]+)([GM]i?B)", size).groups()
    return int(float(number) * UNITS[unit])


def memory_of(process):
    """The most bytes until now, with what is in swap now."""
    with open(f"/proc/{process.pid}/status") as f:
        kib = {k: int(v) for k, v in re.findall(r"(VmHWM|VmRSS|VmSwap):\s+(\d+) kB", f.read())}
    return 1024 * max(kib["VmHWM"], kib["VmRSS"] + kib["VmSwap"])


class Main:
    """od-main with one prompt a line; `same`: all its texts had the wanted tokens."""

    def __init__(self, process, want):
        self.p, self.want, self.same = process, want, True

    def write(self):
        """How many uses of experts were predicted."""
        self.p.stdin.write(PROMPT + "\n")
        self.p.stdin.flush()
        r = json.loads(self.p.stdout.readline())
        self.same = self.same and r["token_ids"] == self.want
        return r["predicted_uses"]

    def write_until_predicted(self, usual):
        """The predicted uses of each text, until one has at least half of what is usual."""
        found = []
        while len(found) < 100 and (not found or 2 * found[-1] < usual):
            found.append(self.write())
        return found

    def end(self):
        self.p.communicate()
        return self.p.returncode


class Bench:
    def __init__(self, a):
        self.a = a
        self.n_layers = json.load(open(os.path.join(a.pack, "config.json")))["num_hidden_layers"]
        self.limit = dict(zip(SHADOWS, map(bytes_of, a.limits.split(","))))
        self.lan = LimitedLan("odss", "10.213.79", NODES, self.limit, dict(zip(SHADOWS, map(bytes_of, (a.ram or a.limits).split(",")))))
        self.report = {"layers": self.n_layers, "ok": True}
        self.part = []

    def tool(self, name):
        return os.path.join(os.path.abspath(self.a.bin), name)

    def check(self, ok, text):
        self.report["ok"] = self.report["ok"] and bool(ok)
        print(("ok - " if ok else "NOT OK - ") + text, file=sys.stderr, flush=True)

    # ---- the parts ----

    def refusal(self, node, limit, *args):
        """What od-shadow says on a host where its model does not fit."""
        p = self.lan.start(node, self.tool("od-shadow"), "--insecure", "--pack", self.a.pack, "--precision", self.a.precision,
                           "--memory-limit", limit, *args, stderr=subprocess.PIPE, text=True)
        said = p.communicate()[1].strip()
        return p.returncode, said, int(re.search(r"need\w? (\d+) bytes", said)[1])

    def refuse_whole(self):
        code, said, need = self.refusal("shadow0", self.limit["shadow0"])
        self.check(code == 1 and "--memory-limit is" in said, f"one host refuses the whole shadow: {said}")
        self.report["whole_need"] = need
        return int(re.search(r"Layers 0-(\d+) fit", said)[1]) + 1

    def start_parts(self, cut):
        for node, begin, end in zip(SHADOWS, (0, cut), (cut, self.n_layers)):
            layers = ["--layers", f"{begin}-{end - 1}"]
            need = self.refusal(node, "65MB", *layers)[2]
            begun = time.monotonic()
            d = Node(self.lan, node, "--precision", self.a.precision, "--memory-limit", self.limit[node], *layers, pack_dir=self.a.pack,
                     folder=self.a.bin)
            d.figures = {"layers": layers[1], "limit": self.limit[node], "need": need, "load_s": round(time.monotonic() - begun, 1)}
            self.part.append(d)

    def read_memory(self):
        for d in self.part:
            f = d.figures
            f["peak"] = max(f.get("peak", 0), memory_of(d.process))
            self.check(f["peak"] <= f["limit"] and not self.lan.was_killed(d.name),
                       f"{d.name}: layers {f['layers']} need {f['need']} bytes by od-shadow's count and took {f['peak']}, of {f['limit']}")

    # ---- main ----

    def main_args(self, *args):
        return ["--pack", self.a.pack, "--temperature", 0, "--ignore-eos", "--ctx-size", self.a.ctx_size, "--max-tokens",
                self.a.tokens, "--threads", 1, *args]

    def with_hosts(self, *nodes):
        path = os.path.join(TMP, "hosts.txt")
        with open(path, "w") as f:
            for n in [*nodes, *WORKERS]:
                role = "shadow" if n in SHADOWS else "worker"
                f.write(f"{role} {self.lan.address(n)}:{PORT[role]}\n")
        return "--insecure", "--workers", path

    def json_text(self, *args):
        p = self.lan.start("main", self.tool("od-main"), *self.main_args("--json", "--prompt", PROMPT, *args), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        out, err = p.communicate()
        if p.returncode != 0:
            return None, err.strip()
        return json.loads(out), err

    def one_part_is_not_used(self):
        r, err = self.json_text(*self.with_hosts(SHADOWS[1]))
        self.check(r is None and "expected all layers" in err, f"main refuses one part alone: {err}")

    def write_text(self):
        r, err = self.json_text(*self.with_hosts(*SHADOWS))
        if r is None:
            sys.exit(err)
        self.check(r["token_ids"] == self.want["token_ids"], f"{r['tokens']} tokens are those of --resident")
        self.check(r["predicted_uses"] > 0, f"{r['recalled_uses']} of {r['predicted_uses']} predicted uses recalled, {r['expert_uses']} "
                   f"uses in all, {r['served_in_time']} served in time")
        self.report["text"] = {k: r[k] for k in ("prompt_tokens", "tokens", "expert_uses", "predicted_uses", "recalled_uses",
                                                 "served_in_time")}
        self.report["nodes"] = {n["name"]: n["peak_rss_bytes"] for n in r["nodes"]}

    def kill_parts(self):
        """One main writes the same text again and again; meanwhile each part goes, and comes back while texts are written."""
        m = Main(self.lan.start("main", self.tool("od-main"), *self.main_args("--json", *self.with_hosts(*SHADOWS)), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), self.want["token_ids"])
        begun = time.monotonic()
        before = m.write()
        half_s = (time.monotonic() - begun) / 2
        with concurrent.futures.ThreadPoolExecutor() as pool:
            try:
                for d in self.part:
                    self.kill_part(d, m, before, half_s, pool)
            except BaseException:
                m.p.kill()  # else the pool waits for its texts
                raise
        self.check(m.end() == 0, "main ends well")

    def kill_part(self, d, m, before, half_s, pool):
        hit = pool.submit(m.write)
        time.sleep(half_s)
        d.kill()
        during = hit.result()
        texts = pool.submit(m.write_until_predicted, before)
        d.start()
        after = texts.result()
        self.check(during < before and after[0] < before and 2 * after[-1] >= before and m.same, f"{d.name} is killed in the middle of a "
                   f"text: the same tokens; {before} uses predicted before, {during} in this text, {', '.join(map(str, after))} in "
                   "the next")

    # ---- all of it ----

    def run(self):
        cut = self.refuse_whole()
        cut = self.a.cut if self.a.cut is not None else cut
        self.want, err = self.json_text("--resident")
        if self.want is None:
            sys.exit(err)
        for w in WORKERS:
            Node(self.lan, w, "--memory-limit", WORKER_LIMIT, "--load-time", self.a.load_time, pack_dir=self.a.pack, folder=self.a.bin)
        self.start_parts(cut)
        self.one_part_is_not_used()
        self.write_text()
        self.read_memory()
        self.kill_parts()
        self.read_memory()
        self.report["parts"] = [d.figures for d in self.part]
        shadow = os.path.join(self.a.pack, f"shadow-{self.a.precision}.bin")
        self.report.update(file_bytes=os.path.getsize(shadow), memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        print(json.dumps(self.report, indent=None if self.a.json else 2))

    def close(self):
        for d in list(cluster_util._children):
            d.kill()
        self.lan.remove_cgroups()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--pack", required=True)
    p.add_argument("--limits", required=True)
    p.add_argument("--ram")
    p.add_argument("--cut", type=int)
    p.add_argument("--precision", default="int8")
    p.add_argument("--ctx-size", type=int, default=512)
    p.add_argument("--load-time", type=float, default=0)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--json", action="store_true", help="the report on one line")
    bench = Bench(p.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        bench.run()
    finally:
        bench.close()
    sys.exit(not bench.report["ok"])


if __name__ == "__main__":
    main()
