#!/usr/bin/env python3
"""Ollama's API: /api/chat, /api/generate and the descriptions of the model, with raw requests and with the official ollama client; whole
tool loops with models that recite what models of each family write."""
import atexit
import json
import math
import os
import signal

import chat_scripts
from api_clients import client_module
from cluster_util import HANG_S, TMP, generate, pack, run_tests, test, tool
from dialog_util import PROMPT, WEATHER, prompt_tokens, rendered, results_of, turn_of
from model_config import Model
from scripted_checkpoint import EOS, write_scripted
from serve_util import Server, stop_servers

atexit.register(stop_servers)
USER = {"role": "user", "content": PROMPT}
CHAT, GENERATE = "/api/chat", "/api/generate"
NAMES = "talebook:latest", "gpt-4:latest", "tale:small"
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 4, "--alias", "gpt-4,tale:small"))
    return _shared[0]


def client(s=None):
    return client_module("ollama").Client(host=f"http://127.0.0.1:{(s or server()).port}")


def asked(path, s=None, tokens=24, options=(), **fields):
    """The one object of a whole answer. Greedy, as the model's settings are."""
    what = {"messages": [USER]} if path == CHAT else {"prompt": PROMPT}
    body = {**what, "stream": False, "options": {"num_predict": tokens, **dict(options)}, **fields}
    status, headers, o = (s or server()).ask(path, body)
    assert status == 200 and headers["Content-Type"] == "application/json", (status, headers, o)
    return o


def lines(path, s=None, **fields):
    what = {"messages": [USER]} if path == CHAT else {"prompt": PROMPT}
    status, headers, text = (s or server()).ask(path, {**what, **fields})
    assert status == 200 and headers["Content-Type"] == "application/x-ndjson", (status, headers, text)
    assert text.endswith(b"\n"), text
    return [json.loads(line) for line in text.decode().split("\n")[:-1]]


def text_of(o):
    return o["message"]["content"] if "message" in o else o["response"]


def gathered(objects):
    """What a stream's objects say together, as the whole answer says it."""
    assert [o["done"] for o in objects] == [False] * (len(objects) - 1) + [True], objects
    assert len({o["model"] for o in objects}) == 1 and all(o["created_at"].endswith("Z") for o in objects), objects
    said = {"content": "", "thinking": "", "tool_calls": []}
    for o in objects:
        m = o["message"] if "message" in o else {"content": o["response"], "thinking": o.get("thinking", "")}
        said["content"] += m["content"]
        said["thinking"] += m.get("thinking", "")
        said["tool_calls"] += m.get("tool_calls", [])
    return said


def check_counts(o, n_prompt, n_written):
    assert (o["prompt_eval_count"], o["eval_count"]) == (n_prompt, n_written), (o, n_prompt, n_written)
    assert o["total_duration"] == o["load_duration"] + o["prompt_eval_duration"] + o["eval_duration"] > 0, o
    assert all(isinstance(o[k], int) and o[k] >= 0 for k in o if k.endswith("_duration")), o


# ---- Texts ----


@test
def greedy_text_is_that_of_od_main():
    tale = [USER, {"role": "assistant", "content": " who had a son."}, {"role": "user", "content": "One day"}]
    by_template = lambda messages: rendered(messages).removeprefix("<s>")
    kind = [{"role": "system", "content": "Be kind."}, USER]
    for path, fields, prompt in (CHAT, {}, by_template([USER])), (CHAT, {"messages": tale}, by_template(tale)), \
            (GENERATE, {}, by_template([USER])), (GENERATE, {"system": "Be kind."}, by_template(kind)), \
            (GENERATE, {"raw": True}, PROMPT), (GENERATE, {"raw": True, "system": "Be kind."}, PROMPT):
        a = generate("--resident", prompt=prompt, tokens=24)
        o = asked(path, **fields)
        assert text_of(o) == a["text"] and o["done"] is True and o["model"] == "talebook", (path, fields, o, a)
        assert o["done_reason"] == ("stop" if a["finish"] == "eos" else "length"), (o, a["finish"])
        check_counts(o, len(a["prompt_ids"]), len(a["token_ids"]))
        objects = lines(path, options={"num_predict": 24}, **fields)  # a stream, as nothing else is asked for
        assert gathered(objects)["content"] == a["text"] and len(objects) > 2, objects
        assert objects[-1]["done_reason"] == o["done_reason"], objects[-1]
        check_counts(objects[-1], len(a["prompt_ids"]), len(a["token_ids"]))


@test
def a_model_without_a_template_takes_the_prompt_as_it_is():
    folder = os.path.join(TMP, "bare")
    write_scripted(folder, "", {"user": "a tale" + EOS})
    os.remove(os.path.join(folder, "chat_template.jinja"))
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    s = Server(pack_dir=folder + ".pack")
    assert text_of(asked(GENERATE, s, prompt="<|begin user|>")) == "a tale"
    for path, fields in (CHAT, {"messages": [USER]}), (GENERATE, {"prompt": "a", "system": "b"}):
        status, _, o = s.ask(path, fields)
        assert status == 400 and "cannot chat" in o["error"], o
    assert s.ask("/api/show", {})[2]["capabilities"] == ["completion"]
    assert s.stop() == 0, s.log


@test
def options_are_settings():
    whole = text_of(asked(CHAT, tokens=60))
    word = whole.split()[5]
    for path in CHAT, GENERATE:
        for stop in word, ["never comes", word]:
            o = asked(path, tokens=60, options={"stop": stop})
            assert (text_of(o), o["done_reason"]) == (whole[:whole.index(word)], "stop"), o
        a = generate("--resident", "--seed", 5, "--temperature", 1, "--top-k", 50, "--top-p", 0.9, prompt=rendered([USER]).removeprefix("<s>"),
                     tokens=12)
        drawn = lambda seed: text_of(asked(path, tokens=12, options={"seed": seed, "temperature": 1, "top_k": 50, "top_p": 0.9}))
        assert drawn(5) == a["text"] != drawn(6)
        a = generate("--resident", "--repetition-penalty", 1.5, prompt=rendered([USER]).removeprefix("<s>"), tokens=40)
        assert text_of(asked(path, tokens=40, options={"repeat_penalty": 1.5, "repeat_last_n": -1})) == a["text"] != whole[:len(a["text"])]
        for n in -1, -2, 0:
            o = asked(path, tokens=n, options={"ignore_eos": True})
            assert o["done_reason"] == "length" and o["prompt_eval_count"] + o["eval_count"] == 1025, o  # one more than the context


@test
def nothing_to_answer_loads():
    for path, fields in (CHAT, {"messages": []}), (CHAT, {}), (GENERATE, {}), (GENERATE, {"prompt": ""}), (GENERATE, {"keep_alive": 0}), \
            (CHAT, {"messages": [], "stream": False}):
        status, headers, o = server().ask(path, {"model": "gpt-4", **fields})
        assert status == 200 and headers["Content-Type"] == "application/json", (headers, o)
        assert o["done"] is True and o["done_reason"] == "load" and text_of(o) == "" and "eval_count" not in o, o


@test
def log_probabilities_are_those_of_chats():
    o = server().ask("/v1/chat/completions", {"messages": [USER], "max_tokens": 8, "logprobs": True, "top_logprobs": 2, "temperature": 0})[2]
    expected = [(t["token"], [x["token"] for x in t["top_logprobs"]]) for t in o["choices"][0]["logprobs"]["content"]]
    tokens = lambda list_: [(t["token"], [x["token"] for x in t["top_logprobs"]]) for t in list_]
    for path in CHAT, GENERATE:
        assert tokens(asked(path, tokens=8, logprobs=True, top_logprobs=2)["logprobs"]) == expected
        objects = lines(path, options={"num_predict": 8}, logprobs=True, top_logprobs=2)
        assert tokens([t for o in objects for t in o.get("logprobs", [])]) == expected
        assert "logprobs" not in asked(path)


@test
def an_image_becomes_a_note():
    note = [{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    o = server().ask("/v1/chat/completions", {"messages": [{"role": "user", "content": note}], "max_tokens": 1})[2]
    n = o["usage"]["prompt_tokens"]
    assert n > asked(CHAT)["prompt_eval_count"]
    assert asked(CHAT, messages=[{**USER, "images": ["AAAA"]}])["prompt_eval_count"] == n
    assert asked(GENERATE, images=["AAAA"])["prompt_eval_count"] == n


# ---- Descriptions ----


@test
def the_model_is_described():
    with open(os.path.join(pack(), "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    size = sum(os.path.getsize(os.path.join(pack(), name)) for name in ("dense.bin", "experts.bin"))
    n = sum(math.prod(shape) for _, shape in Model(cfg).tensors())
    digest = json.loads(tool("od-pack", "info", pack(), "--json").stdout)["fingerprint"]
    for path in "/api/tags", "/api/ps":
        models = server().ask(path)[2]["models"]
        assert [m["name"] for m in models] == [m["model"] for m in models] == list(NAMES), models
        assert all((m["size"], m["digest"], m["details"]["family"]) == (size, digest, "mixtral") for m in models), (models, size, digest)
        assert all(m["details"]["parameter_size"] == f"{n / 1e6:.1f}M" for m in models), (models, n)
        assert all(m["details"]["quantization_level"] == "BF16" for m in models), models
    for name in *NAMES, "talebook", "gpt-4", "gpt-4:latest":
        o = server().ask("/api/show", {"model": name})[2]
        info = o["model_info"]
        assert info["general.architecture"] == "mixtral" and info["general.parameter_count"] == n, info
        assert (info["mixtral.context_length"], info["mixtral.embedding_length"]) == (1024, cfg["hidden_size"]), info
        assert o["capabilities"] == ["completion"] and "temperature 0\n" in o["parameters"], o
        with open(os.path.join(pack(), "chat_template.jinja"), encoding="utf-8") as f:
            assert o["template"] == f.read()
    assert all(int(part) >= 0 for part in server().ask("/api/version")[2]["version"].split("."))
    case = next(c for c in chat_scripts.call_cases() if c.reasoning)
    s = Server(pack_dir=chat_scripts.pack_of(case._replace(name="capable"))[0])
    assert s.ask("/api/show", {"name": "any"})[2]["capabilities"] == ["completion", "tools", "thinking"]
    assert s.stop() == 0, s.log


@test
def the_client_reads_them():
    c = client()
    assert [m.model for m in c.list().models] == [m.model for m in c.ps().models] == list(NAMES)
    assert all(m.digest and m.size and m.modified_at for m in c.list().models) and c.ps().models[0].expires_at.year == 9999
    assert c.show("talebook").modelinfo["general.architecture"] == "mixtral" and c.show("gpt-4").capabilities == ["completion"]
    whole = c.generate("talebook", PROMPT, options={"num_predict": 9})
    assert whole.response == generate("--resident", prompt=rendered([USER]).removeprefix("<s>"), tokens=9)["text"]
    assert "".join(p.response for p in c.generate("talebook", PROMPT, stream=True, options={"num_predict": 9})) == whole.response
    assert c.chat("talebook", [USER], options={"num_predict": 9}).message.content == whole.response
    pieces = list(c.chat("talebook", [USER], stream=True, options={"num_predict": 9}))
    assert "".join(p.message.content for p in pieces) == whole.response and pieces[-1].done_reason == "length", pieces


# ---- Refusals ----


BAD = [({"messages": 3}, "messages"), ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
       ({"messages": [{**USER, "images": 3}]}, "messages[0].images"), ({"messages": [USER], "tools": 3}, "tools"),
       ({"messages": [USER], "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
       ({"messages": [USER], "options": 3}, "options"), ({"messages": [USER], "options": {"temperature": "hot"}}, "temperature"),
       ({"messages": [USER], "options": {"mirostat": 1}}, "mirostat"), ({"messages": [USER], "format": "xml"}, "format"),
       ({"messages": [USER], "think": 3}, "think"), ({"messages": [USER], "stream": "yes"}, "stream"),
       ({"messages": [{"role": "user", "content": "king " * 2000}]}, "messages: prompt is too long")]
BAD_PROMPTS = [({"prompt": 3}, "prompt"), ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "template": "b"}, "template"),
               ({"prompt": "a", "context": [1]}, "context"), ({"prompt": "a", "raw": True, "images": ["A"]}, "images"),
               ({"prompt": "king " * 2000}, "prompt: prompt is too long"), ({"prompt": "king " * 2000, "raw": True}, "prompt: prompt is too long")]


@test
def wrong_fields_are_named():
    for path, rows in (CHAT, BAD), (GENERATE, BAD_PROMPTS):
        for fields, words in rows:
            for stream in {}, {"stream": False}:
                status, headers, o = server().ask(path, {**stream, **fields})
                assert status == 400 and list(o) == ["error"] and o["error"].startswith(words), (path, fields, status, o)
                assert headers["Content-Type"] == "application/json", headers


@test
def other_refusals_have_the_form_too():
    path = os.path.join(TMP, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write("the-key\n")
    s = Server("--model-name", "tales", "--alias", "fables", "--max-body", "64KiB", "--api-key-file", path)
    key = {"Authorization": "Bearer the-key"}
    good = {"messages": [USER], "options": {"num_predict": 1}}
    for name in "tales", "tales:latest", "fables", "fables:latest":
        assert s.ask(CHAT, {**good, "model": name}, headers=key)[0] == 200, name
    for body, headers, status, words in ({**good, "model": "tales:small"}, key, 404, "tales"), ({**good, "model": ":latest"}, key, 404, "tales"), \
            ({**good, "model": "tale:latest"}, key, 404, "tales"), ({**good, "model": "talesman:latest"}, key, 404, "tales"), \
            (b"{", key, 400, "not valid JSON"), (b"x" * 70000, key, 413, "--max-body"), (good, {}, 401, "API key"), \
            (good, {**key, "Content-Type": "text/plain"}, 415, "application/json"):
        for api in CHAT, GENERATE, "/api/show":
            found, _, o = s.ask(api, body, headers=headers)
            assert found == status and list(o) == ["error"] and words in o["error"], (api, found, o)
    assert s.stop() == 0, s.log


@test
def what_nothing_here_does_is_said():
    for path in "/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/rerank", "/v1/reranking", "/reranking":
        status, _, o = server().ask(path, {"input": "a"})
        assert status == 501 and o["error"]["type"] == "not_supported_error" and " not " in o["error"]["message"], (path, o)
    blob = "/api/blobs/sha256:00"
    for method, path in ("POST", "/api/embed"), ("POST", "/api/embeddings"), ("POST", "/api/pull"), ("POST", "/api/push"), \
            ("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", blob), ("GET", blob):
        for body in {"model": "a"}, b"\x00\x01":  # a blob is no JSON
            status, _, o = server().ask(path, body, method=method, headers={"Content-Type": "application/octet-stream"})
            assert status == 501 and list(o) == ["error"], (path, status, o)
            assert ("od-pack" if "embed" not in path else "embeddings") in o["error"], (path, o)
    assert server().ask(blob, method="HEAD")[0] == 501


@test
def the_client_gets_errors():
    ollama, c = client_module("ollama"), client()
    for call, status, words in (lambda: c.chat("m", [USER], options={"top_p": 2}), 400, "top_p"), (lambda: c.pull("m"), 501, "od-pack"), \
            (lambda: c.embed("m", "a"), 501, "embeddings"), (lambda: c.delete("m"), 501, "od-pack"), \
            (lambda: list(c.chat("m", [USER], stream=True, options={"top_p": 2})), 400, "top_p"):
        try:
            call()
            raise AssertionError(words)
        except ollama.ResponseError as e:
            assert e.status_code == status and words in e.error, e


@test
def a_stream_that_fails_says_so():
    s = Server("--parallel", 1, "--drain-seconds", 0.2, "--predictor", "none", "--worker-arg=--load-time=20", mode=("--local", 1))
    c = s.connect()
    c.request("POST", CHAT, json.dumps({"messages": [USER], "options": {"ignore_eos": True}}), {"Content-Type": "application/json"})
    r = c.getresponse()
    first = json.loads(r.readline())
    s.p.send_signal(signal.SIGTERM)
    last = json.loads(r.read().decode().strip().split("\n")[-1])
    assert first["done"] is False and list(last) == ["error"], (first, last)
    assert s.p.wait(timeout=HANG_S) == 0


# ---- Thoughts and tools ----


def check_turn(case, said):
    assert (said["content"], said.get("thinking", "")) == (case.content, case.reasoning), (case.name, said)
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in said["tool_calls"]]
    assert calls == [(c["name"], json.loads(c["arguments"])) for c in case.calls], (case.name, calls)
    assert [list(a) for _, a in calls] == [list(json.loads(c["arguments"])) for c in case.calls], (case.name, calls)
    return [c["id"] for c in said["tool_calls"]]


def tool_loop(case):
    pack_dir, n_tokens = chat_scripts.pack_of(case)
    s = Server(pack_dir=pack_dir)
    question = {"role": "user", "content": "Q"}
    given = {"tools": case.tools, "tokens": 400}
    o = asked(CHAT, s, messages=[question], **given)
    ids = check_turn(case, o["message"])
    assert o["done_reason"] == "stop" and o["eval_count"] == n_tokens["user"], (case.name, o)
    objects = lines(CHAT, s, messages=[question], tools=case.tools, options={"num_predict": 400})
    check_turn(case, gathered(objects))
    assert objects[-1]["done_reason"] == "stop", objects[-1]
    results = [{"role": "tool", "content": WEATHER, "tool_name": c["name"], "tool_call_id": i} for i, c in zip(ids, case.calls)]
    last = asked(CHAT, s, messages=[question, o["message"], *results], **given)
    assert (text_of(last), last["done_reason"], last["eval_count"]) == (chat_scripts.FINAL, "stop", n_tokens["tool"]), (case.name, last)
    # What comes back has lost how the model spelt numbers, spaces and escapes. The server remembers.
    expected = prompt_tokens([question, turn_of(case, ids), *results_of(ids)], pack_dir, tools=case.tools)
    assert last["prompt_eval_count"] == expected, (case.name, last, expected)
    # Clients that have no ids send none.
    for part in [*o["message"]["tool_calls"], *results]:
        part.pop("id", None), part.pop("tool_call_id", None)
    assert text_of(asked(CHAT, s, messages=[question, o["message"], *results], **given)) == chat_scripts.FINAL
    assert s.stop() == 0, s.log


@test
def tool_loops_of_every_family():
    names = []
    for case in chat_scripts.call_cases():
        tool_loop(case)
        names.append(case.name)
    assert len(names) > 25, names


@test
def the_client_calls_tools():
    case = next(c for c in chat_scripts.call_cases() if c.reasoning and c.calls)
    s = Server(pack_dir=chat_scripts.pack_of(case._replace(name="by the client"))[0])
    c, question = client(s), {"role": "user", "content": "Q"}
    pieces = list(c.chat("m", [question], tools=case.tools, stream=True, think=True))
    thought = "".join(p.message.thinking or "" for p in pieces)
    calls = [call for p in pieces for call in p.message.tool_calls or []]
    assert thought == case.reasoning and [x.function.name for x in calls] == [x["name"] for x in case.calls], pieces
    m = c.chat("m", [question], tools=case.tools).message
    assert m.thinking == case.reasoning and [x.function.arguments for x in m.tool_calls] == [json.loads(x["arguments"]) for x in case.calls]
    results = [{"role": "tool", "content": WEATHER, "tool_name": x.function.name} for x in m.tool_calls]
    assert c.chat("m", [question, m, *results], tools=case.tools).message.content == chat_scripts.FINAL
    assert s.stop() == 0, s.log


@test
def a_call_that_is_cut_is_text():
    """Its arguments would be no object."""
    case = next(c for c in chat_scripts.call_cases() if c.name == "hermes/call")
    pack_dir, n = chat_scripts.pack_of(case._replace(name="cut"))
    s = Server(pack_dir=pack_dir)
    cut = {"messages": [{"role": "user", "content": "Q"}], "tools": case.tools}
    whole = asked(CHAT, s, tokens=n["user"] - 4, **cut)
    streamed = gathered(lines(CHAT, s, options={"num_predict": n["user"] - 4}, **cut))
    assert whole["done_reason"] == "length" and "tool_calls" not in whole["message"], whole
    assert whole["message"]["content"] == streamed["content"] and case.text.startswith(streamed["content"]) and not streamed["tool_calls"]
    assert s.stop() == 0, s.log


run_tests()
