#!/usr/bin/env python3
"""Predictors in main's process on a live cluster: they foresee exactly what an independent implementation of each
foresees on the same texts (tests/golden/predict), and never change a token. od-main has some of them, od-bench all."""
import json
import os

from cluster_util import (TMP, Daemon, Lines, expect_calm, generate, hosts_file, in_calm, pack, run_tests, shadow_args, test, tool,
                          worker_args)

with open("tests/golden/predict/rivals.json") as f:
    GOLDEN = json.load(f)
with open("tests/golden/talebook/golden.json") as f:
    BY_NAME = {p["name"]: p for p in json.load(f)}
TEXTS = [BY_NAME[name] for name in GOLDEN["prompts"]]
TOKENS = GOLDEN["tokens"]
OWN = "next-gate", "trajectory"


@in_calm
def tell(*args):
    """All texts one after the other in one process, so that histories grow as they did in the reference."""
    m = Lines(*args, "--max-tokens", TOKENS)
    answers = []
    for t in TEXTS:
        m.ask(t["prompt_text"])
        answers.append(m.answer())
    status, err = m.close()
    assert status == 0, err
    expect_calm(err)
    for a, t in zip(answers, TEXTS):
        assert a["prompt_ids"] == t["prompt_ids"]
        assert a["token_ids"] == t["greedy_ids"][:TOKENS]
    return answers


def figures(answers):
    return [{"predicted": a["predicted_uses"], "recalled": a["recalled_uses"]} for a in answers]


@test
def main_s_own_foresee_what_the_reference_foresees():
    for name in OWN:
        answers = tell("--local", 1, "--predictor", name)
        assert figures(answers) == GOLDEN["rivals"][name], (name, figures(answers))
        assert all(a["late_predictions"] == 0 for a in answers), name
        assert not any(n["name"].startswith("shadow") for n in answers[0]["nodes"]), "nobody asked for a shadow"


@in_calm
def recall(*args):
    p = tool("od-bench", "recall", "--pack", pack(), "--json", *args)
    expect_calm(p.stderr)
    return json.loads(p.stdout)


@test
def every_rival_foresees_what_the_reference_foresees():
    prompts = os.path.join(TMP, "rivals.jsonl")
    with open(prompts, "w") as f:
        for t in TEXTS:
            f.write(json.dumps({"text": t["prompt_text"]}) + "\n")
    for name, want in GOLDEN["rivals"].items():
        for where in ("--local", 1), ("--threads", 1):  # live, and played to it
            r = recall("--prompts", prompts, "--tokens", TOKENS, "--predictor", name, *where)
            assert figures(r["by_prompt"]) == want, (name, where, figures(r["by_prompt"]), want)
            assert all(p["late_rows"] == 0 for p in r["by_prompt"]), (name, where)


@test
def tokens_are_those_of_resident_mode():
    for profile, workers, rows in ("f32", 2, 5), ("bf16", 3, 256):  # prompts in pieces, too
        want = generate("--resident", "--profile", profile, tokens=40)["token_ids"]
        for name in OWN:
            r = generate("--local", workers, "--predictor", name, "--profile", profile, "--prefill-rows", rows,
                         tokens=40)
            assert r["token_ids"] == want, (name, profile)
            assert r["predicted_uses"] > 0, (name, profile)


@test
def workers_without_a_shadow():
    workers = [Daemon("worker"), Daemon("worker")]
    answers = tell("--workers", hosts_file(workers), "--predictor", "next-gate")
    assert [a["recalled_uses"] for a in answers] == [w["recalled"] for w in GOLDEN["rivals"]["next-gate"]]
    with open(hosts_file(workers, "absent.txt"), "a") as f:
        f.write("shadow 127.0.0.1:1\n")  # nobody is there, and nobody would be listened to
    assert tell("--workers", f.name, "--predictor", "next-gate")[0]["recalled_uses"] == answers[0]["recalled_uses"]
    for w in workers:
        w.kill()


@test
def the_stand_in_does_not_count_as_the_shadow():
    # Beside one that speaks; how often it is late depends on the machine. test_lying_shadow.py has a silent one,
    # test_predictions.c the rule that the stand-in gives way.
    for _ in range(20):
        answers = tell("--local", 2, *shadow_args("--precision=bf16"), *worker_args("--load-time=2"))
        if all(a["predicted_uses"] > 0 for a in answers):  # the shadow had its turn
            break
    for a in answers:
        assert a["predicted_uses"] > 0 and a["recall"] == 1, a  # next-gate alone: 0.8


if __name__ == "__main__":
    run_tests()
