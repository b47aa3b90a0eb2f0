#!/usr/bin/env python3
"""Agents with sub-agents: of a prompt no more than 128 tokens are computed that an earlier turn had, whatever the model's attention,
through all three APIs, for several agents at once, and after a restart."""
import atexit
import concurrent.futures
import random
import tempfile

from agent_dialog import Chat, Dialog, Ledger, Messages, Responses
from agent_model import Answer, agent_pack
from cluster_util import TMP, run_tests, test
from serve_util import Server, stop_servers

atexit.register(stop_servers)
WORDS = "the file has a function that reads rows and returns their sum or an error when one of them is too long".split()
PATH = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "number"}}, "required": ["path"]}
TOOLS = [("read_file", "Reads a file.", PATH), ("edit_file", "Changes a file.", PATH), ("task", "Starts another agent.", PATH)]
LETTERS = "ABCDEFGH"


def text_of(seed, n):
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=n // 4))[:n]


def answers_of(letter):
    """What an agent's model writes: odd answers call two tools, one in three has no text. Arguments are written as only a model does it."""
    for i in range(24):
        name = f"{letter}{i:02}"
        calls = [(("read_file", "edit_file")[k], f'{{"lines":  {k}.0, "path":"{name}\\u002f{k}"}}') for k in range(1 + i % 2)]
        yield Answer(name, 10 + 5 * (i % 4), 0 if i % 3 == 2 else 6 + i, calls)
    yield Answer(f"{letter}99", 12, 40)


ANSWERS = {a.name: a for letter in LETTERS for a in answers_of(letter)}
_packs = {}


def pack_of(kind):
    if kind not in _packs:
        _packs[kind] = agent_pack(kind, ANSWERS.values())
    return _packs[kind]


def work(d, letter, first, n, stream):
    """n turns with tools, from the answer number `first` on; between two requests it yields. The last message then waits."""
    for i in range(first, first + n):
        d.ask(ANSWERS, stream)
        yield
        results = [text_of(f"{letter}{i}{k}", 150 + 130 * (i + 2 * k) % 700) for k in range(len(d.calls))]
        results[-1] += f"@@{letter}{i + 1:02}@@" if i + 1 < first + n else f"@@{letter}99@@"
        d.give(*results)


def sub_agent(name, api, ledger, letter, first, stream):
    d = Dialog(name, api, ledger, text_of("sub-agents", 900), TOOLS[:2],
               [text_of("reminder", 400), f"{text_of(name, 200)} @@{letter}{first:02}@@"])
    yield from work(d, letter, first, 9, stream)
    d.ask(ANSWERS, stream)
    yield


def agent(name, api, ledger, letters, stream):
    """Works, lets two agents work, goes on; then the user asks for more; the last request but two comes again; and what was said is made
    shorter."""
    system = text_of(api.__class__.__name__, 1500)
    d = Dialog(name, api, ledger, system, TOOLS, [text_of("reminder", 600), f"{text_of(name, 100)} @@{letters[0]}00@@"])
    yield from work(d, letters[0], 0, 4, stream)
    for i in range(2):
        yield from sub_agent(f"{name}, sub-agent {i}", api, ledger, letters[1], 12 * i, stream)
    d.ask(ANSWERS, stream)
    yield
    d.say(f"{text_of(name + 'more', 300)} @@{letters[0]}05@@")
    yield from work(d, letters[0], 5, 5, stream)
    yield from sub_agent(f"{name}, sub-agent 2", api, ledger, letters[1], 6, stream)
    d.ask(ANSWERS, stream)
    yield
    again = d.copy(f"{name}, again", 3)
    again.ask(ANSWERS, stream)
    yield
    d.say(f"And now? @@{letters[0]}11@@")
    d.ask(ANSWERS, stream)
    yield
    short = Dialog(f"{name}, shorter", api, ledger, system, TOOLS, [text_of("reminder", 600), f"{text_of(name + 'sum', 500)} @@{letters[0]}12@@"])
    yield from work(short, letters[0], 12, 2, stream)


def run(agents, rounds=1000):
    """So many requests of each, all agents at once. Returns those that have not ended."""
    done = object()
    with concurrent.futures.ThreadPoolExecutor(len(agents)) as pool:
        while agents and rounds > 0:
            ended = list(pool.map(lambda a: next(a, done), agents))
            agents = [a for a, e in zip(agents, ended) if e is not done]
            rounds -= 1
    return agents


def check(kind, pairs, *args, restart_after=None):
    """Agents of these classes of clients in pairs, of which the second one streams."""
    server = Server(*args, pack_dir=pack_of(kind))
    ledger = Ledger(server)
    for i, (one, other) in enumerate(pairs):
        agents = [agent(f"{one.__name__} {i}", one(), ledger, LETTERS[4 * i:4 * i + 2], False),
                  agent(f"{other.__name__} {i}", other(), ledger, LETTERS[4 * i + 2:4 * i + 4], True)]
        if restart_after is not None:
            agents = run(agents, restart_after)
            assert ledger.server.stop() == 0, ledger.server.log
            ledger.server = Server(*args, pack_dir=pack_of(kind))
        run(agents)
    print(f"# {kind}: {ledger.n_turns} turns, {len(ledger.short)} too short, {ledger.missing} tokens missing", flush=True)
    for line in ledger.short:
        print("#", line, flush=True)
    assert not ledger.short and ledger.least > 100 * ledger.n_turns
    assert ledger.server.stop() == 0, ledger.server.log


@test
def attention():
    check("plain", [(Responses, Messages)])


@test
def windows():
    check("window", [(Responses, Chat)])


@test
def latents():
    check("latent", [(Messages, Chat)])


@test
def recurrent_state():
    check("recurrent", [(Messages, Chat)])


@test
def little_room_for_snapshots():
    """For 49 of them: by the order of use alone, an agent's sub-agents would push out its own."""
    check("recurrent", [(Messages, Responses)], "--snapshot-mib", 14)


@test
def a_restart():
    for kind, pair in ("plain", (Messages, Responses)), ("recurrent", (Messages, Chat)):
        check(kind, [pair], "--prefix-cache", tempfile.mkdtemp(dir=TMP), restart_after=11)


run_tests()
