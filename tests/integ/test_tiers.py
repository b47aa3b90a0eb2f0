#!/usr/bin/env python3
"""od-main on one machine with memory for a part of the experts: the same tokens at every budget, as many loads as the memory makes
necessary, and what it says when there is too little, when experts on disk are damaged, and when a text is given up. Standard library only."""
import atexit
import concurrent.futures
import json
import os
import re
import shutil
import signal

from cluster_util import PROMPT, SLOW, TMP, TOKENS, Lines, generate, pack, reference, run_tests, test, tool
from float64_model import conform
from gguf_mixed import model
from serve_util import Server, stop_servers

atexit.register(stop_servers)
EXPERTS, LAYERS = 8, 12
CTX = "--ctx-size", "512"


def tiered(*args):
    return generate("--draft", "off", *CTX, *args, tokens=TOKENS)


def least(*command):
    """The smallest --memory that works, as it says itself."""
    err = tool("od-main", *(command or ("--prompt", PROMPT)), "--pack", pack(), *CTX, "--memory", "20MB", ok=False).stderr
    found = re.search(r"at least .* of memory \((\d+) bytes\) are needed for the dense weights, one context and the experts of one layer; "
                      r"found --memory .*; see --memory, --ctx-size", err)
    assert found, err
    return int(found.group(1))


@test
def same_tokens_at_every_budget():
    small = least()
    loads = []
    for more in 0, 2, 6, 12, 24, 60:
        for form in ("bf16", "planes") if more % 12 == 0 else ("bf16",):
            r = tiered("--memory", small + (more + 3) * 2**20, "--resident-form", form)
            assert r["token_ids"] == reference()["token_ids"], (more, form)
            if more >= 60 or r["expert_uses"] == 0:  # all are in memory, and nothing is counted
                assert r["expert_uses"] == r["decode_loads"] == 0 and r["begun_loads"] == EXPERTS * LAYERS and more >= 24, r
            else:
                assert r["cache_uses"] == r["expert_uses"] == (TOKENS - 1) * LAYERS * 2, r
            if form == "bf16":
                loads.append(r["decode_loads"])
    assert loads[0] > 0.6 * (TOKENS - 1) * LAYERS * 2, loads  # nearly nothing is kept
    assert all(a >= b for a, b in zip(loads, loads[1:])) and loads[-2] > 0, loads


@test
def whatever_loads_them_and_however_rows_come():
    small = least()
    for args in (("--predictor", "none"), ("--predictor", "trajectory"), ("--hedge", 100), ("--prefill-rows", 1), ("--threads", 1),
                 ("--cpu", "scalar"), ("--draft", "lookup")):
        r = generate(*(() if "--draft" in args else ("--draft", "off")), *CTX, "--memory", small + 8 * 2**20, *args, tokens=TOKENS)
        assert r["token_ids"] == reference()["token_ids"], args
    r = tiered("--memory", small + 8 * 2**20)
    assert r["predicted_uses"] > 0 and r["served_in_time"] > 0, r


@test
def without_a_limit_it_takes_what_is_free():
    r = tiered()
    assert r["token_ids"] == reference()["token_ids"] and r["begun_loads"] == EXPERTS * LAYERS, r


@test
def the_smallest_that_works_works():
    small = least()
    # The memory that a process has before it plans differs by some pages from one start to the next.
    r = tiered("--memory", small + 2**20)
    assert r["token_ids"] == reference()["token_ids"]
    err = tool("od-main", "--pack", pack(), "--prompt", PROMPT, *CTX, "--memory", small - 2**20, ok=False).stderr
    assert abs(int(re.search(r"at least .* \((\d+) bytes\)", err).group(1)) - small) < 2**20, (small, err)
    err = tool("od-main", "--pack", pack(), "--prompt", PROMPT, "--memory", "900TB", ok=False).stderr
    assert "--memory 818.5 TiB: expected at most what is free on this machine, which is" in err, err


@test
def it_stays_within_its_memory():
    for more in 8, 40:
        limit = least() + more * 2**20
        r = tiered("--memory", limit)
        main = [n for n in r["nodes"] if n["name"] == "main"][0]
        if not SLOW:
            assert main["peak_rss_bytes"] <= limit, (main, limit)


@test
def a_gguf_file_whose_layers_differ_too():
    file, _, folder = model(0)
    for more in 1, 3, 200:
        p = tool("od-bench", "conform", "--golden", folder, "--pack", file, "--json", "--memory", f"{80 + more}MiB")
        found = json.loads(p.stdout)["prompts"]
        assert found == conform(folder, file, "--resident"), more


@test
def texts_beside_each_other():
    """A server with four texts at once: each gets what it gets alone."""
    s = Server(mode=(*CTX, "--memory", str(least() + 12 * 2**20), "--parallel", 4))
    prompts = "Once", "The dragon", "A girl", "In the"
    text = lambda prompt: s.complete(prompt, tokens=40, temperature=0)["choices"][0]["text"]
    alone = [text(p) for p in prompts]
    assert len(set(alone)) == 4, alone
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, prompts)) == alone
    assert s.stop() == 0, s.log


@test
def damage_on_disk_is_said_and_ends_one_text():
    damaged = os.path.join(TMP, "damaged.pack")
    shutil.copytree(pack(), damaged)
    with open(os.path.join(damaged, "experts.bin"), "r+b") as f:
        f.seek(os.path.getsize(f.name) // 2 + 20000)
        b = f.read(1)
        f.seek(-1, 1)
        f.write(bytes([b[0] ^ 4]))
    p = tool("od-main", "--pack", damaged, "--prompt", PROMPT, "--max-tokens", 200, ok=False)
    assert re.search(r"expert \d+ of MoE layer \d+: .*checksum: expected [0-9a-f]+, found [0-9a-f]+ \(tried 3 times\)", p.stderr), p.stderr


def dense_file(name):
    """A copy of the pack whose experts do not all fit, and of its dense.bin what the embedding begins and ends at."""
    path = os.path.join(TMP, name)
    shutil.copytree(pack(), path)
    with open(os.path.join(path, "model.json"), encoding="utf-8") as f:
        tensors = json.load(f)["dense"]["tensors"]
    embed = [t for t in tensors if t["role"] == "embed"][0]
    assert embed["bytes"] > 2**20, embed  # so that it is checked in more than one piece
    return path, os.path.join(path, "dense.bin"), embed["offset"], embed["bytes"]


@test
def embeddings_stay_in_the_file_unless_all_experts_fit():
    found = {}
    for more in 3, 32, 60:
        p = tool("od-main", "--pack", pack(), "--prompt", PROMPT, *CTX, "--memory", least() + more * 2**20, "--max-tokens", 4)
        found[more] = re.search(r"of memory to keep them \((\w+)\)", p.stderr).group(1), "; embeddings are read from the file" in p.stderr
    assert found == {3: ("planes", True), 32: ("planes", False), 60: ("bf16", False)}, found


@test
def damaged_rows_of_the_embedding_fail_texts_until_they_are_repaired():
    path, dense, at, n = dense_file("rows.pack")
    s = Server(mode=(*CTX, "--memory", least("serve", "--listen", "127.0.0.1:0") + 3 * 2**20), pack_dir=path)
    assert "; embeddings are read from the file" in s.log, s.log
    ask = lambda: s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "temperature": 0})
    status, _, alone = ask()
    assert status == 200, alone

    def refused(pattern):
        status, _, o = ask()
        assert status == 500 and re.search(r"tensor embed, row \d+: .*dense\.bin " + pattern + r" \(tried 3 times\)", o["error"]["message"]), o

    with open(dense, "r+b") as f:
        f.seek(at)
        good = f.read(n)

        def put(data):
            f.seek(at)
            f.write(data)
            f.flush()

        for _ in range(2):
            put(bytes(b ^ 16 for b in good))
            refused(r"at offset \d+: checksum: expected [0-9a-f]{8}, found [0-9a-f]{8}")
            put(good)
            assert ask()[2]["choices"] == alone["choices"]
        f.truncate(at + 100)
        refused(r"ends too early: wanted \d+ bytes at offset \d+, got \d+")
    assert s.stop() == 0, s.log


@test
def a_signal_ends_it_while_it_waits():
    m = Lines(*CTX, "--memory", str(least() + 3 * 2**20))
    m.ask()
    m.p.send_signal(signal.SIGTERM)
    m.p.wait(60)
    assert m.p.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), m.p.returncode


if __name__ == "__main__":
    run_tests()
