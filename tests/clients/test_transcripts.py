#!/usr/bin/env python3
"""Conversations of coding agents, as recorded in transcripts/*.json, are played to a model that answers as it did there: two agents with
their sub-agents at once, and a restart in the middle. Of no prompt more than 128 tokens are computed that an earlier turn had.

A transcript has contexts, each with its first request in the client's own format, and turns: what the model wrote, and what the client
sent then: results of the calls, or what the user said. `order` says which context asks next."""
import atexit
import concurrent.futures
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integ"))
import agent_dialog  # noqa: E402
from agent_model import TextAnswer, agent_pack  # noqa: E402
from cluster_util import TMP, run_tests, test  # noqa: E402
from serve_util import Server, stop_servers  # noqa: E402

atexit.register(stop_servers)


def transcript(name):
    with open(os.path.join(HERE, "transcripts", name + ".json"), encoding="utf-8") as f:
        return json.load(f)


TRANSCRIPTS = {name: transcript(name) for name in ("claude-code", "codex", "cline")}
_used = set()
ANSWERS = {f"{c['session']}-{i}": TextAnswer(f"{c['session']}-{i}", t["thought"], t["text"], [tuple(x) for x in t["calls"]], _used)
           for tr in TRANSCRIPTS.values() for c in tr["contexts"].values() for i, t in enumerate(c["turns"])}
_packs = {}


def pack_of(kind):
    if kind not in _packs:
        _packs[kind] = agent_pack(kind, ANSWERS.values())
    return _packs[kind]


def texts_of(content):
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


class Replay(agent_dialog.Dialog):
    """A context of a transcript."""

    def __init__(self, name, api, ledger, context):
        request = context["request"]
        messages = request.get("input") or request["messages"]
        if messages[0]["role"] == "system":
            system, *messages = messages
            self.system = system["content"]
        else:
            self.system = request.get("instructions") or texts_of(request["system"])
        self.name, self.api, self.ledger, self.session, self.rest = name, api, ledger, context["session"], [*context["turns"]]
        first = self.system if api.__class__.__name__ == "Responses" else {"role": "system", "content": self.system}
        self.messages = [first, *messages]
        self.turns = [("user", texts_of(m["content"])) for m in messages]
        self.tools = request["tools"]
        functions = [t.get("function", t) for t in self.tools]
        self.functions = [{"type": "function", "function": {"name": f["name"], "description": f["description"],
                                                            "parameters": f.get("parameters") or f["input_schema"]}} for f in functions]
        self.calls, self.n = [], 0

    def next_name(self):
        return f"{self.session}-{sum(role == 'assistant' for role, _ in self.turns)}"

    def step(self, stream):
        turn = self.rest.pop(0)
        self.ask(ANSWERS, stream)
        if "results" in turn:
            self.give(*turn["results"])
        if "says" in turn:
            self.say(turn["says"])


def play(name, ledger, stream):
    """Yields between two requests."""
    t = TRANSCRIPTS[name]
    api = getattr(agent_dialog, t["api"])()
    contexts = {key: Replay(f"{t['client']}, {key}", api, ledger, c) for key, c in t["contexts"].items()}
    for key in t["order"]:
        contexts[key].step(stream)
        yield


def run(agents, rounds=1000):
    """So many requests of each, all agents at once. Returns those that have not ended."""
    done = object()
    with concurrent.futures.ThreadPoolExecutor(len(agents)) as pool:
        while agents and rounds > 0:
            ended = list(pool.map(lambda a: next(a, done), agents))
            agents = [a for a, e in zip(agents, ended) if e is not done]
            rounds -= 1
    return agents


def check(kind, one, other):
    args = "--prefix-cache", tempfile.mkdtemp(dir=TMP)
    ledger = agent_dialog.Ledger(Server(*args, pack_dir=pack_of(kind)))
    agents = run([play(one, ledger, True), play(other, ledger, False)], 5)
    assert ledger.server.stop() == 0, ledger.server.log
    ledger.server = Server(*args, pack_dir=pack_of(kind))
    run(agents)
    assert ledger.server.stop() == 0, ledger.server.log
    print(f"# {kind}, {one} and {other}: {ledger.n_turns} turns, at least {ledger.least} tokens cached", flush=True)
    assert not ledger.short, ledger.short
    assert ledger.least > 1000 * ledger.n_turns


@test
def claude_code_and_codex():
    for kind in "plain", "recurrent":
        check(kind, "claude-code", "codex")


@test
def cline_and_claude_code():
    for kind in "window", "recurrent":
        check(kind, "cline", "claude-code")


@test
def codex_and_cline():
    for kind in "latent", "recurrent":
        check(kind, "codex", "cline")


run_tests()
