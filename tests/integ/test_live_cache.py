#!/usr/bin/env python3
"""Workers that keep experts beyond their use: the same tokens whatever they keep, less is read, memory stays within its
limit, and nothing of it suffers when a worker dies."""
import ctypes
import json
import os
import time

from cluster_util import (HANG_S, PROMPT, SLOW, TMP, Daemon, Lines, calm, expect_calm, generate, hosts_file, in_calm, main_args, pack,
                          reference, run_tests, test, tool, undisturbed, worker_args)

TEXT = 60 if SLOW else 120
_resident = []


def resident():
    if not _resident:
        _resident.append(generate("--resident", prompt=PROMPT, tokens=TEXT)["token_ids"])
    return _resident[0]


def cached(*args):
    r = undisturbed(*args, prompt=PROMPT, tokens=TEXT)
    assert r["token_ids"] == resident(), args
    return r


def hits(r, states="fcse"):
    return sum(r[f"cache_hits_{s}"] for s in states)


@in_calm
def second(*args):
    """Of a text that finds what the same text has left. A worker makes its cache while the first is being written, at its leisure."""
    m = Lines(*args, "--max-tokens", TEXT)
    for _ in range(2):
        m.ask()
        r = m.answer()
        assert r["token_ids"] == resident(), args
    status, err = m.close()
    assert status == 0, err
    expect_calm(err)
    return r


# form, workers, slots, MiB of cache, policy, predictor
CASES = [
    ("planes", 1, 1, 1, "rank", "none"),
    ("planes", 1, 2, 40, "rank", "shadow"),
    ("planes", 2, 1, 4, "lru", "next-gate"),
    ("planes", 3, 2, 6, "lfu", "shadow"),
    ("planes", 4, 2, 3, "lfu", "none"),
    ("bf16", 1, 1, 3, "rank", "trajectory"),
    ("bf16", 2, 1, 5, "rank", "none"),
    ("bf16", 2, 2, 60, "lfu", "shadow"),
    ("bf16", 3, 1, 4, "rank", "shadow"),
    ("bf16", 4, 2, 6, "lru", "none"),
]


@test
def same_tokens_whatever_is_kept():
    for form, workers, slots, mib, policy, predictor in CASES:
        r = cached("--local", workers, "--resident-form", form, "--predictor", predictor, "--draft", "off",
                   *worker_args("--slots", slots, "--cache-mib", mib, "--cache-policy", policy))
        # A worker runs an expert once for a row, and every use is one's that has a cache.
        assert r["cache_uses"] == r["expert_uses"] == (TEXT - 1) * 12 * 2, r
        assert 0 < hits(r) <= r["cache_uses"], r
        assert policy == "rank" or hits(r, "cse") == 0, "the others have one pool"
        assert form == "bf16" or r["cache_hits_c"] == 0, "with planes, compressed is full"


@test
def without_a_cache_there_is_none():
    r = cached("--local", 2)
    assert r["cache_uses"] == 0 and hits(r) == 0


@test
def what_is_kept_is_not_read():
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE: huge pages would make memory resident that nothing uses
    plain = second("--local", 1, *worker_args("--slots=1"), "--predictor", "none", "--resident-form", "planes")
    for mib in 2, 8, 40:
        r = second("--local", 1, "--predictor", "none", "--resident-form", "planes",
                   *worker_args("--slots=1", "--cache-mib", mib))
        # Of the prompt, too, some may be there already; else uses in F are all that is not loaded.
        assert r["decode_loads"] == r["expert_uses"] - r["cache_hits_f"], r
        assert r["stalls"] == r["decode_loads"]
        assert r["loaded_bytes"] < plain["loaded_bytes"]
        worker = [n for n in r["nodes"] if n["name"].startswith("worker")][0]
        before = [n for n in plain["nodes"] if n["name"].startswith("worker")][0]
        if not SLOW:  # sanitizers have memory of their own
            assert worker["peak_rss_bytes"] <= before["peak_rss_bytes"] + (mib + 1) * 2**20, (worker, before)
    assert r["cache_hits_f"] > 0.85 * r["cache_uses"], "96 experts of 258 KiB fit into 40 MiB"


@test
def slots_do_not_use_up_a_cache():
    # Of 20 MiB they may hold 5, and one holds 260 KiB; 64 would fit into the memory, and hold 17 MiB. Rank would plan by how
    # long loads have taken.
    r = second("--local", 2, "--predictor", "none", "--resident-form", "bf16", *worker_args("--cache-mib=20", "--cache-policy=lru"))
    assert 10 <= r["slots"] <= 20, r["slots"]
    assert hits(r, "f") > 0.6 * r["cache_uses"], "15 MiB are 39 of 48 experts"
    assert cached("--local", 1, "--resident-form", "bf16", *worker_args("--cache-mib=1"))["slots"] == 1
    assert cached("--local", 1, "--resident-form", "planes", *worker_args("--cache-mib=1"))["slots"] == 64, \
        "theirs take no more"


@in_calm
def check_sessions(form):
    workers = [Daemon("worker", "--slots", 1, "--cache-mib", 14, "--cache-policy", "lfu", "--resident-form", form) for _ in range(2)]
    hosts = hosts_file(workers)
    one, other = (calm("--workers", hosts, prompt=PROMPT, tokens=TEXT) for _ in range(2))
    assert one["token_ids"] == other["token_ids"] == resident()
    assert hits(other) > hits(one), (hits(one), hits(other))
    assert hits(other, "f") > 0.8 * other["cache_uses"], other
    for w in workers:
        w.kill()


@test
def a_cache_outlives_a_session():
    for form in "planes", "bf16":
        check_sessions(form)


@test
def workers_with_and_without():
    workers = [Daemon("worker", "--slots", 2, *(["--cache-mib", 8] if i == 1 else [])) for i in range(2)]
    r = cached("--workers", hosts_file(workers))
    assert 0 < r["cache_uses"] < r["expert_uses"], r
    for w in workers:
        w.kill()


@test
def a_worker_dies_and_comes_back():
    workers = [Daemon("worker", "--slots", 2, "--cache-mib", 6) for _ in range(3)]
    m = Lines("--workers", hosts_file(workers))

    def ask():
        m.ask()
        r = m.answer()
        expect_calm(m.said(), workers[1].port)
        assert r["token_ids"] == reference()["token_ids"]
        return r

    ask()
    m.ask()
    time.sleep(0.2)
    workers[1].kill()
    assert m.answer()["token_ids"] == reference()["token_ids"]
    assert ask()["workers"] == 2
    workers[1].start()
    end = time.monotonic() + HANG_S
    while ask()["workers"] < 3:
        assert time.monotonic() < end, "it never came back"
    assert hits(ask()) > 0
    status, err = m.close()
    assert status == 0, err
    for w in workers:
        w.kill()


@test
def a_replay_knows_what_a_worker_does():
    # One worker, so that it has all uses; of the two experts of a layer only the one that is there is heard of first.
    p = tool("od-bench", "cache", "--live", "--pack", pack(), "--prompts", "tests/bench/prompts.jsonl", "--limit", 3, "--local",
             1, "--tokens", "20,40", "--budget", "16MiB", "--policies", "lru,lfu,rank", "--load-time", 0, "--predictor", "none",
             "--resident-form", "planes", "--json")
    expect_calm(p.stderr)
    r = json.loads(p.stdout)
    assert [(x["tokens"], x["policy"]) for x in r["live"]] == [(t, p) for t in (20, 40) for p in ("none", "lru", "lfu", "rank")]
    for x in r["live"]:
        if x["policy"] == "none":
            assert x["missed_uses_percent"] == x["missed_bytes_percent"] == 100
            continue
        found = sum(x[f"hits_{s}_percent"] for s in "fcse")
        assert 20 < found < 100 and x["tpot_ms"] > 0 and x["ttft_ms"] > 0, x
        if x["policy"] != "rank":  # which learns while it goes, where the replay knows all counts from the start
            for what in "uses", "bytes":
                assert abs(x[f"missed_{what}_percent"] - x[f"replayed_missed_{what}_percent"]) < 4, x
    for args, words in ((["--budget", "101%"], "found \"101%\""), (["--policies", "belady"], "found \"belady\""),
                        (["--tokens", "1"], "--tokens: expected 2 to "),
                        (["--budget", "900TiB", "--local", 1, "--limit", 1, "--tokens", 2, "--predictor", "none"],
                         "it was started with --slots=1 ")):
        err = tool("od-bench", "cache", "--live", "--pack", pack(), "--prompts", "tests/bench/prompts.jsonl", *args,
                   ok=False).stderr
        assert words in err and "--worker-arg" not in err, err  # an option of od-main


@test
def a_replay_plans_for_weights_without_sm_bytes():
    """FP8, and all weights with scales: to read their SM-chunks takes no time, and still rank keeps something."""
    model = os.path.join(TMP, "f8")
    tool("od-bench", "synth", model, "--preset", "tiny", "--hidden", 128, "--intermediate", 256, "--dtype", "f8_e4m3")
    tool("od-pack", model, model + ".pack")
    r = json.loads(tool("od-bench", "cache", "--live", "--pack", model + ".pack", "--prompts", "tests/bench/prompts.jsonl",
                        "--limit", 1, "--local", 1, "--tokens", 20, "--budget", "2MiB", "--policies", "rank", "--load-time", 1,
                        "--predictor", "none", "--json").stdout)
    x = [x for x in r["live"] if x["policy"] == "rank"][0]
    assert 10 < x["replayed_missed_uses_percent"] < 90, x
    # Whoever has nothing of an expert reads all of it: there are no parts to keep.
    for what in "", "replayed_":
        assert abs(x[what + "missed_uses_percent"] - x[what + "missed_bytes_percent"]) < 1e-6, x
    assert x["hits_s_percent"] == x["hits_e_percent"] == 0, x


@test
def too_little_is_said():
    err = tool("od-worker", "--pack", pack(), "--slots", 4, "--resident-form", "bf16", "--cache-mib", 1, ok=False).stderr
    assert "--cache-mib 1: a part of one expert takes at least 2 MiB with 4 slots" in err, err
    err = tool("od-worker", "--pack", pack(), "--memory-limit", "80MB", "--cache-mib", 40, ok=False).stderr
    assert "--cache-mib 40: memory limit: 1 slot" in err and "see --memory-limit" in err, err
    err = tool("od-worker", "--pack", pack(), "--cache-mib", 4, "--cache-policy", "belady", ok=False).stderr
    assert "expected one of rank, lru, lfu" in err, err
    err = tool("od-worker", "--pack", pack(), "--port", 0, "--cache-policy", "lru", ok=False).stderr
    assert "add --cache-mib" in err, err


run_tests()
