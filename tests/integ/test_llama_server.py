#!/usr/bin/env python3
"""Fields and options that clients and users of llama-server know: timings, meta, /props, /slots, --alias, --log-level."""
import atexit
import json
import math
import os

from cluster_util import generate, pack, run_tests, test, tool, wait_for
from model_config import Model
from serve_util import Server, parse_events, stop_servers

atexit.register(stop_servers)
PROMPT = "Once upon a time there was a king"
USER = [{"role": "user", "content": PROMPT}]
PHASES = "prompt", "predicted"
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 3))
    return _shared[0]


def check_timings(t, usage):
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert (t["cache_n"], t["prompt_n"], t["predicted_n"]) == (cached, usage["prompt_tokens"] - cached, usage["completion_tokens"]), (t, usage)
    for phase in PHASES:
        n, ms = t[f"{phase}_n"], t[f"{phase}_ms"]
        assert ms >= 0 and t[f"{phase}_per_token_ms"] == (ms / n if n else 0), t
        assert math.isclose(t[f"{phase}_per_second"], n / ms * 1000) if ms else t[f"{phase}_per_second"] == 0, t


def streamed(path, body):
    """The events of a stream of OpenAI's that have timings, and all of them."""
    text = server().ask(path, {**body, "stream": True})[2].decode()
    events = [e for e in parse_events(text)[0] if e != "[DONE]"]
    return [e for e in events if "timings" in e], events


@test
def answers_have_timings():
    for path, what in ("/v1/completions", {"prompt": PROMPT}), ("/v1/completions", {"prompt": [PROMPT, "The bird"], "n": 2, "temperature": 1}), \
            ("/v1/chat/completions", {"messages": USER}), ("/v1/chat/completions", {"messages": USER, "n": 3, "temperature": 1}):
        body = {**what, "max_tokens": 9}
        o = server().ask(path, body)[2]
        check_timings(o["timings"], o["usage"])
        with_timings, events = streamed(path, {**body, "stream_options": {"include_usage": True}})
        assert with_timings == events[-1:], events
        check_timings(events[-1]["timings"], events[-1]["usage"])
        with_timings, events = streamed(path, body)  # the last choice's last event
        assert with_timings == events[-1:] and events[-1]["choices"][0]["finish_reason"], events
        assert events[-1]["timings"]["predicted_n"] == o["usage"]["completion_tokens"], events[-1]
    o = server().ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True})[2]
    assert o["timings"]["predicted_n"] == 0 and o["timings"]["predicted_per_token_ms"] == 0, o
    assert "draft_n" not in o["timings"]
    for path, body in ("/v1/responses", {"input": PROMPT}), ("/v1/messages", {"messages": USER, "max_tokens": 3}):
        assert "timings" not in server().ask(path, body)[2]


@test
def drafts_are_counted():
    s = Server("--draft", "lookup")
    o = s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 400, "temperature": 0})[2]  # the tale repeats itself
    assert o["choices"][0]["text"] == generate("--resident", prompt=PROMPT, tokens=400)["text"]
    assert 0 < o["timings"]["draft_n_accepted"] <= o["timings"]["draft_n"], o
    assert o["timings"]["draft_n_accepted"] < o["usage"]["completion_tokens"], o
    assert s.stop() == 0, s.log


@test
def models_say_what_they_are():
    with open(os.path.join(pack(), "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    meta = server().ask("/v1/models")[2]["data"][0]["meta"]
    assert meta == {"vocab_type": 2, "n_vocab": cfg["vocab_size"], "n_ctx_train": cfg["max_position_embeddings"], "n_embd": cfg["hidden_size"],
                    "n_params": sum(math.prod(shape) for _, shape in Model(cfg).tensors()),
                    "size": sum(os.path.getsize(os.path.join(pack(), name)) for name in ("dense.bin", "experts.bin"))}, meta


@test
def props_say_how_it_serves():
    o = server().ask("/props")[2]
    settings = o["default_generation_settings"]
    assert o["total_slots"] == 3 and settings["n_ctx"] == 1024 and settings["params"]["temperature"] == 0, o
    assert (o["bos_token"], o["eos_token"], o["modalities"]) == ("<s>", "</s>", {"vision": False, "audio": False}), o
    assert (o["model_alias"], o["model_path"]) == ("talebook", "talebook"), o
    assert o["build_info"] == tool("od-main", "--version").stdout.strip().replace("od-main", "od-moe"), o
    with open(os.path.join(pack(), "chat_template.jinja"), encoding="utf-8") as f:
        assert o["chat_template"] == f.read()
    assert os.path.dirname(pack()) not in json.dumps(o)


@test
def slots_say_how_many_texts_are_written():
    busy = lambda: [slot["is_processing"] for slot in server().ask("/slots")[2]]
    assert [(slot["id"], slot["n_ctx"]) for slot in server().ask("/slots")[2]] == [(0, 1024), (1, 1024), (2, 1024)]
    streams = [server().open_stream(prompt="a secret king", max_tokens=900, ignore_eos=True) for _ in range(2)]
    wait_for(lambda: sum(busy()) == 2, lambda: str(busy()))
    assert "secret" not in json.dumps(server().ask("/slots")[2])
    for c, r in streams:
        r.close()
        c.close()
    wait_for(lambda: not any(busy()), lambda: str(busy()))


@test
def a_model_has_further_names():
    s = Server("--model-name", "tale", "--alias", "gpt-4,org/tale:small")
    names = ["tale", "gpt-4", "org/tale:small"]
    page = s.ask("/v1/models")[2]
    assert [m["id"] for m in page["data"]] == names and (page["first_id"], page["last_id"]) == (names[0], names[-1]), page
    for name in names:
        assert s.ask(f"/v1/models/{name}")[2]["id"] == name
        assert s.complete(PROMPT, 1, model=name)["model"] == "tale"
    assert s.ask("/v1/models/gpt-5")[0] == s.ask("/v1/completions", {"prompt": PROMPT, "model": "gpt-5"})[0] == 404
    assert s.stop() == 0, s.log
    for wrong in "", "a,", ",a", "a,b,a":
        p = tool("od-main", "serve", "--alias", wrong, ok=False)
        assert p.returncode == 2 and "--alias: expected at most" in p.stderr, p.stderr


@test
def levels_of_the_log():
    def logged(*args):
        s = Server("--listen", "127.0.0.1:0", *args)
        s.complete(PROMPT, 1), s.ask("/health")
        assert s.stop() == 0, s.log
        return s.log

    info, debug = logged("--log-level", "info"), logged("--log-level", "debug")
    assert "/v1/completions" in info and "/health" not in info, info
    assert "/v1/completions" in debug and "/health" in debug, debug
    p = tool("od-main", "serve", "--log-level", "loud", ok=False)
    assert p.returncode == 2 and "error, warn, info, debug" in p.stderr, p.stderr
    p = tool("od-main", "serve", "--log-level", "warn", "--quiet", ok=False)
    assert p.returncode == 2 and "--quiet and --log-level exclude each other" in p.stderr, p.stderr


run_tests()
