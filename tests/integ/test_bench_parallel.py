#!/usr/bin/env python3
"""od-bench decode --parallel: what is counted, and what must hold between figures; never how fast."""
from cluster_util import TMP, Disturbed, expect_calm, pack, run_tests, test, tool, worker_args
from model_config import mixtral_bytes
from route_reader import CONFIG, LAYERS, TOP_K, read_routes
import json
import math
import os
import statistics

TOKENS = 12
DENSE_BYTES, EXPERT_BYTES = mixtral_bytes(CONFIG)


def bench(*args):
    p = tool("od-bench", "decode", *args, "--pack", pack(), "--json")
    expect_calm(p.stderr)
    return json.loads(p.stdout)


def refused(words, *args):
    p = tool("od-bench", "decode", *args, "--pack", pack(), ok=False)
    assert words in p.stderr, p.stderr
    return p.returncode


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)


def prompts_file(n):
    """Prompts so short that all are in one chunk: then the texts are written in step."""
    path = os.path.join(TMP, f"short{n}.jsonl")
    with open("tests/bench/prompts.jsonl") as f:
        lines = [line for line in f if json.loads(line)["tokens"] == 16][:n]
    assert len(lines) == n
    with open(path, "w") as f:
        f.writelines(lines)
    return path


def routes_alone(n, *prompts):
    """[text][step][layer]: the experts of texts that were written one after the other, from their first generated token on."""
    path = os.path.join(TMP, "routes")
    tool("od-bench", "cache", "--record", path, "--pack", pack(), *prompts, "--tokens", TOKENS)
    texts = {}
    for _, prompt, rows, layers in read_routes(path):
        if not prompt:
            assert len(rows) == 1 and len(layers) == LAYERS
            texts.setdefault(rows[0][0], []).append([set(layer[0]) for layer in layers])
    assert len(texts) == n and all(len(steps) == TOKENS - 1 for steps in texts.values()), "one was at its end too early"
    return [texts[k] for k in sorted(texts)]


def check_medians(r, numbers, runs, tokens, drafts=False):
    """The table is that of the rounds; ratios are taken round by round. Without drafts a step gives each text a token."""
    rounds = r["by_round"]
    assert [(u["round"], u["parallel"]) for u in rounds] == [(i, n) for i in range(runs) for n in numbers]
    for u in rounds:
        least = next(v for v in rounds if v["round"] == u["round"] and v["parallel"] == min(numbers))
        assert u["parallel"] * u["steps"] <= u["step_tokens"] <= u["parallel"] * (tokens - 1) and u["steps"] > 0, u
        assert drafts or u["step_tokens"] == u["parallel"] * u["steps"], u
        assert u["tokens"] == u["parallel"] * tokens, u
        assert close(u["tok_per_s"], u["step_tokens"] / u["steps_s"])
        assert close(u["wall_tok_per_s"], u["tokens"] / u["wall_s"]) and u["steps_s"] < u["wall_s"]
        assert close(u["ratio"], u["tok_per_s"] / least["tok_per_s"])
        assert 0 < u["ttft_ms"] <= u["ttft_most_ms"] < 1e3 * u["wall_s"]
    assert [t["parallel"] for t in r["by_number"]] == numbers
    for t in r["by_number"]:
        own = [u for u in rounds if u["parallel"] == t["parallel"]]
        for key in ("tok_per_s", "ratio", "wall_tok_per_s", "experts_per_layer", "membw_gbps", "share"):
            assert key not in t or close(t[key], statistics.median(u[key] for u in own)), key
        assert close(t["tokens_per_step"], statistics.median(u["step_tokens"] / u["steps"] / u["parallel"] for u in own))
        assert drafts or t["drafted_per_token"] == t["accepted_per_token"] == 0, t
        assert close(t["ratio_low"], min(u["ratio"] for u in own)) and close(t["ratio_high"], max(u["ratio"] for u in own))
        assert close(t["ttft_most_ms"], max(u["ttft_most_ms"] for u in own))
        assert min(u["ttft_ms"] for u in own) <= t["ttft_ms"] <= max(u["ttft_ms"] for u in own)
    assert r["texts_with_other_tokens"] == 0
    return rounds


@test
def experts_of_a_step_are_those_of_its_texts():
    numbers, runs = [4, 1, 3], 2
    prompts = prompts_file(max(numbers) * runs)
    alone = routes_alone(max(numbers) * runs, "--prompts", prompts)
    r = bench("--resident", "--resident-form", "bf16", "--parallel", "4,1,3", "--prompts", prompts, "--tokens", TOKENS,
              "--runs", runs)
    assert (r["dense_bytes"], r["expert_bytes"]) == (DENSE_BYTES, EXPERT_BYTES), r
    for u in check_medians(r, numbers, runs, TOKENS):
        texts = alone[u["round"] * max(numbers):][:u["parallel"]]
        assert u["steps"] == TOKENS - 1
        experts = sum(len(set.union(*layer)) for step in zip(*texts) for layer in zip(*step))
        assert u["experts"] == experts, (u, experts)
        assert u["parallel"] == 1 or TOP_K * LAYERS * u["steps"] < experts < u["parallel"] * TOP_K * LAYERS * u["steps"]
        assert close(u["experts_per_layer"], experts / LAYERS / u["steps"])
        assert close(u["step_bytes"], DENSE_BYTES + EXPERT_BYTES * experts / u["steps"])
        assert close(u["floor_s"], u["step_bytes"] * u["steps"] / u["membw_gbps"] / 1e9) and u["floor_s"] > 0
        assert close(u["share"], u["floor_s"] / u["steps_s"])


@test
def random_texts_are_those_of_a_recording():
    alone = routes_alone(6, "--prompt-tokens", 6, "--limit", 6, "--seed", 5)
    r = bench("--resident", "--parallel", "1,3", "--prompt-tokens", 6, "--tokens", TOKENS, "--runs", 2, "--seed", 5)
    for u in check_medians(r, [1, 3], 2, TOKENS):
        texts = alone[u["round"] * 3:][:u["parallel"]]
        assert u["experts"] == sum(len(set.union(*layer)) for step in zip(*texts) for layer in zip(*step)), u
    assert alone != routes_alone(6, "--prompt-tokens", 6, "--limit", 6, "--seed", 6)


@test
def only_steps_of_all_texts_count():
    # A prompt a chunk: each text begins 1 step at least behind the one before, and a step for each layer at most.
    tokens = 2 * LAYERS + 12
    r = bench("--resident", "--parallel", "3", "--prompts", prompts_file(3), "--prefill-rows", 16, "--tokens", tokens,
              "--runs", 1)
    u, = check_medians(r, [3], 1, tokens)
    assert tokens - 1 - 2 * LAYERS <= u["steps"] <= tokens - 1 - 2, u
    assert 3 * TOP_K >= u["experts_per_layer"] > TOP_K, u
    assert refused("never in one decode step", "--resident", "--parallel", "3", "--prompts", prompts_file(3),
                   "--prefill-rows", 16, "--tokens", 2) == 2


@test
def texts_on_a_cluster():
    r = bench("--local", 2, "--predictor", "none", *worker_args("--slots=2"), "--parallel", "1,3", "--prompt-tokens", 6,
              "--tokens", TOKENS, "--runs", 2)
    rounds = check_medians(r, [1, 3], 2, TOKENS)
    assert all(u["steps"] == TOKENS - 1 for u in rounds), rounds
    assert (r["workers"], r["groups"], r["slots"], r["predictor"], r["temperature"]) == (2, 1, 2, "none", 0.8)
    for key in ("share", "experts", "membw_gbps", "floor_s", "experts_per_layer"):
        assert key not in rounds[0] and key not in r["by_number"][0], key
    assert r["worker_rows_in_all"] > sum(u["worker_rows"] for u in r["cluster_by_round"]), r  # and those of the warm-up
    for u in r["cluster_by_round"]:
        assert u["decode_layers"] == LAYERS * (TOKENS - 1), u
        assert u["expert_uses"] == u["parallel"] * LAYERS * TOP_K * (TOKENS - 1), u
        assert u["parallel"] > 1 or u["decode_loads"] == u["expert_uses"], u  # each use loads, in a worker without a cache


@test
def tokens_of_drafts():
    tokens = 60
    r = bench("--local", 2, "--draft", 4, *worker_args("--load-time=2"), "--parallel", "1,3", "--prompts", prompts_file(6), "--tokens",
              tokens, "--runs", 2)
    rounds = check_medians(r, [1, 3], 2, tokens, drafts=True)
    for u, c in zip(rounds, r["cluster_by_round"]):
        n = u["parallel"]
        if c["accepted_tokens"] == 0:
            raise Disturbed("the shadow had no CPU while a text was written")
        assert (c["round"], c["parallel"], c["tokens"]) == (u["round"], n, n * tokens)
        assert 0 < c["accepted_tokens"] <= c["drafted_tokens"], c
        assert c["expert_uses"] == n * LAYERS * TOP_K * (tokens - 1), c  # of rows that stood
        if n == 1:
            assert u["step_tokens"] == tokens - 1 and u["steps"] == tokens - 1 - c["accepted_tokens"], (u, c)
            assert c["decode_layers"] == LAYERS * u["steps"], (u, c)
        else:  # texts end in different steps
            assert n * u["steps"] < u["step_tokens"] and u["steps"] <= c["decode_layers"] / LAYERS, (u, c)
    for t in r["by_number"]:
        own = [c for c in r["cluster_by_round"] if c["parallel"] == t["parallel"]]
        for name, key in (("drafted_tokens", "drafted_per_token"), ("accepted_tokens", "accepted_per_token"),
                          ("decode_loads", "loads_per_token")):
            assert close(t[key], statistics.median(c[name] / (tokens - 1) / t["parallel"] for c in own)), (key, t, own)


@test
def refusals():
    for wrong in ("0", "1,,2", "x", "1025", "4,"):
        assert refused("--parallel", "--resident", "--parallel", wrong) == 2
    assert refused("at most 32 items", "--resident", "--parallel", ",".join(["1"] * 33)) == 2
    assert refused("each of 5 texts at once, found 4", "--resident", "--parallel", "1,5", "--prompts", prompts_file(4)) == 2
    assert refused("leave --baseline out", "--local", 1, "--parallel", 2, "--baseline", "resident") == 2


@test
def as_text():
    args = ("decode", "--pack", pack(), "--resident", "--tokens", 4, "--runs", 1)
    out = tool("od-bench", *args, "--parallel", "1,2").stdout
    assert "several texts at once" in out and "floor / time" in out and "experts a layer" in out, out


run_tests()
