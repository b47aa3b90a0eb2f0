#!/usr/bin/env python3
"""Tokens do not depend on the cluster: any number of workers, groups, slots, threads and prefill chunks, with and
without prediction, in both profiles, with experts in either form, give the tokens of resident mode."""
from cluster_util import BIN, FAR, HANG_S, Daemon, generate, hosts_file, pack, run_tests, test, tool, undisturbed, worker_args
import json
import os
import re
import subprocess
import tempfile
from unittest import mock

PROMPTS = ["Once upon a time there was a king", "The wolf said to the little girl, \"Where are you going?\" and she"]
_resident = {}


def resident(profile, prompt):
    key = profile, prompt
    if key not in _resident:
        _resident[key] = generate("--resident", "--profile", profile, "--threads", 1, "--resident-form", "bf16",
                                  prompt=prompt)["token_ids"]
        assert len(set(_resident[key])) > 8, "the reference text must vary"
    return _resident[key]


# A pairwise selection: every pair of values of two columns occurs (make soak runs them all).
# workers, group size, slots, predictor, main threads, profile, prefill rows
CASES = [
    (1, 1, 1, "shadow", 1, "f32", 256),
    (1, 2, 2, "next-gate", 2, "bf16", 3),
    (2, 1, 2, "none", 2, "f32", 3),
    (2, 2, 1, "trajectory", 1, "bf16", 256),
    (2, 3, 1, "shadow", 2, "f32", 3),
    (3, 1, 1, "next-gate", 2, "f32", 256),
    (3, 2, 2, "none", 1, "bf16", 3),
    (3, 3, 2, "shadow", 2, "f32", 256),
    (5, 1, 2, "shadow", 1, "bf16", 3),
    (5, 2, 1, "none", 2, "f32", 256),
    (5, 3, 1, "none", 1, "bf16", 256),
    (8, 1, 1, "shadow", 1, "bf16", 3),
    (8, 2, 2, "shadow", 2, "f32", 256),
    (8, 3, 1, "next-gate", 1, "f32", 3),
]


@test
def same_tokens_for_every_cluster_shape():
    for i, (workers, group, slots, predictor, threads, profile, rows) in enumerate(CASES):
        prompt = PROMPTS[i % len(PROMPTS)]
        r = undisturbed("--local", workers, "--group-size", group, *worker_args("--slots", slots), "--predictor",
                        predictor, "--threads", threads, "--profile", profile, "--prefill-rows", rows,
                        "--resident-form", ("planes", "bf16")[i // 2 % 2], prompt=prompt)
        assert r["token_ids"] == resident(profile, prompt), (CASES[i], r["token_ids"], resident(profile, prompt))
        assert r["workers"] == workers and r["slots"] == slots
        assert r["groups"] == max(1, workers // min(group, workers)), r["groups"]


@test
def same_tokens_from_planes():
    for profile, rows, threads in (("f32", 256, 2), ("f32", 3, 1), ("bf16", 2, 2), ("bf16", 256, 1)):
        for prompt in PROMPTS:
            r = generate("--resident", "--resident-form", "planes", "--profile", profile, "--prefill-rows", rows,
                         "--threads", threads, prompt=prompt)
            assert r["token_ids"] == resident(profile, prompt), (profile, rows, r["token_ids"])


@test
def figures_add_up():
    r = undisturbed("--local", 2, "--predictor", "none", *worker_args("--slots=1"), tokens=10)
    layers, top_k, steps = 12, 2, 9  # ten tokens take nine decode steps
    assert r["expert_uses"] == layers * top_k * steps, r["expert_uses"]
    assert r["stalls"] == r["expert_uses"], "without prediction every expert is loaded on the router's word"
    assert r["loads"] >= r["expert_uses"] and r["loaded_bytes"] > 0
    assert r["predicted_uses"] == 0 and r["recall"] is None
    assert len(r["nodes"]) == 3 and all(n["alive"] and n["peak_rss_bytes"] > 0 for n in r["nodes"])


@test
def a_decode_step_waits_once_for_each_layer_and_once_for_its_logits():
    for device in {"OD_DEVICE": "cpu"}, FAR:
        for args in (), ("--align-kv", 4), ("--predictor", "next-gate"), ("--predictor", "none"):
            with mock.patch.dict(os.environ, device):
                r = undisturbed("--local", 3, *args)
            # 12 layers; the prompt is a step, too, and gives the first token. A draft's right tokens need no step. The
            # shadow asks for the prompt, and main's own predictor stands in while it is silent: both wait apart from that.
            steps = r["tokens"] - r["accepted_tokens"]
            assert r["device_waits"] - r["side_waits"] == steps * 13, (device, args, r)
            assert args != ("--predictor", "none") or r["side_waits"] == 0, r


@test
def daemons_by_hand_and_a_hosts_file():
    workers = [Daemon("worker", "--slots", 2) for _ in range(3)]
    path = hosts_file(workers)
    r = generate("--workers", path, prompt=PROMPTS[0])
    assert r["token_ids"] == resident("f32", PROMPTS[0])
    # The same daemons serve the next main, of the other profile.
    r = generate("--workers", path, "--profile", "bf16", prompt=PROMPTS[1])
    assert r["token_ids"] == resident("bf16", PROMPTS[1])
    for w in workers:
        w.kill()


@test
def prompts_from_standard_input():
    p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--local", "2", "--predictor", "none", "--json",
                        "--max-tokens", "8"], input="\n".join(PROMPTS) + "\n", capture_output=True, text=True,
                       timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert [o["prompt"] for o in out] == PROMPTS
    for o in out:
        assert o["token_ids"] == resident("f32", o["prompt"])[:8]


def main_with_input(text, *args):
    return subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--resident", "--json", "--max-tokens", "8",
                           "--prompt", "-", *args], stdin=text if hasattr(text, "fileno") else None,
                          input=None if hasattr(text, "fileno") else text, capture_output=True, timeout=HANG_S)


@test
def all_of_standard_input_as_one_prompt():
    text = "\n".join(PROMPTS) + "\n"
    want = generate("--resident", prompt=text, tokens=8)
    with tempfile.TemporaryFile() as f:
        f.write(text.encode())
        f.seek(0)
        for source in text.encode(), f:  # a pipe, and a file
            p = main_with_input(source)
            assert p.returncode == 0, p.stderr
            r = json.loads(p.stdout)
            assert (r["prompt"], r["token_ids"]) == (text, want["token_ids"]), r
    p = main_with_input(b"")
    assert p.returncode == 0 and json.loads(p.stdout)["prompt_tokens"] == 1, p  # BOS alone
    p = main_with_input(b"k" * (64 * 2**20 + 1))
    assert p.returncode == 1 and b"standard input is longer than 67108864 bytes" in p.stderr, p.stderr


@test
def a_repetition_penalty_with_and_without_a_window():
    def text(penalty):
        return generate("--resident", "--repetition-penalty", penalty, prompt=PROMPTS[0], tokens=60)["token_ids"]

    plain = generate("--resident", prompt=PROMPTS[0], tokens=60)["token_ids"]
    assert text("1.8") == text("1.8,0") != plain
    assert plain != text("1.8,5") != text("1.8")
    for bad, says in (("0", "expected 0.01 to 100, found 0"), ("1.1,", 'expected a whole number, found ""'),
                      ("1.1,x", 'found "x"'), ("1.1,2,3", 'found "2,3"'), ("," + "1" * 40, 'expected a number, found ""'),
                      ("1" * 40 + ",2", "found")):
        p = tool("od-main", "--resident", "--prompt", "x", "--repetition-penalty", bad, ok=False)
        assert p.returncode == 2 and "--repetition-penalty: expected" in p.stderr and says in p.stderr, (bad, p.stderr)


@test
def figures_after_a_text_are_one_line():
    def figures(*args):
        p = tool("od-main", "--pack", pack(), "--prompt", PROMPTS[0], "--max-tokens", 8, *args)
        return [line for line in p.stderr.splitlines() if not line.startswith("od-main: ")]

    line = r"\d+ prompt tokens, 8 generated; TTFT [\d.]+ s, then [\d.]+ tok/s"
    (found,) = figures("--resident")
    assert re.fullmatch(line, found), found
    (found,) = figures("--local", 1, "--predictor", "next-gate")
    assert re.fullmatch(line + r"; recall [\d.]+%; per token [\d.]+ loads, [\d.]+ stalls", found), found
    names = ["tokens", "speed", "recall", "served", "lead", "stalls", "loaded", "peak memory"]
    verbose = figures("--local", 1, "--predictor", "next-gate", "--verbose")
    assert [line[:12].rstrip() for line in verbose[:7]] == names[:7] and verbose[7].startswith(names[7]), verbose
    assert figures("--resident", "--quiet") == []
    p = tool("od-main", "--resident", "--quiet", "--verbose", ok=False)
    assert p.returncode == 2 and "--quiet and --verbose exclude each other" in p.stderr, p.stderr


@test
def the_pack_is_found_through_the_environment():
    p = subprocess.run([os.path.join(BIN, "od-main"), "--local", "1", "--predictor", "none", "--prompt", PROMPTS[0],
                        "--max-tokens", "4", "--json"], capture_output=True, text=True, timeout=HANG_S,
                       env={**os.environ, "OD_PACK": pack()})
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout)["token_ids"] == resident("f32", PROMPTS[0])[:4]


if __name__ == "__main__":
    run_tests()
