#!/usr/bin/env python3
"""od-main --draft: several tokens a step, from the shadow or from the text itself. Whatever is drafted, the texts are those of
plain decoding, in this process and on clusters of any shape, with daemons that are killed and stopped meanwhile.

    test_drafts.py			(in make check)
    OD_PROMPTS=100 test_drafts.py	more prompts, longer texts, both demo models if OD_FINE names a pack of talebook-fine"""
import json
import os
import random
import signal
import subprocess
import threading
import time

import wrong_shadow
from cluster_util import (BIN, HANG_S, SLOW, TMP, Daemon, generate, hosts_file, pack, run_tests, shadow_args, test, tool, worker_args)

PROMPTS = int(os.environ.get("OD_PROMPTS", "0"))
N = PROMPTS or (4 if SLOW else 12)
LENGTHS = (1, 4, 16) if not PROMPTS else range(1, 17)
PACKS = [None] + ([os.environ["OD_FINE"]] if "OD_FINE" in os.environ else [])
WORDS = ("once upon a time there was king who had three sons and the eldest went into dark forest to find golden bird that sang "
         "only at night").split()


def some_prompts(seed):
    """Greedy and at two temperatures, some with a stop string, a penalty or the end-of-text token."""
    rng = random.Random(seed)
    out = []
    for i in range(N):
        o = {"prompt": " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 3, 8, 20]))).capitalize(),
             "max_tokens": rng.choice([5, 30, 60]) if not PROMPTS else rng.choice([20, 60, 150]),
             "temperature": (0, 0.7, 1.2)[i % 3], "seed": rng.randrange(1000)}
        if rng.random() < 0.3:
            o["stop"] = rng.choice([" the ", " and", "."])
        out.append(o)
    return out


def texts(prompts, *args, pack_dir=None, parallel=1):
    path = os.path.join(TMP, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(o) + "\n" for o in prompts))
    p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack_dir or pack(), "--prompts", path, "--parallel", str(parallel),
                        "--json", *map(str, args)], capture_output=True, text=True, timeout=HANG_S * (1 + PROMPTS // 10))
    assert p.returncode == 0, p.stderr
    return {o["index"]: o for o in map(json.loads, p.stdout.splitlines())}


_plain = {}


def plain(prompts, pack_dir):
    key = json.dumps(prompts), pack_dir
    if key not in _plain:
        _plain[key] = texts(prompts, "--resident", pack_dir=pack_dir)
    return _plain[key]


def total(out, name):
    return sum(o[name] for o in out.values())


def check_same(prompts, *args, pack_dir=None, parallel=1):
    want, got = plain(prompts, pack_dir), texts(prompts, *args, pack_dir=pack_dir, parallel=parallel)
    for i, o in want.items():
        for name in "token_ids", "text", "finish", "prompt_tokens", "tokens":
            assert got[i][name] == o[name], (args, parallel, prompts[i - 1], name, o[name], got[i][name])
    return got


@test
def drafts_of_any_length_change_nothing():
    tool("od-pack", "shadow", pack(), "nf4")
    for pack_dir in PACKS:
        prompts = some_prompts(1)
        for precision in "int8", "nf4":
            for parallel in 1, 4:
                for draft in ("off", "auto", *LENGTHS):
                    got = check_same(prompts, "--local", 2, "--draft", draft, *shadow_args(f"--precision={precision}"),
                                     pack_dir=pack_dir, parallel=parallel)
                    assert (total(got, "drafted_tokens") == 0) == (draft == "off") or draft == "auto", (draft, precision, parallel)
                    assert total(got, "accepted_tokens") <= total(got, "drafted_tokens")
                    # Every token needs a row of its own. Rows that were undone are counted apart, and texts share steps.
                    if parallel == 1 and pack_dir is None:
                        assert total(got, "expert_uses") == (total(got, "tokens") - N) * 12 * 2, (draft, total(got, "expert_uses"))


@test
def a_draft_from_the_text_itself_changes_nothing():
    prompts = some_prompts(2)
    for where in ("--resident",), ("--local", 2), ("--local", 2, "--predictor", "none"):
        for parallel in 1, 4:
            check_same(prompts, *where, "--draft", "lookup", parallel=parallel)
        repeats = [{"prompt": "Once upon a time there was a king", "max_tokens": 60 if SLOW else 200}]
        assert total(check_same(repeats, *where, "--draft", "lookup"), "drafted_tokens") > 0, where


@test
def clusters_of_any_shape_write_the_same():
    prompts = some_prompts(3)
    for workers in 1, 3, 8:
        check_same(prompts, "--local", workers, "--draft", 4)
    check_same(prompts, "--local", 3, "--draft", 4, *worker_args("--slots=1"), parallel=4)
    check_same(prompts, "--local", 3, "--draft", 16, "--align-token", 2, "--align-kv", 3)
    check_same(prompts, "--local", 2, "--draft", 4, *shadow_args("--departure=late"))


@test
def drafts_need_fewer_steps():
    a = generate("--local", 2, "--draft", "off", tokens=120)
    b = generate("--local", 2, "--draft", 4, "--ignore-eos", *worker_args("--load-time=2"), tokens=120)
    assert a["accepted_tokens"] == 0 and a["decode_layers"] == 12 * 119
    # The steps of a draft of four right tokens are a fifth; a busy machine may leave the shadow behind.
    assert b["accepted_tokens"] > 40, b["accepted_tokens"]
    assert b["decode_layers"] == 12 * (119 - b["accepted_tokens"])


@test
def a_shadow_of_other_weights_soon_drafts_nothing():
    wrong = os.path.join(TMP, "wrong.pack")
    wrong_shadow.make(pack(), wrong)
    prompts = [{"prompt": "Once upon a time there was a king", "max_tokens": 60 if SLOW else 300, "temperature": t} for t in (0, 1)]
    got = check_same(prompts, "--local", 2, pack_dir=wrong)
    assert total(got, "drafted_tokens") - total(got, "accepted_tokens") <= 0.05 * total(got, "tokens")


class Chaos(threading.Thread):
    """Kills, stops and continues the daemons in turn, until stopped."""

    def __init__(self, daemons):
        super().__init__(daemon=True)
        self.daemons, self.ended, self.n = daemons, threading.Event(), 0

    def run(self):
        rng = random.Random(5)
        while not self.ended.wait(0.7):
            d = self.daemons[self.n % len(self.daemons)]
            if rng.random() < 0.5:
                d.restart()
            else:
                d.signal(signal.SIGSTOP)
                time.sleep(rng.choice([0.1, 2]))
                d.signal(signal.SIGCONT)
            self.n += 1

    def end(self):
        self.ended.set()
        self.join()


@test
def daemons_that_die_in_the_middle_of_a_draft_change_nothing():
    daemons = [Daemon("shadow"), *(Daemon("worker", "--load-time=3") for _ in range(3))]
    prompts = some_prompts(4)
    chaos = Chaos(daemons[:3])  # one worker can always serve
    chaos.start()
    try:
        for draft in 4, 16:
            check_same(prompts, "--workers", hosts_file(daemons), "--draft", draft, parallel=4)
    finally:
        chaos.end()
        for d in daemons:
            d.kill()
    assert chaos.n > 3, chaos.n


@test
def what_cannot_draft_is_refused():
    def refused(*args):
        p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--prompt", "x", *map(str, args)], capture_output=True,
                           text=True, timeout=HANG_S)
        assert p.returncode == 2 or p.returncode == 1, p
        return p.stderr

    worker = Daemon("worker")
    assert "--draft lookup" in refused("--resident", "--draft", 4)
    assert "--draft lookup" in refused("--local", 1, "--predictor", "none", "--draft", 4)
    assert "--draft lookup" in refused("--workers", hosts_file([worker]), "--draft", 4)
    for bad in 0, 17, -1, "x", "", "4x":
        assert "1 to 16" in refused("--local", 1, f"--draft={bad}")
    worker.kill()


if __name__ == "__main__":
    run_tests()
