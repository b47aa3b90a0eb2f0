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
LAYERS, EXPERTS, TOP_K = (CONFIG[k] for k in ("num_hidden_layers", "num_local_experts", "num_experts_per_tok"))


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


# The replay once more: od-bench cache by its --help, placement by placement.h's description, caches as lists.

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


LOAD, RUN = 64, 4  # what a whole load and a run count when experts are dealt, beside
COST = {"F": 0, "C": 8, "S": 16, "E": 48}  # what is still to be done about an expert of which a cache has this


def deal(experts, members, first, cost):
    """{expert: worker}. first(e): the place among members from which equal ones are tried; cost(w, e)."""
    load, out = dict.fromkeys(members, 0), {}
    while len(out) < len(experts):
        ready = [(load[w] + RUN + cost(w, e), e, (i - first(e)) % len(members), w)
                 for i, w in enumerate(members) for e in experts if e not in out]
        at, e, _, w = min(ready)
        out[e], load[w] = w, at
    return out


def by_cost(m, experts, workers, groups, cost):
    """As main deals to workers with caches: layers stay with their groups, expert e is at home with the e-th of one."""
    members = range(m % groups, workers, groups)
    return deal(experts, members, lambda e: e % len(members), cost)


def cold_makespan(steps, workers, group_size):
    """Without caches, in whole loads: groups turn with the steps when else one would serve two layers in a row."""
    groups, spans = max(1, workers // min(group_size, workers)), []
    for number, (prompt, layers) in enumerate(steps, 1):
        for m, experts in enumerate(layers if not prompt else []):
            members = range((m + (number if groups > 1 and LAYERS % groups == 1 else 0)) % groups, workers, groups)
            dealt = list(deal(experts, members, lambda e: m // groups, lambda w, e: LOAD).values())
            spans.append(max(map(dealt.count, dealt)))
    return sum(spans) / len(spans)


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


def oracle(decodes, workers, groups):
    """Experts dealt by homes, as if no cache ever had one, and when the worker uses each next: [(dealt, {expert: when})]"""
    out, seen, when = [], {}, 0
    for m, experts in reversed(decodes):
        dealt, following = by_cost(m, experts, workers, groups, lambda w, e: LOAD), {}
        for e in reversed(experts):
            when -= 1
            following[e] = seen.get((dealt[e], m, e), math.inf)
            seen[dealt[e], m, e] = when
        out.append((dealt, following))
    return out[::-1]


def replay(steps, policy, share, shared, workers=1, group_size=TOP_K, state="F", size=None):
    """(uses that read, uses, sum of makespans in units of a whole load, layers)"""
    groups = max(1, workers // min(group_size, workers))
    decodes = [(m, experts) for prompt, layers in steps if not prompt for m, experts in enumerate(layers)]
    numbers = [n for n, (prompt, layers) in enumerate(steps, 1) if not prompt for _ in layers]
    places, caches = int(int(2.0 * share / 100 * WEIGHTS * LAYERS * EXPERTS / workers) // (size or STORED)), {}
    for w in range(workers):
        own = range(w % groups, LAYERS, groups)
        one = Cache(policy, places)
        for i, m in enumerate(own):
            caches[w, m] = one if shared else Cache(policy, places // len(own) + (i < places % len(own)))
    known = oracle(decodes, workers, groups) if policy == "belady" else None
    loads = n_uses = spans = 0
    for i, (m, experts) in enumerate(decodes):
        def has(w, e):
            return (m, e) in caches[w, m].came
        if known:
            dealt, following = known[i]
        else:
            dealt = by_cost(m, experts, workers, groups, lambda w, e: COST[state] if has(w, e) else LOAD)
        missed = [dealt[e] for e in experts if not has(dealt[e], e)]
        loads, n_uses = loads + len(missed), n_uses + len(experts)
        spans += max(map(missed.count, missed), default=0)
        for e in experts:
            caches[dealt[e], m].use((m, e), numbers[i], following[e] if known else None)
    return loads, n_uses, spans, len(decodes)


WEIGHTS, CODED = 176160768, int(176160768 * (10.72 - 8) / 8)
STORED = WEIGHTS + CODED
SHARES = [5, 20, 50]


def bench(*args):
    return json.loads(tool("od-bench", "cache", "--budget", ",".join(f"{s}%" for s in SHARES), "--json", *args).stdout)


def row(r, policy, share):
    return next(x for x in r["caches"] if x["policy"] == policy and abs(x["budget_percent"] - share) < 1e-6)


def compare(steps, r, shared, workers, group_size):
    load_ms = WEIGHTS / 3.5e9 * 1e3 * (1 + (10.72 - 8) / 8)
    assert math.isclose(r["cold_makespan_ms"], cold_makespan(steps, workers, group_size) * load_ms, rel_tol=1e-6)
    for policy in "fifo", "lru", "lfu", "belady", "lrfu":
        for share in SHARES:
            loads, uses, spans, layers = replay(steps, policy, share, shared or policy in ("belady", "lrfu"), workers, group_size)
            got = row(r, policy, share)
            assert r["uses"] == uses
            # Reading alone counts here: two inflaters at 50 GB/s are never what is waited for.
            for key, want in (("missed_uses_percent", 100 * loads / uses), ("missed_bytes_percent", 100 * loads / uses),
                              ("makespan_ms", spans / layers * load_ms)):
                assert math.isclose(got[key], want, rel_tol=1e-6), (policy, share, key, got[key], want)


@test
def replays_are_those_of_lists():
    steps = visits(read_routes(recorded()))
    compare(steps, bench("--routes", recorded()), False, 1, TOP_K)
    compare(steps, bench("--routes", recorded(), "--rivals-share"), True, 1, TOP_K)
    compare(steps, bench("--routes", recorded(), "--workers", 4), False, 4, TOP_K)
    # Groups of three, three and two, so that it matters who is whose home; and of one each.
    compare(steps, bench("--routes", recorded(), "--workers", 8, "--group-size", 2), False, 8, 2)
    compare(steps, bench("--routes", recorded(), "--workers", 11, "--group-size", 1, "--rivals-share"), True, 11, 1)


@test
def what_a_cache_has_of_an_expert_decides_who_gets_it():
    """Kept in part, an expert costs less than a whole load, but soon as much as one elsewhere."""
    steps = visits(read_routes(recorded()), 5)
    found = set()
    for state, form, size, still in (("F", "plain", 2 * WEIGHTS, 0), ("C", "plain", STORED, 0), ("S", "planes", WEIGHTS, CODED),
                                     ("E", "planes", CODED, WEIGHTS)):
        r = bench("--routes", recorded(), "--workers", 4, "--batch", 5, "--form", form, "--rival-state", state)
        for policy in "lru", "lfu":
            for share in SHARES:
                loads, uses, _, _ = replay(steps, policy, share, False, 4, TOP_K, state, size)
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
    compare(together, r, False, 1, TOP_K)
    # Eleven groups, one of them larger: without caches the start moves on with every step, since 12 layers leave 1.
    compare(together, bench("--routes", recorded(), "--batch", 5, "--workers", 23), False, 23, TOP_K)


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
        assert abs(rank["planned_makespan_ms"] / rank["worker_makespan_ms"] - 1) < 0.02, rank
        assert rank["makespan_ms"] < 1.01 * full["makespan_ms"]
        best = row(r, "belady", share)["missed_uses_percent"]
        for policy in "lrfu", "rank F", "lfu", "lru", "marking", "fifo":
            assert best <= row(r, policy, share)["missed_uses_percent"], (policy, share)
    # Sets of experts that are not all of one size: what four rows need. Several workers are planned for as if experts were
    # dealt by homes; that they are dealt to who has them is better.
    four = routes_by_zipf(4)
    sets = bench("--routes", four, "--batch", 4)
    dealt = bench("--routes", four, "--batch", 4, "--workers", 4)
    for share in SHARES:
        rank = row(sets, "rank", share)
        assert abs(rank["planned_makespan_ms"] / rank["worker_makespan_ms"] - 1) < 0.02, rank
        rank = row(dealt, "rank", share)
        assert rank["worker_makespan_ms"] < (1 if share < 20 else 0.95) * rank["planned_makespan_ms"], rank
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
