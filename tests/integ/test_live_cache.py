#!/usr/bin/env python3
"""Workers that keep experts beyond their use: the same tokens whatever they keep, less is read, memory stays within its
limit, and nothing of it suffers when a worker dies."""
import ctypes
import os
import time

from cluster_util import (HANG_S, PROMPT, SLOW, TMP, Daemon, Lines, calm, expect_calm, generate, hosts_file, in_calm, pack,
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


@in_calm
def second(*args):
    """Of a text that finds what the same text has left."""
    m = Lines(*args, "--max-tokens", TEXT)
    for _ in range(2):
        m.ask()
        r = m.answer()
        assert r["token_ids"] == resident(), args
    status, err = m.close()
    assert status == 0, err
    expect_calm(err)
    return r


# form, workers, slots, MiB of cache, predictor
CASES = [
    ("planes", 1, 1, 1, "none"),
    ("planes", 1, 2, 40, "shadow"),
    ("planes", 2, 1, 4, "next-gate"),
    ("planes", 3, 2, 6, "shadow"),
    ("planes", 4, 2, 3, "none"),
    ("bf16", 1, 1, 3, "trajectory"),
    ("bf16", 2, 2, 60, "shadow"),
    ("bf16", 4, 2, 6, "none"),
]


@test
def same_tokens_whatever_is_kept():
    for form, workers, slots, mib, predictor in CASES:
        r = cached("--local", workers, "--resident-form", form, "--predictor", predictor, "--draft", "off",
                   *worker_args("--slots", slots, "--cache-mib", mib))
        # A worker runs an expert once for a row, and every use is one's that has a cache.
        assert r["cache_uses"] == r["expert_uses"] == (TEXT - 1) * 12 * 2, r
        assert 0 < r["cache_hits"] <= r["cache_uses"], r


@test
def without_a_cache_there_is_none():
    r = cached("--local", 2)
    assert r["cache_uses"] == r["cache_hits"] == 0


@test
def what_is_kept_is_not_read():
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE: huge pages would make memory resident that nothing uses
    plain = second("--local", 1, *worker_args("--slots=1"), "--predictor", "none", "--resident-form", "planes")
    for mib in 2, 8, 40:
        r = second("--local", 1, "--predictor", "none", "--resident-form", "planes",
                   *worker_args("--slots=1", "--cache-mib", mib))
        # Of the prompt, too, some may be there already; else hits are all that is not loaded.
        assert r["decode_loads"] == r["expert_uses"] - r["cache_hits"], r
        assert r["stalls"] == r["decode_loads"]
        assert r["loaded_bytes"] < plain["loaded_bytes"]
        worker = [n for n in r["nodes"] if n["name"].startswith("worker")][0]
        before = [n for n in plain["nodes"] if n["name"].startswith("worker")][0]
        if not SLOW:  # sanitizers have memory of their own
            assert worker["peak_rss_bytes"] <= before["peak_rss_bytes"] + (mib + 1) * 2**20, (worker, before)
    assert r["cache_hits"] > 0.85 * r["cache_uses"], "96 experts of 258 KiB fit into 40 MiB"


@in_calm
def check_sessions(form, least_hits):
    workers = [Daemon("worker", "--slots", 1, "--cache-mib", 14, "--resident-form", form) for _ in range(2)]
    hosts = hosts_file(workers)
    one, other = (calm("--workers", hosts, prompt=PROMPT, tokens=TEXT) for _ in range(2))
    assert one["token_ids"] == other["token_ids"] == resident()
    assert other["cache_hits"] > one["cache_hits"], (one, other)
    assert other["cache_hits"] > least_hits * other["cache_uses"], other
    for w in workers:
        w.kill()


@test
def a_cache_outlives_a_session():
    check_sessions("planes", 0.8)  # All 96 experts fit.
    check_sessions("bf16", 0.7)  # 74 of them do: 0.77 if all were used alike.


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
    assert ask()["cache_hits"] > 0
    status, err = m.close()
    assert status == 0, err
    for w in workers:
        w.kill()


@test
def too_little_is_said():
    model = os.path.join(TMP, "large")
    tool("od-bench", "synth", model, "--preset", "tiny", "--hidden", 512, "--intermediate", 1024)
    tool("od-pack", model, model + ".pack")
    err = tool("od-worker", "--pack", model + ".pack", "--resident-form", "bf16", "--cache-mib", 3, ok=False).stderr
    assert "--cache-mib 3: one expert of this form takes 4 MiB" in err, err
    err = tool("od-worker", "--pack", pack(), "--memory-limit", "80MB", "--cache-mib", 40, ok=False).stderr
    assert "--cache-mib 40: memory limit: 1 slot" in err and "see --memory-limit" in err, err


run_tests()
