#!/usr/bin/env python3
"""od-bench recall and decode on a small cluster: fields, sums and what must hold between figures; never how fast."""
from cluster_util import (CHECKPOINT, PASSED_OVER, TMP, Daemon, Disturbed, expect_calm, hosts_file, pack, run_tests, test, tool,
                          worker_args)
from model_config import mixtral_bytes
import json
import math
import os
import statistics

PROMPTS = "tests/bench/prompts.jsonl"
with open(os.path.join(CHECKPOINT, "config.json")) as f:
    CONFIG = json.load(f)
LAYERS, TOP_K = CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"]


def bench(*args, model=None):
    p = tool("od-bench", *args, "--pack", model or pack(), "--json")
    expect_calm(p.stderr)
    if PASSED_OVER in p.stderr:
        raise Disturbed(p.stderr)
    return json.loads(p.stdout)


def refused(words, *args):
    p = tool("od-bench", *args, "--pack", pack(), ok=False)
    assert words in p.stderr, p.stderr
    return p.returncode


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def recall_of_random_predictions(*cluster):
    r = bench("recall", *cluster, "--predictor", "random", "--prompts", PROMPTS, "--limit", 4, "--tokens", 20)
    uses, prompts = r["predicted_uses"], r["by_prompt"]
    assert [p["name"] for p in prompts] == ["p16-00", "p128-00", "p16-01", "p128-01"] and r["prompts"] == 4
    assert [p["prompt_tokens"] for p in prompts] == [16, 128, 16, 128]
    assert all(p["finish"] in ("length", "eos") and 1 <= p["tokens"] <= 20 for p in prompts), prompts
    # Each generated token but the last goes through the layers; each use has a prediction, or its row had none.
    for p in prompts:
        assert p["expert_uses"] == LAYERS * TOP_K * (p["tokens"] - 1), p
        assert p["predicted_uses"] == TOP_K * (p["in_time_rows"] + p["late_rows"]), p
        assert p["expert_uses"] == p["predicted_uses"] + TOP_K * p["missing_rows"], p
    for key in ("tokens", "predicted_uses", "recalled_uses", "expert_uses", "in_time_rows", "late_rows", "missing_rows"):
        assert r[key] == sum(p[key] for p in prompts), key
    assert 0.15 < r["recall"] < 0.35, r["recall"]  # 2 of 8 experts by chance
    assert close(r["recall"], r["recalled_uses"] / uses)
    assert close(r["recall_of_all_uses"], r["recalled_uses"] / r["expert_uses"])
    own = [p["recall"] for p in prompts]
    assert all(close(p["recall"], p["recalled_uses"] / p["predicted_uses"]) for p in prompts) and len(set(own)) > 1
    assert close(r["recall_mean"], statistics.mean(own)) and close(r["recall_sd"], statistics.stdev(own))
    assert [l["layer"] for l in r["by_layer"]] == list(range(LAYERS))
    assert [(b["from"], b["to"]) for b in r["by_token"]] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 20)]
    each = r["by_token_index"]
    assert [i["index"] for i in each] == list(range(1, max(p["tokens"] for p in prompts)))
    for table in (r["by_layer"], r["by_token"], each):
        assert sum(t["uses"] for t in table) == uses
        assert sum(t["recalled"] for t in table) == r["recalled_uses"]
        assert all(close(t["recall"], t["recalled"] / t["uses"]) for t in table)
    for b in r["by_token"]:
        assert b["recalled"] == sum(i["recalled"] for i in each if b["from"] <= i["index"] <= b["to"])
    return r


@test
def recall_adds_up():
    r = recall_of_random_predictions("--local", 2, *worker_args("--slots=2"))
    assert (r["predictor"], r["workers"], r["groups"], r["slots"]) == ("random", 2, 1, 2)
    assert r["missing_rows"] == r["late_rows"] == 0, "main's own predictor is never late"


@test
def recall_does_not_depend_on_the_cluster():
    workers = [Daemon("worker", "--slots", 1) for _ in range(3)]
    one = recall_of_random_predictions("--workers", hosts_file(workers))
    two = recall_of_random_predictions("--local", 1, *worker_args("--slots=4"), "--group-size", 1)
    for key in ("tokens", "recalled_uses", "by_layer", "by_token_index"):
        assert one[key] == two[key], key
    for w in workers:
        w.kill()


@test
def recall_needs_predictions():
    prompts = ("--prompts", PROMPTS)
    assert refused("has no recall", "recall", "--local", 1, "--predictor", "none", *prompts) == 2
    assert refused("--prompts FILE is missing", "recall", "--local", 1, "--predictor", "random") == 2
    assert refused("a cluster has one", "recall", "--local", 1, "--predictor", "random,shadow", *prompts) == 2
    assert refused("not for a cluster", "recall", "--local", 1, "--dump", "x", *prompts) == 2
    worker = Daemon("worker")
    assert refused("names no shadow", "recall", "--workers", hosts_file([worker]), *prompts) == 2
    worker.kill()


@test
def recall_as_text():
    out = tool("od-bench", "recall", "--pack", pack(), "--local", 2, "--predictor", "random", "--prompts", PROMPTS,
               "--limit", 1, "--tokens", 4).stdout
    assert "recall (Eq. 3)" in out and "By layer" in out and "By index of the generated token" in out, out
    assert "p16-00" not in out, "prompts are for JSON"


def weight_bytes_of_a_token(c=CONFIG):
    dense, expert = mixtral_bytes(c)
    return dense + c["num_hidden_layers"] * c["num_experts_per_tok"] * expert


def check_spread(r, runs):
    """Medians of the table are those of the runs; ratios are taken run by run."""
    figures = r["figures"]
    assert all(f["min"] <= f["median"] <= f["max"] for f in figures), figures
    for key in ("cluster_tok_per_s", "cluster_ttft_ms", "resident_tok_per_s", "resident_ttft_ms", "membw_gbps"):
        x = [u[key] for u in r["by_run"]]
        assert len(x) == runs and (key not in r or close(r[key], statistics.median(x))), key
        assert (key in r) == (None not in x), key


@test
def decode_in_turns_with_resident_mode():
    r = bench("decode", "--local", 2, "--predictor", "trajectory", *worker_args("--slots=2"), "--prompts", PROMPTS,
              "--tokens", 10, "--runs", 3, "--resident-form", "bf16")
    check_spread(r, 3)
    assert r["resident_form"] == "bf16"
    assert [u["prompt"] for u in r["by_run"]] == ["p16-00", "p128-00", "p16-01"]
    assert [u["prompt_tokens"] for u in r["by_run"]] == [16, 128, 16]
    assert r["runs_with_other_tokens"] == 0
    assert (r["workers"], r["groups"], r["slots"], r["predictor"]) == (2, 1, 2, "trajectory")
    for key in ("tok_per_s", "ttft_ms"):
        x = [u["cluster_" + key] / u["resident_" + key] for u in r["by_run"]]
        assert close(r["ttft_ratio" if key == "ttft_ms" else "tok_per_s_ratio"], statistics.median(x)), key
    assert r["weight_bytes_per_token"] == weight_bytes_of_a_token(), r["weight_bytes_per_token"]
    gbps = [u["resident_tok_per_s"] * weight_bytes_of_a_token() / 1e9 for u in r["by_run"]]
    assert close(r["weights_gbps"], statistics.median(gbps))
    assert close(r["share"], statistics.median(g / u["membw_gbps"] for g, u in zip(gbps, r["by_run"])))
    for c, u in zip(r["cluster_by_run"], r["by_run"]):
        assert c["decode_layers"] == LAYERS * 9 and c["expert_uses"] == LAYERS * 9 * TOP_K
        assert c["predicted_uses"] == c["expert_uses"] and 0 < c["recalled_uses"] < c["predicted_uses"]
        assert 0 < c["stalls"] <= c["expert_uses"] and c["loads"] > 0 and c["loaded_bytes"] > 0
        assert close(u["cluster_tok_per_s"], 9 / c["decode_s"])
        # OD-MoE Eq. 1 with one group.
        main_ms = (c["decode_s"] - c["experts_s"]) / c["decode_layers"] * 1e3
        worker_ms = (c["experts_s"] - c["stall_s"]) / c["decode_layers"] * 1e3
        assert abs(c["main_ms"] - main_ms) < 1e-5 and abs(c["worker_ms"] - worker_ms) < 1e-5, (c, main_ms, worker_ms)
        assert abs(c["window_1_slot_ms"] - main_ms) < 1e-5
        assert abs(c["window_2_slots_ms"] - main_ms - worker_ms) < 2e-5


@test
def decode_with_more_groups_has_a_wider_window():
    r = bench("decode", "--local", 3, "--predictor", "none", "--group-size", 1, *worker_args("--slots=1"), "--baseline",
              "none", "--prompt-tokens", 5, "--tokens", 6, "--runs", 2)
    check_spread(r, 2)
    assert r["groups"] == 3 and r["temperature"] == 0.8
    assert not any(k in r for k in ("resident_tok_per_s", "share", "tok_per_s_ratio", "runs_with_other_tokens"))
    for c in r["cluster_by_run"]:
        assert c["predicted_uses"] == 0 and c["stalls"] == c["expert_uses"] == LAYERS * 5 * TOP_K
        assert abs(c["window_1_slot_ms"] - 3 * c["main_ms"] - 2 * c["worker_ms"]) < 1e-4
        assert abs(c["window_2_slots_ms"] - 3 * c["main_ms"] - 3 * c["worker_ms"]) < 1e-4
    assert close(r["stalled_share"], 1)


@test
def decode_samples_the_same_text_in_turns():
    checkpoint, model = os.path.join(TMP, "tiny"), os.path.join(TMP, "tiny.pack")
    tool("od-bench", "synth", checkpoint, "--preset", "tiny", "--tied")
    tool("od-pack", checkpoint, model)
    with open(os.path.join(checkpoint, "config.json")) as f:
        c = json.load(f)
    assert c["tie_word_embeddings"] and not CONFIG["tie_word_embeddings"], "one of each is tested"
    r = bench("decode", "--local", 1, "--predictor", "none", "--prompt-tokens", 6, "--tokens", 12, "--runs", 2,
              "--resident-form", "bf16", model=model)
    assert r["temperature"] == 0.8 and r["runs_with_other_tokens"] == 0
    assert r["weight_bytes_per_token"] == weight_bytes_of_a_token(c)
    assert [u["prompt_tokens"] for u in r["by_run"]] == [6, 6]


@test
def decode_in_resident_mode_alone():
    r = bench("decode", "--resident", "--profile", "bf16", "--threads", 2, "--prompt-tokens", 4, "--tokens", 5,
              "--runs", 2, "--temperature", 0)
    check_spread(r, 2)
    assert (r["profile"], r["threads"], r["temperature"], r["tokens"], r["runs"]) == ("bf16", 2, 0, 5, 2)
    assert r["share"] > 0 and "cluster_tok_per_s" not in r and "cluster_by_run" not in r
    assert r["resident_bytes"] > r["weight_bytes_per_token"]
    plain = bench("decode", "--resident", "--resident-form", "bf16", "--prompt-tokens", 4, "--tokens", 3, "--runs", 1)
    coded = bench("decode", "--resident", "--resident-form", "planes", "--prompt-tokens", 4, "--tokens", 3, "--runs", 1)
    experts = LAYERS * 3 * 2 * CONFIG["hidden_size"] * CONFIG["intermediate_size"]
    saved = plain["weight_bytes_per_token"] - coded["weight_bytes_per_token"]
    assert 0.32 < saved / (experts * TOP_K) < 0.34, saved  # of 16 bits a weight about 10.7 are left
    saved = plain["resident_bytes"] - coded["resident_bytes"]
    assert 0.29 < saved / (experts * CONFIG["num_local_experts"]) < 0.34, saved


@test
def decode_paced():
    r = bench("decode", "--local", 1, "--predictor", "none", "--layer-time", 2, "--prompt-tokens", 4, "--tokens", 6, "--runs",
              1)
    assert r["layer_time_ms"] == 2 and r["runs_with_other_tokens"] == 0
    assert r["cluster_by_run"][0]["main_ms"] >= 2, r["main_ms"]
    assert max(r["cluster_tok_per_s"], r["resident_tok_per_s"]) <= 1000 / (2 * LAYERS)


@test
def decode_refuses_what_it_cannot_do():
    assert refused("exclude each other", "decode", "--resident", "--prompts", PROMPTS, "--prompt-tokens", 3) == 2
    assert refused("the context of 64", "decode", "--resident", "--ctx-size", 64, "--prompt-tokens", 33, "--tokens",
                   33) == 2
    assert refused("--tokens", "decode", "--resident", "--tokens", 1) == 2
    bad = os.path.join(TMP, "bad.jsonl")
    with open(bad, "w") as f:
        f.write('{"ids": [1, 5000]}\n')
    assert refused("expected 0 to 4095, found 5000", "decode", "--resident", "--prompts", bad, "--tokens", 4) == 1
    with open(bad, "w") as f:
        f.write('{"ids": [1, 5000]}\nnonsense\n')
    assert refused("bad.jsonl:2", "decode", "--resident", "--prompts", bad, "--tokens", 4) == 1


@test
def round_trips_are_timed_with_keys_and_without():
    r = json.loads(tool("od-bench", "wire", "--rounds", 2, "--trips", 3, "--json").stdout)
    assert (r["rounds"], r["trips"]) == (2, 3) and [x["row_bytes"] for x in r["sizes"]] == [2**10, 2**13, 2**14, 2**17, 2**20, 2**21]
    for x in r["sizes"]:
        assert 0 < x["plain_p10_us"] <= x["plain_us"] and 0 < x["keys_p10_us"] <= x["keys_us"], x
        assert close(x["ratio"], x["keys_us"] / x["plain_us"]) and close(x["ratio_p10"], x["keys_p10_us"] / x["plain_p10_us"]), x


run_tests()
