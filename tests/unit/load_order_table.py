#!/usr/bin/env python3
"""Writes load_order_table.h: small sets of loads, the orders that tests/bench/sim/load_order.c asks for, when
each ends, and how early the last expert can end at all; for test_load_order.c and test_load_sim.c. Nothing here is
closed form: blocks are built by playing every chunk at every place, machines run tick by tick, and the optimum is the best
of all sequences of reads with all priorities. Run by hand (tests/unit/load_order_table.py > tests/unit/load_order_table.h,
a few minutes); the output is committed."""
import itertools
import random
from collections import namedtuple

Task = namedtuple("Task", "expert e sm run")  # e, sm: cached
Costs = namedtuple("Costs", "u v c k lanes")


# --- the machine, tick by tick ---

def play(tasks, costs, reads, priority):
    """reads: (task, "e") for one E-chunk, (task, "sm"). When everything is over."""
    there = [costs.k if t.e else 0 for t in tasks]
    taken, inflated = [0] * len(tasks), [0] * len(tasks)
    sm = [t.sm for t in tasks]
    experts = list(dict.fromkeys(t.expert for t in tasks))
    ran, reads, lanes = [], list(reads), [None] * costs.lanes
    reading = stream = None  # what, and when it ends
    now = 0
    while True:
        if reading and reading[1] == now:
            task, kind = reading[0]
            if kind == "e":
                there[task] += 1
            else:
                sm[task] = True
            reading = None
        if reading is None and reads:
            op = reads.pop(0)
            reading = (op, now + (costs.v if op[1] == "e" else costs.u))
        for i, lane in enumerate(lanes):
            if lane and lane[1] == now:
                inflated[lane[0]] += 1
                lanes[i] = None
        for i in range(costs.lanes):
            for task in priority:
                if lanes[i] is None and taken[task] < there[task]:
                    taken[task] += 1
                    lanes[i] = (task, now + costs.c)
        if stream and stream[1] == now:
            ran.append(stream[0])
            stream = None
        if stream is None:
            for x in experts:
                own = [i for i, t in enumerate(tasks) if t.expert == x]
                if x not in ran and all(sm[i] and inflated[i] == costs.k for i in own):
                    stream = (x, now + tasks[own[0]].run)
                    break
        if len(ran) == len(experts):
            return now
        now += 1


# --- orders: lists of blocks, each a list of tasks ---

def fifo(tasks, costs):
    return [[i] for i in range(len(tasks))]


def johnson(tasks, costs):
    def of(x):
        own = [t for t in tasks if t.expert == x]
        read = sum((0 if t.e else costs.k * costs.v) + (0 if t.sm else costs.u) for t in own)
        return read, max(read, len(own) * costs.k * costs.c // costs.lanes), own[0].run

    experts = list(dict.fromkeys(t.expert for t in tasks))
    early = sorted((x for x in experts if of(x)[1] < of(x)[2]), key=lambda x: (of(x)[1], of(x)[0]))
    late = sorted((x for x in experts if of(x)[1] >= of(x)[2]), key=lambda x: (-of(x)[2], of(x)[1], of(x)[0]))
    return [[i for i, t in enumerate(tasks) if t.expert == x] for x in early + late]


def play_block(tasks, costs, block, begin, free):
    """When the reader and each inflater have done it, and how long inflaters waited in it before their last chunk."""
    free, idle, now = list(free), 0, begin
    chunks = [begin for i in block if tasks[i].e for _ in range(costs.k)]
    for i in block:
        for _ in range(0 if tasks[i].e else costs.k):
            now += costs.v
            chunks.append(now)
    now += costs.u * sum(not tasks[i].sm for i in block)
    for arrival in chunks:
        lane = free.index(min(free))
        start = max(arrival, free[lane])
        idle += start - max(begin, free[lane])
        free[lane] = start + costs.c
    return now, free, idle


def blocks(tasks, costs):
    first = {}
    for i, t in enumerate(tasks):
        first.setdefault(t.expert, i)
    by_run = sorted(range(len(tasks)), key=lambda i: (-tasks[i].run, first[tasks[i].expert], i))
    type1, type2 = [i for i in by_run if not tasks[i].sm], [i for i in by_run if tasks[i].sm]
    order, begin, free = [], 0, [0] * costs.lanes
    while type1 or type2:
        block = [(type1 or type2).pop(0)]
        while type1 or type2:
            end, done, idle = play_block(tasks, costs, block, begin, free)
            done.sort()
            if all(done[l - 1] - end >= l * costs.v for l in range(1, min(costs.lanes, costs.k) + 1)):
                break
            task = (type2 or type1).pop(0)
            earlier = [p for p, i in enumerate(block) if tasks[i].sm or not tasks[task].sm]
            floor = earlier[-1] + 1 if earlier else 0
            for place in range(floor, len(block) + 1):
                with_it = block[:place] + [task] + block[place:]
                if play_block(tasks, costs, with_it, begin, free)[2] <= idle:
                    break
            else:
                place = floor
                if not earlier:
                    while place < len(block) and tasks[block[place]].run >= tasks[task].run:
                        place += 1
            block.insert(place, task)
        begin, free, _ = play_block(tasks, costs, block, begin, free)
        order.append(block)
    return order


def reads_of(tasks, costs, order):
    for block in order:
        for i in block:
            yield from () if tasks[i].e else [(i, "e")] * costs.k
        for i in block:
            yield from () if tasks[i].sm else [(i, "sm")]


# --- the best of all ---

def sequences(left):
    """All orders of a multiset {op: count}."""
    if not any(left.values()):
        yield []
        return
    for op in [op for op, n in left.items() if n]:
        left[op] -= 1
        for rest in sequences(left):
            yield [op] + rest
        left[op] += 1


def end_of(tasks, costs, reads, priority):
    """As play, but from event to event; checked against it."""
    ready, chunks, now = [0] * len(tasks), [], 0
    for i, t in enumerate(tasks):
        if t.e:
            chunks += [(0, i)] * costs.k
    for i, kind in reads:
        now += costs.v if kind == "e" else costs.u
        if kind == "e":
            chunks.append((now, i))
        else:
            ready[i] = now
    rank = {task: r for r, task in enumerate(priority)}
    free = [0] * costs.lanes
    while chunks:
        lane = free.index(min(free))
        start = max(free[lane], min(chunks)[0])
        chunk = min((c for c in chunks if c[0] <= start), key=lambda c: rank[c[1]])
        chunks.remove(chunk)
        free[lane] = start + costs.c
        ready[chunk[1]] = max(ready[chunk[1]], free[lane])
    experts = {}
    for i, t in enumerate(tasks):
        experts[t.expert] = (max(ready[i], experts.get(t.expert, (0, 0))[0]), t.run)
    now = 0
    for at, run in sorted(experts.values()):
        now = max(now, at) + run
    return now


def optimum(tasks, costs):
    left = {}
    for i, t in enumerate(tasks):
        if not t.e:
            left[(i, "e")] = costs.k
        if not t.sm:
            left[(i, "sm")] = 1
    priorities = list(itertools.permutations(range(len(tasks))))
    return min(end_of(tasks, costs, reads, p) for reads in sequences(left) for p in priorities)


# --- the table ---

def draw(rng, n, k):
    costs = Costs(rng.randint(1, 24), rng.randint(1, 6), rng.choice((1, 2, 3, 5, 9, 20, 40)), k, rng.randint(1, 4))
    experts = {x: (rng.random() < .4, rng.random() < .5, rng.choice((1, 4, 10, 10, 25, 60))) for x in range(n)}
    per = rng.choice((1, 1, 2, 3))
    tasks = [Task(i // per, *experts[i // per]) for i in range(n)]
    if rng.random() < .3:
        rng.shuffle(tasks)
    return tasks, costs


def lines_of(tasks, costs, best):
    out = []
    for name in (fifo, blocks, johnson):
        order = name(tasks, costs)
        flat = [i for b in order for i in b]
        numbers = [n for n, b in enumerate(order) for _ in b]
        end = play(tasks, costs, reads_of(tasks, costs, order), flat)
        assert end == end_of(tasks, costs, list(reads_of(tasks, costs, order)), flat)
        out.append("{ { %s },\n\t\t\t{ %s }, %d }" % (", ".join(map(str, flat)), ", ".join(map(str, numbers)), end))
    return """	{ %d, { %s },
		{ .sm_read_ns = %d, .e_read_ns = %d, .inflate_ns = %d, .n_chunks = %d, .n_inflaters = %d },
		{ %s }, %d },""" % (
        len(tasks), ",\n\t\t".join("{ %d, %d, %d, %d }" % t for t in tasks), *costs, ",\n\t\t".join(out), best)


def main():
    rng = random.Random(20261)
    print("""/* Made by load_order_table.py. */
#include "tests/bench/sim/load_order.h"

#define LOAD_ORDER_CASE_TASKS 12
struct load_order_case {
	size_t n;
	struct od_load_task task[LOAD_ORDER_CASE_TASKS];
	struct od_load_costs costs;
	struct {
		uint16_t task[LOAD_ORDER_CASE_TASKS], block[LOAD_ORDER_CASE_TASKS];
		uint64_t done_ns;
	} rule[3]; /* as enum od_load_rule */
	uint64_t optimum_ns; /* 0: not tried */
};
""")
    print("static const struct load_order_case load_order_cases[] = {")
    for i in range(60):
        if i < 30:
            tasks, costs = draw(rng, *rng.choice(((4, 1), (3, 2), (3, 2), (2, 3))))
            best = optimum(tasks, costs)
        else:
            tasks, costs = draw(rng, rng.randint(5, 12), rng.randint(1, 5))
            best = 0  # not tried
        print(lines_of(tasks, costs, best))
    print("};")


main()
