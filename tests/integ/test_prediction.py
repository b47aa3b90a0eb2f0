#!/usr/bin/env python3
"""The shadow: what it predicts, that it never changes a token, and that it may come and go."""
import json
import os
import re
import signal
import subprocess
import threading
import time

import tiny_checkpoint as tiny
from float64_model import cpus
from cluster_util import (BIN, HANG_S, PROMPT, SLOW, TMP, Daemon, Lines, generate, hosts_file, main_args, pack,
                          reference, run_tests, shadow_args, test, tool, undisturbed, worker_args)

PERIODS = (1, 1), (1, 4), (1, 0), (4, 1), (0, 1), (0, 0), (3, 2)


def align(i, j):
    return "--align-token", i, "--align-kv", j


def small(*args, tokens=64, prompt=PROMPT):
    return generate(*args, tokens=tokens, prompt=prompt)


def until_predicted(*args, tokens):
    """Answers to one prompt, up to the first that has predictions. Main does not wait for the shadow: on a busy machine it may
    be through before the shadow had its turn. So each time its workers' loads take twice as long."""
    answers = [small(*args, tokens=tokens)]
    for log2_ms in range(9):
        if answers[-1]["predicted_uses"] > 0:
            break
        answers.append(small(*args, *worker_args(f"--load-time={2 ** log2_ms}"), tokens=tokens))
    return answers


def mostly_predicted(*args, tokens, prompt):
    """An answer of which most uses were predicted: recall of few says little."""
    r = small(*args, tokens=tokens, prompt=prompt)
    for log2_ms in range(9):
        if r["predicted_uses"] > 0.8 * r["expert_uses"]:
            break
        r = small(*args, *worker_args(f"--load-time={2 ** log2_ms}"), tokens=tokens, prompt=prompt)
    return r


@test
def a_bf16_shadow_predicts_everything():
    for profile in "f32", "bf16":
        want = small("--resident", "--profile", profile)["token_ids"]
        for departure in "early", "late":
            for r in until_predicted("--local", 2, *shadow_args("--precision=bf16", "--departure", departure), "--profile",
                                     profile, tokens=64):
                assert r["token_ids"] == want
            assert r["recall"] == 1.0 and r["predicted_uses"] > 0, (profile, departure, r)


@test
def an_int8_shadow_predicts_nearly_everything():
    # sep-reference of the same quantisation: 99.82 % with token and KV aligned every time.
    uses = recalled = 0
    for prompt in "He was very much admired indeed.", "\"He looks just like an angel,\" said the children", PROMPT:
        r = mostly_predicted("--local", 3, *shadow_args("--precision=int8"), tokens=128, prompt=prompt)
        uses += r["predicted_uses"]
        recalled += r["recalled_uses"]
    assert 0.993 < recalled / uses < 1, recalled / uses


@test
def every_alignment_gives_the_same_tokens():
    for profile in ("f32",) if SLOW else ("f32", "bf16"):
        want = small("--resident", "--profile", profile, tokens=32)["token_ids"]
        for departure in "early", "late":
            for periods in PERIODS:
                for r in until_predicted("--local", 2, *shadow_args("--precision=bf16", "--departure", departure), "--profile",
                                         profile, *align(*periods), tokens=32):
                    what = profile, departure, periods, r
                    assert r["token_ids"] == want, what
                    assert (r["state_bytes"] == 0) == (periods[1] == 0), what
                assert r["predicted_uses"] > 0 and r["recall"] == 1, what


@test
def an_int8_shadow_drifts_little_with_the_true_tokens():
    for periods in (1, 4), (1, 0), (2, 1):
        r = mostly_predicted("--local", 2, *shadow_args("--precision=int8"), *align(*periods), tokens=128, prompt=PROMPT)
        assert 0.985 < r["recall"] <= 1, (periods, r)


@test
def what_alignment_costs():
    def cost(*args):
        return undisturbed("--local", 2, "--draft", "off", *args, prompt=PROMPT, tokens=64)["align_bytes_per_token"]

    row = 12 * 2 * 128 * 4  # K and V of a token in all layers
    assert row < cost() < 1.1 * row
    assert row / 2 < cost("--profile", "bf16") < 0.6 * row
    assert 60 / 64 * row < cost(*align(1, 4)) < 1.05 * row  # fewer messages, not fewer rows
    assert cost(*align(1, 0)) < 60


@test
def the_ends_of_sequences():
    for periods in (1, 1), (0, 0), (3, 2):
        for departure in "early", "late":
            for prompt, args, finish in (("", ("--ctx-size", 40, "--max-tokens", 0, "--ignore-eos"), "context"),
                                         ("and they lived happily ever after.", ("--max-tokens", 400), "eos")):
                want = generate("--resident", *args, prompt=prompt)
                assert want["finish"] == finish and (prompt or want["prompt_tokens"] == 1), want
                r = generate("--local", 2, *shadow_args("--departure", departure), *align(*periods), *args, prompt=prompt)
                assert r["token_ids"] == want["token_ids"] and r["finish"] == finish, (periods, departure, r)


@test
def every_precision_predicts_as_its_definition_does():
    # sep-reference, token and KV aligned every time, all quantised: FP16 100 %, INT8 99.82 %, NF4 97.89 % (0.40 over
    # prompts); experts alone in NF4: 98.13 % (0.38). On AVX2 rows that meet NF4 are rounded to INT8.
    tool("od-pack", "shadow", pack(), "fp16,nf4")
    for args, low, high in ((["fp16"], 1, 1), (["int8"], 0.993, 1), (["nf4"], 0.965, 0.99),
                            (["nf4", "--dense-precision", "bf16"], 0.968, 0.992),
                            (["nf4", "--dense-precision", "int8"], 0.965, 0.992),
                            *[(["nf4", "--cpu", c], 0.965, 0.99) for c in cpus() if c == "avx2"]):
        uses = recalled = 0
        for prompt in "He was very much admired indeed.", "\"He looks just like an angel,\" said the children":
            r = mostly_predicted("--local", 2, *shadow_args("--precision", *args), tokens=128, prompt=prompt)
            uses += r["predicted_uses"]
            recalled += r["recalled_uses"]
        assert low <= recalled / uses <= high, (args, recalled / uses)


@test
def late_and_missing_rows_add_up():
    r = undisturbed("--local", 2, prompt=PROMPT, tokens=64)
    rows = r["expert_uses"] // 2  # top-2
    assert r["predicted_uses"] == 2 * (rows - r["missing_predictions"]), r
    assert r["late_predictions"] <= rows
    assert r["state_bytes"] >= 63 * 12 * 2 * 128 * 4, r["state_bytes"]  # K and V rows of every step and layer


@test
def sampling_with_a_shadow():
    args = "--temperature", 0.9, "--seed", 7
    want = small("--resident", *args)["token_ids"]
    for departure in "early", "late":
        assert small("--local", 2, *shadow_args("--departure", departure), *args)["token_ids"] == want
    assert small("--resident", "--temperature", 0.9, "--seed", 8)["token_ids"] != want


def ask_until(m, enough):
    """The first answer that is enough; a starved shadow says nothing in time."""
    end = time.monotonic() + HANG_S
    while True:
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"]
        if enough(r):
            return r
        assert time.monotonic() < end, r


@test
def the_shadow_is_killed_and_comes_back():
    nodes = [Daemon("shadow"), Daemon("worker"), Daemon("worker")]
    m = Lines("--workers", hosts_file(nodes))
    ask_until(m, lambda r: r["predicted_uses"] > 0)
    for action in nodes[0].kill, lambda: nodes[0].signal(signal.SIGSTOP):
        m.ask()
        time.sleep(0.2)
        action()
        assert m.answer()["token_ids"] == reference()["token_ids"]
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"]
        assert r["predicted_uses"] == 0, r  # main's own predictor stands in
        assert 0 < r["stood_in_recalled"] < 0.9 * r["stood_in_uses"], r
        nodes[0].restart()
        r = ask_until(m, lambda r: r["predicted_uses"] > r["stood_in_uses"])
        assert r["recall"] > 0.99, r
    status, err = m.close()
    assert status == 0, err
    for n in nodes:
        n.kill()


@test
def a_shadow_that_comes_back_with_every_alignment():
    nodes = [Daemon("shadow"), Daemon("worker"), Daemon("worker")]
    for periods in ((0, 0),) if SLOW else PERIODS[1:]:
        m = Lines("--workers", hosts_file(nodes), *align(*periods))
        m.ask()
        time.sleep(0.2)
        nodes[0].restart()
        assert m.answer()["token_ids"] == reference()["token_ids"]
        ask_until(m, lambda r: r["predicted_uses"] > 0)
        status, err = m.close()
        assert status == 0, err
    for n in nodes:
        n.kill()


@test
def a_shadow_of_another_checkpoint_is_refused():
    other, w = Daemon("shadow", pack_dir=long_pack()), Daemon("worker")
    p = tool("od-main", *main_args("--workers", hosts_file([other, w]))[1:], ok=False)
    assert "fingerprint" in p.stderr and f"127.0.0.1:{other.port}" in p.stderr, p.stderr
    other.kill()
    w.kill()


_long_pack = []


def long_pack():
    """A tiny model with a context of thousands; every printable character is a token."""
    if not _long_pack:
        path = os.path.join(TMP, "long")
        cfg = dict(tiny.CONFIG, max_position_embeddings=4096, rope_theta=1e4)
        tiny.write_checkpoint(path, cfg, tiny.tensors(cfg))
        vocab = {chr(32 + i): i for i in range(95)}
        with open(os.path.join(path, "tokenizer.json"), "w") as f:
            json.dump({"version": "1.0", "model": {"type": "BPE", "vocab": {**vocab, "\n": 95}, "merges": []}}, f)
        tool("od-pack", path, path + ".pack")
        _long_pack.append(path + ".pack")
    return _long_pack[0]


LONG_PROMPT, LONG_TOKENS = "All work and no play. " * 137, 1000  # 3014 positions


def long_args(*args):
    return [os.path.join(BIN, "od-main"), "--pack", long_pack(), "--ctx-size", "4096", "--prompt", LONG_PROMPT,
            "--max-tokens", str(LONG_TOKENS), "--ignore-eos", *map(str, args)]


def restart_behind_3000(nodes, *args):
    """Text, tokens that were out when the shadow had started again, tokens with predictions."""
    p = subprocess.Popen(long_args("--workers", hosts_file(nodes), "--verbose", *args), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, bufsize=0)  # what a buffer had read ahead, os.read would not see
    out, err = bytearray(p.stdout.read(8)), []
    pieces = iter(lambda: os.read(p.stdout.fileno(), 4096), b"")
    readers = [threading.Thread(target=lambda: [out.extend(b) for b in pieces]),
               threading.Thread(target=lambda: err.append(p.stderr.read().decode()))]
    for r in readers:
        r.start()
    nodes[0].restart()
    before = len(out) // 2 + 2  # a character and a space each
    for r in readers:
        r.join(HANG_S)
    assert p.wait(HANG_S) == 0, err
    uses = re.search(r"of (\d+) predicted expert uses", err[0])
    return out.decode(), before, int(uses[1]) // 4 if uses else 0  # 2 layers, top-2


@test
def a_shadow_that_starts_again_at_position_3000():
    want = subprocess.run(long_args("--resident", "--quiet"), capture_output=True, text=True, timeout=HANG_S).stdout
    nodes = [Daemon("shadow", "--precision", "bf16", pack_dir=long_pack())]
    nodes += [Daemon("worker", "--load-time", 4, pack_dir=long_pack()) for _ in range(2)]
    for periods in ((1, 1), (0, 0)) if SLOW else ((1, 1), (1, 0), (0, 0), (3, 2)):
        for _ in range(10):  # main may be through before the shadow is back
            text, before, predicted = restart_behind_3000(nodes, *align(*periods))
            assert text == want, periods
            if predicted > before + 20:
                break
        assert predicted > before + 20, (periods, before, predicted)
    for n in nodes:
        n.kill()


@test
def a_trace_shows_every_process_at_work():
    path = os.path.join(TMP, "trace.json")
    # Main waits for paced loads, so that the shadow gets its turn on a machine of any speed.
    for _ in range(20):
        generate("--local", 2, "--trace", path, "--worker-arg=--load-time=10", tokens=8)
        with open(path) as f:
            events = json.load(f)
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        assert sorted(names.values()) == ["main", "shadow", "worker", "worker"], names
        seen = {(names[e["pid"]], e["name"]) for e in events if e["ph"] == "X"}
        if ("shadow", "experts") in seen:
            break
    for span in (("main", "attention, router"), ("main", "wait for experts"), ("shadow", "experts"),
                 ("worker", "read"), ("worker", "inflate"), ("worker", "compute"), ("worker", "send")):
        assert span in seen, span
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert not [f for f in os.listdir(TMP) if f.startswith("trace.json.")], "the children's files are gone"


@test
def spans_of_a_thread_do_not_cross():
    path = os.path.join(TMP, "crossing.json")
    for args in (("--resident",), ("--local", 2)):
        generate(*args, "--trace", path, tokens=8)
        with open(path) as f:
            spans = [e for e in json.load(f) if e["ph"] == "X"]
        open_until = {}
        for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            ends = open_until.setdefault((e["pid"], e["tid"]), [])
            while ends and ends[-1] <= e["ts"]:
                ends.pop()
            end = round(e["ts"] + e["dur"], 3)
            assert not ends or end <= ends[-1], (args, e)
            ends.append(end)


if __name__ == "__main__":
    run_tests()
