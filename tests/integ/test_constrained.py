#!/usr/bin/env python3
"""Answers of a form: schemas, regular expressions, choices and calls, in all APIs; which texts they are, and how probable."""
import atexit
import itertools
import json
import math
import os
import re
import threading

from chat_scripts import call_cases, pack_of
from cluster_util import TMP, generate, run_tests, test, tool
from long_keys import SCHEMA, TEXT, write_long_keys
from serve_util import Server, parse_events, stop_servers

atexit.register(stop_servers)
PROMPT = "Once upon a time there was a king"
USER = [{"role": "user", "content": PROMPT}]
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 3, "maximum": 120},
    "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["old", "wise", None]}}}}
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 8))
    return _shared[0]


def check_person(text):
    o = json.loads(text)
    assert list(o) == ["name", "age", "tags"], text
    assert isinstance(o["name"], str) and len(o["name"]) <= 12 and isinstance(o["age"], int) and 3 <= o["age"] <= 120, text
    assert len(o["tags"]) <= 2 and all(t in ("old", "wise", None) for t in o["tags"]), text


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def text_of(o):
    if "output" in o:
        return o["output"][0]["content"][0]["text"]
    return o["content"][0]["text"] if "content" in o else o["choices"][0].get("text") or o["choices"][0]["message"]["content"]


ASKS = (
    ("/v1/completions", {"prompt": PROMPT, "response_format": schema_format(PERSON)}),
    ("/v1/completions", {"prompt": PROMPT, "structured_outputs": {"json": PERSON}}),
    ("/v1/completions", {"prompt": PROMPT, "guided_json": json.dumps(PERSON)}),
    ("/v1/completions", {"prompt": PROMPT, "json_schema": PERSON}),
    ("/v1/chat/completions", {"messages": USER, "response_format": schema_format(PERSON)}),
    ("/v1/chat/completions", {"messages": USER, "response_format": {"type": "json_object", "schema": PERSON}}),
    ("/v1/messages", {"messages": USER, "output_config": {"format": {"type": "json_schema", "schema": PERSON}}}),
    ("/v1/messages", {"messages": USER, "output_format": {"type": "json_schema", "schema": PERSON}}),
    ("/v1/responses", {"input": PROMPT, "text": {"format": {"type": "json_schema", "name": "answer", "schema": PERSON}}}),
)


@test
def all_apis_hold_to_a_schema():
    for (path, body), seed in itertools.product(ASKS, range(4)):
        limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
        status, _, o = server().ask(path, {**body, limit: 200, "temperature": 1, "seed": seed})
        assert status == 200, o
        check_person(text_of(o))


@test
def streams_hold_to_a_schema():
    for path, body in ASKS[0], ASKS[4]:
        events = parse_events(server().ask(path, {**body, "max_tokens": 200, "temperature": 1, "seed": 7, "stream": True})[2].decode())[0]
        pieces = [c.get("text") or c.get("delta", {}).get("content") or "" for e in events if e != "[DONE]" for c in e["choices"]]
        check_person("".join(pieces))


@test
def od_main_holds_to_a_schema():
    path = os.path.join(TMP, "person.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(PERSON, f)
    check_person(generate("--resident", "--json-schema", path, "--temperature", 1, "--seed", 2, prompt=PROMPT, tokens=200)["text"])
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"type": "object", "properties": {"a/b": {"not": {"type": "null"}}}}, f)
    failed = tool("od-main", "--resident", "--json-schema", path, "--prompt", PROMPT, ok=False)
    assert failed.returncode and "#/properties/a~1b/not: not is not supported here" in failed.stderr, failed


@test
def expressions_and_choices():
    for fields, pattern in (({"regex": r"[A-Z][a-z]{2,6} (said|ran)\."}, r"[A-Z][a-z]{2,6} (said|ran)\."), ({"choice": ["a king", "a queen"]}, "a king|a queen"),
                            ({"grammar": 'root ::= list\nlist ::= "(" ([a-z]{1,3} | list){0,3} ")"'}, r"[()a-z]*"),
                            ({"json_object": True}, None)):
        for seed in range(5):
            o = server().ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 300, "temperature": 0.7, "seed": seed, "structured_outputs": fields})[2]
            c = o["choices"][0]
            if pattern:
                assert re.fullmatch(pattern, c["text"]) and c["finish_reason"] == "stop", c
            elif c["finish_reason"] == "stop":
                assert isinstance(json.loads(c["text"]), dict), c


@test
def a_text_that_may_not_end_goes_on():
    """Without its end tokens a text ends where nothing can follow."""
    for fields in {"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": {"2": 100}}:
        o = server().ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 60, "temperature": 1, "seed": 4, "structured_outputs": {"regex": "[a-z]{30,40}"}, **fields})[2]
        assert re.fullmatch("[a-z]{30,40}", o["choices"][0]["text"]) and o["choices"][0]["finish_reason"] == "stop", o
    status, _, o = server().ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 9, "structured_outputs": {"choice": ["é"]}, "stop": ["é"]})
    assert status == 200 and o["choices"][0]["text"] == "", o


@test
def what_cannot_be_kept_is_refused():
    bad = (({"response_format": schema_format({"properties": {"a": {"not": {"const": 1}}}})}, "response_format.json_schema.schema#/properties/a/not"),
           ({"response_format": schema_format({"type": "string", "format": "hostname"})}, "#/format"),
           ({"response_format": schema_format({"$ref": "#"})}, "lead back to itself"),
           ({"response_format": schema_format({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}})}, "no text can satisfy it"),
           ({"response_format": schema_format({"oneOf": [{"type": "integer"}, {"minimum": 3}]})}, "branches 0 and 1 can both hold"),
           ({"response_format": {"type": "xml"}}, "found \"xml\""),
           ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex: a group is not closed"),
           ({"grammar": 'root ::= a\na ::= a "x" | "y"'}, "can begin with itself"), ({"grammar": "root ::= ("}, "grammar: line 1"),
           ({"structured_outputs": {"choice": []}}, "1 to 10000 strings"),
           ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "leave one out"),
           ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag is not supported"))
    for fields, words in bad:
        status, _, o = server().ask("/v1/chat/completions", {"messages": USER, "max_tokens": 5, **fields})
        assert status == 400 and words in o["error"]["message"], (fields, o)


def draw(n, **fields):
    """n answers with seeds of their own, as lists of tokens' texts."""
    out = []
    for at in range(0, n, 100):
        o = server().ask("/v1/completions", {"prompt": PROMPT, "n": 100, "seed": 1000 + at, "logprobs": 0, **fields})[2]
        out += [tuple(c["logprobs"]["tokens"]) for c in o["choices"]]
    return out


def next_logprobs(ids, wanted, temperature):
    """What the model gives each of these tokens behind the ids: without any constraint, one request each."""
    out = {}
    for token in wanted:
        o = server().ask("/v1/completions", {"prompt": [*ids, token], "max_tokens": 0, "echo": True, "logprobs": 0})[2]
        out[token] = math.exp(o["choices"][0]["logprobs"]["token_logprobs"][-1] / temperature)
    return out


@test
def the_distribution_is_that_of_redrawing():
    """Chi square against the model's own probabilities: each token is drawn again until what it leaves can still become one of the texts."""
    texts, temperature = [" was", " said", " wash", " saw"], 1.0
    first = server().ask("/tokenize", {"prompt": PROMPT})[2]["tokens"]
    pieces = {}
    for n in range(1, 6):
        for t in texts:
            for at in range(len(t) - n + 1):
                ids = server().ask("/tokenize", {"prompt": "x" + t[at:at + n], "add_special_tokens": False})[2]["tokens"]
                if len(ids) == 2:  # "x" and one token
                    pieces[t[at:at + n]] = ids[1]
    eos = 2
    expected = {}

    def walk(done, ids, path, p):
        allowed = {t: i for t, i in pieces.items() if any(x.startswith(done + t) for x in texts)}
        if done in texts:
            if not allowed:
                expected[path] = expected.get(path, 0) + p
                return
            allowed["</s>"] = eos
        weights = next_logprobs(ids, allowed.values(), temperature)
        total = sum(weights[i] for i in allowed.values())
        for t, i in allowed.items():
            if t == "</s>":
                expected[(*path, t)] = p * weights[i] / total
            elif p * weights[i] / total > 1e-6:
                walk(done + t, [*ids, i], (*path, t), p * weights[i] / total)

    walk("", first, (), 1)
    drawn = draw(2000, structured_outputs={"choice": texts}, temperature=temperature, max_tokens=20)
    assert abs(sum(expected.values()) - 1) < 1e-3, expected
    assert set(drawn) <= set(expected), set(drawn) - set(expected)
    rare = [k for k, p in expected.items() if p * len(drawn) < 5]
    groups = [[k] for k in expected if k not in rare] + ([rare] if rare else [])
    chi = sum((sum(map(drawn.count, g)) - len(drawn) * sum(map(expected.get, g))) ** 2 / (len(drawn) * max(sum(map(expected.get, g)), 1e-9)) for g in groups)
    free = max(len(groups) - 1, 1)
    limit = free * (1 - 2 / (9 * free) + 3.72 * math.sqrt(2 / (9 * free))) ** 3  # Wilson and Hilferty: one in 10,000
    assert len(expected) > 4 and chi < limit, (chi, limit, {k: (p * len(drawn), drawn.count(k)) for k, p in expected.items()})


@test
def forced_texts_are_drafted():
    """Long keys cost few steps if the model writes them in the tokens that the tokenizer makes of them."""
    folder = os.path.join(TMP, "long_keys")
    write_long_keys(folder)
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "response_format": schema_format(SCHEMA)}
    said = []
    for draft in "off", "auto":
        s = Server("--draft", draft, pack_dir=folder + ".pack")
        said.append(s.ask("/v1/chat/completions", body)[2])
        assert said[-1]["choices"][0]["message"]["content"] == TEXT, said
        assert s.stop() == 0, s.log
    t = said[1]["timings"]
    assert said[0]["usage"] == said[1]["usage"] and "draft_n" not in said[0]["timings"], said
    assert 2 * (t["predicted_n"] - t["draft_n_accepted"]) <= t["predicted_n"] and t["draft_n_accepted"] > 0.8 * t["draft_n"], t


def ordered(tools, calls):
    """The tools, whose properties come in the order in which the model writes them."""
    tools = json.loads(json.dumps(tools))
    for t in tools:
        properties = t["function"].get("parameters", {}).get("properties", {})
        keys = [k for c in calls if c["name"] == t["function"]["name"] for k in json.loads(c["arguments"]) if k in properties]
        if keys:
            t["function"]["parameters"]["properties"] = {k: properties[k] for k in dict.fromkeys([*keys, *properties])}
    return tools


def answers(s, asks):
    """All at once."""
    out = [None] * len(asks)

    def one(i):
        out[i] = s.ask("/v1/completions", asks[i])[2]
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


@test
def drafts_and_company_change_no_token():
    long_keys = {"type": "object", "additionalProperties": False, "required": ["what_the_king_said_to_the_queen", "what_she_answered"], "properties": {
        "what_the_king_said_to_the_queen": {"type": "string", "maxLength": 8}, "what_she_answered": {"enum": ["yes and no", "yes and yes"]}}}
    asks = [{"prompt": PROMPT, "max_tokens": 120, "temperature": t, "seed": i, "repetition_penalty": 1.1, "top_p": 0.95, "response_format": schema_format(f)}
            for i, (t, f) in enumerate(itertools.product((0, 1, 1.5), (PERSON, long_keys, {"type": "array", "items": {"type": ["number", "null"]}, "maxItems": 4})))]
    plain = Server("--draft", "off", "--parallel", 1)
    alone = [plain.ask("/v1/completions", a)[2] for a in asks]
    assert not any("draft_n" in o["timings"] for o in alone), alone
    together = answers(server(), asks)
    drafted = Server("--draft", "lookup", "--parallel", 4)
    looked_up = answers(drafted, asks)
    cluster = Server("--parallel", 2, mode=("--local", 2))
    shadowed = answers(cluster, asks[:6])
    for i, o in enumerate(alone):
        for other in together[i], looked_up[i], *shadowed[i:i + 1]:
            assert other["choices"] == o["choices"] and other["usage"]["completion_tokens"] == o["usage"]["completion_tokens"], (o, other)
    forced = [o["timings"] for o in together if "draft_n" in o["timings"]]
    assert forced and all(t["draft_n_accepted"] <= t["draft_n"] for t in forced), together
    for s in plain, drafted, cluster:
        assert s.stop() == 0, s.log


@test
def strict_tools_are_held_when_the_model_calls():
    """It need not call; a call of a strict tool has arguments by its schema, one of another tool those that the model writes."""
    case = next(c for c in call_cases() if c.name.startswith("hermes"))
    case = case._replace(name="strict", text='Let me see.\n<tool_call>\n{"name": "f", "arguments": {"n": "many"}}\n</tool_call>')
    s = Server(pack_dir=pack_of(case)[0])
    parameters = {"type": "object", "required": ["n"], "additionalProperties": False, "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}}}
    for strict in False, True:
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}]
        m = s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 120, "tools": tools,
                                           "parallel_tool_calls": False})[2]["choices"][0]["message"]
        args = json.loads(m["tool_calls"][0]["function"]["arguments"])
        assert m["content"] == "Let me see." and (1 <= args["n"] <= 99 if strict else args == {"n": "many"}), m
    o = s.ask("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 120, "tools": [
        {"name": "f", "input_schema": parameters, "strict": True}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})[2]
    assert 1 <= o["content"][-1]["input"]["n"] <= 99, o
    assert s.stop() == 0, s.log


THOUGHTS = {  # family: what it writes, and with what it ends
    "qwen3_moe": ("<think>\n{ hm, 1 }\n</think>\n\n", "<|im_end|>"), "glm4_moe": ("\n<think>{ hm, 1 }</think>\n", "<|user|>"),
    "gpt_oss": ("<|channel|>analysis<|message|>{ hm, 1 }<|end|><|start|>assistant<|channel|>final<|message|>", "<|return|>")}


@test
def content_is_held_to_a_schema_behind_thoughts():
    """A model that thinks, and then writes what the schema allows, is not disturbed; one that does not, is, and only behind its thoughts."""
    templates = {c.template: c for c in call_cases() if any(c.name.startswith(f) for f in THOUGHTS)}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for family, (thought, end) in THOUGHTS.items():
        case = next(c for c in templates.values() if c.name.startswith(family))
        for content in '{"a": 12}', "no JSON":
            case = case._replace(name=f"{family} {len(content)}", text=thought + content, end=end)
            s = Server(pack_dir=pack_of(case)[0])
            for fields, stream in itertools.product(({}, {"tools": tools}), (False, True)):
                if fields and content[0] != "{":
                    continue  # it might call
                body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 80, "stream": stream, **fields,
                        "response_format": schema_format({"type": "object", "required": ["a"], "additionalProperties": False,
                                                          "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 99}}})}
                status, _, o = s.ask("/v1/chat/completions", body)
                assert status == 200, o
                if stream:
                    parts = [c["delta"] for e in parse_events(o.decode())[0] if e != "[DONE]" for c in e["choices"]]
                else:
                    parts = [o["choices"][0]["message"]]
                said, thought_of = ("".join(p.get(k) or "" for p in parts) for k in ("content", "reasoning_content"))
                assert thought_of.strip() == "{ hm, 1 }", (family, o)
                assert said == content if content[0] == "{" else re.fullmatch(r'\s*{\s*"a":\s*[1-9]\d?\s*}', said), (family, content, said, o)
            assert s.stop() == 0, s.log


@test
def calls_are_forced_in_the_form_of_every_template():
    """What a model writes by itself passes unchanged; a model that would write something else writes a call."""
    seen = set()
    for case in call_cases():
        if case.content or (case.template, len(case.calls)) in seen:
            continue
        seen.add((case.template, len(case.calls)))
        s = Server(pack_dir=pack_of(case)[0])
        for choice in ("required", {"type": "function", "function": {"name": case.calls[0]["name"]}}, "auto"):
            names = {c["name"] for c in case.calls}
            if isinstance(choice, dict) and len(names) > 1:
                continue
            body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": ordered(case.tools, case.calls), "max_tokens": 600, "tool_choice": choice}
            status, _, o = s.ask("/v1/chat/completions", body)
            assert status == 200, (case.name, o)
            calls = [(c["function"]["name"], c["function"]["arguments"]) for c in o["choices"][0]["message"].get("tool_calls", [])]
            assert calls == [(c["name"], c["arguments"]) for c in case.calls], (case.name, choice, case.text, o)
        other = {"type": "function", "function": {"name": "other", "parameters": {
            "type": "object", "additionalProperties": False, "required": ["n", "s"], "properties": {
                "n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": {"type": "string", "maxLength": 5}}}}}
        o = s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Weather?"}], "tools": [other], "max_tokens": 2000,
                                           "tool_choice": "required", "temperature": 1, "seed": 5, "parallel_tool_calls": False})[2]
        choice = o["choices"][0]
        if choice["finish_reason"] != "length":  # its thoughts may have no end
            assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 1, (case.name, o)
            call = choice["message"]["tool_calls"][0]["function"]
            args = json.loads(call["arguments"])
            assert call["name"] == "other" and set(args) == {"n", "s"} and 0 <= args["n"] <= 99 and len(args["s"]) <= 5, (case.name, o)
        assert s.stop() == 0, s.log


run_tests()
