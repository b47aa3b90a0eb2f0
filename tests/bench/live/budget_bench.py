#!/usr/bin/env python3
"""One machine with less memory than the model: od-main --memory beside llama.cpp with mmap, in one control group, in turns.

    budget_bench.py --pack PACK --gguf FILE --llama-bench PROGRAM [--limit 500] [--memory 480] [--rounds 5]

Needs root and the kernel's memory controller (cgroup version 1 or 2). --limit: of the group, in MiB, page cache included. --memory: what
od-main is told, in MB. Before each run the page cache is dropped. Printed are medians of tokens a second, of their ratio within a round,
of the bytes that od-main read, and the disk's rate: the pack's experts read past the page cache by two readers."""
import argparse
import json
import os
import statistics
import subprocess
import threading
import time

GROUP = "od-budget-bench"


def group_folder():
    """A group of its own, and the file that limits it."""
    for mount, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(mount, GROUP)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.path.exists(os.path.join(folder, limit)):
            return folder, limit
    raise SystemExit("budget_bench.py needs root and a memory controller in /sys/fs/cgroup")


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def run(folder, command):
    """Runs a command in the group, with an empty page cache; returns what it wrote to stdout and stderr."""
    subprocess.run(["sync"], check=True)
    write("/proc/sys/vm/drop_caches", "3")
    enter = lambda: write(os.path.join(folder, "cgroup.procs"), str(os.getpid()))
    p = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
    if p.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{p.stderr[-4000:]}")
    return p.stdout, p.stderr


def disk_rate(path, seconds=0.5, readers=2, size=1 << 20):
    """GB/s past the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    part, total, begin = os.path.getsize(path) // readers // size * size, [0] * readers, time.monotonic()

    def read(i):
        buf, at = memoryview(__import__("mmap").mmap(-1, size)), 0
        while time.monotonic() - begin < seconds:
            total[i] += os.preadv(fd, [buf], i * part + at)
            at = (at + size) % (part - size)
    threads = [threading.Thread(target=read, args=(i,)) for i in range(readers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    return sum(total) / (time.monotonic() - begin) / 1e9


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pack", required=True)
    p.add_argument("--gguf", required=True)
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--od", default="build/bin")
    p.add_argument("--limit", type=int, default=500)
    p.add_argument("--memory", type=int, default=480)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--llama-tokens", type=int, default=16)
    a = p.parse_args()
    folder, limit = group_folder()
    write(os.path.join(folder, limit), str(a.limit << 20))
    experts = os.path.join(a.pack, "experts.bin") if os.path.isdir(a.pack) else a.pack
    own, llama, ratio, read, disk = [], [], [], [], []
    for _ in range(a.rounds):
        disk.append(disk_rate(experts))
        said, _ = run(folder, [a.llama_bench, "-m", a.gguf, "-p", "0", "-n", str(a.llama_tokens), "-r", "1", "-o", "json"])
        llama.append(json.loads(said)[0]["avg_ts"])
        said, _ = run(folder, [os.path.join(a.od, "od-main"), "--pack", a.pack, "--memory", f"{a.memory}MB", "--ctx-size", "512", "--draft", "off",
                               "--prompt", "Once upon a time there was a king", "--temperature", "0", "--ignore-eos", "--max-tokens",
                               str(a.tokens), "--json"])
        r = json.loads(said.splitlines()[-1])
        own.append(r["tok_per_s"])
        read.append(r["loaded_bytes"] / a.tokens)
        ratio.append(own[-1] / llama[-1])
    os.rmdir(folder)
    m = statistics.median
    print(f"group of {a.limit} MiB, --memory {a.memory}MB, {a.rounds} rounds: od-main {m(own):.2f} tok/s ({min(own):.2f} to {max(own):.2f}), "
          f"llama.cpp {m(llama):.2f} ({min(llama):.2f} to {max(llama):.2f}), ratio {m(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f}); "
          f"{m(read) / 1e6:.0f} MB read a token; disk {m(disk):.2f} GB/s ({min(disk):.2f} to {max(disk):.2f})")


if __name__ == "__main__":
    main()
