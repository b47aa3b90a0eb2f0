#!/usr/bin/env python3
"""Memory of many texts: a prefix of 512 tokens that all of them share is held once, by main and by the shadow."""
import ctypes
import json
import os
import random
import re
import subprocess

from cluster_util import BIN, CHECKPOINT, HANG_S, SLOW, TMP, Daemon, Skip, hosts_file, pack, run_tests, test

PR_SET_THP_DISABLE = 41
PAGE_TOKENS = 64
PREFIX_PAGES = 8
N, TOKENS = 64, 112
WORDS = "once upon a time there was king who had three sons and the eldest went into dark forest to find golden bird".split()
ENDS = "cat dog bird tree house river stone gold bread wine night day sun moon rain snow".split()


def page_bytes():
    """Keys and values of all layers, f32."""
    with open(os.path.join(CHECKPOINT, "config.json")) as f:
        c = json.load(f)
    return PAGE_TOKENS * c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * c["head_dim"] * 4


def prompts():
    """They differ in their ends; nearly every word is one token."""
    rng = random.Random(1)
    prefix = " ".join(rng.choice(WORDS) for _ in range(PREFIX_PAGES * PAGE_TOKENS))
    return [f"{prefix} {ENDS[i % 16]} {ENDS[i // 16]}" for i in range(N)]


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) * 1024


def write(texts, load_ms):
    """Answers, and the peak memory of main and the shadow. Both are made for N texts, however many there are."""
    path = os.path.join(TMP, "prompts.jsonl")
    with open(path, "w") as f:
        f.writelines(json.dumps({"prompt": p, "max_tokens": TOKENS}) + "\n" for p in texts)
    shadow = Daemon("shadow")
    nodes = [shadow, *(Daemon("worker", "--load-time", load_ms) for _ in range(2))]
    p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--json", "--workers", hosts_file(nodes), "--prompts",
                        path, "--parallel", str(N), "--ignore-eos"], capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    answers = sorted(map(json.loads, p.stdout.splitlines()), key=lambda r: r["index"])
    main = max(n["peak_rss_bytes"] for r in answers for n in r["nodes"] if n["name"] == "main")
    peaks = {"main": main, "shadow": peak_bytes(shadow.process.pid)}
    for d in nodes:
        d.kill()
    return answers, peaks


@test
def a_shared_prefix_is_held_once():
    if SLOW:
        raise Skip("a sanitizer's own memory")
    # One position in a huge page of each of 24 streams would be 48 MiB. Children inherit this.
    assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    texts = prompts()
    (one,), alone = write(texts[:1], 0)
    own_pages = -(-(one["prompt_tokens"] + TOKENS) // PAGE_TOKENS) - PREFIX_PAGES
    # A page more for all else of a text: what its sampler has for each token of the vocabulary is the largest, 128 KiB.
    most = (N - 1) * (own_pages + 1) * page_bytes()
    assert 0 < own_pages + 1 < PREFIX_PAGES // 2
    # The shadow has had all rows of a text when it predicts. Until it does for each, loads take longer, and so main.
    for log2_ms in range(6):
        answers, peaks = write(texts, 2 ** log2_ms)
        for who in peaks:
            print(f"# {who}: {alone[who] >> 10} KiB for one text, {peaks[who] >> 10} KiB for {N}, "
                  f"at most {most >> 10} KiB more", flush=True)
            assert peaks[who] - alone[who] <= most, (who, peaks, alone)
        assert [r["shared_tokens"] for r in answers] == [0] + [PREFIX_PAGES * PAGE_TOKENS] * (N - 1)
        if all(r["predicted_uses"] > 0 for r in answers):
            return
    assert False, [r["predicted_uses"] for r in answers]


run_tests()
