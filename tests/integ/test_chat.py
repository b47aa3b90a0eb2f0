#!/usr/bin/env python3
"""/v1/chat/completions with the official openai client: plain and streaming, refusals, and whole tool loops with models that recite
what models of each family write."""
import atexit
import json
import os
import random
import shutil

import chat_scripts
from api_clients import client_module, openai_client
from cluster_util import TMP, generate, pack, run_tests, test, tool
from scripted_checkpoint import write_scripted
from serve_util import Server, parse_events, stop_servers

atexit.register(stop_servers)
PROMPT = "Once upon a time there was a king"
USER = [{"role": "user", "content": PROMPT}]
TALE = [*USER, {"role": "assistant", "content": " who had a son."}, {"role": "user", "content": "One day"}]
GREEDY = {"temperature": 0, "model": "talebook"}
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 4))
    return _shared[0]


def chat(messages=None, s=None, **fields):
    return openai_client(s or server()).chat.completions.create(messages=messages or USER, **{**GREEDY, **fields})


def rendered(messages, pack_dir=None, **variables):
    path = os.path.join(TMP, "messages.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"messages": messages, "add_generation_prompt": True, **variables}, f)
    return tool("od-main", "template", "--checkpoint", pack_dir or pack(), "--messages", path).stdout


def gather(stream):
    """The message of a stream with one choice, its finish_reason and usage."""
    m, finish, usage, chunks = {"content": "", "reasoning": "", "calls": []}, None, None, list(stream)
    for n, chunk in enumerate(chunks):
        assert chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id, chunk
        if not chunk.choices:
            usage = chunk.usage
            continue
        d = chunk.choices[0].delta
        assert finish is None and (d.role == "assistant") == (n == 0), chunk
        finish = chunk.choices[0].finish_reason
        m["content"] += d.content or ""
        m["reasoning"] += getattr(d, "reasoning_content", None) or ""
        for c in d.tool_calls or []:
            if c.id:
                assert c.index == len(m["calls"]) and c.type == "function", c
                m["calls"].append({"id": c.id, "name": c.function.name, "arguments": ""})
            m["calls"][c.index]["arguments"] += c.function.arguments
    assert finish is not None
    return m, finish, usage


# ---- Texts ----


@test
def greedy_text_is_that_of_od_main():
    for messages in USER, TALE, [{"role": "system", "content": "Be kind."}, *USER], \
            [{"role": "user", "content": [{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time"}]}]:
        prompt = rendered(messages).removeprefix("<s>")
        a = generate("--resident", prompt=prompt, tokens=24)
        o = chat(messages, max_tokens=24)
        assert o.choices[0].message.content == a["text"] and o.choices[0].message.role == "assistant", (o, a)
        assert o.object == "chat.completion" and o.model == "talebook" and o.choices[0].message.tool_calls is None
        assert o.choices[0].finish_reason == ("stop" if a["finish"] == "eos" else "length"), (o, a["finish"])
        assert o.usage.prompt_tokens == len(a["prompt_ids"]) and o.usage.completion_tokens == len(a["token_ids"])
        assert o.usage.total_tokens == o.usage.prompt_tokens + o.usage.completion_tokens
    assert rendered(TALE) == "<s>" + PROMPT + " who had a son.\nOne day"


@test
def a_stream_gives_the_same():
    whole = chat(max_tokens=30)
    m, finish, usage = gather(chat(max_tokens=30, stream=True, stream_options={"include_usage": True}))
    assert m == {"content": whole.choices[0].message.content, "reasoning": "", "calls": []} and finish == "length"
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 30)
    assert gather(chat(max_tokens=2, stream=True))[2] is None


@test
def the_helper_of_the_client_reads_streams():
    stop = " was"
    with openai_client(server()).chat.completions.stream(messages=USER, stop=stop, **GREEDY) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == chat(stop=stop).choices[0].message.content != ""


@test
def a_stream_tells_its_progress():
    c = server().connect()
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "king " * 900}], "max_tokens": 2,
                                                          "stream": True}), {"Content-Type": "application/json"})
    events, comments = parse_events(c.getresponse().read().decode())
    assert events[-1] == "[DONE]" and any("prompt" in comment and "/9" in comment for comment in comments), comments


@test
def limits_and_stop_strings():
    whole = chat(max_tokens=60).choices[0].message.content
    assert chat(max_completion_tokens=7).usage.completion_tokens == 7
    assert chat(max_completion_tokens=7, max_tokens=9).usage.completion_tokens == 7
    word = whole.split()[5]
    for stop in word, [word, "never comes"]:
        o = chat(max_tokens=60, stop=stop).choices[0]
        assert (o.message.content, o.finish_reason) == (whole[:whole.index(word)], "stop"), o
        m, finish, _ = gather(chat(max_tokens=60, stop=stop, stream=True))
        assert (m["content"], finish) == (whole[:whole.index(word)], "stop")
    end = chat([{"role": "user", "content": "king " * 1000}], temperature=1, seed=2)  # without a limit: to the end of the context
    assert end.usage.total_tokens == 1025 or end.choices[0].finish_reason == "stop", end.usage


@test
def choices_and_seeds():
    o = chat(max_tokens=12, n=3, seed=5, temperature=1)
    texts = [c.message.content for c in o.choices]
    assert [c.index for c in o.choices] == [0, 1, 2] and len(set(texts)) == 3, texts
    assert o.usage.prompt_tokens == 9 and o.usage.completion_tokens == sum(chat(max_tokens=12, seed=5 + i, temperature=1)
                                                                          .usage.completion_tokens for i in range(3))
    for i, text in enumerate(texts):
        assert chat(max_tokens=12, seed=5 + i, temperature=1).choices[0].message.content == text
    streamed = ["", "", ""]
    for chunk in chat(max_tokens=12, n=3, seed=5, temperature=1, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    assert chat(max_tokens=12, logit_bias={"300": 100}).choices[0].message.content != chat(max_tokens=12).choices[0].message.content


@test
def log_probabilities_are_those_of_completions():
    prompt = rendered(USER).removeprefix("<s>")
    expected = server().complete(prompt, 8, logprobs=3)["choices"][0]["logprobs"]
    o = chat(max_tokens=8, logprobs=True, top_logprobs=3)
    got = o.choices[0].logprobs.content
    assert [t.token for t in got] == expected["tokens"] and [t.logprob for t in got] == expected["token_logprobs"]
    for t, top in zip(got, expected["top_logprobs"]):
        assert bytes(t.bytes).decode() == t.token and len(t.top_logprobs) == 3
        assert {a.token: a.logprob for a in t.top_logprobs} == dict(sorted(top.items(), key=lambda x: -x[1])[:3])
        assert [a.logprob for a in t.top_logprobs] == sorted((a.logprob for a in t.top_logprobs), reverse=True)
    parts = [c.choices[0].logprobs.content for c in chat(max_tokens=8, logprobs=True, stream=True) if c.choices[0].logprobs]
    assert [t.token for p in parts for t in p] == expected["tokens"] and all(t.top_logprobs == [] for p in parts for t in p)
    assert chat(max_tokens=2).choices[0].logprobs is None
    expected = server().complete(prompt, 0, prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
    o = chat(max_tokens=2, n=2, logprobs=True, extra_body={"prompt_logprobs": 2})
    assert o.prompt_logprobs == expected and [len(c.logprobs.content) for c in o.choices] == [2, 2]
    o = chat(max_tokens=2, extra_body={"prompt_logprobs": 2})
    assert o.prompt_logprobs == expected and o.choices[0].logprobs is None


@test
def parts_of_characters_have_bytes():
    with open("deploy/models/talebook/tokenizer.json", encoding="utf-8") as f:
        part = json.load(f)["model"]["vocab"]["Ã"]  # the byte C3, as byte-level tokenisers write it
    for t in chat(max_tokens=2, logprobs=True, top_logprobs=1, logit_bias={str(part): 100}).choices[0].logprobs.content:
        assert t.token == "\ufffd" and t.bytes == [0xC3], t


TRIMS = "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}\n a {% endfor %}"


@test
def the_last_message_can_be_continued():
    """Expected prompts are what apply_chat_template of transformers 5.23 makes of them with continue_final_message: spaces that the
    template keeps stay, and marks behind the text are no part of it, even where they look like it. Parts are joined as everywhere."""
    folder = os.path.join(TMP, "trims")
    shutil.copytree("deploy/models/talebook", folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TRIMS)
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    trims = Server(pack_dir=folder + ".pack")
    parts = [{"type": "text", "text": " who"}, {"type": "text", "text": " had "}, {"type": "text", "text": ""}]
    for content, kept, trimmed in ((" who had a son. ", " who had a son. ", "\n a who had a son."),
                                   (" who had a son.\n", " who had a son.\n", "\n a who had a son."),
                                   (" who had", " who had", "\n a who had"), (" a", " a", "\n a a"), ("", "", "\n a"),
                                   (parts, " who\n had \n", None)):
        for s, end in (server(), kept), (trims, trimmed):
            if end is None:
                continue
            o = chat([*USER, {"role": "assistant", "content": content}], s=s, max_tokens=9, extra_body={"continue_final_message": True})
            a = generate("--resident", prompt=PROMPT + end, tokens=9)
            assert (o.choices[0].message.content, o.usage.prompt_tokens) == (a["text"], len(a["prompt_ids"])), (content, end, o, a)
    assert trims.stop() == 0, trims.log


# ---- Refusals ----

MESSAGE = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BAD_FIELDS = [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "a"}, "messages"), ({"messages": ["a"]}, "messages[0]"),
    ({"messages": [MESSAGE, {"content": "a"}]}, "messages[1].role"), ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"image_url": {"url": "x"}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "king " * 2000}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    ({"tools": 3}, "tools"), ({"tools": [3]}, "tools[0]"), ({"tools": [TOOL, {"type": 3}]}, "tools[1].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"), ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"logprobs": 2}, "logprobs"), ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"), ({"chat_template": "x"}, "chat_template"), ({"functions": [{}]}, "functions"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"), ({"stop": 3}, "stop"), ({"n": 0}, "n"), ({"temperature": -1}, "temperature"),
    ({"continue_final_message": True, "messages": [{"role": "assistant", "content": None}]}, "continue_final_message"),
    ({"continue_final_message": True, "messages": [{"role": "critic", "content": "lost"}]}, "continue_final_message"),
]


@test
def wrong_fields_are_named():
    for fields, param in BAD_FIELDS:
        for stream in False, True:
            status, _, o = server().ask("/v1/chat/completions", {"messages": [MESSAGE], "stream": stream, **fields})
            assert status == 400 and o["error"]["param"] == param and param in o["error"]["message"], (fields, status, o)


LEGACY_CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
F_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@test
def what_means_the_same_is_taken():
    """Spellings that other servers take: the prompt is that of the usual one."""
    def prompt(messages, **fields):
        status, _, o = server().ask("/v1/chat/completions", {"messages": messages, "max_tokens": 1, **fields})
        assert status == 200, (messages, fields, o)
        return o["usage"]["prompt_tokens"]

    assert prompt([{"role": "user", "content": ["hi", {"text": "you"}]}]) == prompt([{"role": "user", "content": "hi\nyou"}])
    untyped = {k: v for k, v in TOOL.items() if k != "type"}
    assert prompt([MESSAGE], tools=[untyped]) == prompt([MESSAGE], tools=[TOOL])
    called = [MESSAGE, {"role": "assistant", "content": None, "tool_calls": [F_CALL]}, {"role": "tool", "tool_call_id": "c", "content": "r"}]
    assert prompt([MESSAGE, LEGACY_CALL, {"role": "function", "name": "f", "content": "r"}]) == prompt(called)
    cut = {**F_CALL, "function": {"name": "f", "arguments": '{"a'}}
    for call in cut, {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}, {**F_CALL, "function": {"name": "f", "arguments": None}}:
        prompt([MESSAGE, {"role": "assistant", "content": None, "tool_calls": [call]}, called[2], MESSAGE])


@test
def any_json_is_answered():
    """Wrong types anywhere in messages and tools: 200 or 400 with the field's name."""
    rng, seen = random.Random(1), set()
    values = [None, True, 0, -1.5, 10**18, "", "a", "\0", "é<s></s>", [], {}, [[]], [None], {"a": None}, ["a"], {"type": "text"}]

    def spoil(v, depth=0):
        if rng.random() < 0.12:
            return rng.choice(values)
        if isinstance(v, dict):
            return {k: spoil(x, depth + 1) for k, x in v.items() if rng.random() < 0.95}
        return [spoil(x, depth + 1) for x in v] if isinstance(v, list) else v

    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    good = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                         {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call, call]},
                         {"role": "tool", "tool_call_id": "c", "content": "d", "name": None}], "tools": [TOOL, TOOL],
            "tool_choice": "auto", "chat_template_kwargs": {"a": 1}, "documents": [{"text": "t"}], "stream_options": {}, "n": 1}
    for i in range(400):
        body = {**{k: spoil(v) for k, v in good.items()}, "max_tokens": 1}
        status, _, o = server().ask("/v1/chat/completions", body)
        assert status == 200 or (status == 400 and o["error"]["param"]), (i, body, status, o)
        seen.add(o["error"]["param"] if status == 400 else status)
    assert 200 in seen and len(seen) > 15, seen


@test
def the_client_gets_errors():
    openai = client_module("openai")
    for fields, param in ({"top_p": 2}, "top_p"), ({"response_format": {"type": "xml"}}, "response_format"):
        try:
            chat(**fields)
            raise AssertionError(fields)
        except openai.BadRequestError as e:
            assert e.status_code == 400 and e.param == param, e
    try:
        chat([{"role": "user", "content": "king " * 2000}])
        raise AssertionError
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded", e


@test
def what_changes_nothing_is_ignored():
    text = chat(max_tokens=8).choices[0].message.content
    extra = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x", "unknown": 1}
    assert chat(max_tokens=8, extra_body=extra).choices[0].message.content == text
    for fields in {"response_format": {"type": "text"}}, {"modalities": ["text"]}, {"tool_choice": "auto"}, {"reasoning_effort": "low"}, \
                  {"tools": [TOOL]}, {"parallel_tool_calls": False}, {"prediction": {"type": "content", "content": "x"}}:
        assert chat(max_tokens=8, **fields).choices[0].message.content == text, fields


@test
def a_template_may_refuse():
    case = chat_scripts.Case("refuses", "{{ raise_exception('roles must alternate') if messages|length > 1 }}{{ messages[0].content }}", [],
                             "Yes.", "", "", [], chat_scripts.EOS)
    s = Server(pack_dir=chat_scripts.pack_of(case)[0])
    assert s.ask("/v1/chat/completions", {"messages": [MESSAGE]})[2]["choices"][0]["message"]["content"] == "Yes."
    assert s.ask("/v1/chat/completions", {"messages": [MESSAGE, MESSAGE]})[0] == 200  # they are joined
    answer = {"role": "assistant", "content": "b"}
    status, _, o = s.ask("/v1/chat/completions", {"messages": [MESSAGE, answer, MESSAGE]})
    assert status == 400 and o["error"]["param"] == "messages", o
    assert o["error"]["message"] == "messages: the model's chat template does not take them: roles must alternate", o
    for path, body in ("/v1/messages", {"max_tokens": 1, "messages": [MESSAGE, answer, MESSAGE]}), \
                      ("/v1/responses", {"input": [MESSAGE, answer, MESSAGE]}):
        status, _, o = s.ask(path, body)
        assert status == 400 and o["error"]["message"].endswith("does not take them: roles must alternate"), o
    assert s.stop() == 0, s.log


THINKING = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
# Name of the case, what the template writes when the model shall not think, and what it takes.
THINKERS = {
    "qwen": "{% if enable_thinking is defined and enable_thinking is false %}NO THOUGHTS HERE{% endif %}",
    "deepseek": "{% if not thinking is defined %}{% set thinking = true %}{% endif %}{% if not thinking %}NO THOUGHTS HERE{% endif %}",
    "minimax": "{% if thinking_mode is defined and thinking_mode == 'disabled' %}NO THOUGHTS HERE{% endif %}",
    "mistral": "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'high' %}{% endif %}"
               "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('reasoning_effort must be none or high') }}{% endif %}"
               "{% if reasoning_effort == 'none' %}NO THOUGHTS HERE{% endif %}",
}


@test
def thinking_can_be_turned_off():
    """By every client's field, in every API, for templates that are told so by different variables."""
    off = [{"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"thinking": False}, {"think": False}, {"reasoning_effort": "none"},
           {"reasoning_effort": "minimal"}, {"thinking_budget": 0}, {"chat_template_kwargs": {"enable_thinking": False}},
           {"chat_template_kwargs": {"thinking": False}}, {"reasoning_effort": "high", "enable_thinking": False},
           {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}]
    on = [{}, {"enable_thinking": True}, {"thinking": {"type": "enabled", "budget_tokens": 9}}, {"think": True}, {"reasoning_effort": "high"},
          {"reasoning_effort": "none", "enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}},
          {"reasoning_effort": "medium"}, {"think": "xhigh"}, {"thinking_budget": 100}, {"thinking_budget": 0, "enable_thinking": True}]
    ask = {"/v1/chat/completions": {"messages": [MESSAGE], "max_tokens": 1}, "/v1/responses": {"input": MESSAGE["content"], "max_output_tokens": 1},
           "/v1/messages": {"messages": [MESSAGE], "max_tokens": 1}}
    for name, words in THINKERS.items():
        s = Server(pack_dir=chat_scripts.pack_of(chat_scripts.Case("thinks " + name, THINKING + words, [], "Yes.", "", "", [], chat_scripts.EOS))[0])

        def read(path, fields):
            status, _, o = s.ask(path, {**ask[path], **fields})
            assert status == 200, (name, path, fields, o)
            u = o["usage"]
            return u.get("prompt_tokens", u.get("input_tokens")) + u.get("cache_read_input_tokens", 0)

        for path in ask:
            n = read(path, {})
            fewer, more = off, on
            if path == "/v1/responses":
                fewer, more = [*off, {"reasoning": {"effort": "none"}}, {"reasoning": {"max_tokens": 0}}], [*on, {"reasoning": {"effort": "low", "summary": "auto"}}]
            if path == "/v1/messages":
                fewer, more = [*off, {"output_config": {"effort": "none"}}], [*on, {"output_config": {"effort": "max"}}]
            for fields in fewer:
                if name == "mistral" and fields.get("reasoning_effort") == "high":
                    continue  # it knows only the effort, and that was asked for
                assert read(path, fields) == n + len("NO THOUGHTS HERE"), (name, path, fields)
            for fields in more:
                assert read(path, fields) == n, (name, path, fields)
        assert s.stop() == 0, s.log


@test
def no_answer_names_the_folder():
    """An operation that fails while the template is rendered has a line, a template that is none is refused as a whole."""
    for name, template, words in ("fails", "{{ messages[0].content + 1 }}", "chat_template.jinja, line 1"), \
                                 ("none", "{% if %}", "chat_template.jinja, line 1"):
        folder = os.path.join(TMP, name + "-folder")
        shutil.copytree("deploy/models/talebook", folder)
        open(os.path.join(folder, "chat_template.jinja"), "w").write(template)
        tool("od-pack", folder, folder + ".pack", "--shadow", "none")
        s = Server(pack_dir=folder + ".pack")
        status, _, o = s.ask("/v1/chat/completions", {"messages": [MESSAGE]})
        assert status == 400 and words in o["error"]["message"] and folder not in o["error"]["message"], o
        assert folder in s.log or name == "fails"
        assert s.stop() == 0, s.log


@test
def without_a_template_it_says_so():
    folder = os.path.join(TMP, "none")
    shutil.copytree("deploy/models/talebook", folder)
    os.remove(os.path.join(folder, "chat_template.jinja"))
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    s = Server(pack_dir=folder + ".pack")
    assert "no chat template" in s.log
    status, _, o = s.ask("/v1/chat/completions", {"messages": USER})
    assert status == 400 and "no chat template" in o["error"]["message"] and "/v1/completions" in o["error"]["message"], o
    assert s.complete(PROMPT, 4)["choices"][0]["text"] == server().complete(PROMPT, 4)["choices"][0]["text"]
    assert s.stop() == 0, s.log


# ---- Tools ----


def check_turn(case, message, finish, plain):
    """message: as gather makes it."""
    assert finish == "tool_calls", (case.name, finish)
    assert message["content"] == case.content and message["reasoning"] == case.reasoning, (case.name, message)
    assert [(c["name"], c["arguments"]) for c in message["calls"]] == [(c["name"], c["arguments"]) for c in case.calls], (case.name, message)
    for call, expected in zip(message["calls"], case.calls):
        assert call["id"] == expected["id"] if "id" in expected else call["id"].startswith("call_") or len(call["id"]) == 9, call
    assert len({c["id"] for c in message["calls"]}) == len(case.calls)
    assert plain is None or [c["arguments"] for c in plain["calls"]] == [c["arguments"] for c in message["calls"]]


def plain_turn(s, messages, **fields):
    o = chat(messages, s, **fields)
    m = o.choices[0].message
    calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in m.tool_calls or []]
    return m, {"content": m.content or "", "reasoning": getattr(m, "reasoning_content", "") or "", "calls": calls}, o


def tool_loop(case):
    pack_dir, n_tokens = chat_scripts.pack_of(case)
    s = Server(pack_dir=pack_dir)
    ask = [{"role": "user", "content": "Q"}]
    given = {"tools": case.tools, "max_tokens": 400}
    message, got, o = plain_turn(s, ask, **given)
    check_turn(case, got, o.choices[0].finish_reason, None)
    assert o.usage.completion_tokens == n_tokens["user"], (case.name, o.usage, n_tokens)
    streamed, finish, _ = gather(chat(ask, s, stream=True, **given))
    check_turn(case, streamed, finish, got)
    sent_back = message.model_dump()  # with all the nulls of what it has not
    assert case.text in rendered([*ask, sent_back], pack_dir, tools=case.tools, add_generation_prompt=False), case.name
    answers = [{"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in got["calls"]]
    _, last, o = plain_turn(s, [*ask, sent_back, *answers], **given)
    assert last == {"content": chat_scripts.FINAL, "reasoning": "", "calls": []} and o.choices[0].finish_reason == "stop", (case.name, last)
    assert o.usage.completion_tokens == n_tokens["tool"]
    assert s.stop() == 0, s.log


@test
def tool_loops_of_every_family():
    names = []
    for case in chat_scripts.call_cases():
        tool_loop(case)
        names.append(case.name)
    assert len(names) > 25, names


@test
def functions_need_no_description():
    """GPT-OSS's template fails for them; the model is told an empty one."""
    case = next(c for c in chat_scripts.call_cases() if c.name.startswith("gpt_oss/"))._replace(name="no description")
    s = Server(pack_dir=chat_scripts.pack_of(case)[0])
    for description in {}, {"description": None}, {"description": ""}:
        tools = [{"type": "function", "function": {"name": t["function"]["name"], "parameters": {"type": "object"}, **description}}
                 for t in case.tools]
        status, _, o = s.ask("/v1/chat/completions", {"messages": USER, "tools": tools, "max_tokens": 400})
        assert status == 200 and o["choices"][0]["message"]["tool_calls"], o
    assert s.stop() == 0, s.log


def weather_case(text, **fields):
    c = next(c for c in chat_scripts.call_cases() if c.name == "hermes/call")
    return c._replace(text=text, **fields)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "%s"}}\n</tool_call>'


@test
def no_tools_no_calls():
    """Special tokens never stand in the content; only tools of the request are called."""
    s = Server(pack_dir=chat_scripts.pack_of(weather_case("So.\n" + CALL % "Bern", name="one"))[0])
    for fields in {}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}:
        m = chat(USER, s, max_tokens=100, **fields).choices[0]
        assert m.message.tool_calls is None and m.finish_reason == "stop" and "<|" not in m.message.content, m
        assert "<tool_call>" not in m.message.content and '{"place": "Bern"}' in m.message.content, m
    m = chat(USER, s, max_tokens=100, tools=[TOOL]).choices[0]  # a function that it does not have: as the model wrote it
    assert m.message.tool_calls is None and m.message.content == "So.\n" + CALL % "Bern", m
    assert s.stop() == 0, s.log


@test
def one_call_ends_a_turn_that_may_have_one():
    two = CALL % "Bern" + "\n" + CALL % "Oslo" + "\nand on"
    s = Server(pack_dir=chat_scripts.pack_of(weather_case(two, name="two"))[0])
    tools = weather_case("").tools
    for stream in False, True:
        for parallel, places in (True, ["Bern", "Oslo"]), (False, ["Bern"]):
            o = chat(USER, s, max_tokens=100, tools=tools, parallel_tool_calls=parallel, stream=stream)
            m, finish = gather(o)[:2] if stream else (plain_turn(s, USER, max_tokens=100, tools=tools, parallel_tool_calls=parallel)[1],
                                                      o.choices[0].finish_reason)
            assert [json.loads(c["arguments"])["place"] for c in m["calls"]] == places and finish == "tool_calls", (m, finish)
            assert m["content"] == ("and on" if parallel else ""), m
    cut = chat(USER, s, max_tokens=5, tools=tools).choices[0]
    assert cut.finish_reason == "length" and cut.message.tool_calls is None, cut
    assert s.stop() == 0, s.log


@test
def an_end_that_is_no_special_token_ends_too():
    """The rest, which the model goes on to write, is neither shown nor waited for."""
    folder = os.path.join(TMP, "text_end")
    rest = " ".join(str(i) for i in range(1000, 1300))
    write_scripted(folder, "{{ messages[-1].content }}{# <|im_end|> #}", {"user": "That is all.<|im_end|>" + rest})
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    s = Server(pack_dir=folder + ".pack")
    o = chat(USER, s, logprobs=True)
    assert (o.choices[0].message.content, o.choices[0].finish_reason) == ("That is all.", "stop"), o
    assert o.usage.completion_tokens < 4000, o.usage  # of the 8192 of the context
    m, finish, _ = gather(chat(USER, s, stream=True))
    assert (m["content"], finish) == ("That is all.", "stop"), m
    whole = chat(USER, s, extra_body={"ignore_eos": True}, max_tokens=300)
    assert whole.usage.completion_tokens == 300 and whole.choices[0].finish_reason == "length", whole.usage
    assert s.ask("/health")[0] == 200 and s.stop() == 0, s.log


def scripted(name, template, text, **more):
    folder = os.path.join(TMP, name)
    write_scripted(folder, template, {"user": text}, **more)
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    return Server(pack_dir=folder + ".pack"), folder + ".pack"


@test
def a_templates_own_space_is_no_content():
    """What the template writes around an answer is the model's, but not the content's: sent back, the same text is rendered."""
    ask = "{%- for m in messages %}{% if m.role == 'user' %}{{ '[Q] ' + m.content + ' [/Q]' }}{% else %}"
    end = "{% endif %}{% endfor %}{%- if add_generation_prompt %}{{ LEAD }}{% endif %}"
    for name, write, text, content in (
            ("space_lead", "{{ ' ' + m.content + eos_token }}", " Hello you.</s>", "Hello you."),
            ("space_lead_more", "{{ ' ' + m.content + eos_token }}", "  Hello  you. </s>", " Hello  you. "),
            ("space_lead_none", "{{ ' ' + m.content + eos_token }}", "Hello you.</s>", "Hello you."),
            ("space_line", "{{ '\n' + m.content + eos_token }}", "\n\n Hello.\n</s>", "\n Hello.\n"),
            ("space_not_written", "{{ m.content + eos_token }}", " Hello you.\n</s>", " Hello you.\n"),
            ("space_trimmed", "{{ ' ' + m.content | trim + ' ' + eos_token }}", " Hello you. </s>", "Hello you."),
            ("space_tail", "{{ m.content + '\n' + eos_token }}", "Hello\n\nyou.\n\n</s>", "Hello\n\nyou.\n"),
            ("space_marked", "{{ 'A:' + m.content + '\n' + eos_token }}", " Hello\nyou.\n</s>", " Hello\nyou.")):
        lead = "'A:'" if "A:" in write else "''"
        s, pack = scripted(name, ask + write + end.replace("LEAD", lead), text)
        m, got, o = plain_turn(s, USER, max_tokens=100)
        assert got["content"] == content, (name, got)
        assert gather(chat(USER, s, max_tokens=100, stream=True))[0]["content"] == content, name
        for path, key in ("/v1/responses", "input"), ("/v1/messages", "messages"):
            _, _, o = s.ask(path, {key: USER, "max_tokens" if key == "messages" else "max_output_tokens": 100})
            assert (o["output"][0]["content"][0]["text"] if key == "input" else o["content"][0]["text"]) == content, (name, o)
        if name != "space_lead_none":  # the model did not write what the template does
            again = rendered([*USER, m.model_dump()], pack, add_generation_prompt=False)
            assert again.endswith(text), (name, again)
        s.ask("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert s.stop() == 0, s.log


@test
def stop_strings_count_in_the_content_only():
    template = "{{ messages[-1].content }}{# <tool_call> <|im_end|> <think> </think> #}"
    call = CALL % "END" + "\n"
    tools = weather_case("").tools
    for name, text, given, content, reasoning, places, finish in (
            ("stop_thought", "<think>\nI reason. END.\n</think>\n\nAnswer END. tail", "END", "Answer ", "I reason. END.", [], "stop"),
            ("stop_call", "So\n" + call + "and END. tail", "END", "So\nand ", "", ["END"], "tool_calls"),
            ("stop_border", "So EN\n" + call[:-1] + "D. tail", "END", "So END. tail", "", ["END"], "tool_calls"),
            ("stop_only_call", call, "get_weather", "", "", ["END"], "tool_calls"),
            ("stop_first", "ENDless words that follow", "END", "", "", [], "stop"),
            ("stop_mark", "One.\nTwo. Three and more of it.", "\n", "One.", "", [], "stop")):
        s, _ = scripted(name, template, text + "<|im_end|>", specials=["<|im_end|>"])
        whole = chat(USER, s, tools=tools, max_tokens=400)
        n_whole = whole.usage.completion_tokens
        for stop in given, ["never comes", given]:
            _, got, o = plain_turn(s, USER, tools=tools, max_tokens=400, stop=stop)
            assert (got["content"], got["reasoning"]) == (content, reasoning), (name, got)
            assert [json.loads(c["arguments"])["place"] for c in got["calls"]] == places and o.choices[0].finish_reason == finish, (name, o)
            if "tail" in text and "D. tail" not in text:
                assert o.usage.completion_tokens < n_whole, (name, o.usage, n_whole)
            n = o.usage.completion_tokens
            streamed, end, usage = gather(chat(USER, s, tools=tools, max_tokens=400, stop=stop, stream=True,
                                               stream_options={"include_usage": True}))
            assert streamed["content"] == got["content"] and streamed["reasoning"] == got["reasoning"] and end == finish, (name, streamed)
            assert [c["arguments"] for c in streamed["calls"]] == [c["arguments"] for c in got["calls"]], (name, streamed)
            assert usage is None or usage.completion_tokens == n, (name, usage, n)
        _, _, o = s.ask("/v1/messages", {"messages": USER, "max_tokens": 400, "stop_sequences": ["never", given], "tools": [
            {"name": t["function"]["name"], "input_schema": {"type": "object"}} for t in tools]})
        stopped = finish == "stop"
        assert (o["stop_reason"], o["stop_sequence"]) == (("stop_sequence", given) if stopped else ("tool_use", None)), (name, o)
        _, _, o = s.ask("/v1/completions", {"prompt": "x", "max_tokens": 1, "stop": given})
        several = chat(USER, s, tools=tools, max_tokens=400, stop=given, n=2).choices
        assert [c.message.content or "" for c in several] == [content] * 2, (name, several)
        assert s.stop() == 0, s.log


@test
def arguments_are_streamed_as_they_are_written():
    """Together they are what a whole answer has. How many pieces there are is a matter of time; but of an answer that is cut amid a call,
    a stream has what was written, and a whole answer no call."""
    words = " ".join("word %d" % i for i in range(60))
    arguments = json.dumps({"place": words})
    case = weather_case('<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>' % arguments, name="long_call")
    s = Server(pack_dir=chat_scripts.pack_of(case)[0])
    tools = case.tools
    pieces, names = [], []
    for chunk in chat(USER, s, tools=tools, max_tokens=900, stream=True):
        for c in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or []:
            names += [c.function.name] if c.function.name else []
            pieces += [c.function.arguments] if c.function.arguments else []
            assert c.index == 0 and (c.id is not None) == (c.function.name is not None), c
    assert "".join(pieces) == arguments and names == ["get_weather"], pieces
    m = chat(USER, s, tools=tools, max_tokens=900).choices[0].message
    assert m.tool_calls[0].function.arguments == arguments, m
    cut, finish, _ = gather(chat(USER, s, tools=tools, max_tokens=60, stream=True))
    assert finish == "length" and "{" in cut["calls"][0]["arguments"] and arguments.startswith(cut["calls"][0]["arguments"]) and cut["content"] == "", cut
    cut = chat(USER, s, tools=tools, max_tokens=60).choices[0]
    assert cut.finish_reason == "length" and cut.message.tool_calls is None, cut
    assert s.stop() == 0, s.log


@test
def reasoning_comes_apart():
    c = weather_case("<think>\nIs it?\n</think>\n\nIt is.", name="thinks", template="{{ messages[-1].content }}{# <tool_call> <|im_end|>"
                     " <think> </think> #}")
    s = Server(pack_dir=chat_scripts.pack_of(c)[0])
    _, m, o = plain_turn(s, USER, max_tokens=100)
    assert m == {"content": "It is.", "reasoning": "Is it?", "calls": []} and o.choices[0].finish_reason == "stop", m
    assert gather(chat(USER, s, max_tokens=100, stream=True))[0] == m
    assert s.stop() == 0, s.log


run_tests()
