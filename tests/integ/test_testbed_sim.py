#!/usr/bin/env python3
"""The simulator of OD-MoE's ten machines beside closed forms: links and daemons that take no time, predictions that are all right. Main takes
5 ms a layer, an expert runs for 1 ms; 32 layers, four groups. Standard library only."""
import json
import os
import subprocess

from cluster_util import BIN, run_tests, test

PROGRAM = os.path.join(BIN, "..", "tests", "od-testbed-sim")
MAIN, RUN, LAYERS, GROUPS = 5, 1, 32, 4


def figures(late_prompts=False, **words):
    words = {"main": MAIN, "run": RUN, "shadow": 2, "row_bytes": 1, "state_bytes": 1, "link": 0, **words}
    env = {**os.environ, **({"OD_LATE_PROMPTS": "1"} if late_prompts else {})}
    out = subprocess.run([PROGRAM, *(f"{k}={v}" for k, v in words.items())], env=env, capture_output=True, text=True, check=True).stdout
    return json.loads(out)


def near(got, wanted, share=0.005):
    assert abs(got / wanted - 1) <= share, (got, wanted)


@test
def loads_are_hidden_until_groups_are_short_of_them():
    near(figures(load=10, early=1)["tok_per_s"], 1000 / (LAYERS * (MAIN + RUN)))
    near(figures(load=30, early=1)["tok_per_s"], 1000 / (LAYERS * (30 + RUN) / GROUPS))


@test
def nothing_of_a_late_prompt_overlaps():
    near(figures(load=30, late_prompts=True)["ttft_ms"], LAYERS * (MAIN + 30 + RUN))


@test
def loads_of_other_prompts_overlap_with_main_and_in_two_slots_with_runs():
    """Prompts long enough to use all experts, so that each worker has one of each layer."""
    near(figures(load=30, prompt=64)["ttft_ms"], MAIN + LAYERS * (30 + RUN))
    near(figures(load=10, slots=2, prompt=64)["ttft_ms"], MAIN + LAYERS * 10 + RUN)


@test
def rows_of_a_prompt_bind_main_s_link_one_way():
    """128 rows, each to two workers, 32 times: in two halves and in batches, the way there takes nearly all the time, and the way back,
    runs and main's part overlap with it."""
    row, link = 8192, 1.25e8
    floor = 128 * 2 * row / link * 1000 * LAYERS
    ttft = figures(load=0.1, slots=2, row_bytes=row, link=link, prompt=128)["ttft_ms"]
    assert floor < ttft < 1.2 * (floor + MAIN + RUN), (floor, ttft)


@test
def a_word_that_it_does_not_know_is_refused():
    p = subprocess.run([PROGRAM, "loads=3"], capture_output=True, text=True)
    assert p.returncode == 1 and "loads=3" in p.stderr and p.stdout == "", p


if __name__ == "__main__":
    run_tests()
