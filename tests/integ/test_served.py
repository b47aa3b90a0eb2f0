#!/usr/bin/env python3
"""Hedges: more loads, never another token; and what is counted adds up."""
import json
import os
import subprocess

from cluster_util import (HANG_S, PROMPT, SILENCE, TMP, TOKENS, Daemon, Lines, expect_calm, generate, hosts_file, main_args, pack,
                          reference, run_tests, test, tool, undisturbed, worker_args)


def run(*args, tokens=60):
    r = undisturbed("--local", 4, *args, prompt=PROMPT, tokens=tokens)
    assert r["token_ids"] == reference()["token_ids"][:tokens], args
    check_sums(r, args)
    return r


def check_sums(r, what):
    assert 0 < r["served_in_time"] <= r["expert_uses"], (what, r)
    # Stalls are those of draft rows that were undone, too.
    undone = (r["drafted_tokens"] - r["accepted_tokens"]) * r["expert_uses"] // (r["tokens"] - 1)
    assert r["served_in_time"] + r["undone_served"] + r["stalls"] <= r["expert_uses"] + undone, (what, r)
    assert r["hedge_uses"] <= r["hedged"], (what, r)
    # Every load was used or was not: what main has heard in RESULTs and what workers have counted is the same.
    assert r["loads"] + r["extra_loads"] == r["begun_loads"], (what, r)
    assert 0 < r["decode_loads"] <= r["expert_uses"] and r["decode_loads"] <= r["loads"], (what, r)


@test
def hedges_load_more_and_change_nothing():
    # Main waits for paced loads, so that the shadow gets its turn. What it misses all the same, next-gate stands in for;
    # its wasted loads, some tens, are far fewer than these hedges.
    for load_ms in 2, 4, 8, 16, 32:
        paced = *worker_args("--slots=2", f"--load-time={load_ms}"), "--draft", "off"  # whose wrong tokens use up the budget, too
        off, some, much = runs = [run(*paced, "--hedge", hedge) for hedge in (0, 20, 100)]
        if all(r["predicted_uses"] > 0.9 * r["expert_uses"] for r in runs):
            break
    assert off["hedged"] == off["hedge_uses"] == 0, off
    assert 0 < some["hedged"] < much["hedged"], (some, much)
    assert off["extra_loads"] < some["extra_loads"] < much["extra_loads"], (off, some, much)
    # What hedging may cost: the budget, what may be spent ahead of it, and the slots of a step that did not come.
    assert some["extra_loads"] <= 0.2 * some["expert_uses"] + 64 + off["extra_loads"] + 16, some
    assert much["hedged"] > 0.5 * much["expert_uses"], much


@test
def wrong_guesses_of_a_rough_shadow_change_nothing():
    tool("od-pack", "shadow", pack(), "nf4")
    for sampling in (), ("--temperature", 0.8, "--seed", 7), ("--temperature", 1.5, "--top-k", 5, "--seed", 8):
        tokens = generate("--resident", *sampling, prompt=PROMPT, tokens=TOKENS)["token_ids"]
        for hedge in 0, 20:
            r = undisturbed("--local", 4, "--shadow-arg=--precision=nf4", "--worker-arg=--slots=2", "--hedge", hedge,
                            *sampling, prompt=PROMPT, tokens=TOKENS)
            assert r["token_ids"] == tokens, (sampling, hedge)
            check_sums(r, (sampling, hedge))


@test
def without_a_free_slot_there_is_no_hedge():
    # A draft that is undone may leave a slot free.
    r = run("--worker-arg=--slots=1", "--hedge", 100, "--draft", "off")
    assert r["hedged"] == 0, r


@test
def every_predictor_gives_the_same_tokens():
    for kind in "shadow", "next-gate", "trajectory":
        paced = worker_args("--load-time=2") if kind == "shadow" else ()  # it hedges only what it foresees in time
        for hedge in 0, 50:
            for _ in range(20):  # a starved shadow foresees nothing in time
                r = run("--predictor", kind, "--hedge", hedge, "--worker-arg=--slots=2", *paced, tokens=48)
                if r["hedged"] > 0 or hedge == 0:
                    break
            assert (r["hedged"] > 0) == (hedge > 0), (kind, r)


@test
def in_batches_and_roundings_too():
    for args in (("--profile", "bf16"), ("--shadow-arg", "--departure=late"), ("--align-token", 4, "--align-kv", 0)):
        tokens = generate("--resident", *args[:2] if args[0] == "--profile" else (), tokens=48)["token_ids"]
        r = generate("--local", 3, *args, "--hedge", 200, "--worker-arg=--slots=3", tokens=48)
        assert r["token_ids"] == tokens, args


@test
def a_lost_worker_loads_nothing():
    workers = [Daemon("worker", "--slots", 2) for _ in range(3)]
    generate("--workers", hosts_file(workers), "--predictor", "none")  # what workers did for another main is not ours
    m = Lines("--workers", hosts_file(workers), "--predictor", "trajectory")

    def text_of(n):
        """The next one at whose end there are n workers, none of which was lost meanwhile, or owed anything when it was lost."""
        for _ in range(100):
            before = len(m.said())
            m.ask()
            r = m.answer()
            assert r["token_ids"] == reference()["token_ids"]
            if r["workers"] == n and r["recovered_runs"] == 0 and not SILENCE.search(m.said()[before:]):
                return r
        raise AssertionError(m.said())

    check_sums(text_of(3), "all")
    workers[1].kill()
    for begins_without_it in False, True, True:
        r = text_of(2)
        if begins_without_it:
            check_sums(r, "without the lost one")
    workers[1].restart()  # it counts from 0
    check_sums(text_of(3), "again")
    status, err = m.close()
    assert status == 0, err
    for w in workers:
        w.kill()


@test
def a_text_alone_counts_nothing_of_those_before_it():
    # The third needs all three pages of 64 positions that there are, so it begins when both others have ended.
    path = os.path.join(TMP, "three.jsonl")
    with open(path, "w") as f:
        f.writelines(json.dumps({"prompt": PROMPT, "max_tokens": n}) + "\n" for n in (20, 20, 150))
    argv = main_args("--local", 4, "--worker-arg=--slots=2", "--prompts", path, "--parallel", 2, "--state-memory", "2304KiB")
    at = argv.index("--prompt")
    del argv[at:at + 2]
    p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    expect_calm(p.stderr)
    one, two, three = sorted(map(json.loads, p.stdout.splitlines()), key=lambda r: r["index"])
    assert one["begun_loads"] == two["begun_loads"] == 0 and one["loads"] > 0, (one, two)
    check_sums(three, "the third")


@test
def a_person_is_told():
    args = [a for a in main_args("--local", 2, "--verbose", tokens=16) if a != "--json"]
    p = subprocess.run(args, capture_output=True, text=True)
    assert p.returncode == 0 and "% of " in p.stderr and "expert uses in time, with" in p.stderr, p.stderr


run_tests()
