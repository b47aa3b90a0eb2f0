#!/usr/bin/env python3
"""A cluster beside llama.cpp's RPC, on the same Mixtral checkpoint in BF16, the same hosts and the same links, in turns.

    rpc_bench.py --pack PACK --gguf FILE.gguf --llama FOLDER [--rounds 7] [--tokens 64] [--prompt 512] [--rate 1gbit]
    rpc_bench.py --pack PACK --gguf FILE.gguf --llama FOLDER --kill         (a host is killed while both write)
    rpc_bench.py --pack PACK --gguf FILE.gguf --llama FOLDER --large        (the hosts together have less memory than the model)

FOLDER has llama.cpp's programs llama-server and ggml-rpc-server. llama_bench.py convert makes FILE.gguf of od-bench synth's checkpoint.
Needs root, iproute2 and, for --large, the memory controller of cgroup version 1.

Hosts are network namespaces on a bridge, h0 to h3; their links have --rate. h0 also has the server that clients ask: llama-server, which uses the
four ggml-rpc-server (one thread each, waiting without spinning), or od-main, with four od-worker (one thread each). An od-worker's memory limit is a quarter
of the model's weights, h0's less by what od-main has of the model; so all hosts together hold no more than the model takes.

A client on h0 asks both for the same random prompts, greedy, as streams: the time to the first token, and the time of each further one. Both
servers are up all the time, and only one works. Printed are medians, and the medians of the ratios within a round."""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "integ"))
import cluster_util  # noqa: E402
from cluster_util import BIN, TMP  # noqa: E402
from netns_lan import LimitedLan, Node, Unavailable  # noqa: E402
from stream_client import StreamClient  # noqa: E402

HOSTS = ["h0", "h1", "h2", "h3"]
RPC_PORT, LLAMA_PORT, OD_PORT = 50052, 8081, 8082
BESIDE = 256 << 20  # what a host's programs may have beside weights


running = []  # what main() ends, whatever happens


def start_client(lan):
    client = StreamClient(lan, "h0")
    running.append(client)
    return client


class Llama:
    port = LLAMA_PORT

    def __init__(self, lan, args):
        running.append(self)
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self.rpc, self.log = {}, open(os.path.join(TMP, "llama-server.log"), "w+")
        for host in HOSTS:
            log = open(os.path.join(TMP, f"rpc-{host}.log"), "w+")
            self.rpc[host] = lan.start(host, os.path.join(args.llama, "ggml-rpc-server"), "-H", lan.address(host), "-p", RPC_PORT, "-t", 1,
                                       env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        time.sleep(1)
        self.process = lan.start("h0", os.path.join(args.llama, "llama-server"), "-m", args.gguf, "--rpc",
                                 ",".join(f"{lan.address(h)}:{RPC_PORT}" for h in HOSTS), "-ngl", 99, "-t", 1, "--poll", 0, "-np", 1, "-c", 2048,
                                 "--no-warmup", "--port", LLAMA_PORT, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def body(self, prompt, tokens):
        return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def processes(self):
        return {**{h: p.pid for h, p in self.rpc.items()}, "server": self.process.pid}

    def why(self):
        self.log.seek(0)
        return [line for line in self.log.read().splitlines() if "error" in line.lower() or "failed" in line.lower()][-6:] or ["ended with status %s" % self.process.poll()]

    def close(self):
        running.remove(self)
        for p in (self.process, *self.rpc.values()):
            if p.poll() is None:
                p.kill()
            p.wait()


class Od:
    port = OD_PORT

    def __init__(self, lan, args, quarter, shadow=False):
        running.append(self)
        self.nodes = {}
        dense = os.path.getsize(os.path.join(args.pack, "dense.bin"))
        for host in HOSTS:
            limit = quarter - (dense if host == "h0" else 0) - (BESIDE if lan.limit else 0)
            cache = (limit >> 20) - args.beside_mib
            self.nodes[host] = Node(lan, host, "--memory-limit", f"{limit >> 20}MiB", *(["--cache-mib", cache] if cache > 0 else []), *args.worker_arg,
                                    pack_dir=args.pack)
        hosts = os.path.join(TMP, "rpc-hosts.txt")
        with open(hosts, "w") as f:
            f.write("".join(f"{lan.address(h)}\n" for h in HOSTS))
        self.log = open(os.path.join(TMP, "rpc-od-main.log"), "w+")
        self.process = lan.start("h0", "od-main", "serve", "--workers", hosts, "--insecure", "--pack", args.pack, "--threads", args.main_threads, "--listen",
                                 f"127.0.0.1:{OD_PORT}", "--ctx-size", 2048, "--prefix-cache-mib", 0, "--parallel", 1, *args.main_arg,
                                 stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def body(self, prompt, tokens):
        return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    def processes(self):
        return {**{h: n.process.pid for h, n in self.nodes.items()}, "server": self.process.pid}

    def why(self):
        self.log.seek(0)
        return [line for line in self.log.read().splitlines() if " WARN" in line or " ERROR" in line or "level=warn" in line or "level=error" in line][-6:]

    def close(self):
        running.remove(self)
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        for n in self.nodes.values():
            n.kill()
            n.forget()


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith("VmHWM"))


def rate(answer, tokens):
    """Tokens a second behind the first; tokens that came late may share an event."""
    return (tokens - 1) / (answer["times"][-1] - answer["times"][0])


def median(values):
    return round(statistics.median(values), 3)


def speed(lan, args, quarter):
    client, systems = start_client(lan), {"llama.cpp RPC": Llama(lan, args), "od-moe": Od(lan, args, quarter)}
    for name, s in systems.items():
        if not client.wait_for(s.port, s.process):
            sys.exit(f"{name} did not start: {s.why()}")
    rng = random.Random(args.seed)
    decode, prompt, same = {n: [] for n in systems}, {n: [] for n in systems}, 0
    for r in range(args.rounds + args.warm):
        ids = [rng.randrange(300, args.vocab) for _ in range(args.prompt)]
        texts = []
        for name, s in systems.items():
            a, = client.ask(s.port, s.body(ids, 1))
            b, = client.ask(s.port, s.body(ids[:8], args.tokens))
            if a.get("error") or b.get("error"):
                sys.exit(f"{name}: {a.get('error')} {b.get('error')} {s.why()}")
            texts.append(b["text"])
            if r >= args.warm:
                prompt[name].append(args.prompt / a["times"][0])
                decode[name].append(rate(b, args.tokens))
        same += texts[0] == texts[1]
    base = list(systems)[0]
    rows = [{"system": n, "decode_tok_per_s": median(decode[n]), "prompt_tok_per_s": median(prompt[n]),
             "decode_ratio": median(b / a for a, b in zip(decode[base], decode[n])), "prompt_ratio": median(b / a for a, b in zip(prompt[base], prompt[n])),
             "peak_mib": {h: peak_mib(p) for h, p in s.processes().items()}} for n, s in systems.items()]
    for s in systems.values():
        s.close()
    return rows + [{"same_texts": same, "of": args.rounds + args.warm}]


def kill(lan, args, quarter):
    """h2 is killed in the middle of a text."""
    client, rows = start_client(lan), []
    for name, make in (("llama.cpp RPC", lambda: Llama(lan, args)), ("od-moe", lambda: Od(lan, args, quarter))):
        s = make()
        if not client.wait_for(s.port, s.process):
            sys.exit(f"{name} did not start: {s.why()}")
        whole, = client.ask(s.port, s.body(list(range(300, 308)), args.tokens))
        client.begin(s.port, s.body(list(range(300, 308)), args.tokens))
        time.sleep(whole["times"][args.tokens // 3])
        os.kill(s.processes()["h2"], signal.SIGKILL)
        a, = client.answers()
        after, = client.ask(s.port, s.body(list(range(300, 308)), 8))
        rows.append({"system": name, "tokens": len(a["times"]), "of": len(whole["times"]), "same_text": a.get("text") == whole["text"], "longest_gap_s": round(max((y - x for x, y in zip(a["times"], a["times"][1:])), default=0), 3),
                     "error": a.get("error"), "next_request": after.get("error") or "answered", "server": "ended" if s.process.poll() is not None else "runs"})
        s.close()
    return rows


def large(lan, args, quarter):
    client, rows = start_client(lan), []
    for name, make in (("llama.cpp RPC", lambda: Llama(lan, args)), ("od-moe", lambda: Od(lan, args, quarter))):
        s = make()
        ok = client.wait_for(s.port, s.process)
        row = {"system": name, "runs": ok, "mib_a_host": args.large}
        if ok:
            a, = client.ask(s.port, s.body(list(range(300, 308)), args.tokens))
            row.update(decode_tok_per_s=a["error"] or round(rate(a, args.tokens), 2),
                       peak_mib={h: peak_mib(p) for h, p in s.processes().items()})
        else:
            row.update(why=s.why(), killed_for_memory=[h for h in HOSTS if lan.was_killed(h)])
        rows.append(row)
        s.close()
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pack")
    p.add_argument("--gguf")
    p.add_argument("--llama")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--warm", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--vocab", type=int, default=31900)
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--kill", action="store_true")
    p.add_argument("--large", type=int, default=0, metavar="MIB", help="memory of a host")
    p.add_argument("--main-threads", type=int, default=1)
    p.add_argument("--beside-mib", type=int, default=160, help="of a worker's limit, not for its cache")
    p.add_argument("--main-arg", action="append", default=[])
    p.add_argument("--worker-arg", action="append", default=[])
    args = p.parse_args()
    weights = sum(os.path.getsize(os.path.join(args.pack, f)) for f in ("dense.bin",)) + experts_bytes(args.pack)
    quarter = args.large << 20 if args.large else weights // 4
    try:
        lan = LimitedLan("odrpc", "10.213.80", {h: i + 1 for i, h in enumerate(HOSTS)}, {h: quarter for h in HOSTS} if args.large else {})
        if not lan.shape(args.rate):
            raise Unavailable("cannot shape a link with tc here")
    except Unavailable as e:
        sys.exit(str(e))
    try:
        for row in (kill if args.kill else large if args.large else speed)(lan, args, quarter):
            print(json.dumps(row), flush=True)
    finally:
        for s in list(running):
            s.close()
        lan.close()
        lan.remove_cgroups()


def experts_bytes(pack):
    """As published: BF16."""
    c = json.load(open(os.path.join(pack, "config.json")))
    return c["num_hidden_layers"] * c["num_local_experts"] * 3 * c["hidden_size"] * c["intermediate_size"] * 2


if __name__ == "__main__":
    main()
