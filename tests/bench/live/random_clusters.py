#!/usr/bin/env python3
"""Plans of random clusters beside what the clusters do: od-plan sees the model's config.json and what od-plan --check measured, nothing else.

    random_clusters.py [--clusters 20] [--first 0] [--seed HEX] [--tokens 64] [--json FILE]

Needs root, iproute2, the programs of make, and build/lib/libod_paced.so. --seed: by default the first eight hex digits of the commit.

A cluster has 2 to 8 hosts in network namespaces: main, workers, and in some a shadow. Speed, read rate and memory of the hosts differ by up to 8 times,
links have 0.1 to 2.5 Gbit/s. Each daemon computes on a paced device, so its times are those of the given machine as long as the real
processors are not busy: the share of their time that was used is printed, and should stay below 60 %.

For each cluster: the daemons start, `od-plan --check HOSTS --write` measures them, od-plan makes a plan of config.json and the hosts file, the workers are
started again with the options that it names, and od-main serve writes texts: some to warm up, three one by one, then --texts at once. Compared are tokens a second, and the
memory of each daemon at its peak."""
import argparse
import json
import math
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "integ"))
from cluster_util import BIN, TMP, tool  # noqa: E402
from netns_lan import Lan, Node, Unavailable  # noqa: E402
from stream_client import StreamClient  # noqa: E402

PLUGIN = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_paced.so"))
SHAPE = {"layers": 12, "hidden": 512, "intermediate": 512, "experts": 16, "top-k": 2, "heads": 8, "kv-heads": 2, "head-dim": 64, "vocab": 1024,
         "ctx": 1024}
MOST_HOSTS = 8
MIB = 1 << 20
STAGES = 8 * MIB
PORT = 8083


def make_model():
    folder, pack = os.path.join(TMP, "random"), os.path.join(TMP, "random.pack")
    tool("od-bench", "synth", folder, *(f"--{k}={v}" for k, v in SHAPE.items()))
    tool("od-pack", folder, pack, "--shadow", "int8")
    return os.path.join(folder, "config.json"), pack


def between(rng, low, high):
    """Even in the logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def draw(rng):
    """The machines of a cluster: name, role, words of the paced device, bits a second, memory of a worker."""
    n = rng.randint(2, MOST_HOSTS)
    hosts = []
    for i in range(n):
        role = "main" if i == 0 else "shadow" if i == 1 and n > 3 and rng.random() < 0.4 else "worker"
        speed = between(rng, 0.01, 0.08) * (2 if role == "main" else 4 if role == "shadow" else 1)
        hosts.append({"name": f"{role}{i}", "role": role, "speed": round(speed, 4), "many": round(speed * between(rng, 3, 8), 4),
                      "read": round(between(rng, 30e6, 240e6)), "link": round(between(rng, 0.1e9, 2.5e9)),
                      "memory": round((70 + between(rng, 12, 96)) * MIB)})
    return hosts


def environment(h):
    return {**os.environ, "OD_CUDA_PLUGIN": PLUGIN, "OD_PACED": f"speed={h['speed']} many={h['many']} read={h['read']}"}


class PacedNode(Node):
    """options: behind the usual ones; they change between two starts."""

    def __init__(self, lan, host, pack):
        self.host = host
        super().__init__(lan, host["name"], "--device", "cuda", pack_dir=pack)

    def start(self):
        before = dict(os.environ)
        os.environ.update(environment(self.host))
        try:
            super().start()
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(lan, main, program, *args):
    p = lan.start(main["name"], program, *args, env=environment(main), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = p.communicate()
    return p.returncode, out, err


def busy_seconds():
    """Of all processors, and of all time."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK"), sum(v) / os.sysconf("SC_CLK_TCK")


def peak(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def write_live(args, lan, hosts, path, pack, options):
    """Tokens a second of one text and of --texts texts, the share of the processors that one text took, and main's process at its end.

    Caches are warm, and the texts together fill what --ctx-size promises them, and a prompt's step its rows."""
    main = hosts[0]
    log = open(os.path.join(TMP, "random-main.log"), "w+")
    p = lan.start(main["name"], "od-main", "serve", "--workers", path, "--insecure", "--pack", pack, "--device", "cuda", "--prefix-cache-mib", 0, "--parallel",
                  args.texts, "--listen", f"127.0.0.1:{PORT}", "--draft", "auto" if args.drafts else "off", *options, env=environment(main),
                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client = StreamClient(lan, main["name"])

    def body(first, tokens, prompt=8):
        return {"prompt": [300 + (first * 31 + i * 7) % 700 for i in range(prompt)], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    def ask(*bodies):
        answers = client.ask(PORT, *bodies)
        for a in answers:
            if a["error"]:
                log.seek(0)
                raise AssertionError(f"{a['error']}\n{log.read()[-2000:]}")
        return answers

    try:
        if not client.wait_for(PORT, p):
            log.seek(0)
            raise AssertionError(log.read()[-2000:])
        for i in range(args.warm):
            ask(body(i, args.tokens))
        used = busy_seconds()
        rates = [(len(t) - 1) / (t[-1] - t[0]) for t in (ask(body(100 + i, args.tokens))[0]["times"] for i in range(3))]
        now = busy_seconds()
        times = [a["times"] for a in ask(*(body(200 + i, args.ctx // 2 - 1, args.ctx // 2) for i in range(args.texts)))]
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)  # all of them are in decode
        many = sum(begin < x <= end for t in times for x in t) / (end - begin)
        return statistics.median(rates), many, (now[0] - used[0]) / (now[1] - used[1]), peak(p.pid)
    finally:
        client.close()
        p.terminate()
        p.wait()


def options_of(text, program, *but):
    """HOST -> options, of the lines of a plan that say how to run it. but: options that have another value here."""
    found = {}
    for line in text.splitlines():
        m = re.match(rf"\s+{program} (?:serve )?(.*?)(?:\s+# on (\S+))?$", line)
        if m:
            words = shlex.split(m[1])
            for name in ("--pack", *but):
                if name in words:
                    i = words.index(name)
                    del words[i:i + 2]
            found[m[2] or ""] = words
    return found


def beside_the_device(options):
    """A paced device maps no memory, so a worker has stages on the host, too: these are not the machine's."""
    options = list(options)
    if "--memory-limit" in options:
        i = options.index("--memory-limit") + 1
        options[i] = f"{round(float(options[i][:-1]) * {'K': 2 ** 10, 'M': 2 ** 20, 'G': 2 ** 30}[options[i][-1]]) + STAGES}"
    return tuple(options)


def one(args, number, seed, config, pack):
    rng = random.Random(f"{seed}-{number}")
    hosts = draw(rng)
    lan = Lan("odrnd", "10.213.81", {h["name"]: i + 1 for i, h in enumerate(hosts)})
    nodes = []
    try:
        for h in hosts:
            lan.limit(h["name"], f"{h['link']}bit")
        path = os.path.join(TMP, f"hosts-{number}.txt")
        nodes = [PacedNode(lan, h, pack) for h in hosts[1:]]
        for n in nodes:
            if n.role == "worker":
                n.options = ("--memory-limit", f"{n.host['memory'] // MIB}MiB")
                n.restart()
        with open(path, "w") as f:
            f.write("".join(f"{h['role']} {lan.address(h['name'])}\n" for h in hosts[1:]))
        status, out, err = run(lan, hosts[0], "od-plan", "--check", path, pack, "--insecure", "--device", "cuda", "--write", "--json")
        if status != 0:
            raise AssertionError(f"od-plan --check: {status}\n{out[-1500:]}\n{err[-1500:]}")
        text = subprocess.run([os.path.join(BIN, "od-plan"), config, path, "--ctx-size", str(args.ctx)], capture_output=True, text=True)
        plan = json.loads(subprocess.run([os.path.join(BIN, "od-plan"), config, path, "--ctx-size", str(args.ctx), "--json"], capture_output=True, text=True).stdout)
        for n in nodes:
            wanted = options_of(text.stdout, f"od-{n.role}").get(lan.address(n.name))
            if wanted is not None:
                n.options = beside_the_device(wanted)
                n.restart()
        options = next(iter(options_of(text.stdout, "od-main", "--workers", "--parallel").values()))
        rate, many, busy, main_bytes = write_live(args, lan, hosts, path, pack, options)
        planned = {f["texts"]: f["value"] for f in plan["figures"] if f["figure"] == "tokens_per_second" and f["drafts"] == args.drafts}
        memory = [{"host": h["host"], "planned": h["memory"]["need_bytes"]} for h in plan["hosts"]]
        memory[0]["peak"] = main_bytes
        for n in nodes:
            next(m for m in memory if m["host"] == lan.address(n.name))["peak"] = peak(n.process.pid)
        return {"cluster": number, "hosts": hosts, "fits": plan["fits"], "planned": round(planned[1], 2), "live": round(rate, 2), "ratio": round(rate / planned[1], 3),
                "ratio_many": round(many / planned[args.texts], 3),
                "memory_ratio": [round(m.get("peak", 0) / m["planned"], 3) for m in memory], "busy": round(busy, 2), "words": open(path).read(), "plan": text.stdout}
    finally:
        for n in nodes:
            n.kill()
            n.forget()
        lan.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--clusters", type=int, default=20)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--seed")
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--ctx", type=int, default=128, help="tokens of context that texts are promised, and fill")
    p.add_argument("--texts", type=int, default=16, choices=(4, 16))
    p.add_argument("--warm", type=int, default=3, help="texts before the first that is measured")
    p.add_argument("--drafts", action="store_true")
    p.add_argument("--json", help="a file for all that was seen, a line a cluster")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    seed = args.seed or subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    config, pack = make_model()
    good = 0
    for number in range(args.first, args.first + args.clusters):
        try:
            row = one(args, number, seed, config, pack)
        except Unavailable as e:
            sys.exit(str(e))
        except AssertionError as e:
            row = {"cluster": number, "error": str(e)}
        if args.json:
            with open(args.json, "a") as f:
                f.write(json.dumps(row) + "\n")
        good += abs(row.get("ratio", 0) - 1) <= 0.1
        print(*(f"{k} {v}" for k, v in row.items() if k in ("cluster", "error", "fits", "planned", "live", "ratio", "ratio_many", "memory_ratio", "busy")),
              *([row["words"], row["plan"]] if args.verbose and "plan" in row else []), sep="  ", flush=True)
    print(f"seed {seed}: {good} of {args.clusters} within 10 %")


if __name__ == "__main__":
    main()
