#!/usr/bin/env python3
"""Workers behind slow links: they get no experts while others are quicker without them, and get them again when the link is good. Hosts are
network namespaces. Needs root. What this costs in time is measured by tests/bench/live/slow_link_bench.py; here experts are counted."""
import json
import os
import subprocess
import threading
import time
from collections import Counter

from cluster_util import (HANG_S, PROMPT, TMP, TOKENS, Disturbed, Skip, _children, expect_calm, generate, pack, reference, run_tests, test,
                          tool)
from netns_lan import Lan, Node, Unavailable
from route_reader import read_routes

LAYERS, TOP_K = 12, 2  # a prompt is one step
ROW_BYTES = 256 * 4
LONG_PROMPTS = [f"{name} " + "said to the little girl, where are you going? " * 14 for name in ("The wolf", "A king")]
NET = "10.213.80"
NODES = {"main": 1, "shadow": 2, "w0": 11, "w1": 12, "w2": 13}
_lan = []


def lan():
    if not _lan:
        try:
            _lan.append(Lan("lk", NET, NODES))
        except Unavailable as e:
            raise Skip(e) from None
    return _lan[0]


class Cluster:
    """Daemons and a main that is asked for texts one by one."""

    def __init__(self, *names, slow=(), rate="256kbit", packs=None, options=(), worker=(), **way):
        self.slow = slow
        for name in NODES:
            lan().limit(name, None)
        for name in slow:
            limit(name, rate, **way)
        self.nodes = {name: Node(lan(), name, *worker, pack_dir=(packs or {}).get(name)) for name in names}
        path = os.path.join(TMP, "slow-hosts.txt")
        with open(path, "w") as f:
            f.write("".join(f"{'shadow ' if n == 'shadow' else ''}{lan().address(n)}\n" for n in names))
        predictor = [] if "shadow" in names else ["--predictor", "none"]
        self.main = lan().start("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, "--pack", pack(),
                                *options, *predictor, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = []
        self.guard = threading.Timer(HANG_S, self.main.kill)
        self.guard.daemon = True
        self.guard.start()

    def ask(self, prompt=PROMPT):
        self.main.stdin.write(prompt + "\n")
        self.main.stdin.flush()

    def answer(self):
        line = self.main.stdout.readline()
        assert line, self.main.stderr.read()
        return json.loads(line)

    def text(self):
        """How many RUNs a layer had, in a text that is the right one, and the workers that were passed over at its end."""
        self.ask()
        r = self.answer()
        assert r["token_ids"] == reference()["token_ids"]
        passed = [node["name"].split()[1].split(":")[0] for node in r["nodes"] if node.get("passed_over")]
        return r["worker_runs"] / (r["decode_layers"] + LAYERS), [n for n in self.nodes if lan().address(n) in passed]

    def expect(self, good, what):
        """What is counted is wrong: Disturbed if a worker had no CPU for so long that main lost it, or took its link for slow."""
        if good:
            return
        err = self.end()
        expect_calm(err)
        for name in self.nodes:
            if name not in self.slow and f"{lan().address(name)}:5701 is connected but not used" in err:
                raise Disturbed(err)
        raise AssertionError((what, err))

    def await_message(self, text):
        while text not in (line := self.main.stderr.readline()):
            assert line, self.said
            self.said.append(line)

    def end(self):
        """What main has said."""
        out, err = self.main.communicate(timeout=HANG_S)
        assert self.main.returncode == 0, err
        return "".join(self.said) + err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.guard.cancel()
        for node in self.nodes.values():
            node.kill()
            node.forget()
        if self.main.poll() is None:
            self.main.kill()
            self.main.wait()


def limit(name, *args, **kw):
    try:
        lan().limit(name, *args, **kw)
    except Unavailable as e:
        raise Skip(e) from None


def gets_no_experts_until_its_link_is_good(**way):
    with Cluster("w0", "w1", slow=["w1"], **way) as c:
        c.await_message(f"worker {lan().address('w1')}:5701 is connected but not used")  # before its first use
        texts = [c.text() for _ in range(3)]
        c.expect(all(t == (1, ["w1"]) for t in texts), (way, texts))
        limit("w1", None)
        c.await_message(f"worker {lan().address('w1')}:5701 is used again")
        while (text := c.text())[0] == 1 or text[1]:  # A busy machine may make it look slower than the other for a text; c.guard ends it.
            pass
        err = c.end()
        expect_calm(err)
        assert "lost" not in err, err


@test
def a_slow_worker_gets_no_experts_until_its_link_is_good():
    gets_no_experts_until_its_link_is_good()


@test
def nor_does_one_that_is_slow_to_receive():
    gets_no_experts_until_its_link_is_good(up=False)


@test
def nor_does_one_that_is_slow_to_answer():
    gets_no_experts_until_its_link_is_good(down=False)


@test
def two_slow_ones_of_three_and_a_shadow():
    with Cluster("shadow", "w0", "w1", "w2", slow=["w0", "w2"], rate="1mbit") as c:
        texts = [c.text() for _ in range(2)]
        c.expect(all(t == (1, ["w0", "w2"]) for t in texts), texts)
        c.end()


@test
def the_last_worker_is_used_however_slow_it_is():
    with Cluster("w0", "w1", slow=["w1"], rate="1mbit") as c:
        text = c.text()
        c.expect(text == (1, ["w1"]), text)
        c.nodes["w0"].kill()
        assert c.text()[1] == []
        c.end()


@test
def a_worker_that_alone_has_some_experts_is_used_however_slow_it_is():
    shares = {f"w{i}": os.path.join(TMP, f"share{i}") for i in range(2)}
    for i in range(2):
        tool("od-pack", "--share", f"{i + 1}/2", "--group-size", 1, pack(), shares[f"w{i}"])
    with Cluster("w0", "w1", slow=["w1"], rate="1mbit", packs=shares, options=["--group-size", 1]) as c:
        assert c.text()[1] == []
        assert "not used" not in c.end()


@test
def a_link_that_turns_slow_costs_no_token():
    with Cluster("w0", "w1", "w2") as c:
        runs, passed = c.text()
        c.expect(runs > 1 and not passed, (runs, passed))
        c.ask()
        limit("w1", "64kbit")
        assert c.answer()["token_ids"] == reference()["token_ids"]
        c.await_message(lan().address("w1"))  # is late, is not used, or is lost
        for _ in range(2):
            c.text()
        c.end()


def sends_of_layers(path):
    """How often rows were sent for a layer of a step: once, or for either half of a prompt's rows."""
    with open(path) as f:
        events = json.load(f)
    return Counter((e["args"]["step"], e["args"]["m"]) for e in events if e["name"] == "send RUNs")


def experts_of(prompt):
    """Different experts that a prompt's rows use, of all layers."""
    routes, prompts = os.path.join(TMP, "slow.routes"), os.path.join(TMP, "slow.jsonl")
    with open(prompts, "w") as f:
        json.dump({"text": prompt}, f)
    tool("od-bench", "cache", "--pack", pack(), "--prompts", prompts, "--tokens", 2, "--prefill-rows", 256, "--record", routes)
    layers = next(s[3] for s in read_routes(routes) if s[1])
    return sum(len({e for row in layer for e in row}) for layer in layers)


@test
def rows_of_a_prompt_are_sent_in_batches_where_main_s_link_binds():
    """And in two halves, each with its own RUNs. No row is sent twice for that, and no expert loaded twice. (On a busy machine a link that
    does not bind may seem to: test_batch_rows has that case.)"""
    trace = os.path.join(TMP, "cut.json")
    with Cluster("w0", "w1", slow=["main"], rate="20mbit", worker=["--slots", 16],
                 options=["--prefill-rows", 256, "--profile", "f32", "--max-tokens", 1, "--trace", trace]) as c:
        for prompt in LONG_PROMPTS:  # The first one shows what main's link takes.
            c.ask(prompt)
            r = c.answer()
            assert r["token_ids"] == generate("--resident", prompt=prompt, tokens=1)["token_ids"], prompt
        if "times as long as the quickest" in (err := c.end()):  # workers were dealt to as unequal ones
            raise Disturbed(err)
    sends = sends_of_layers(trace)
    second = [n for (step, _), n in sends.items() if step == max(step for step, _ in sends)]
    assert second == [2] * LAYERS, sends
    pairs = r["prompt_tokens"] * TOP_K * LAYERS
    assert r["worker_runs"] > 8 * LAYERS and r["loads"] == experts_of(LONG_PROMPTS[1]), r
    assert r["result_bytes"] == pairs * ROW_BYTES, r
    # A row goes to a worker once, whichever of its experts are there.
    assert pairs / TOP_K <= r["worker_rows"] < pairs and r["run_bytes"] == r["worker_rows"] * ROW_BYTES, r


@test
def a_worker_that_dies_between_two_halves_costs_no_token():
    """Two of three die in the middle of the second prompt, one after the other."""
    with Cluster("w0", "w1", "w2", slow=["main"], rate="20mbit", worker=["--slots", 16],
                 options=["--prefill-rows", 256, "--profile", "f32", "--max-tokens", 1]) as c:
        c.ask(LONG_PROMPTS[0])
        c.answer()
        c.ask(LONG_PROMPTS[1])
        for name in ("w0", "w1"):
            before = lan().bytes_of(name)[0]
            while lan().bytes_of(name)[0] < before + 50_000:
                time.sleep(0.01)
            c.nodes[name].kill()
        r = c.answer()
        assert r["token_ids"] == generate("--resident", prompt=LONG_PROMPTS[1], tokens=1)["token_ids"]
        assert r["recovered_runs"] > 0, r
        c.end()


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        for child in list(_children):
            child.kill()
        for network in _lan:
            network.close()
