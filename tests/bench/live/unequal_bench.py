#!/usr/bin/env python3
"""Unequal workers: what main's own dealing reaches, beside the best of all fixed shares, and how quickly a slowed worker is relieved.

    unequal_bench.py [--speeds 1,2,4] [--memories 1,1,8] [--grid 8] [--tokens 48] [--texts 3] [--json]        shares and subsets
    unequal_bench.py --change [--slowed 2] [--to 0.25]                                                       a worker slows down in the middle

Main and the workers are processes on loopback; each worker computes and loads on a paced device (make build/lib/libod_paced.so): its
speed and read rate are --speeds times --speed and --read, its memory for experts --memories times --unit experts. The model is synthetic
(od-bench synth). So the times are those of the given machines, as long as the real ones are less busy than that.

Shares: each worker has a folder with only its share of each layer's experts, drawn by --seed, for good (as od-pack --share makes them); all
combinations of --grid parts are tried, among them those that leave workers out. Then all have the whole pack, and main deals. Main's
dealing is measured again after every few combinations. A text warms the caches up, the others are measured; greedy, the same prompts.

--change: main writes a long text; in its middle a worker slows down (--to times its speed), later it recovers. Printed are tokens a second before, in
the windows behind, and of new runs with the slow worker from the beginning."""
import argparse
import ctypes
import ctypes.util
import http.client
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "integ"))
from cluster_util import BIN, TMP, Daemon, free_port, tool, wait_for  # noqa: E402

PLUGIN = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_paced.so"))
SHAPE = {"layers": 12, "hidden": 256, "intermediate": 512, "experts": 16, "top-k": 2, "heads": 4, "kv-heads": 2, "head-dim": 64, "vocab": 1024,
         "ctx": 2048}
xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash"))
xxhash.XXH3_64bits.restype = ctypes.c_uint64


def make_pack():
    folder, pack = os.path.join(TMP, "unequal"), os.path.join(TMP, "unequal.pack")
    tool("od-bench", "synth", folder, *(f"--{k}={v}" for k, v in SHAPE.items()))
    tool("od-pack", folder, pack, "--shadow", "none")
    return pack


def make_share(pack, to, has):
    """A spool (docs/PACK-FORMAT.md) whose experts are the pack's file, of which only those of has [layer] (sets) count."""
    os.mkdir(to)
    for name in os.listdir(pack):
        if name in ("dense.bin",) or name.startswith("shadow-"):
            continue
        (os.link if name == "experts.bin" else shutil.copy)(os.path.join(pack, name), os.path.join(to, name))
    model = json.load(open(os.path.join(pack, "model.json")))
    text = f"od-moe spool 1\nfingerprint {model['fingerprint']}\nshare 1 0 1\n"
    text += "".join("".join("01"[e in layer] for e in range(SHAPE["experts"])) + "\n" for layer in has)
    data = text.encode()
    with open(os.path.join(to, "spool.state"), "w") as f:
        f.write(f"{text}xxh3 {xxhash.XXH3_64bits(data, ctypes.c_size_t(len(data))):016x}\n")
    return to


def deal_out(parts, grid, rng):
    """[worker][layer]: sets of experts, parts[worker] / grid of each layer's."""
    has = [[] for _ in parts]
    for _ in range(SHAPE["layers"]):
        order = list(range(SHAPE["experts"]))
        rng.shuffle(order)
        at, sum_ = 0, 0
        for w, n in enumerate(parts):
            sum_ += n
            end = sum_ * len(order) // grid
            has[w].append(set(order[at:end]))
            at = end
    return has


class Cluster:
    """folders: of the workers; None: without this one. serve: a port for HTTP; 0: a prompt a line."""

    def __init__(self, args, folders, speeds, serve=0):
        self.words, nodes = [], []
        slot = self.expert_bytes(args)
        for w, folder in enumerate(folders):
            self.words.append(os.path.join(TMP, f"words-{w}"))
            self.set_speed(args, w, speeds[w])
            if folder is None:
                continue
            cache = max(1, round(args.memories[w] * args.unit * slot / (1 << 20)))
            os.environ.update(OD_CUDA_PLUGIN=PLUGIN, OD_PACED=f"@{self.words[w]}")
            nodes.append(Daemon("worker", "--device", "cuda", "--cache-mib", cache, "--memory-limit", "4GB", "--slots", 4, "--resident-form", "bf16",
                                pack_dir=folder))
        del os.environ["OD_CUDA_PLUGIN"], os.environ["OD_PACED"]
        self.nodes = nodes
        hosts = os.path.join(TMP, "unequal-hosts.txt")
        with open(hosts, "w") as f:
            f.write("".join(f"127.0.0.1:{n.port}\n" for n in nodes))
        self.log = open(os.path.join(TMP, "unequal-main.log"), "w+")
        self.main = subprocess.Popen([os.path.join(BIN, "od-main"), *(["serve"] if serve else []), "--workers", hosts, "--pack", args.pack, "--predictor",
                                      args.predictor, "--threads", "1", *(["--listen", f"127.0.0.1:{serve}", "--prefix-cache-mib", "0"] if serve else
                                                                          ["--json", "--ignore-eos", "--max-tokens", str(args.tokens)]), *args.main_arg],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.serves = serve > 0
        if serve:
            wait_for(lambda: answers(serve))

    @staticmethod
    def expert_bytes(args):
        return 3 * SHAPE["hidden"] * SHAPE["intermediate"] * 2

    def set_speed(self, args, worker, factor):
        temporary = self.words[worker] + ".new"
        with open(temporary, "w") as f:
            f.write(f"speed={args.speed * factor} many={8 * args.speed * factor} read={args.read * factor:.0f}")
        os.rename(temporary, self.words[worker])

    def ask(self, prompt):
        self.main.stdin.write(prompt + "\n")
        self.main.stdin.flush()
        line = self.main.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(self.log.read()[-2000:])
        return json.loads(line)

    def close(self):
        self.main.stdin.close()
        if self.serves:
            self.main.kill()  # a text is under way
        self.main.wait()
        for n in self.nodes:
            n.kill()


PROMPTS = ["aa bb", "cc dd ee", "ff gg", "hh ii jj", "kk ll", "mm nn oo"]


def measure(args, folders, speeds):
    """Tokens a second of the texts behind the first, and all tokens."""
    c = Cluster(args, folders, speeds)
    answers = [c.ask(PROMPTS[i]) for i in range(1 + args.texts)]
    c.close()
    return statistics.median(a["tok_per_s"] for a in answers[1:]), [a["token_ids"] for a in answers]


def shares(args):
    whole = [args.pack] * len(args.speeds)
    rng = random.Random(args.seed)
    own, found, wanted = [], {}, None

    def main_deals():
        nonlocal wanted
        rate, tokens = measure(args, whole, args.speeds)
        own.append(rate)
        wanted = wanted or tokens
        assert tokens == wanted

    combinations = [c for c in itertools.product(range(args.grid + 1), repeat=len(args.speeds)) if sum(c) == args.grid]
    for i, parts in enumerate(combinations):
        if i % args.every == 0:
            main_deals()
        has = deal_out(parts, args.grid, rng)
        folders = [make_share(args.pack, os.path.join(TMP, f"share-{w}"), has[w]) if parts[w] else None for w in range(len(parts))]
        rate, tokens = measure(args, folders, args.speeds)
        assert tokens == wanted
        found[parts] = rate
        if args.verbose:
            print(parts, round(rate, 2), "main", round(statistics.median(own), 2), file=sys.stderr, flush=True)
        for f in folders:
            if f is not None:
                shutil.rmtree(f)
    subsets = {s: measure(args, [args.pack if w in s else None for w in range(len(args.speeds))], args.speeds)[0]
               for n in range(1, len(args.speeds) + 1) for s in itertools.combinations(range(len(args.speeds)), n)}
    best = max(found, key=found.get)
    return {"speeds": args.speeds, "memories": args.memories, "main_tok_per_s": round(statistics.median(own), 2),
            "best_shares": best, "best_tok_per_s": round(found[best], 2), "ratio": round(statistics.median(own) / found[best], 3),
            "subsets": {"+".join(map(str, k)): round(v, 2) for k, v in subsets.items()}, "tried": len(found)}


def answers(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        c.request("GET", "/health")
        return c.getresponse().status == 200
    except OSError:
        return False


class Text(threading.Thread):
    """A streamed text, with the time of each token."""

    def __init__(self, port, prompt, tokens):
        super().__init__(daemon=True)
        self.port, self.body, self.times, self.text = port, {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}, [], ""
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
        for line in self.lines(c.getresponse()):
            if line.startswith(b'data: {"') and b'"choices"' in line:
                self.times.append(time.monotonic())
                self.text += json.loads(line[6:])["choices"][0]["text"]

    @staticmethod
    def lines(answer):
        try:
            yield from answer
        except (OSError, http.client.HTTPException):
            return  # main was ended

    def rate(self, begin, end):
        """Tokens a second between two times."""
        return round(sum(begin <= t < end for t in self.times) / (end - begin), 2)


def change(args):
    """Windows of --window seconds."""
    whole, port, window = [args.pack] * len(args.speeds), free_port(), args.window
    slowed = [s * (args.to if w == args.slowed else 1) for w, s in enumerate(args.speeds)]
    c = Cluster(args, whole, args.speeds, port)
    text = Text(port, PROMPTS[0], 1000)
    times = {}

    def at(name, seconds):
        time.sleep(max(0, seconds - (time.monotonic() - begin)))
        times[name] = time.monotonic()

    begin = time.monotonic()
    at("slowed", 4 * window)
    c.set_speed(args, args.slowed, slowed[args.slowed])
    at("recovered", 10 * window)
    c.set_speed(args, args.slowed, args.speeds[args.slowed])
    at("end", 16 * window)
    c.close()
    s, r, e = times["slowed"], times["recovered"], times["end"]
    row = {"before": text.rate(s - 2 * window, s), "slowed": text.rate(s, s + 2), "slowed_2s_on": text.rate(s + 2, r), "recovered": text.rate(r, r + 2),
           "recovered_2s_on": text.rate(r + 2, e)}
    rows = []
    for n in range(1, len(args.speeds) + 1):  # the new optimum: the best subset, slow from the beginning
        for subset in itertools.combinations(range(len(args.speeds)), n):
            c = Cluster(args, [args.pack if w in subset else None for w in range(len(args.speeds))], slowed, port)
            other = Text(port, PROMPTS[0], 1000)
            time.sleep(6 * window)
            now = time.monotonic()
            c.close()
            assert text.text.startswith(other.text[:len(text.text)])
            rows.append((other.rate(now - 3 * window, now), subset))
    best = max(rows)
    return {**row, "slowed_worker": args.slowed, "to": args.to, "optimum_slowed": best[0], "optimum_workers": best[1],
            "ratio_2s_on": round(row["slowed_2s_on"] / best[0], 3), "ratio_recovered": round(row["recovered_2s_on"] / row["before"], 3)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [float(x) for x in text.split(",")]  # noqa: E731
    p.add_argument("--speeds", type=numbers, default=[1, 2, 4])
    p.add_argument("--memories", type=numbers, default=[1, 1, 8])
    p.add_argument("--unit", type=float, default=12, help="experts that memory 1 keeps")
    p.add_argument("--speed", type=float, default=0.005, help="of speed 1 (paced_device.h)")
    p.add_argument("--read", type=float, default=20e6, help="bytes a second of speed 1")
    p.add_argument("--grid", type=int, default=8)
    p.add_argument("--every", type=int, default=6)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--texts", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--predictor", default="next-gate")
    p.add_argument("--main-arg", action="append", default=[])
    p.add_argument("--change", action="store_true")
    p.add_argument("--slowed", type=int, default=2, help="its number, from 0")
    p.add_argument("--to", type=float, default=0.25)
    p.add_argument("--window", type=float, default=2)
    p.add_argument("--pack")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    args.pack = args.pack or make_pack()
    print(json.dumps(change(args) if args.change else shares(args)))


if __name__ == "__main__":
    main()
