#!/usr/bin/env python3
"""Main's own predictors on a live cluster: they foresee exactly what an independent implementation of each foresees on
the same texts (tests/golden/predict), and never change a token."""
import json
import subprocess

from cluster_util import Daemon, Lines, generate, hosts_file, main_args, run_tests, shadow_args, test

with open("tests/golden/predict/rivals.json") as f:
    GOLDEN = json.load(f)
with open("tests/golden/talebook/golden.json") as f:
    BY_NAME = {p["name"]: p for p in json.load(f)}
TEXTS = [BY_NAME[name] for name in GOLDEN["prompts"]]
TOKENS = GOLDEN["tokens"]


def tell(*args):
    """All texts one after the other in one process, so that histories grow as they did in the reference."""
    m = Lines(*args, "--max-tokens", TOKENS)
    answers = []
    for t in TEXTS:
        m.ask(t["prompt_text"])
        answers.append(m.answer())
    status, err = m.close()
    assert status == 0, err
    for a, t in zip(answers, TEXTS):
        assert a["prompt_ids"] == t["prompt_ids"]
        assert a["token_ids"] == t["greedy_ids"][:TOKENS]
    return answers


@test
def every_rival_foresees_what_the_reference_foresees():
    for name, want in GOLDEN["rivals"].items():
        answers = tell("--local", 1, "--predictor", name)
        found = [{"predicted": a["predicted_uses"], "recalled": a["recalled_uses"]} for a in answers]
        assert found == want, (name, found, want)
        assert all(a["late_predictions"] == 0 for a in answers), name
        assert not any(n["name"].startswith("shadow") for n in answers[0]["nodes"]), "nobody asked for a shadow"


@test
def tokens_are_those_of_resident_mode():
    for profile, workers, rows in ("f32", 2, 5), ("bf16", 3, 256):  # prompts in pieces, too
        want = generate("--resident", "--profile", profile, tokens=40)["token_ids"]
        for name in (*GOLDEN["rivals"], "random"):
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
def a_second_opinion_stands_in_for_the_first():
    # Next-gate has nothing to say of layer 0; random has something to say of all.
    answers = tell("--local", 2, "--predictor", "next-gate", "--second-opinion", "random")
    for a, want in zip(answers, GOLDEN["rivals"]["next-gate"]):
        assert a["predicted_uses"] == a["expert_uses"] and a["missing_predictions"] == 0
        assert want["recalled"] < a["recalled_uses"] < want["recalled"] + a["predicted_uses"] - want["predicted"]
    # A shadow that predicts everything is not overruled.
    tell("--local", 2, "--predictor", "shadow", *shadow_args("--precision=bf16"), "--second-opinion", "next-gate")
    p = subprocess.run(main_args("--local", 1, "--predictor", "none", "--second-opinion", "history"),
                       capture_output=True, text=True)
    assert p.returncode != 0 and "there is no first; use --predictor history" in p.stderr, p.stderr


if __name__ == "__main__":
    run_tests()
