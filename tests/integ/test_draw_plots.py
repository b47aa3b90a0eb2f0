#!/usr/bin/env python3
"""draw_plots.py: the pictures of docs/plots, from what od-bench prints today."""
from cluster_util import TMP, Skip, pack, run_tests, test, tool
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree


def drawn(kind, *args):
    """{file: its texts} of a command's figures."""
    if shutil.which("gnuplot") is None:
        raise Skip("no gnuplot")
    figures, out = os.path.join(TMP, kind + ".json"), os.path.join(TMP, kind)
    with open(figures, "w", encoding="utf-8") as f:
        f.write(tool("od-bench", kind, "--pack", pack(), "--json", *args).stdout)
    done = subprocess.run([sys.executable, "tests/bench/report/draw_plots.py", kind, figures, out], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr  # gnuplot warns of what it cannot show
    return {name: "".join(xml.etree.ElementTree.parse(os.path.join(out, name)).getroot().itertext()) for name in sorted(os.listdir(out))}


@test
def sweeps_of_recall():
    found = drawn("recall", "--prompts", "tests/bench/prompts.jsonl", "--limit", 2, "--tokens", 20, "--sweep", "all", "--precision", "int8")
    assert list(found) == ["recall-fig3-int8.svg", "recall-fig6-int8.svg", "recall-table1.svg"]
    assert "nothing aligned" in found["recall-fig3-int8.svg"] and "never" in found["recall-fig6-int8.svg"]
    assert "popularity" in found["recall-table1.svg"] and "int8" in found["recall-table1.svg"]


@test
def loads():
    found = drawn("load", "--source", "cache,paced", "--pace", "1GB/s", "--load-threads", "1,2", "--rounds", 1)
    text = found.pop("load.svg")
    assert found == {} and "planes as bf16, load threads: 2" in text and "1GB/s" in text, text


@test
def a_part_of_the_experts():
    found = drawn("residency", "--budgets", "20,60,100", "--runs", 1, "--tokens", 20, "--ctx-size", 256)
    assert list(found) == ["residency-bytes.svg", "residency-speed.svg"]
    assert "Belady" in found["residency-bytes.svg"] and "od-main" in found["residency-speed.svg"], found


@test
def routing():
    found = drawn("routing", "--prompts", "tests/bench/prompts.jsonl", "--limit", 4, "--ways", "od-main:0.2,max-rank:5,cumulative:0.6,prune:1,swap:0",
                  "--cache", "2,4,8")
    assert list(found) == ["routing-cache.svg", "routing.svg"]
    assert "oracle" in found["routing-cache.svg"] and "4 of 8" in found["routing.svg"] and "max-rank" in found["routing.svg"], found


run_tests()
