#!/usr/bin/env python3
"""/v1/responses with the official openai client: plain and streaming, refusals, and whole tool loops with models that recite what
models of each family write."""
import atexit
import json
import re
import signal
import time

import chat_scripts
from api_clients import client_module, openai_client
from cluster_util import HANG_S, SLOW, Skip, generate, run_tests, test
from dialog_util import PROMPT, WEATHER, named_events, prompt_tokens, rendered, results_of, turn_of
from serve_util import JSON, Server, stop_servers

atexit.register(stop_servers)
GREEDY = {"temperature": 0, "model": "talebook"}
USER = {"role": "user", "content": PROMPT}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 4))
    return _shared[0]


def respond(given=PROMPT, s=None, **fields):
    return openai_client(s or server()).responses.create(input=given, **{**GREEDY, **fields})


def comparable(response):
    """All of it that is the same whenever it is asked."""
    o = response.model_dump()
    for name in "id", "created_at":
        del o[name]
    for item in o["output"]:
        del item["id"]
        item.pop("call_id", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)  # the stream helper's own
        item.pop("parsed_arguments", None)
    if o["usage"]:
        del o["usage"]["input_tokens_details"]
    return o


# ---- Texts ----


@test
def greedy_text_is_that_of_od_main():
    tale = [USER, {"role": "assistant", "content": " who had a son."}, {"role": "user", "content": "One day"}]
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]},
             {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
              "content": [{"type": "output_text", "text": " who had a son.", "annotations": []}]},
             {"role": "user", "content": "One day"}]
    for given, messages, extra in (PROMPT, [USER], {}), (tale, tale, {}), (items, tale, {}), \
            (PROMPT, [{"role": "system", "content": "Be kind."}, USER], {"instructions": "Be kind."}):
        a = generate("--resident", prompt=rendered(messages).removeprefix("<s>"), tokens=24)
        o = respond(given, max_output_tokens=24, **extra)
        assert o.output_text == a["text"] and len(o.output) == 1 and o.output[0].role == "assistant", (o, a)
        assert o.object == "response" and o.model == "talebook" and o.store is False and o.id.startswith("resp_")
        assert o.status == ("completed" if a["finish"] == "eos" else "incomplete") and o.output[0].status == o.status, (o, a["finish"])
        assert o.incomplete_details is None if a["finish"] == "eos" else o.incomplete_details.reason == "max_output_tokens"
        assert o.usage.input_tokens == len(a["prompt_ids"]) and o.usage.output_tokens == len(a["token_ids"])
        assert o.usage.total_tokens == o.usage.input_tokens + o.usage.output_tokens
        assert o.usage.output_tokens_details.reasoning_tokens == 0 and o.usage.input_tokens_details.cached_tokens >= 0


@test
def the_stream_helper_gathers_the_plain_answer():
    stop = {"stop": " was"}  # not OpenAI's: it completes a text of a model that never ends
    whole = respond(extra_body=stop)
    assert whole.status == "completed" and whole.output_text
    with openai_client(server()).responses.stream(input=PROMPT, extra_body=stop, **GREEDY) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert comparable(final) == comparable(whole)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [e.snapshot for e in events if e.type == "response.output_text.delta"][-1] == whole.output_text


@test
def events_come_in_order():
    events, _ = named_events(server(), "/v1/responses", {"input": PROMPT, "max_output_tokens": 5, "temperature": 0})
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    text = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert [e["type"].removeprefix("response.") for e in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * len(text), "output_text.done",
        "content_part.done", "output_item.done", "incomplete"]
    whole = respond(max_output_tokens=5).output_text
    first, last = events[0]["response"], events[-1]["response"]
    assert "".join(text) == whole == events[-4]["text"] == events[-3]["part"]["text"] == events[-2]["item"]["content"][0]["text"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None) and first["id"] == last["id"]
    assert events[1]["response"] == first
    assert last["status"] == "incomplete" and last["output"] == [events[-2]["item"]] and last["usage"]["output_tokens"] == 5
    assert {e["item_id"] for e in events if "item_id" in e} == {events[-2]["item"]["id"]} == {events[2]["item"]["id"]}


@test
def a_stream_tells_its_progress():
    _, comments = named_events(server(), "/v1/responses", {"input": "king " * 900, "max_output_tokens": 2})
    assert any("prompt" in c and "/9" in c for c in comments), comments


@test
def limits_and_seeds():
    assert respond(max_output_tokens=7).usage.output_tokens == 7
    texts = [respond(max_output_tokens=12, temperature=1.2, extra_body={"seed": seed}).output_text for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2], texts
    a = generate("--resident", "--seed", 5, "--temperature", 1.2, prompt=rendered([USER]).removeprefix("<s>"), tokens=12)
    assert texts[0] == a["text"]
    whole = respond(max_output_tokens=60).output_text
    word = whole.split()[5]
    o = respond(max_output_tokens=60, extra_body={"stop": [word]})
    assert (o.output_text, o.status) == (whole[:whole.index(word)], "completed"), o


@test
def log_probabilities_are_those_of_completions():
    expected = server().complete(rendered([USER]).removeprefix("<s>"), 8, logprobs=3)["choices"][0]["logprobs"]
    ask = {"max_output_tokens": 8, "top_logprobs": 3, "include": ["message.output_text.logprobs"]}
    got = respond(**ask).output[0].content[0].logprobs
    assert [t.token for t in got] == expected["tokens"] and [t.logprob for t in got] == expected["token_logprobs"]
    for t, top in zip(got, expected["top_logprobs"]):
        assert bytes(t.bytes).decode() == t.token and {a.token: a.logprob for a in t.top_logprobs}.items() <= top.items()
        assert len(t.top_logprobs) == 3
    events, _ = named_events(server(), "/v1/responses", {"input": PROMPT, "temperature": 0, **ask})
    deltas = [t["token"] for e in events if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
    assert deltas == expected["tokens"] == [t["token"] for e in events if e["type"] == "response.output_text.done" for t in e["logprobs"]]
    assert respond(max_output_tokens=2).output[0].content[0].logprobs == []


@test
def the_request_is_repeated():
    asked = {"instructions": "Be kind.", "max_output_tokens": 3, "metadata": {"a": "b"}, "parallel_tool_calls": False, "tools": [FUNCTION],
             "tool_choice": "auto", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "top_p": 0.5, "top_logprobs": 2,
             "temperature": 0}
    o = server().ask("/v1/responses", {"input": PROMPT, **asked})[2]
    assert {k: o[k] for k in asked} == asked and o["previous_response_id"] is None and o["error"] is None and o["background"] is False
    plain = respond(max_output_tokens=2)
    assert (plain.tools, plain.tool_choice, plain.parallel_tool_calls, plain.metadata, plain.truncation) == ([], "auto", True, {}, "disabled")


# ---- Refusals ----

BAD_FIELDS = [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": ["a"]}, "input[0]"),
    ({"input": [USER, {"content": "a"}]}, "input[1].role"), ({"input": "king " * 2000}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"), ({"input": [{"type": 3}]}, "input[0].type"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "c"}, "conversation"), ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"), ({"instructions": 3}, "instructions"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format"), ({"truncation": "none"}, "truncation"),
    ({"tools": [{"type": 3}]}, "tools[0].type"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "mcp", "server_label": "s"}}, "tool_choice"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"top_logprobs": 21}, "top_logprobs"), ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"), ({"metadata": 3}, "metadata"), ({"reasoning": 3}, "reasoning"), ({"include": 3}, "include"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ({"metadata": {"a": "x" * 2**20}}, "metadata"), ({"tools": [{**FUNCTION, "parameters": {"x": "x" * 2**20}}]}, "tools"),
]


@test
def wrong_fields_are_named():
    for fields, param in BAD_FIELDS:
        for stream in False, True:
            status, _, o = server().ask("/v1/responses", {"input": "a", "stream": stream, **fields})
            assert status == 400 and o["error"]["param"] == param and param in o["error"]["message"], (fields, status, o)


# What coding agents send, and a server that runs no tools gets again at every later turn.
HOSTED = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "local_shell"},
          {"type": "mcp", "server_label": "s"}, {"type": "file_search"}, {"type": "image_generation"}, {"type": "tool_from_tomorrow"}]
EMPTY_ITEMS = [{"type": "item_reference", "id": "x"}, {"type": "compaction", "encrypted_content": "x"}, {"type": "mcp_list_tools", "tools": []},
               {"type": "reasoning", "summary": [], "encrypted_content": "x"}, {"type": "item_from_tomorrow"}]


@test
def what_nothing_here_runs_is_left_out():
    """The prompt is that without it, and the log says so once for each kind."""
    s = Server()
    ask = lambda **fields: s.ask("/v1/responses", {"input": [USER], "max_output_tokens": 4, "temperature": 0, **fields})
    plain = ask()[2]
    for fields in {"tools": HOSTED}, {"input": [*EMPTY_ITEMS, USER]}, {"tools": [FUNCTION], "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}}:
        for _ in range(2):
            status, _, o = ask(**fields)
            assert status == 200 and o["usage"]["input_tokens"] == plain["usage"]["input_tokens"], (fields, o)
    for item in {"type": "input_image", "image_url": "data:image/png;base64,AA"}, {"type": "input_file", "file_id": "x"}, {"type": "input_audio"}:
        assert ask(input=[{"role": "user", "content": [item]}])[0] == 200, item
    for item in {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}}, {"type": "computer_call_output", "call_id": "c",
                 "output": {"type": "computer_screenshot"}}, {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}:
        assert ask(input=[USER, item, USER])[0] == 200, item
    assert s.stop() == 0, s.log
    for kind in [t["type"] for t in HOSTED] + ["item_reference", "compaction", "item_from_tomorrow", "input_image"]:
        assert len(re.findall(r'of type \\?"%s\\?"' % kind, s.log)) == 1, (kind, s.log)


@test
def functions_of_a_namespace_can_be_called():
    """The model has one name, the client gets both back, and sends both with the call."""
    tools = [{"type": "namespace", "name": "mcp__s", "description": "d", "tools": [{**FUNCTION, "name": "look"}]}]
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}" \
               "<tool_call>{% if tools and tools[0].function.name != 'mcp__s__look' %}{{ raise_exception(tools|tojson) }}{% endif %}"
    text = '<tool_call>\n{"name": "mcp__s__look", "arguments": {"a": 1}}\n</tool_call>'
    case = chat_scripts.Case("namespace", template, [], text, "", "", [], chat_scripts.EOS)
    s = Server(pack_dir=chat_scripts.pack_of(case)[0])
    for stream in False, True:
        status, _, o = s.ask("/v1/responses", {"input": [USER], "tools": tools, "stream": stream})
        assert status == 200, o
        if stream:
            events = [json.loads(e[6:]) for e in o.decode().split("\n") if e.startswith("data: {")]
            added = [e["item"] for e in events if e["type"] == "response.output_item.added"][0]
            assert (added["name"], added["namespace"]) == ("look", "mcp__s"), added
            o = events[-1]["response"]
        item = o["output"][0]
        assert (item["type"], item["name"], item["namespace"], item["arguments"]) == ("function_call", "look", "mcp__s", '{"a": 1}'), o
    back = [USER, item, {"type": "function_call_output", "call_id": item["call_id"], "output": "r"}]
    assert s.ask("/v1/responses", {"input": back, "tools": tools})[0] == 200
    assert s.stop() == 0, s.log


@test
def integers_of_any_size_reach_the_template():
    """In every API, as Python's json.dumps writes them; answers have a number there too."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}" \
               "<tool_call>{% if k %}{{ raise_exception(tools[0].function.parameters|tojson ~ k) }}{% endif %}" \
               "{% if tools and tools[0].function.name == 'big' %}{{ raise_exception(tools[0].function.parameters|tojson) }}{% endif %}"
    case = chat_scripts.Case("digits", template, [], "text", "", "", [], chat_scripts.EOS)
    s = Server(pack_dir=chat_scripts.pack_of(case)[0])
    schema = {"type": "object", "properties": {"n": {"maximum": 2 ** 64 - 1, "enum": [10 ** 30, -2 ** 63 - 1, 1e22]}}}
    function = {"name": "big", "parameters": schema}
    chat = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    for path, body, k in ("chat/completions", chat, ""), ("chat/completions", {**chat, "chat_template_kwargs": {"k": 2 ** 64}}, str(2 ** 64)), \
                         ("responses", {"input": [USER], "tools": [{"type": "function", **function}]}, ""), \
                         ("messages", {"messages": [USER], "max_tokens": 8, "tools": [{"name": "big", "input_schema": schema}]}, ""):
        status, _, o = s.ask("/v1/" + path, body)
        assert status == 400 and json.dumps(schema) + k in json.dumps(o).replace('\\"', '"'), (path, status, o)
    status, _, o = s.ask("/v1/responses", {"input": [USER], "tools": [{"type": "function", **function, "name": "other"}]})
    assert status == 200 and o["tools"][0]["parameters"]["properties"]["n"]["maximum"] == 2 ** 64, (status, o)  # a double
    assert s.stop() == 0, s.log


@test
def the_client_gets_errors():
    openai = client_module("openai")
    for fields, param in ({"top_p": 2}, "top_p"), ({"previous_response_id": "resp_1"}, "previous_response_id"):
        try:
            respond(**fields)
            raise AssertionError(fields)
        except openai.BadRequestError as e:
            assert e.status_code == 400 and e.param == param, e
    try:
        respond("king " * 2000)
        raise AssertionError
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded", e


@test
def what_changes_nothing_is_ignored():
    text = respond(max_output_tokens=8).output_text
    for fields in {"store": False}, {"store": True}, {"truncation": "auto"}, {"reasoning": {"effort": "low", "summary": "auto"}}, {"user": "u"}, \
                  {"include": ["reasoning.encrypted_content"]}, {"tools": [FUNCTION]}, {"tool_choice": "auto"}, {"prompt_cache_key": "k"}, \
                  {"service_tier": "auto"}, {"text": {"verbosity": "low"}}, {"extra_body": {"unknown": 1}}:
        assert respond(max_output_tokens=8, **fields).output_text == text, fields


def texts(s):
    """How many have come, by one answer: between two of them a text may move on."""
    names = r'od_texts_running|od_texts_waiting|od_texts_total\{finish="length"\}'
    return sum(map(int, re.findall(rf"^(?:{names}) (\d+)$", s.ask("/metrics")[2].decode(), re.M)))


@test
def what_waits_takes_little_memory():
    if SLOW:
        raise Skip("sanitizers keep what is freed")
    s = Server("--parallel", 1, "--prefix-cache-mib", 0)  # texts that end meanwhile leave nothing
    ahead = [s.open_stream(prompt=f"{PROMPT} {i}", max_tokens=900, ignore_eos=True) for i in range(30)]
    before = s.rss_kib()
    body = json.dumps({"input": PROMPT, "max_tokens": 2, "messages": [USER], "unknown": [0] * 1_000_000})  # 47 MiB when parsed
    waiting = [s.connect() for _ in range(12)]
    for i, c in enumerate(waiting):
        c.request("POST", "/v1/messages" if i % 2 else "/v1/responses", body, JSON)
        while texts(s) <= len(ahead) + i:
            time.sleep(0.01)
    assert s.metric("od_texts_waiting") > 12, "too few were ahead of them"
    more = (s.rss_kib() - before) // 1024
    assert more < 250, f"12 requests that wait take {more} MiB"
    for c, _ in ahead:
        c.close()
    assert s.stop() == 0


@test
def a_response_that_fails_says_so():
    s = Server("--parallel", 1, "--drain-seconds", 0.2, "--predictor", "none", "--worker-arg=--load-time=20", mode=("--local", 1))
    events = []
    for e in respond("king", s, temperature=1, stream=True, extra_body={"ignore_eos": True}):
        events.append(e)
        if e.type == "response.output_text.delta" and len(events) == 6:
            s.p.send_signal(signal.SIGTERM)
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed", events[-1]
    assert events[-1].response.error.code == "server_error" and events[-1].response.error.message, events[-1]
    assert s.p.wait(timeout=HANG_S) == 0


# ---- Tools ----


def tools_of(case):
    return [{"type": "function", **t["function"]} for t in case.tools]


def check_turn(case, o):
    calls = [i for i in o.output if i.type == "function_call"]
    kinds = [i.type for i in o.output]
    assert o.status == "completed" and all(i.status == "completed" for i in o.output), (case.name, o)
    assert o.output_text == case.content, (case.name, o)
    assert "".join(c.text for i in o.output if i.type == "reasoning" for c in i.content) == case.reasoning, (case.name, o)
    assert (o.usage.output_tokens_details.reasoning_tokens > 0) == bool(case.reasoning)
    assert [(c.name, c.arguments) for c in calls] == [(c["name"], c["arguments"]) for c in case.calls], (case.name, o)
    assert len({c.call_id for c in calls}) == len(calls) and len({i.id for i in o.output}) == len(o.output)
    assert not case.reasoning or kinds[0] == "reasoning", kinds
    return [c.call_id for c in calls]


def tool_loop(case):
    pack_dir, _ = chat_scripts.pack_of(case)
    s = Server(pack_dir=pack_dir)
    given = {"tools": tools_of(case), "max_output_tokens": 400}
    question = {"role": "user", "content": "Q"}
    o = respond([question], s, **given)
    ids = check_turn(case, o)
    with openai_client(s).responses.stream(input=[question], **GREEDY, **given) as stream:
        streamed = stream.get_final_response()
    check_turn(case, streamed)
    if "id" not in case.calls[0]:
        assert comparable(streamed) == comparable(o), case.name
    history = [question, *o.output, *({"type": "function_call_output", "call_id": i, "output": WEATHER} for i in ids)]
    last = respond(history, s, **given)
    assert last.output_text == chat_scripts.FINAL and last.status == "completed" and len(last.output) == 1, (case.name, last)
    assert last.usage.input_tokens == prompt_tokens([question, turn_of(case, ids), *results_of(ids)], pack_dir, tools=case.tools), case.name
    assert s.stop() == 0, s.log


@test
def tool_loops_of_every_family():
    names = []
    for case in chat_scripts.call_cases():
        tool_loop(case)
        names.append(case.name)
    assert len(names) > 25, names


@test
def a_call_s_events():
    case = next(c for c in chat_scripts.call_cases() if c.name == "hermes/call")
    s = Server(pack_dir=chat_scripts.pack_of(case._replace(name="events"))[0])
    events, _ = named_events(s, "/v1/responses", {"input": "Q", "tools": tools_of(case)})
    call = [e for e in events if e.get("output_index") == len(events[-1]["response"]["output"]) - 1]
    deltas = [e["delta"] for e in call if e["type"] == "response.function_call_arguments.delta"]
    assert [e["type"].removeprefix("response.") for e in call] == [
        "output_item.added", *["function_call_arguments.delta"] * len(deltas), "function_call_arguments.done", "output_item.done"], call
    assert call[0]["item"]["arguments"] == "" and "".join(deltas) == call[-2]["arguments"] == call[-1]["item"]["arguments"], call
    assert call[-1]["item"] == events[-1]["response"]["output"][-1] and events[-1]["type"] == "response.completed"
    assert s.stop() == 0, s.log


run_tests()
