#!/usr/bin/env python3
"""Workers of unequal speed: the same tokens, and a worker that only delays layers runs few experts. Workers are paced; what is counted is
experts, in the workers' traces."""
import json
import os
import signal

from cluster_util import HANG_S, TMP, Daemon, Lines, expect_calm, hosts_file, in_calm, reference, run_tests, test

PACES = [(2, 1), (4, 2), (16, 8)]  # ms of a load, of a run


def end(daemon, trace):
    """How many experts it has run."""
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(HANG_S) == 0, daemon.text()
    with open(trace) as f:
        events = json.load(f)
    return sum(e["name"] == "compute" for e in (events["traceEvents"] if isinstance(events, dict) else events))


@in_calm
def runs(*args, worker=()):
    """Of each worker, over three texts that are the right ones."""
    traces = [os.path.join(TMP, f"unequal{i}.json") for i in range(len(PACES))]
    daemons = [Daemon("worker", "--load-time", load, "--run-time", run, "--trace", trace, *worker)
               for (load, run), trace in zip(PACES, traces)]
    try:
        m = Lines("--workers", hosts_file(daemons), "--predictor", "none", *args)
        for _ in range(3):
            m.ask()
            r = m.answer()
            assert r["token_ids"] == reference()["token_ids"], r
        status, err = m.close()
        assert status == 0, err
        expect_calm(err)
        return [end(d, trace) for d, trace in zip(daemons, traces)]
    finally:
        for d in daemons:
            d.kill()


@test
def a_slow_worker_runs_few_experts():
    n = runs()
    assert n[2] < n[0] / 2, n


@test
def so_it_does_with_one_slot():
    n = runs(worker=["--slots", 1])
    assert n[2] < n[0] / 2, n


@test
def and_with_caches():
    n = runs(worker=["--cache-mib", 4, "--resident-form", "bf16"])
    assert n[2] < n[0] / 2, n


if __name__ == "__main__":
    run_tests()
