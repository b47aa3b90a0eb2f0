#!/usr/bin/env python3
"""A GGUF file that main uses where it lies: workers without it pull their share, damage on their disks is found, and workers whose own copy
differs behind what the fingerprint covers are refused. Standard library only."""
import json
import os
import re
import shutil
import struct
import subprocess

import cluster_util
import gguf_checkpoint as gg
import tiny_checkpoint as tc
import zmtp
from cluster_util import (PROMPT, TMP, TOKENS, Daemon, Lines, expect_calm, generate, hosts_file, main_args, reference, run_tests, test, tool,
                          undisturbed, wait_for)
from test_store import Store, ask_store, closed, fetch, hello, n_whole, pulled, same, spool

CACHE = os.path.join(TMP, "cache")
os.environ["CACHE_DIRECTORY"] = CACHE
N_LAYERS, N_EXPERTS, HIDDEN, INNER = 4, 6, 64, 128
PAGE = 4096  # so much of each expert is in the fingerprint
WIDTH = {"F32": 4, "F16": 2, "BF16": 2}


def q8_0(values):
    """Blocks of 32 weights: a scale in F16, and bytes."""
    out = b""
    for i in range(0, len(values), 32):
        d, = struct.unpack("<e", struct.pack("<e", max(map(abs, values[i:i + 32])) / 127))
        out += struct.pack("<e32b", d, *(max(-127, min(127, round(v / d))) for v in values[i:i + 32]))
    return out


def tokeniser(n):
    """A token for each byte, as GPT-2 writes bytes, and no others that texts have."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    tokens = [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)] + ["<%d>" % i for i in range(256, n)]
    kinds = [1] * 256 + [3] * (n - 256)
    return {"tokenizer.ggml.model": (gg.STRING, "gpt2"), "tokenizer.ggml.pre": (gg.STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (gg.ARRAY, (gg.STRING, tokens)), "tokenizer.ggml.token_type": (gg.ARRAY, (gg.I32, kinds)),
            "tokenizer.ggml.merges": (gg.ARRAY, (gg.STRING, [])), "tokenizer.ggml.eos_token_id": (gg.U32, n - 1)}


def strong(rng, _, n):
    """Weights so large that a text does not repeat itself."""
    return b"".join(struct.pack("<f", rng.gauss(0, 0.3))[2:] for _ in range(n))


def convert():
    """A small Mixtral with another format in each layer, `down` again another: (metadata, tensors)"""
    cfg = dict(tc.CONFIG, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=N_LAYERS, num_local_experts=N_EXPERTS,
               vocab_size=264, max_position_embeddings=512)
    folder = os.path.join(TMP, "checkpoint")
    tc.write_checkpoint(folder, cfg, tc.tensors(cfg, seed=5, bits=strong))
    kv, tensors = gg.convert(folder)
    out = []
    for name, kind, shape, raw in tensors:
        layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
        to = kind
        if "_exps" in name:
            to = ["BF16", "F16", "Q8_0", "F32"][(layer + ("down" in name)) % 4]
        if to != kind:
            values = gg.floats(kind, raw)
            raw = {"F16": lambda: struct.pack("<%de" % len(values), *values), "F32": lambda: gg.as_f32(values),
                   "Q8_0": lambda: q8_0(values)}[to]()
        out.append((name, to, shape, raw))
    return {**kv, **tokeniser(cfg["vocab_size"])}, out


KV, TENSORS = convert()
FILE = os.path.join(TMP, "model.gguf")
gg.write_file(FILE, KV, TENSORS)
cluster_util._pack = FILE  # for all that main_args() and Daemon() give --pack


def expert_bytes(layer, part, expert):
    kind, raw = next((k, r) for n, k, _, r in TENSORS if n == "blk.%d.ffn_%s_exps.weight" % (layer, part))
    each = len(raw) // N_EXPERTS
    return kind, raw[expert * each:(expert + 1) * each]


def expected(layer, expert):
    return b"".join(expert_bytes(layer, part, expert)[1] for part in ("gate", "up", "down"))


def places():
    """(layer, expert) -> (first byte, bytes) in a spool's experts.bin: a page of checksums, the weights, zeros up to a page."""
    out, at = {}, 0
    for layer in range(N_LAYERS):
        for expert in range(N_EXPERTS):
            n = len(expected(layer, expert))
            out[layer, expert] = at + PAGE, n
            at += PAGE + n + -n % PAGE
    return out, at


def good(folder):
    """Every byte of a spool that has all experts is what the file has."""
    tool("od-pack", "verify", folder)
    where, size = places()
    with open(os.path.join(folder, "experts.bin"), "rb") as f:
        found = f.read()
    assert len(found) == size, (len(found), size)
    for (layer, expert), (at, n) in where.items():
        assert found[at:at + n] == expected(layer, expert), (layer, expert)


def whole(folders):
    return all(n_whole(f) == N_LAYERS * N_EXPERTS for f in folders)


def tensor_data(path):
    """Where each tensor's bytes begin in the file."""
    end = len(gg.header_of(KV, TENSORS))
    at, out = end + -end % gg.ALIGNMENT, {}
    for name, _, _, raw in TENSORS:
        out[name] = at
        at += len(raw) + -len(raw) % gg.ALIGNMENT
    assert at == os.path.getsize(path)
    return out


def copy_with_flip(name, tensor, expert):
    """A copy of the file with one bit less or more behind what the fingerprint covers of this expert."""
    path = os.path.join(TMP, name)
    shutil.copy(FILE, path)
    raw = next(r for n, _, _, r in TENSORS if n == tensor)
    each = len(raw) // N_EXPERTS
    assert each > PAGE + 100
    flip(path, tensor_data(FILE)[tensor] + expert * each + PAGE + 100)
    return path


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        b = f.read(1)
        f.seek(at)
        f.write(bytes([b[0] ^ 1]))


def elsewhere(n):
    """As on another machine: checksums of what was read are kept in another folder."""
    return lambda: os.environ.update(CACHE_DIRECTORY=os.path.join(TMP, "cache-%d" % n))


@test
def the_text_is_not_constant():
    assert len(set(reference()["token_ids"])) > 8, reference()


@test
def workers_pull_their_share_of_the_file():
    store, folders = Store(FILE), [spool() for _ in range(3)]
    workers = [Daemon("worker", store=store.address, spool=f, preexec=elsewhere(i)) for i, f in enumerate(folders)]
    m = Lines("--workers", hosts_file(workers))
    m.ask()
    same(m.answer())
    wait_for(lambda: whole(folders))  # three workers for top-2 are one group
    closed(m)
    for f in folders:
        good(f)
        assert not os.path.exists(os.path.join(f, "dense.bin"))
    store.kill()  # a second start pulls nothing
    for w in workers:
        w.restart()
    m = Lines("--workers", hosts_file(workers))
    m.ask()
    assert pulled(same(m.answer())) == [0] * 3
    closed(m)
    for w in workers:
        w.kill()


@test
def a_split_file_too():
    parts = gg.write_split(os.path.join(TMP, "split.gguf"), KV, TENSORS, 3)
    store, folder = Store(parts[1]), spool()
    w = Daemon("worker", store=store.address, spool=folder)
    m = subprocess.run([*main_args("--workers", hosts_file([w]), prompt=PROMPT, tokens=20), "--pack", parts[0]], capture_output=True, text=True)
    assert m.returncode == 0, m.stderr
    same(json.loads(m.stdout))
    wait_for(lambda: whole([folder]))
    good(folder)
    p = tool("od-worker", "--store", store.address, "--spool", spool(), "--spool-limit", "20KiB", ok=False)
    assert "--spool-limit" in p.stderr and "expected at least" in p.stderr, p.stderr
    for d in w, store:
        d.kill()


@test
def od_pack_writes_a_share():
    folder = spool()
    tool("od-pack", "--share", "1/1", FILE, folder)
    good(folder)
    w = Daemon("worker", pack_dir=folder)
    same(undisturbed("--workers", hosts_file([w]), prompt=PROMPT, tokens=20))
    w.kill()
    p = tool("od-main", "--resident", "--pack", folder, ok=False)
    assert "one worker's share" in p.stderr, p.stderr


@test
def damage_in_a_spool_is_pulled_again():
    store, folder = Store(FILE), spool()
    w = Daemon("worker", store=store.address, spool=folder)
    same(undisturbed("--workers", hosts_file([w]), prompt=PROMPT, tokens=20))
    wait_for(lambda: whole([folder]))
    file = os.path.join(folder, "experts.bin")
    for (at, n) in places()[0].values():  # weights
        flip(file, at + n // 2)
    p = tool("od-pack", "verify", folder, ok=False)
    assert "checksum" in p.stderr and "experts.bin" in p.stderr, p.stderr
    same(undisturbed("--workers", hosts_file([w]), prompt=PROMPT, tokens=TOKENS))
    assert "damaged on disk" in w.text()
    w.kill()
    for (at, n) in places()[0].values():  # checksums of chunks, while no worker has read them
        flip(file, at - PAGE + 9)
    w.start()
    same(undisturbed("--workers", hosts_file([w]), prompt=PROMPT, tokens=TOKENS))
    wait_for(lambda: whole([folder]))
    good(folder)
    for d in w, store:
        d.kill()


@test
def strangers_get_chunks_and_nothing_else():
    """Not the rest of the file: what is no chunk of an expert has no place that could be asked for."""
    store = Store(FILE)
    c = zmtp.connect(store.port)
    session = zmtp.parse(ask_store(c, hello())[0][51])[1]
    where, size = places()
    (at, n), (after, _) = where[1, 2], where[1, 3]
    for offset, length in (0, 8), (at - 1, 2), (at - PAGE, 1), (at + n - 1, 2), (at + n, 1), (after - 1, 1), (size, 1), (2**64 - 1, 2), (at, n):
        _, chunk, frames = ask_store(c, fetch(session, 5, 16, offset, length))
        assert chunk[1] == 5 and chunk[2] == 2 * 6 - 1 and not frames, (offset, length, chunk)  # OD_ERR_RANGE
    weights = expected(1, 2)
    for first, length in (0, 100), (17, 1), (n - 5, 5):
        _, chunk, frames = ask_store(c, fetch(session, 6, 16, at + first, length))
        assert chunk.get(2, 0) == 0 and frames == [weights[first:first + length]], (first, chunk)
        assert chunk[4], "a checksum comes with them"
    store.kill()


TENSOR, EXPERT = "blk.1.ffn_down_exps.weight", 3


def refused(said, worker):
    """The lines in which main says that it does without a worker because its copy is another one."""
    return [line for line in said.splitlines() if f":{worker.port}" in line and re.search(
        "tensor %s, expert %d: checksum [0-9a-f]{16} there, [0-9a-f]{16} of main's" % (TENSOR, EXPERT), line)]


@test
def a_worker_with_another_copy_is_refused():
    """Neither main nor anybody else has read the expert before."""
    other = copy_with_flip("other.gguf", TENSOR, EXPERT)
    shutil.rmtree(CACHE, ignore_errors=True)
    workers = [Daemon("worker", pack_dir=p, preexec=elsewhere(10 + i)) for i, p in enumerate((FILE, other, FILE))]
    m = Lines("--workers", hosts_file(workers))
    for _ in range(100):
        m.ask()
        m.answer()  # some of it may be of the wrong weights
        if refused(m.said(), workers[1]):
            break
    assert refused(m.said(), workers[1]), m.said()
    m.ask()
    r = same(m.answer())
    assert len(r["token_ids"]) == len(reference()["token_ids"])
    assert not any(refused(m.said(), w) for w in (workers[0], workers[2])), m.said()
    expect_calm(m.said())
    # It knows its own sum by now, and starts no request with such a worker.
    closed(m)
    p = subprocess.run(main_args("--workers", hosts_file(workers)), capture_output=True, text=True)
    assert p.returncode == 1 and refused(p.stderr, workers[1]), p.stderr
    for w in workers:
        w.kill()


@test
def the_right_one_of_two_workers_stays():
    """Main decides by its own copy, whichever of the two it heard first."""
    other = copy_with_flip("right.gguf", TENSOR, EXPERT)
    for wrong_first in False, True:
        shutil.rmtree(CACHE, ignore_errors=True)
        paths = (other, FILE) if wrong_first else (FILE, other)
        workers = [Daemon("worker", pack_dir=p, preexec=elsewhere(20 + 2 * wrong_first + i)) for i, p in enumerate(paths)]
        wrong, right = (workers if wrong_first else workers[::-1])
        m = Lines("--workers", hosts_file(workers))
        for _ in range(100):
            m.ask()
            m.answer()
            if refused(m.said(), wrong):
                break
        assert refused(m.said(), wrong) and not refused(m.said(), right), m.said()
        m.ask()
        same(m.answer())
        # A good file in its place, and another process: it may come back.
        wrong.kill()
        wrong.where = ["--pack", FILE]
        wrong.start()
        wait_for(lambda: f":{wrong.port} is back" in m.said(), m.said)
        m.ask()
        same(m.answer())
        expect_calm(m.said(), wrong.port)
        closed(m)
        for w in workers:
            w.kill()


@test
def equal_copies_are_used():
    copy = os.path.join(TMP, "copy.gguf")
    shutil.copy(FILE, copy)
    workers = [Daemon("worker", pack_dir=p, preexec=elsewhere(30 + i)) for i, p in enumerate((FILE, copy))]
    m = Lines("--workers", hosts_file(workers))
    for _ in range(5):
        m.ask()
        same(m.answer())
    expect_calm(m.said())
    assert "another one" not in m.said(), m.said()
    closed(m)
    for w in workers:
        w.kill()


# ---- Memory of layers that differ in size ----

def bytes_of(layer):
    return len(expected(layer, 0))


@test
def slots_are_counted_in_bytes():
    """The layers' experts have 48, 41, 50 and 80 KiB: more of the small ones fit where four of the largest do."""
    assert max(map(bytes_of, range(N_LAYERS))) == bytes_of(3) > 1.9 * min(map(bytes_of, range(N_LAYERS)))
    needs = lambda slots: int(re.search(r"need (\d+) bytes", tool("od-worker", "--pack", FILE, "--slots", slots, "--memory-limit", "1MiB",
                                                                  ok=False).stderr).group(1))
    one, four = needs(1), needs(4)
    assert bytes_of(3) < (four - one) / 3 < bytes_of(3) + 2 * PAGE
    workers = [Daemon("worker", "--memory-limit", str(four)) for _ in range(2)]
    said = re.search(r"(\d+) slots of .* \(bf16\), or (\d+) of .*, the smallest layers' experts, within", workers[0].text())
    assert said and said.group(1) == "4" and said.group(2) == "7", workers[0].text()
    m = Lines("--workers", hosts_file(workers))
    for _ in range(3):
        m.ask()
        r = same(m.answer())
        assert r["slots"] == 4, r["slots"]
    closed(m)
    for w in workers:
        w.kill()


@test
def a_cache_is_counted_in_bytes():
    """A MiB holds 12 experts of the largest size, and 17 or so of the four layers."""
    w = Daemon("worker", "--slots", 2, "--cache-mib", 1)
    m = Lines("--workers", hosts_file([w]), "--predictor", "none")
    for _ in range(4):
        m.ask()
        r = same(m.answer())
    assert r["cache_hits"] > 0.4 * r["cache_uses"] > 0, r
    closed(m)
    w.kill()


if __name__ == "__main__":
    run_tests()
