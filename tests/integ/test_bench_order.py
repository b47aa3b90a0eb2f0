#!/usr/bin/env python3
"""od-bench order: what must hold between its figures."""
import json

from cluster_util import run_tests, test, tool

RULES = ["fifo", "e-first", "shortest", "blocks", "johnson"]


def order(*args):
    return json.loads(tool("od-bench", "order", "--json", *args).stdout)


@test
def no_rule_beats_the_optimum_or_breaks_the_guarantee():
    r = order("--instances", 60)
    rows = {(x["scenario"], x["rule"]): x for x in r["orders"]}
    scenarios = list(dict.fromkeys(x["scenario"] for x in r["orders"]))
    assert len(rows) == len(r["orders"]) == len(scenarios) * len(RULES)
    assert set(x["against"] for x in r["orders"]) == {"optimum", "bound"}
    for s in scenarios:
        for x in (rows[s, rule] for rule in RULES):
            assert 0 <= x["gap_mean"] <= x["gap_worst"], x
            assert (x["least"] == 100) == (x["gap_worst"] == 0) and 1 / 3 < x["of_guarantee"] <= 1, x
        assert rows[s, "fifo"]["as_fifo"] == 100
        if "pools" not in s and "decode" in s:  # experts that differ in nothing
            assert rows[s, "johnson"]["gap_mean"] <= rows[s, "fifo"]["gap_mean"] + 1e-9, s
    assert rows["one", "blocks"]["gap_mean"] <= rows["one", "fifo"]["gap_mean"]
    assert rows["prefill", "fifo"]["gap_worst"] > 0 and rows["prefill", "blocks"]["as_fifo"] < 100


@test
def the_seed_decides():
    a, b, c = order("--instances", 5), order("--instances", 5, "--seed", 1), order("--instances", 5, "--seed", 2)
    assert a == b and a["orders"] != c["orders"] and (a["seed"], c["seed"]) == (1, 2)


@test
def what_cannot_be_is_refused():
    p = tool("od-bench", "order", "--instances", 0, ok=False)
    assert p.returncode == 2 and "--instances" in p.stderr, p.stderr
    assert "instances of each" in tool("od-bench", "order", "--instances", 1).stdout


run_tests()
