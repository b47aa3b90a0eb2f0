#!/usr/bin/env python3
"""The shadow: what it predicts, that it never changes a token, and that it may come and go."""
import json
import os
import signal
import time

from cluster_util import PROMPT, TMP, Daemon, Lines, generate, hosts_file, reference, run_tests, test


def small(*args, tokens=64, prompt=PROMPT):
    return generate(*args, tokens=tokens, prompt=prompt)


@test
def a_bf16_shadow_predicts_everything():
    for profile in "f32", "bf16":
        want = small("--resident", "--profile", profile)["token_ids"]
        for departure in "early", "late":
            r = small("--local", 2, "--precision", "bf16", "--departure", departure, "--profile", profile)
            assert r["token_ids"] == want
            assert r["recall"] == 1.0 and r["predicted_uses"] > 0, (profile, departure, r)


@test
def an_int8_shadow_predicts_nearly_everything():
    # sep-reference of the same quantisation: 99.82 % with token and KV aligned every time.
    uses = recalled = 0
    for prompt in "He was very much admired indeed.", "\"He looks just like an angel,\" said the children", PROMPT:
        r = small("--local", 3, "--precision", "int8", tokens=128, prompt=prompt)
        uses += r["predicted_uses"]
        recalled += r["recalled_uses"]
    assert 0.993 < recalled / uses < 1, recalled / uses


@test
def late_and_missing_rows_add_up():
    r = small("--local", 2)
    rows = r["expert_uses"] // 2  # top-2
    assert r["predicted_uses"] == 2 * (rows - r["missing_predictions"]), r
    assert r["late_predictions"] <= rows
    assert r["state_bytes"] >= 63 * 12 * 2 * 128 * 4, r["state_bytes"]  # K and V rows of every step and layer


@test
def sampling_with_a_shadow():
    args = "--temperature", 0.9, "--seed", 7
    want = small("--resident", *args)["token_ids"]
    for departure in "early", "late":
        assert small("--local", 2, "--departure", departure, *args)["token_ids"] == want
    assert small("--resident", "--temperature", 0.9, "--seed", 8)["token_ids"] != want


@test
def the_shadow_is_killed_and_comes_back():
    nodes = [Daemon("shadow"), Daemon("worker"), Daemon("worker")]
    m = Lines("--workers", hosts_file(nodes))
    m.ask()
    assert m.answer()["predicted_uses"] > 0
    for action in nodes[0].kill, lambda: nodes[0].signal(signal.SIGSTOP):
        m.ask()
        time.sleep(0.2)
        action()
        assert m.answer()["token_ids"] == reference()["token_ids"]
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"]
        nodes[0].restart()
        for _ in range(50):
            m.ask()
            r = m.answer()
            assert r["token_ids"] == reference()["token_ids"]
            if r["predicted_uses"] > 0:
                break
        assert r["recall"] > 0.99, r
    status, err = m.close()
    assert status == 0, err
    for n in nodes:
        n.kill()


@test
def a_trace_shows_every_process_at_work():
    path = os.path.join(TMP, "trace.json")
    generate("--local", 2, "--trace", path, tokens=8)
    with open(path) as f:
        events = json.load(f)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["main", "shadow", "worker", "worker"], names
    seen = {(names[e["pid"]], e["name"]) for e in events if e["ph"] == "X"}
    for span in (("main", "attention, router"), ("main", "wait for experts"), ("shadow", "experts"),
                 ("worker", "read"), ("worker", "inflate"), ("worker", "compute"), ("worker", "send")):
        assert span in seen, span
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert not [f for f in os.listdir(TMP) if f.startswith("trace.json.")], "the children's files are gone"


if __name__ == "__main__":
    run_tests()
