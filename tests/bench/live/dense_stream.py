#!/usr/bin/env python3
"""How near od-main comes to the disk's rate when its dense weights do not fit: tokens a second against rate / bytes of a step.

    dense_stream.py --bin build/bin --pack PACK [--part 4] [--tokens 6] [--rounds 3] [-- --local 2 ...]

Needs root: od-main runs in a control group (version 1 or 2) whose limit is one in --part of the bytes of dense.bin, and gets --memory as
large. In turns: the disk, read past the page cache by as many threads as od-main reads with, in pieces of as many bytes; and od-main
with a few tokens and with more of them. Steps are what the two differ by, so that loading and the prompt do not count. Prints for each
round the rate of the disk, of od-main's steps, and their ratio; at the end medians. The first bound is by the bytes that a step read,
the second by those that no plan could keep: dense.bin less the limit. The model should have been made by od-bench synth, with attention
as nearly all of it, and a tokeniser beside it."""
import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import time

THREADS, PIECE = 8, 1 << 20  # OD_DENSE_READERS, a piece (dense_piece.c)
HUGE = 2 << 20
LEFT = 16 << 20  # of the group's limit, for page cache and what the kernel counts


def read_pieces(path, first, seconds, out):
    """Every THREADS-th piece of the file from this one on, into a huge page, as od-main has them: into small ones a disk may need several
    requests a piece."""
    fd, size, n = os.open(path, os.O_RDONLY | os.O_DIRECT), os.path.getsize(path) // PIECE, 0
    memory = mmap.mmap(-1, 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has no huge pages
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    buf = memoryview(memory)[begin:begin + PIECE]
    buf[:] = bytes(PIECE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        n += os.preadv(fd, [buf], (first + n // PIECE * THREADS) % size * PIECE)
    out.put(n)


def disk_rate(path, seconds):
    """Bytes a second, of as many readers as od-main has, but processes: threads of Python would wait for each other."""
    out = multiprocessing.Queue()
    readers = [multiprocessing.Process(target=read_pieces, args=(path, i, seconds, out)) for i in range(THREADS)]
    for r in readers:
        r.start()
    n = sum(out.get() for _ in readers)
    for r in readers:
        r.join()
    return n / seconds


class Group:
    """A control group with a limit of memory."""

    def __init__(self, limit):
        with open("/proc/self/cgroup") as f:
            lines = [line.rstrip("\n").split(":", 2) for line in f]
        own = {c: path for _, controllers, path in lines for c in controllers.split(",")}
        base, file = (f"/sys/fs/cgroup/memory{own['memory']}", "memory.limit_in_bytes") if "memory" in own else \
            (f"/sys/fs/cgroup{own['']}", "memory.max")
        self.path = os.path.join(base, f"od-dense-{os.getpid()}")
        os.mkdir(self.path)
        with open(os.path.join(self.path, file), "w") as f:
            f.write(str(limit))

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def write(args, limit, tokens):
    group = Group(limit)
    try:
        p = subprocess.run([os.path.join(args.bin, "od-main"), "--pack", args.pack, "--json", "--prompt", "Once upon a time", "--ignore-eos",
                            "--max-tokens", str(tokens), "--ctx-size", "256", "--draft", "off", "--memory", str(limit - LEFT), *args.more],
                           capture_output=True, text=True, preexec_fn=group.enter)
    finally:
        group.remove()
    if p.returncode != 0 or "each step reads" not in p.stderr:
        sys.exit(p.stderr)
    return json.loads(p.stdout), [line for line in p.stderr.splitlines() if "each step reads" in line][0]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", required=True)
    a.add_argument("--pack", required=True)
    a.add_argument("--part", type=float, default=4)
    a.add_argument("--tokens", type=int, default=6)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("more", nargs="*")
    args = a.parse_args()
    file = os.path.join(args.pack, "dense.bin")
    dense = os.path.getsize(file)
    limit = int(dense / args.part) // 4096 * 4096
    by_read, by_limit, steps = [], [], args.tokens - 1
    print(f"dense.bin {dense / 1e9:.2f} GB, limit {limit / 1e9:.2f} GB", flush=True)
    for i in range(args.rounds):
        before = disk_rate(file, 4)
        few, said = write(args, limit, 1)
        more, _ = write(args, limit, args.tokens)
        disk = (before + disk_rate(file, 4)) / 2
        read = (more["dense_bytes"] - few["dense_bytes"]) / steps
        step = more["decode_s"] / steps
        if i == 0:
            print(said)
        by_read.append(read / step / disk)
        by_limit.append((dense - limit) / step / disk)
        peak = max(n["peak_rss_bytes"] for n in more["nodes"] if n["name"] == "main")
        print(f"disk {disk / 1e9:.2f} GB/s; a step {step:.3f} s ({1 / step:.3f} tok/s), reads {read / 1e9:.2f} GB: {read / step / 1e9:.2f} GB/s; "
              f"{by_read[-1]:.3f} of the disk's rate by these bytes, {by_limit[-1]:.3f} by those beyond the limit; "
              f"waited {(more['dense_wait_s'] - few['dense_wait_s']) / steps / step:.2f} of it; peak {peak / 1e9:.2f} GB", flush=True)
    print(f"medians: {statistics.median(by_read):.3f}, {statistics.median(by_limit):.3f}")


if __name__ == "__main__":
    main()
