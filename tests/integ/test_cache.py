#!/usr/bin/env python3
"""od-bench cache: recordings read by their description, replays done again here."""
from cluster_util import CHECKPOINT, TMP, generate, pack, run_tests, test, tool
from route_reader import read_routes
import json
import math
import os
import random
import shutil
import struct

PROMPTS = "tests/bench/prompts.jsonl"
with open(os.path.join(CHECKPOINT, "config.json")) as f:
    CONFIG = json.load(f)
LAYERS, EXPERTS = (CONFIG[k] for k in ("num_hidden_layers", "num_local_experts"))


def by_position(steps):
    return {(row, m): layer[i] for _, _, rows, layers in steps for m, layer in enumerate(layers)
            for i, row in enumerate(rows)}


_recorded = []


def record(path, *args):
    return json.loads(tool("od-bench", "cache", "--record", path, "--pack", pack(), "--json", *args).stdout)


def recorded():
    """Twelve prompts, the last ones as long as two chunks, and what follows them."""
    if not _recorded:
        path = os.path.join(TMP, "routes")
        record(path, "--prompts", PROMPTS, "--limit", 12, "--tokens", 40, "--prefill-rows", 16)
        _recorded.append(path)
    return _recorded[0]


@test
def every_router_decision_is_recorded():
    a, b = os.path.join(TMP, "resident.routes"), os.path.join(TMP, "local.routes")
    text = "Once upon a time there was a king"
    prompts = os.path.join(TMP, "one.jsonl")
    with open(prompts, "w") as f:
        json.dump({"text": text}, f)
    r = generate("--resident", prompt=text, tokens=20)
    said = record(a, "--prompts", prompts, "--tokens", 20, "--prefill-rows", 4)
    record(b, "--prompts", prompts, "--tokens", 20, "--local", 2, "--worker-arg=--slots=2")
    one, two = read_routes(a), read_routes(b)
    n_prompt, n = len(r["prompt_ids"]), len(r["token_ids"])
    assert (said["routes"], said["prompts"], said["prompt_tokens"], said["tokens"]) == (a, 1, n_prompt, n), said
    assert [len(s[2]) for s in one if s[1]] == [4] * (n_prompt // 4) + [n_prompt % 4] * (n_prompt % 4 > 0)
    assert [s[2] for s in one if not s[1]] == [[(1, n_prompt + i)] for i in range(n - 1)]
    assert all(len(s[3]) == LAYERS for s in one)
    assert all(x[0] < y[0] for x, y in zip(one, one[1:]))
    assert len(by_position(one)) == (n_prompt + n - 1) * LAYERS
    assert by_position(one) == by_position(two)
    assert len({e for s in one for layer in s[3] for row in layer for e in row}) == EXPERTS


@test
def prompt_after_prompt_is_recorded():
    steps = read_routes(recorded())
    assert list(dict.fromkeys(s[2][0][0] for s in steps)) == list(range(1, 13))
    assert all(len(s[2]) == 1 or s[1] for s in steps) and {len(s[2]) for s in steps if s[1]} == {16}
    with open(PROMPTS) as f:
        texts = [json.loads(next(f))["text"] for _ in range(12)]
    third = generate("--resident", prompt=texts[2], tokens=40)
    path = os.path.join(TMP, "third.routes")
    with open(os.path.join(TMP, "third.jsonl"), "w") as f:
        json.dump({"text": texts[2]}, f)
    record(path, "--prompts", f.name, "--tokens", 40)
    alone = {(row[1], m): experts for (row, m), experts in by_position(read_routes(path)).items()}
    assert alone == {(row[1], m): e for (row, m), e in by_position(steps).items() if row[0] == 3}
    assert len(alone) == (len(third["prompt_ids"]) + len(third["token_ids"]) - 1) * LAYERS


# The replay once more: od-bench cache by its --help, caches as lists.

def visits(steps, batch=1):
    """[(is a prompt's, [experts of each layer])] a step."""
    if batch == 1:
        return [(p, [sorted({e for row in layer for e in row}) for layer in layers]) for _, p, _, layers in steps]
    out, sequences = [], list(dict.fromkeys(s[2][0][0] for s in steps))
    for i in range(0, len(sequences), batch):
        of = [[s for s in steps if s[2][0][0] == q] for q in sequences[i:i + batch]]
        for q in of:
            out += visits([s for s in q if s[1]])
        decodes = [[s for s in q if not s[1]] for q in of]
        for t in range(max(map(len, decodes))):
            together = [q[t] for q in decodes if t < len(q)]
            out.append((0, [sorted({e for s in together for row in s[3][m] for e in row}) for m in range(LAYERS)]))
    return out


class Cache:
    """Experts of one state; who has the least key goes."""

    def __init__(self, policy, places):
        self.policy, self.places = policy, places
        self.came, self.used, self.count, self.next = {}, {}, {}, {}
        self.worth = {}  # lrfu: the number of uses, each halved in 32 steps of its layer, at the step of the last one
        self.clock, self.time, self.step = 0, {}, {}

    def key(self, x):
        if self.policy == "belady":
            return -self.next[x],
        return {"fifo": (self.came.get(x),), "lru": (self.used[x],), "lfu": (self.count[x], self.used[x])}[self.policy]

    def steps(self, x):
        """lrfu: by so many steps the worth of a single use is younger."""
        worth, when = self.worth[x]
        return 32 * math.log2(worth) - (self.time[x[0]] - when)

    def replaced(self, x):
        """lrfu: who leaves for x. Worths of up to 2.5 steps apart are equal: then the layer that keeps most gives one up, if that
        makes the layers more even."""
        of = {}
        for y in self.came:
            of.setdefault(y[0], []).append(y)
        least = {m: min(ys, key=lambda y: (round(self.steps(y), 9), self.used[y])) for m, ys in sorted(of.items())}
        worst = min(map(self.steps, least.values()))
        out = max((y for y in least.values() if self.steps(y) < worst + 2.5), key=lambda y: len(of[y[0]]))
        more = self.steps(x) - self.steps(out)
        return out if more > 2.5 or more > -0.5 and len(of[out[0]]) > len(of.get(x[0], ())) + 1 else None

    def use(self, x, step, following):
        self.clock += 1
        m = x[0]
        self.time[m], self.step[m] = self.time.get(m, 0) + (step > self.step.get(m, 0)), step
        worth, when = self.worth.get(x, (0, 0))
        self.worth[x] = 1 + worth * 0.5 ** ((self.time[m] - when) / 32), self.time[m]
        self.count[x] = self.count.get(x, 0) + 1
        self.used[x], self.next[x] = self.clock, following
        if x in self.came or self.places == 0:
            return
        if len(self.came) == self.places:
            out = self.replaced(x) if self.policy == "lrfu" else min(self.came, key=self.key)
            if out is None or self.policy == "belady" and self.key(out) >= self.key(x):
                return
            del self.came[out]
        self.came[x] = self.clock


def next_uses(decodes):
    """[{expert: when it is used next}]"""
    out, seen, when = [], {}, 0
    for m, experts in reversed(decodes):
        following = {}
        for e in reversed(experts):
            when -= 1
            following[e] = seen.get((m, e), math.inf)
            seen[m, e] = when
        out.append(following)
    return out[::-1]


def replay(steps, policy, share, shared, size=None):
    """(uses that read, uses, layers)"""
    decodes = [(m, experts) for prompt, layers in steps if not prompt for m, experts in enumerate(layers)]
    numbers = [n for n, (prompt, layers) in enumerate(steps, 1) if not prompt for _ in layers]
    places = int(int(2.0 * share / 100 * WEIGHTS * LAYERS * EXPERTS) // (size or STORED))
    one = Cache(policy, places)
    caches = [one if shared else Cache(policy, places // LAYERS + (m < places % LAYERS)) for m in range(LAYERS)]
    loads = n_uses = 0
    for (m, experts), number, following in zip(decodes, numbers, next_uses(decodes)):
        loads += sum((m, e) not in caches[m].came for e in experts)
        n_uses += len(experts)
        for e in experts:
            caches[m].use((m, e), number, following[e])
    return loads, n_uses, len(decodes)


WEIGHTS, CODED = 176160768, int(176160768 * (10.72 - 8) / 8)
STORED = WEIGHTS + CODED
SHARES = [5, 20, 50]


def bench(*args):
    return json.loads(tool("od-bench", "cache", "--budget", ",".join(f"{s}%" for s in SHARES), "--json", *args).stdout)


def row(r, policy, share):
    return next(x for x in r["caches"] if x["policy"] == policy and abs(x["budget_percent"] - share) < 1e-6)


def compare(steps, r, shared):
    load_ms = WEIGHTS / 3.5e9 * 1e3 * (1 + (10.72 - 8) / 8)
    for policy in "fifo", "lru", "lfu", "belady", "lrfu":
        for share in SHARES:
            loads, uses, layers = replay(steps, policy, share, shared or policy in ("belady", "lrfu"))
            got = row(r, policy, share)
            assert r["uses"] == uses
            assert math.isclose(r["cold_makespan_ms"], uses / layers * load_ms, rel_tol=1e-6)
            # Reading alone counts here: two inflaters at 50 GB/s are never what is waited for.
            for key, want in (("missed_uses_percent", 100 * loads / uses), ("missed_bytes_percent", 100 * loads / uses),
                              ("makespan_ms", loads / layers * load_ms), ("makespan_ratio", loads / uses)):
                assert math.isclose(got[key], want, rel_tol=1e-6), (policy, share, key, got[key], want)


@test
def replays_are_those_of_lists():
    steps = visits(read_routes(recorded()))
    compare(steps, bench("--routes", recorded()), False)
    compare(steps, bench("--routes", recorded(), "--rivals-share"), True)


@test
def what_is_kept_in_part_is_read_for_the_rest():
    steps = visits(read_routes(recorded()), 5)
    found = set()
    for state, form, size, still in (("F", "plain", 2 * WEIGHTS, 0), ("C", "plain", STORED, 0), ("S", "planes", WEIGHTS, CODED),
                                     ("E", "planes", CODED, WEIGHTS)):
        r = bench("--routes", recorded(), "--batch", 5, "--form", form, "--rival-state", state)
        for policy in "lru", "lfu":
            for share in SHARES:
                loads, uses, _ = replay(steps, policy, share, False, size)
                read = (loads * STORED + (uses - loads) * still) / uses / STORED
                got = row(r, policy, share)
                assert math.isclose(got["missed_bytes_percent"], 100 * read, rel_tol=1e-6), (state, policy, share)
                found.add(read)
    assert len(found) > 12, found


@test
def batches_decode_together():
    steps = read_routes(recorded())
    r = bench("--routes", recorded(), "--batch", 5)
    together = visits(steps, 5)
    assert r["decode_steps"] == sum(not s[0] for s in together) < sum(not s[1] for s in steps) / 3
    compare(together, r, False)


def routes_by_zipf(sequences):
    """A recording of texts of 4000 tokens, 6 layers, two of 8 experts a token: independent draws, as the planner assumes, the expert
    of rank r in proportion to 1 / (r + 1)."""
    rng, path = random.Random(1), os.path.join(TMP, f"zipf{sequences}.routes")
    experts = [rng.sample(range(8), 8) for _ in range(6)]
    with open(path, "wb") as f:
        f.write(struct.pack("<8s4I32s", b"od-route", 1, 6, 8, 2, bytes(32)))
        for step in range(4000 * sequences):
            f.write(struct.pack("<cBIQQI", b"S", 0, 1, step + 1, step // 4000 + 1, step % 4000))
            for order in experts:
                first, second = 0, 0
                while first == second:
                    first, second = rng.choices(order, [1 / (r + 1) for r in range(8)], k=2)
                f.write(bytes((ord("L"), first, second)))
        f.write(struct.pack("<cQ", b"E", 4000 * sequences))
    return path


@test
def the_planner_expects_what_the_replay_finds():
    one = routes_by_zipf(1)
    r = bench("--routes", one)
    assert r == bench("--routes", one) != bench("--routes", one, "--seed", 2)
    assert [x["rank"] for x in r["ranks"]] == list(range(1, 9))
    assert math.isclose(sum(x["share"] for x in r["ranks"]), 200)
    for share in SHARES:
        rank, full = row(r, "rank", share), row(r, "rank F", share)
        assert abs(rank["planned_makespan_ms"] / rank["makespan_ms"] - 1) < 0.02, rank
        assert rank["makespan_ms"] < 1.01 * full["makespan_ms"]
        best = row(r, "belady", share)["missed_uses_percent"]
        for policy in "lrfu", "rank F", "lfu", "lru", "marking", "fifo":
            assert best <= row(r, policy, share)["missed_uses_percent"], (policy, share)
    # Sets of experts that are not all of one size: what four rows need.
    sets = bench("--routes", routes_by_zipf(4), "--batch", 4)
    for share in SHARES:
        rank = row(sets, "rank", share)
        assert abs(rank["planned_makespan_ms"] / rank["makespan_ms"] - 1) < 0.02, rank
    # Plain experts take half as much again: then some are worth keeping compressed.
    plain = bench("--routes", one, "--form", "plain")
    assert all(row(plain, "rank", s)["pool_c"] > 0 for s in SHARES)
    assert all(row(r, "rank", s)["pool_c"] == 0 for s in SHARES)


@test
def what_cannot_be_replayed_is_refused():
    def refused(words, status, *args):
        p = tool("od-bench", "cache", *args, ok=False)
        assert words in p.stderr and p.returncode == status and p.stdout == "", (args, p.returncode, p.stderr)

    refused("expected --routes FILE", 2)
    refused("found \"120%\"", 2, "--routes", recorded(), "--budget", "10%,120%")
    refused("found \"5 cm\"", 2, "--routes", recorded(), "--budget", "5 cm")
    refused("with planes use F", 2, "--routes", recorded(), "--rival-state", "C")
    refused("not a recording", 1, "--routes", PROMPTS)
    cut = os.path.join(TMP, "cut.routes")
    shutil.copy(recorded(), cut)
    os.truncate(cut, os.path.getsize(cut) - 3)
    refused("ends early", 1, "--routes", cut)
    refused("cannot write routes", 1, "--record", TMP + "/none/r", "--pack", pack(), "--prompts", PROMPTS)
    refused("is the disk full?", 1, "--record=/dev/full", "--pack", pack(), "--prompts", PROMPTS, "--limit", 1, "--tokens", 3)
    refused("expected --prompts FILE, or --prompt-tokens N and --limit N", 2, "--record", "r", "--pack", pack(), "--prompt-tokens", 4)
    refused("exclude each other", 2, "--record", "r", "--pack", pack(), "--prompts", PROMPTS, "--prompt-tokens", 4)
    refused("context of 8", 1, "--record", TMP + "/r", "--pack", pack(), "--prompts", PROMPTS, "--ctx-size", 8)


if __name__ == "__main__":
    run_tests()
