#!/usr/bin/env python3
"""od-bench ablate on a small paced cluster: what must hold between its figures, Ctrl-C; not how fast."""
from cluster_util import BIN, CHECKPOINT, HANG_S, TMP, pack, run_tests, test, tool
import json
import math
import os
import signal
import statistics
import subprocess
import time

PROMPTS = "tests/bench/prompts.jsonl"
SMALL = ("--prompts", PROMPTS, "--local", 2, "--run-time", 0.25)
with open(os.path.join(CHECKPOINT, "config.json")) as f:
    CONFIG = json.load(f)
LAYERS, TOP_K = CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"]


def ablate(*args):
    return json.loads(tool("od-bench", "ablate", "--pack", pack(), "--json", *args).stdout)


def refused(words, *args):
    p = tool("od-bench", "ablate", "--pack", pack(), *args, ok=False)
    assert words in p.stderr, p.stderr
    return p.returncode


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def check_figure(r, key, runs):
    """A figure's rows against its runs, a list for each row."""
    for row, a_token, mine in zip(r[key], r[key + "_by_token"], runs, strict=True):
        speed = [u["tok_per_s"] for u in mine]
        tokens = sum(u["tokens"] - 1 for u in mine)
        assert row["setting"] == a_token["setting"]
        assert close(row["tok_per_s_median"], statistics.median(speed)), row
        assert close(row["tok_per_s_mean"], statistics.mean(speed)), row
        if len(mine) > 1:  # of runs printed to nine digits: nearly equal ones leave a small difference few of them
            off = abs(row["tok_per_s_sd"] - statistics.stdev(speed))
            assert off < 1e-6 * row["tok_per_s_sd"] + 1e-8 * row["tok_per_s_mean"], row
        assert a_token["tokens"] == tokens and close(a_token["uses"], LAYERS * TOP_K)
        assert close(a_token["stalls"], sum(u["stalls"] for u in mine) / tokens)
        assert close(a_token["stall_ms"], sum(u["stall_s"] for u in mine) * 1e3 / tokens)
        assert a_token["stalls"] <= a_token["uses"]
        uses = sum(u["expert_uses"] for u in mine)
        assert close(row["served_percent"], 100 * sum(u["served_in_time"] for u in mine) / uses)
        assert close(row["extra_percent"], 100 * sum(u["extra_loads"] for u in mine) / uses)
        assert row["load_ms"] >= mine[0]["load_time_ms"], "a paced load takes its time"
        for u in mine:
            assert u["expert_uses"] == LAYERS * TOP_K * (u["tokens"] - 1), u
            assert close(u["tok_per_s"], (u["tokens"] - 1) / u["decode_s"]), u


def check_order(r, runs, key, neutral, gain):
    for i, o in enumerate(r[key]):
        gains = [gain(a, b) for a, b in zip(runs[i], runs[i + 1])]
        assert (o["better"], o["than"]) == (r["fig8"][i]["setting"], r["fig8"][i + 1]["setting"])
        assert math.isclose(o["gain_median"], statistics.median(gains), rel_tol=1e-6, abs_tol=1e-6), o
        assert o["prompts"] == 2, o
        assert o["prompts_better"] == sum(g > neutral for g in gains) and o["verdict"] == "undecided", o


@test
def six_cases():
    r = ablate(*SMALL, "--limit", 2, "--tokens", 6, "--load-time", 1)
    assert (r["prompts"], r["workers"], r["groups"], r["slots"]) == (2, 2, 1, 1)
    assert (r["load_time_ms"], r["run_time_ms"], r["departure"]) == (1, 0.25, "late")
    assert r["runs_with_other_tokens"] == 0 and "calibrated_window_ms" not in r
    runs = [r["by_run"][i:i + 2] for i in range(0, 12, 2)]
    assert [(u["predictor"], u["align_token"], u["align_kv"]) for u, _ in runs] == [
        ("shadow", 1, 1), ("shadow", 1, 0), ("shadow", 0, 1), ("shadow", 0, 0), ("random", 0, 0), ("none", 0, 0)]
    assert all([u["prompt"] for u in mine] == ["p16-00", "p128-00"] for mine in runs)
    check_figure(r, "fig8", runs)
    for whole, no_kv in zip(runs[0] + runs[2], runs[1] + runs[3]):
        assert whole["align_bytes"] > 100 * no_kv["align_bytes"] > 0, (whole, no_kv)
    for u in runs[5]:  # nothing is loaded before it is asked for
        assert u["stalls"] == u["expert_uses"] and u["predicted_uses"] == 0, u
    for u in runs[4]:  # main's own predictor is there for every row
        assert u["predicted_uses"] == u["expert_uses"] and 0 < u["recalled_uses"] < u["predicted_uses"], u
    assert r["fig8"][5]["recall_percent"] is None and r["fig8"][5]["served_percent"] == 0
    assert r["fig8"][5]["extra_percent"] == 0 and r["fig8"][4]["extra_percent"] > 0, "what nobody asks for nobody loads"
    check_order(r, runs, "order", 1, lambda a, b: a["tok_per_s"] / b["tok_per_s"])
    check_order(r, runs, "order_by_stalls", 0,
                lambda a, b: (b["stall_s"] / (b["tokens"] - 1) - a["stall_s"] / (a["tokens"] - 1)) * 1e3)
    assert len(r["order"]) == len(r["order_by_stalls"]) == 5 and "fig9" not in r and "fig10" not in r


@test
def kv_periods_at_two_load_times():
    r = ablate(*SMALL, "--figure", "10", "--limit", 1, "--tokens", 3, "--load-share", 0.5)
    first, second = r["by_run"][0]["load_time_ms"], r["by_run"][6]["load_time_ms"]
    assert close(first, 0.5 * r["calibrated_window_ms"]) and close(second, 2 * first), r
    assert [(u["align_token"], u["align_kv"], u["load_time_ms"]) for u in r["by_run"]] == [
        (1, kv, load) for load in (first, second) for kv in (1, 2, 4, 8, 16, 32)]
    check_figure(r, "fig10", [[u] for u in r["by_run"]])
    assert r["fig10"][8]["setting"] == f"KV4, load {second:.2f} ms" and "fig8" not in r and "order" not in r


@test
def what_it_refuses():
    assert refused("--prompts FILE is missing", "--limit", 1) == 2
    assert refused("unknown option --resident; see --help", *SMALL[:2], "--resident") == 2
    assert refused("exclude each other", *SMALL, "--load-time", 1, "--load-share", 1) == 2
    for option, value in (("--predictor", "none"), ("--align-token", 2), ("--align-kv", 0), ("--trace", "t")):
        assert refused("unknown option " + option, *SMALL, option, value) == 2


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return f.read().split()
    except FileNotFoundError:
        return []


@test
def ctrl_c_ends_it_and_its_cluster():
    args = map(str, (*SMALL, "--load-time", 1))
    p = subprocess.Popen([os.path.join(BIN, "od-bench"), "ablate", "--pack", pack(), *args],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + HANG_S
    while len(cluster := children_of(p.pid)) < 3:
        assert p.poll() is None and time.monotonic() < end, p.communicate()
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=HANG_S)
    assert p.returncode == 1 and "of 100 prompts" in err, (p.returncode, err)
    assert not any(os.path.exists(f"/proc/{c}") for c in cluster), "daemons outlived it"


run_tests()
