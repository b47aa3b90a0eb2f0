#!/usr/bin/env python3
"""od-bench texts: what must hold between its figures; never how fast. Standard library only."""
from cluster_util import pack, run_tests, test, tool
import json


def texts(*args, **kw):
    return tool("od-bench", "texts", "--pack", pack(), "--runs", 1, *args, **kw)


def measured(*args):
    return json.loads(texts("--json", *args).stdout)


@test
def a_budget_is_divided():
    splits = ["bf16", "planes", "planes:60", "moving"]
    r = measured("--budgets", "110", "--texts", "1,3", "--splits", ",".join(splits), "--prompt-tokens", 8, "--tokens", 24)
    budget = r["plain_bytes"] * 110 // 100
    rows = {(row["texts"], row["split"]): row for row in r["by_split"]}
    assert sorted(rows) == sorted((n, s) for n in (1, 3) for s in splits), rows
    for (n, split), row in rows.items():
        whole = {"bf16": r["plain_bytes"], "planes": r["planes_bytes"], "planes:60": budget * 60 // 100, "moving": budget}[split]
        assert row["expert_bytes"] == whole, row
        assert row["state_bytes"] == (budget if split == "moving" else budget - whole), row
        assert 0.9 <= row["running"] <= n and row["tok_per_s"] > 0, row
        assert 0 < row["gap_ms_median"] <= row["gap_ms_p99"] <= row["gap_ms_most"], row
        # All experts as planes take 68 % of the budget's 110: with 60 % of it some are missing, and read.
        assert (row["read_bytes"] > 0) == (split == "planes:60"), row


@test
def texts_wait_for_room():
    """A budget with room for two texts' whole context beside all experts runs two of four."""
    one = measured("--budgets", "1000", "--texts", "1", "--splits", "planes", "--prompt-tokens", 8, "--tokens", 24)
    budget = 1 + (one["planes_bytes"] + 2 * one["text_bytes"]) * 100 // one["plain_bytes"]
    room = one["plain_bytes"] * budget // 100 - one["planes_bytes"]
    r = measured("--budgets", budget, "--texts", "8", "--splits", "planes,moving", "--prompt-tokens", 8, "--tokens", 24)
    fixed, moving = r["by_split"]
    assert fixed["running"] <= room // one["text_bytes"] < 8, (fixed, room, one)
    assert moving["running"] > fixed["running"], r["by_split"]


@test
def small_budgets_have_no_row():
    r = measured("--budgets", "40,110", "--texts", "1", "--splits", "bf16,planes", "--prompt-tokens", 8, "--tokens", 8)
    assert [row["budget"] for row in r["by_split"]] == [110, 110], r["by_split"]


@test
def texts_that_grow():
    r = measured("--budgets", "110", "--texts", "2", "--splits", "moving,planes", "--prompt-tokens", 8, "--tokens", 40, "--grow")
    assert [(p["split"], p["part"]) for p in r["by_part"]] == [(s, i + 1) for s in ("moving", "planes") for i in range(10)]
    for row in r["by_split"]:
        parts = [p for p in r["by_part"] if p["split"] == row["split"]]
        assert max(p["gap_ms_most"] or 0 for p in parts) == row["gap_ms_most"], (row, parts)
        # A text's first token ends no gap. A part without tokens has no gaps: null.
        assert abs(sum(p["tok_per_s"] for p in parts) / 10 / row["tok_per_s"] - 39 / 40) < 1e-3, (row, parts)


@test
def arguments():
    assert "--splits LIST" in texts("--help").stdout
    for args, says in ((("--splits", "half"), 'expected moving, bf16, planes, bf16:N or planes:N (N from 1 to 99), found "half"'),
                       (("--splits", "planes:100"), 'found "planes:100"'),
                       (("--grow", "--each", "2"), "--grow: each client has one text; expected no --each"),
                       (("--budgets", "0"), "--budgets"),
                       (("--memory", "1G"), "--memory")):
        p = texts(*args, ok=False)
        assert says in p.stderr, (args, p.stderr)


if __name__ == "__main__":
    run_tests()
