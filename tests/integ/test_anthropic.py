#!/usr/bin/env python3
"""/v1/messages with the official anthropic client: plain and streaming, refusals, keys, and whole tool loops with models that recite
what models of each family write."""
import atexit
import json
import os
import signal

import chat_scripts
from api_clients import client_module
from cluster_util import HANG_S, TMP, generate, run_tests, test
from dialog_util import PROMPT, WEATHER, named_events, prompt_tokens, rendered, results_of, turn_of
from serve_util import Server, stop_servers

atexit.register(stop_servers)
USER = {"role": "user", "content": PROMPT}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 4))
    return _shared[0]


def client(s=None, **options):
    if not options:
        options = {"api_key": "none"}
    return client_module("anthropic").Anthropic(base_url=f"http://127.0.0.1:{(s or server()).port}", max_retries=0, **options)


SAMPLING = "temperature", "top_p", "top_k", "seed", "ignore_eos"  # in the API or of ours, and not in this client


def defaults(fields):
    extra = {**fields.pop("extra_body", {}), **{name: fields.pop(name) for name in SAMPLING if name in fields}}
    return {"model": "talebook", "max_tokens": 24, "messages": [USER], "extra_body": extra, **fields}


def ask(s=None, **fields):
    """Greedy, as the model's settings are."""
    return client(s).messages.create(**defaults(fields))


def gathered(s=None, **fields):
    with client(s).messages.stream(**defaults(fields)) as stream:
        return stream.get_final_message()


def total_input(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def comparable(message):
    """All of it that is the same whenever it is asked."""
    o = message.model_dump()
    o["usage"] = [total_input(message.usage), message.usage.output_tokens]
    for block in o["content"]:
        block.pop("parsed_output", None)  # the stream helper's own
        block.pop("id", None)
    del o["id"]
    return o


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


# ---- Texts ----


@test
def greedy_text_is_that_of_od_main():
    tale = [USER, {"role": "assistant", "content": " who had a son."}, {"role": "user", "content": "One day"}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": PROMPT, "cache_control": {"type": "ephemeral"}}]},
              {"role": "assistant", "content": [{"type": "text", "text": " who had"}, {"type": "text", "text": " a son."}]}, tale[2]]
    kind = [{"role": "system", "content": "Be kind."}, USER]
    for messages, expected, extra in ([USER], [USER], {}), (tale, tale, {}), (blocks, tale, {}), ([USER], kind, {"system": "Be kind."}), \
            ([USER], kind, {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be kind."}]}):
        a = generate("--resident", prompt=rendered(expected).removeprefix("<s>"), tokens=24)
        m = ask(messages=messages, **extra)
        assert text_of(m) == a["text"] and [b.type for b in m.content] == ["text"], (m, a)
        assert (m.type, m.role, m.model, m.stop_sequence) == ("message", "assistant", "talebook", None) and m.id.startswith("msg_")
        assert m.stop_reason == ("end_turn" if a["finish"] == "eos" else "max_tokens"), (m, a["finish"])
        assert total_input(m.usage) == len(a["prompt_ids"]) and m.usage.output_tokens == len(a["token_ids"])
        count = client().messages.count_tokens(model="talebook", messages=messages, **extra)
        assert count.input_tokens == len(a["prompt_ids"]), (count, a)


@test
def answers_have_the_published_form():
    types, s = client_module("anthropic.types"), server()
    page = s.ask("/v1/models")[2]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "talebook", "talebook"), page
    for o in *page["data"], s.ask("/v1/models/talebook")[2]:
        m = types.ModelInfo.model_validate_json(json.dumps(o), strict=True)
        assert (m.id, m.type, m.display_name, m.max_input_tokens) == ("talebook", "model", "talebook", 1024), m
        assert m.created_at.timestamp() == o["created"], (m, o)
    assert [m.id for m in client().models.list()] == ["talebook"]
    body = {"max_tokens": 4, "messages": [USER]}
    types.Message.model_validate_json(json.dumps(s.ask("/v1/messages", body)[2]), strict=True)
    m = ask()
    assert m._request_id and m.id == "msg_" + m._request_id, (m.id, m._request_id)
    status, headers, o = s.ask("/v1/messages", {})
    assert status == 400 and headers["request-id"] == o["request_id"], (headers, o)


@test
def the_stream_helper_gathers_the_plain_answer():
    for fields in {}, {"stop_sequences": [" was"], "max_tokens": 60}, {"max_tokens": 1}:
        whole, streamed = ask(**fields), gathered(**fields)
        assert comparable(streamed) == comparable(whole), (streamed, whole)
    with client().messages.stream(**defaults({})) as stream:
        assert "".join(stream.text_stream) == text_of(ask())


@test
def events_come_in_order():
    events, _ = named_events(server(), "/v1/messages", {"messages": [USER], "max_tokens": 5})
    text = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert [e["type"] for e in events] == ["message_start", "ping", "content_block_start", *["content_block_delta"] * len(text),
                                           "content_block_stop", "message_delta", "message_stop"]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0) and start["usage"]["input_tokens"] > 0
    assert "".join(text) == text_of(ask(max_tokens=5)) and events[-2]["usage"]["output_tokens"] == 5
    assert {e["index"] for e in events if "index" in e} == {0}


@test
def a_stream_tells_its_progress():
    _, comments = named_events(server(), "/v1/messages", {"messages": [{"role": "user", "content": "king " * 900}], "max_tokens": 2})
    assert any("prompt" in c and "/9" in c for c in comments), comments


@test
def a_stop_sequence_is_named():
    whole = text_of(ask(max_tokens=60))
    word = whole.split()[5]
    for stops in [word], ["never comes", word]:
        m = ask(max_tokens=60, stop_sequences=stops)
        assert (text_of(m), m.stop_reason, m.stop_sequence) == (whole[:whole.index(word)], "stop_sequence", word), m
    assert ask(max_tokens=9, stop_sequences=["never comes"]).stop_reason == "max_tokens"


@test
def sampling_settings():
    def text(seed):
        return text_of(ask(max_tokens=12, seed=seed, temperature=1, top_k=50, top_p=0.9))

    a = generate("--resident", "--seed", 5, "--temperature", 1, "--top-k", 50, "--top-p", 0.9, prompt=rendered([USER]).removeprefix("<s>"),
                 tokens=12)
    assert text(5) == text(5) == a["text"] != text(6)
    end = gathered(messages=[{"role": "user", "content": "king " * 1000}], max_tokens=100000, temperature=1, seed=2, ignore_eos=True)
    assert end.stop_reason == "model_context_window_exceeded", end


@test
def a_follow_up_counts_what_was_cached():
    s = Server("--parallel", 2)
    long = [{"role": "user", "content": "king " * 200}]
    first = ask(s, messages=long)
    assert first.usage.cache_read_input_tokens == 0 and first.usage.input_tokens > 0
    with client(s).messages.stream(**defaults({"max_tokens": 200, "messages": long})) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                again = ask(s, messages=long)  # while the first one's KV cache is there
                break
    assert again.usage.cache_read_input_tokens > 0 and total_input(again.usage) == total_input(first.usage), again.usage
    assert s.stop() == 0, s.log


@test
def the_answer_goes_on_with_a_last_text_of_the_assistant():
    """As chat completions do with continue_final_message; an empty one changes nothing."""
    def told(*messages):
        status, _, o = server().ask("/v1/messages", {"max_tokens": 9, "temperature": 0, "messages": [USER, *messages]})
        assert status == 200, o
        return o["content"][0]["text"], sum(v for k, v in o["usage"].items() if k != "output_tokens")

    last = {"role": "assistant", "content": "The king"}
    o = server().ask("/v1/chat/completions", {"max_tokens": 9, "temperature": 0, "messages": [USER, last], "continue_final_message": True})[2]
    assert told(last) == (o["choices"][0]["message"]["content"], o["usage"]["prompt_tokens"]), o
    assert told(last) != told() == told({"role": "assistant", "content": []})


# ---- Refusals and keys ----

BAD_MESSAGES = [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": 3}]}]}, "messages[0].content[0].type"),
    ({"system": 3}, "system"), ({"tools": 3}, "tools"), ({"tools": [3]}, "tools[0]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"), ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"), ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_format.schema"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"), ({"max_tokens": 0}, "max_tokens"), ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"), ({"top_k": 1.5}, "top_k"), ({"stop_sequences": 3}, "stop_sequences"), ({"stream": 3}, "stream"),
]
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
BAD_ANSWERS = [({"messages": [USER, CALL]}, "messages"), ({"max_tokens": None}, "max_tokens"),
               ({"logit_bias": 3}, "logit_bias"), ({"messages": [{"role": "user", "content": "king " * 2000}]}, "messages")]


def check_error(o, kind, words):
    assert o["type"] == "error" and o["error"]["type"] == kind and words in o["error"]["message"] and o["request_id"], o


@test
def wrong_fields_are_named():
    for path, rows in ("/v1/messages", BAD_MESSAGES + BAD_ANSWERS), ("/v1/messages/count_tokens", BAD_MESSAGES):
        for fields, param in rows:
            status, _, o = server().ask(path, {"max_tokens": 9, "messages": [USER], **fields})
            assert status == 400, (path, fields, status, o)
            check_error(o, "invalid_request_error", param)


@test
def what_nothing_here_runs_is_left_out():
    """Tools and servers of tools, and blocks that are no text."""
    count = lambda **fields: server().ask("/v1/messages/count_tokens", {"messages": [USER], **fields})
    plain = count()[2]
    for fields in {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]}, \
                  {"mcp_servers": [{"type": "url"}]}:
        assert count(**fields)[::2] == (200, plain), (fields, plain)
    for block in {"type": "image", "source": {}}, {"type": "document", "source": {"type": "base64", "data": "AA"}}, {"type": "container_upload"}, \
                 {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}, {"type": "tool_reference", "tool_name": "f"}]}:
        status, _, o = count(messages=[{"role": "user", "content": [block]}])
        assert status == 200 and o["input_tokens"] > 0, (block, o)
    used = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "title": "t", "url": "u"}]}]
    assert count(messages=[USER, {"role": "assistant", "content": used}, USER])[0] == 200
    assert count(messages=[USER, {"role": "system", "content": "s"}, USER, USER])[0] == 200


@test
def other_refusals_have_the_form_too():
    s = Server("--model-name", "tales", "--max-body", "64KiB")
    good = {"model": "tales", "max_tokens": 2, "messages": [USER]}
    assert s.ask("/v1/messages", good)[0] == 200
    for body, headers, status, kind, words in ({**good, "model": "claude"}, {}, 404, "not_found_error", "tales"), \
            (b"{", {}, 400, "invalid_request_error", "not valid JSON"), (b"x" * 70000, {}, 413, "request_too_large", "--max-body"), \
            (good, {"Content-Type": "text/plain"}, 415, "invalid_request_error", "application/json"):
        for path in "/v1/messages", "/v1/messages/count_tokens":
            found, _, o = s.ask(path, body, headers=headers)
            assert found == status, (found, o)
            check_error(o, kind, words)
    assert s.stop() == 0, s.log


@test
def the_client_gets_errors():
    anthropic = client_module("anthropic")
    try:
        ask(top_p=2)
        raise AssertionError
    except anthropic.BadRequestError as e:
        assert e.status_code == 400 and e.body["error"]["type"] == "invalid_request_error" and "top_p" in str(e), e
    long = [{"role": "user", "content": "king " * 2000}]
    tokens = client().messages.count_tokens(model="talebook", messages=long).input_tokens
    assert tokens > 1024, tokens
    for send in ask, gathered:
        try:
            send(messages=long)
            raise AssertionError(send)
        except anthropic.BadRequestError as e:
            assert f"prompt is too long: {tokens} tokens > 1024 maximum" in str(e), e


@test
def keys_come_in_either_header():
    anthropic = client_module("anthropic")
    path = os.path.join(TMP, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write("the-key\n")
    s = Server("--api-key-file", path)
    for options in {"api_key": "the-key"}, {"auth_token": "the-key"}:
        m = client(s, **options).messages.create(**defaults({}))
        assert text_of(m) == text_of(ask())
    for options in {"api_key": "another"}, {"auth_token": "another"}:
        try:
            client(s, **options).messages.create(**defaults({}))
            raise AssertionError(options)
        except anthropic.AuthenticationError as e:
            assert e.body["type"] == "error" and e.body["error"]["type"] == "authentication_error", e.body
    assert s.stop() == 0, s.log


@test
def what_changes_nothing_is_ignored():
    text = text_of(ask())
    for fields in {"metadata": {"user_id": "u"}}, {"service_tier": "auto"}, {"thinking": {"type": "disabled"}}, {"tools": [TOOL]}, \
                  {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"output_config": {"effort": "low"}}, \
                  {"tools": [TOOL], "tool_choice": {"type": "none"}}, {"extra_headers": {"anthropic-beta": "x", "anthropic-version": "2099-01-01"}}, \
                  {"extra_body": {"unknown": 1, "context_management": {"edits": []}}}:
        assert text_of(ask(**fields)) == text, fields
    beta = client().beta.messages  # its paths end with ?beta=true
    assert beta.create(betas=["x-1"], **defaults({})).content[0].text == text
    assert beta.count_tokens(model="talebook", messages=[USER]).input_tokens == client().messages.count_tokens(model="talebook", messages=[USER]).input_tokens


@test
def a_stream_that_fails_says_so():
    anthropic = client_module("anthropic")
    s = Server("--parallel", 1, "--drain-seconds", 0.2, "--predictor", "none", "--worker-arg=--load-time=20", mode=("--local", 1))
    n = 0
    try:
        with client(s).messages.stream(**defaults({"max_tokens": 1000, "temperature": 1, "ignore_eos": True})) as stream:
            for _ in stream.text_stream:
                n += 1
                if n == 1:
                    s.p.send_signal(signal.SIGTERM)
        raise AssertionError(n)
    except anthropic.APIStatusError as e:
        assert e.body["error"]["type"] == "overloaded_error" and n > 0, e.body
    assert s.p.wait(timeout=HANG_S) == 0


# ---- Thoughts and tools ----


def tools_of(case):
    return [{"name": t["function"]["name"], "description": t["function"].get("description", ""), "input_schema": t["function"]["parameters"]}
            for t in case.tools]


def openai_tools(tools):
    return [{"type": "function", "function": {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]}}
            for t in tools]


def check_turn(case, m):
    calls = [b for b in m.content if b.type == "tool_use"]
    assert m.stop_reason == "tool_use" and text_of(m) == case.content, (case.name, m)
    assert "".join(b.thinking for b in m.content if b.type == "thinking") == case.reasoning, (case.name, m)
    assert all(b.signature for b in m.content if b.type == "thinking")
    assert [(c.name, c.input) for c in calls] == [(c["name"], json.loads(c["arguments"])) for c in case.calls], (case.name, m)
    assert [list(c.input) for c in calls] == [list(json.loads(c["arguments"])) for c in case.calls], (case.name, m)
    return [c.id for c in calls]


def tool_loop(case):
    pack_dir, n_tokens = chat_scripts.pack_of(case)
    s = Server(pack_dir=pack_dir)
    given = {"tools": tools_of(case), "max_tokens": 400}
    question = {"role": "user", "content": "Q"}
    m = ask(s, messages=[question], **given)
    ids = check_turn(case, m)
    streamed = gathered(s, messages=[question], **given)
    check_turn(case, streamed)
    assert comparable(streamed) == comparable(m) and m.usage.output_tokens == n_tokens["user"], case.name
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": WEATHER} for i in ids]}
    history = [question, {"role": "assistant", "content": m.content}, results]
    last = ask(s, messages=history, **given)
    assert (text_of(last), last.stop_reason) == (chat_scripts.FINAL, "end_turn"), (case.name, last)
    # What the client sends back has lost how the model spelt numbers, spaces and escapes. The server remembers.
    expected = prompt_tokens([question, turn_of(case, ids), *results_of(ids)], pack_dir, tools=openai_tools(given["tools"]))
    assert total_input(last.usage) == expected, (case.name, last.usage, expected)
    assert s.stop() == 0, s.log


@test
def tool_loops_of_every_family():
    names = []
    for case in chat_scripts.call_cases():
        tool_loop(case)
        names.append(case.name)
    assert len(names) > 25, names


@test
def calls_of_another_server_are_spelt_as_most_models_do():
    case = next(c for c in chat_scripts.call_cases() if c.name == "hermes/call")
    pack_dir, _ = chat_scripts.pack_of(case._replace(name="restarted"))
    s = Server(pack_dir=pack_dir)
    ids = [f"toolu_{i}" for i in range(len(case.calls))]
    question, tools = {"role": "user", "content": "Q"}, tools_of(case)
    uses = [{"type": "tool_use", "id": i, "name": c["name"], "input": json.loads(c["arguments"])} for i, c in zip(ids, case.calls)]
    results = [{"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": WEATHER}]} for i in ids]
    last = ask(s, messages=[question, {"role": "assistant", "content": uses}, {"role": "user", "content": results}], tools=tools)
    assert total_input(last.usage) == prompt_tokens([question, {**turn_of(case, ids), "content": None}, *results_of(ids)], pack_dir,
                                                    tools=openai_tools(tools))
    assert s.stop() == 0, s.log


@test
def thoughts_come_apart_and_go_back():
    case = next(c for c in chat_scripts.call_cases() if c.reasoning)
    events = named_events(Server(pack_dir=chat_scripts.pack_of(case._replace(name="thinks"))[0]), "/v1/messages",
                          {"messages": [{"role": "user", "content": "Q"}], "tools": tools_of(case), "max_tokens": 400})[0]
    thought = [e for e in events if e.get("index") == 0]
    kinds = [e["delta"]["type"] for e in thought if e["type"] == "content_block_delta"]
    assert thought[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}, thought[0]
    assert kinds == ["thinking_delta"] * (len(kinds) - 1) + ["signature_delta"] and thought[-1]["type"] == "content_block_stop", kinds
    assert "".join(e["delta"].get("thinking", "") for e in thought if "delta" in e) == case.reasoning


@test
def one_call_only():
    case = next(c for c in chat_scripts.call_cases() if len(c.calls) > 1)
    s = Server(pack_dir=chat_scripts.pack_of(case._replace(name="one call"))[0])
    for choice, n in ({"type": "auto"}, len(case.calls)), ({"type": "auto", "disable_parallel_tool_use": True}, 1):
        m = ask(s, messages=[{"role": "user", "content": "Q"}], tools=tools_of(case), max_tokens=400, tool_choice=choice)
        assert len([b for b in m.content if b.type == "tool_use"]) == n and m.stop_reason == "tool_use", m
    assert s.stop() == 0, s.log


run_tests()
