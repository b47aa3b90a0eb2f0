#!/usr/bin/env python3
"""A prompt's experts: each is loaded once a layer, with one slot too; a row goes to a worker once, however many of its
experts are there; and nothing of that shows in tokens or logits. What is expected is counted from the router's
decisions, as od-bench cache records them in resident mode."""
from cluster_util import SLOW, TMP, Daemon, generate, hosts_file, pack, run_tests, test, tool, undisturbed, worker_args
from route_reader import read_routes
from test_cache import record
from test_conform import TALEBOOK, conform, cut, load, write
from collections import Counter, defaultdict
import json
import os
import threading
import time

PARTS = 3  # that an expert of this model is read in: a shard for each of its matrices
SENTENCES = ("The wolf said to the little girl, where are you going? ", "Once upon a time there was a king who had three sons. ",
             "Then the fisherman went home to his wife and told her of the golden fish. ")


def text(words):
    return " ".join(" ".join(SENTENCES * words).split()[:words])


def chunks(prompt, rows, *args):
    """[chunk][layer][row]: the experts of the row."""
    path, prompts = os.path.join(TMP, "prompt.routes"), os.path.join(TMP, "prompt.jsonl")
    with open(prompts, "w") as f:
        json.dump({"text": prompt}, f)
    record(path, "--prompts", prompts, "--tokens", 2, "--prefill-rows", rows, *args)
    return [s[3] for s in read_routes(path) if s[1]]


def expected(layers, workers_of):
    """What one chunk takes: loads, RUNs and rows. workers_of: for (m, expert), where the chunks ran it; this chunk's are taken off."""
    loads = runs = rows = 0
    for m, layer in enumerate(layers):
        at = {e: workers_of[m, e].pop(0) for e in {e for row in layer for e in row}}
        loads += len(at)
        runs += len(set(at.values()))
        rows += sum(len({at[e] for e in row}) for row in layer)
    return loads, runs, rows


def spans(path, name):
    with open(path) as f:
        events = json.load(f)
    return [(e["pid"], e["args"]["m"], e["args"]["expert"]) for e in sorted(events, key=lambda e: e.get("ts", 0)) if e["name"] == name]


def check(prompt, rows, workers, *args):
    all_chunks, trace = chunks(prompt, rows, *args), os.path.join(TMP, "prefill.trace")
    one = generate("--resident", "--temperature", "1.3", "--seed", 5, "--prefill-rows", rows, *args, prompt=prompt, tokens=1)
    r = undisturbed("--local", workers, "--predictor", "none", "--temperature", "1.3", "--seed", 5, "--prefill-rows", rows,
                    "--trace", trace, *worker_args("--slots=1"), *args, prompt=prompt, tokens=1)
    assert r["slots"] == 1 and r["token_ids"] == one["token_ids"]
    assert [len(c[0]) for c in all_chunks] == [min(rows, r["prompt_tokens"] - i) for i in range(0, r["prompt_tokens"], rows)]
    # The workers say the same: an expert was computed and read as often as a chunk has used it.
    uses = Counter((m, e) for c in all_chunks for m, layer in enumerate(c) for e in {e for row in layer for e in row})
    assert Counter((m, e) for _, m, e in spans(trace, "compute")) == uses
    workers_of = defaultdict(list)
    for pid, m, e in spans(trace, "compute"):
        workers_of[m, e].append(pid)
    assert len({pid for pids in workers_of.values() for pid in pids}) == workers
    want = [sum(x) for x in zip(*(expected(c, workers_of) for c in all_chunks))]
    assert [r["loads"], r["worker_runs"], r["worker_rows"]] == want, (r["loads"], r["worker_runs"], r["worker_rows"], want)
    reads, by_worker = Counter((m, e) for _, m, e in spans(trace, "read")), Counter(spans(trace, "read"))
    # Before a chunk's routers speak, all experts of a layer are ordered. Rows, which are known then, may move one to another worker. So a
    # worker reads an expert once a chunk at most.
    assert all(n * PARTS <= reads[x] for x, n in uses.items()), (reads, uses)
    assert all(n <= len(all_chunks) * PARTS for n in by_worker.values()), by_worker
    return len(all_chunks)


@test
def an_expert_is_loaded_once_a_layer_and_a_row_sent_once():
    for workers in (1, 3) if SLOW else (1, 2, 3, 4):
        assert check(text(180), 256, workers) == 1
    # So many rows that each expert is used, and so few that they say nothing about the link: batches would be RUNs of their own.
    assert check(text(25), 256, 8) == 1
    assert check(text(180), 256, 4, "--profile", "bf16") == 1


@test
def the_same_in_chunks():
    for workers in (3,) if SLOW else (1, 3, 4):
        assert check(text(700), 256, workers) == 4


def errors(report):
    """How far each prompt's logits and weights are from the reference's: the same only for the same bits."""
    return [(p["max_logit_error"], p["max_weight_error"]) for p in report["prompts"]]


@test
def the_same_logits():
    said = [conform(TALEBOOK, *args, "--prefill-rows", 9, "--threads", 1) for args in
            (["--resident"], *(["--local", n, "--predictor", "none", *worker_args("--slots=1")] for n in (1, 3)))]
    assert all(0 < logits < 1e-4 for logits, _ in errors(said[0]) if logits is not None)
    assert errors(said[1]) == errors(said[0]) == errors(said[2])


@test
def the_same_logits_when_a_worker_is_killed():
    """What it had of a layer is run by others."""
    golden = write("cut", [cut(e, 2) for e in load(TALEBOOK) if e.get("logits_file")])
    want = errors(conform(golden, "--resident", "--prefill-rows", 3))
    assert len(want) == 3 and all(logits > 0 for logits, _ in want)
    for after_s in (0.7, 1.5):
        workers = [Daemon("worker", "--slots", 1, "--load-time", 10) for _ in range(3)]

        def kill_later(w=workers[1], s=after_s):
            while "session with main" not in w.text():
                time.sleep(0.01)
            time.sleep(s)
            w.kill()

        killer = threading.Thread(target=kill_later, daemon=True)
        killer.start()
        p = tool("od-bench", "conform", "--golden", golden, "--pack", pack(), "--json", "--workers", hosts_file(workers),
                 "--predictor", "none", "--prefill-rows", 3)
        killer.join()
        assert "is lost" in p.stderr, p.stderr
        assert errors(json.loads(p.stdout)) == want, (after_s, p.stdout)
        for w in workers:
            w.kill()


if __name__ == "__main__":
    run_tests()
