#!/usr/bin/env python3
"""od-bench residency: its texts are those of all experts in memory, more memory reads less, and no rule reads less than Belady's. Standard
library only."""
import json

from cluster_util import pack, run_tests, test, tool


def bench(*args, **kw):
    return tool("od-bench", "residency", "--pack", pack(), "--runs", 1, "--tokens", 40, "--ctx-size", 256, *args, **kw)


@test
def figures_of_three_budgets():
    r = json.loads(bench("--budgets", "20,60,100", "--predictor", "none", "--json").stdout)
    assert r["texts_with_other_tokens"] == 0 and r["tokens"] == 40 and r["resident_tok_per_s"] > 0, r
    few, more, all_ = r["by_budget"]
    assert [b["budget"] for b in (few, more, all_)] == [20, 60, 100]
    assert few["kept_bytes"] == r["all_bytes"] * 20 // 100 and all_["kept_bytes"] == r["all_bytes"]
    assert 0 < few["hits"] < more["hits"] < all_["hits"] == 100, r
    assert few["bytes_per_token"] > more["bytes_per_token"] > all_["bytes_per_token"] == 0, r
    for b in few, more:
        assert min(b["lrfu_bytes"], b["lru_bytes"], b["lfu_bytes"]) == 1 >= b["belady_bytes"] > 0, b  # of the best one
        assert 0.9 < b["bytes"] < 1.3 and b["tok_per_s"] > 0 and b["ttft_ms"] > 0, b


@test
def usage():
    for args, words in ((["--budgets", "0"], "--budgets"), (["--budgets", "x"], "--budgets"), (["--resident"], "--resident"),
                        (["--prompts", "p", "--prompt-tokens", 3], "--prompts and --prompt-tokens exclude each other")):
        p = bench(*args, ok=None)
        assert p.returncode == 2 and words in p.stderr and p.stdout == "", (args, p.stderr)
    assert "--budgets LIST" in tool("od-bench", "residency", "--help").stdout
    assert "residency" in tool("od-bench", "--help").stdout


if __name__ == "__main__":
    run_tests()
