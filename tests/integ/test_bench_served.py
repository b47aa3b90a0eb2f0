#!/usr/bin/env python3
"""od-bench recall --served: what the tables say holds together, and what was found is there: early departure and hedges
each serve more in time, each at its price."""
import json

from cluster_util import pack, run_tests, test, tool

SMALL = "--prompts", "tests/bench/prompts.jsonl", "--limit", 6, "--tokens", 48


def bench(*args):
    return json.loads(tool("od-bench", "recall", "--pack", pack(), "--json", *SMALL, *args).stdout)


def refused(words, *args):
    p = tool("od-bench", "recall", "--pack", pack(), *SMALL, *args, ok=False)
    assert words in p.stderr, (words, p.stderr)


_made = []


def served():
    if not _made:
        tool("od-pack", "shadow", pack(), "nf4")
        _made.append(bench("--precision", "int8,nf4", "--served", "--sim-hedge", "5,20"))
    return _made[0]


def ways(r, configuration):
    return {x["way"]: x for x in r["served"] if x["configuration"] == configuration}


@test
def the_figures_hold_together():
    r = served()
    configurations = {x["configuration"]: x for x in r["configurations"]}
    assert len(r["served"]) == 2 * 4 and len(configurations) == 2
    for x in r["served"]:
        assert 0 < x["served_low"] <= x["served_in_time"] <= x["served_high"] <= 1, x
        assert x["served_in_time"] <= x["ordered"] <= 1, x
        assert x["served_in_time"] + x["stalls"] <= 1 + 1e-9, x
        assert x["recall"] == configurations[x["configuration"]]["recall_of_all_uses"], x  # as without a cluster
        assert (x["hedged"] > 0) == ("hedge" in x["way"]), x
    assert r["sim_window_ms"] == 4 + 3 and r["sim_load_ms"] == 3.5, r


@test
def each_improvement_serves_more():
    for name in "int8 T1_KV1", "nf4 T1_KV1":
        w = {k: x["served_in_time"] for k, x in ways(served(), name).items()}
        assert w["late"] < 12 / 13 < w["early"], w  # departing late, the first of 12 layers always waits
        assert w["early"] < w["early, hedge 5%"] <= w["early, hedge 20%"], w
    extra = {k: x["extra_loads"] for k, x in ways(served(), "int8 T1_KV1").items()}
    assert extra["early"] < extra["early, hedge 5%"] < 0.06 < extra["early, hedge 20%"] < 0.25, extra


@test
def a_faster_cluster_waits_less():
    fast = bench("--served", "--sim-load", 0.1, "--sim-workers", 16)
    slow = bench("--served", "--sim-load", 2)
    for way, x in ways(fast, "int8 T1_KV1").items():
        assert x["stall_time"] <= ways(slow, "int8 T1_KV1")[way]["stall_time"], way
    assert ways(fast, "int8 T1_KV1")["early"]["tok_per_s"] > ways(slow, "int8 T1_KV1")["early"]["tok_per_s"]


@test
def threads_do_not_matter():
    assert bench("--served", "--threads", 1)["served"] == bench("--served", "--threads", 3)["served"]


@test
def rivals_are_not_simulated():
    r = bench("--served", "--predictor", "shadow,next-gate")
    assert {x["configuration"] for x in r["served"]} == {"int8 T1_KV1"}, r["served"]


@test
def what_cannot_be_done_is_refused():
    refused("--sim-hedge: expected percents", "--served", "--sim-hedge", "5,x")
    refused("--sim-hedge: at most 6", "--served", "--sim-hedge", "1,2,3,4,5,6,7")
    refused("about the simulated cluster of --served", "--sim-slots", 3)
    refused("--served shows both departures", "--served", "--departure", "late")
    refused("--served is not for a cluster", "--served", "--local", 2)
    refused("--hedge is for a cluster", "--hedge", 7)


@test
def a_live_cluster_says_it_too():
    r = bench("--local", 2, "--limit", 1, "--worker-arg", "--slots=2", "--worker-arg", "--load-time=2", "--hedge", 50)
    assert 0 < r["served_in_time"] <= 1 and r["extra_loads"] > 0 and r["hedged"] > 0, r


run_tests()
