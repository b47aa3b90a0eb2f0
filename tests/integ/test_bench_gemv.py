#!/usr/bin/env python3
"""od-bench gemv: fields, sizes, and what must hold between figures; never how fast. That both forms give the same results
is checked by the program itself, slice by slice."""
import json

from cluster_util import SLOW, run_tests, test, tool


def gemv(*args):
    return json.loads(tool("od-bench", "gemv", "--json", "--seconds", 0, *args).stdout)


@test
def two_thirds_of_the_bytes_and_a_line_for_each():
    for row, args in ((4096, ["--size", "24MiB"]), (14336, ["--size", "17MiB", "--row", 14336, "--profile", "bf16"]),
                      (1000, ["--size", "9MiB", "--row", 1000, "--cpu", "scalar"])):
        r = gemv("--threads", 2, *args)
        assert r["row"] == row and r["plain_bytes"] % (2 * row) == 0
        assert 0.66 < r["planes_bytes"] / r["plain_bytes"] < 0.68, r
        assert [(x["threads"], x["rows"]) for x in r["gemv"]] == [(t, n) for t in (1, 2) for n in (1, 2, 4, 8)]
        for x in r["gemv"]:
            assert x["plain_gbps"] > 0 and x["planes_gbps"] > 0 and x["membw_gbps"] > 0
            assert x["ratio_ci95_low"] <= x["ratio"] <= x["ratio_ci95_high"]
            assert x["slices"] == r["plain_bytes"] // (r["plain_bytes"] // x["slices"]) >= 1


@test
def one_thread_and_the_seed():
    a, b, c = (gemv("--threads", 1, "--size", "9MiB", "--seed", s) for s in (1, 1, 2))
    assert len(a["gemv"]) == 4
    assert a["planes_bytes"] == b["planes_bytes"] != c["planes_bytes"]


@test
def what_cannot_be_is_refused():
    p = tool("od-bench", "gemv", "--size", "1MiB", ok=False)
    assert p.returncode == 2 and "--size: expected at least 8388608 bytes" in p.stderr, p.stderr
    if not SLOW:  # a sanitizer ends the program instead
        p = tool("od-bench", "gemv", "--size", "1000000TiB", ok=False)
        assert "no memory" in p.stderr and "--size" in p.stderr, p.stderr
    p = tool("od-bench", "gemv", "--row", 0, ok=False)
    assert p.returncode == 2 and "--row" in p.stderr, p.stderr


if __name__ == "__main__":
    run_tests()
