#!/usr/bin/env python3
"""Requests as programs in TypeScript send them, by their published sources: the Vercel AI SDK (openai-compatible and openai), Continue,
LibreChat. Their schemas are zod's. Answers are checked by hand-written rules, as the programs would by zod."""
import atexit
import json
import os
import re

from chat_scripts import call_cases, pack_of
from cluster_util import TMP, run_tests, test, tool
from free_model import TEMPLATE, free_pack
from scripted_checkpoint import write_scripted
from serve_util import Server, parse_events, stop_servers

atexit.register(stop_servers)
ASK = "Once upon a time there was a king"
SAFE = {"minimum": -9007199254740991, "maximum": 9007199254740991}  # z.int()
DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
_shared = []


def free():
    """One server of the free model for all tests."""
    if not _shared:
        _shared.append(Server(pack_dir=free_pack(os.path.join(TMP, "free"))))
    return _shared[0]


def zod(draft=DRAFT_7, **properties):
    """z.object({...}): all are required, but those whose names end with an underscore."""
    return {"$schema": draft, "type": "object", "properties": {k.rstrip("_"): v for k, v in properties.items()},
            "required": [k for k in properties if not k.endswith("_")], "additionalProperties": False}


def within(text, most):
    return isinstance(text, str) and len(text) <= most


WORD = {"type": "string", "maxLength": 20}
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"  # z.email()
SCHEMAS = {
    "plain": (zod(name=WORD, age={"type": "integer", "exclusiveMinimum": 0, "maximum": 120}, wise={"type": "boolean"}),
              lambda o: within(o["name"], 20) and 0 < o["age"] <= 120 and o["wise"] in (True, False)),
    "enum output": (zod(result={"type": "string", "enum": ["crown", "sceptre"]}), lambda o: o["result"] in ("crown", "sceptre")),
    "array output": (zod(elements={"type": "array", "items": zod(n={"type": "integer", **SAFE}), "minItems": 1, "maxItems": 2}),
                     lambda o: 0 < len(o["elements"]) < 3 and all(abs(e["n"]) <= SAFE["maximum"] for e in o["elements"])),
    "nullable and optional": (zod(a={"type": ["string", "null"], "maxLength": 9}, b={"anyOf": [{"type": "number"}, {"type": "null"}]},
                                  c_={"type": "boolean", "default": False, "description": "whether"}),
                              lambda o: within(o["a"] or "", 9) and not isinstance(o["b"], str) and o.get("c", True) in (True, False)),
    "never": (zod(a={"anyOf": [{"not": {}}, {"type": "string", "const": "x"}]}, b_={"not": {}}), lambda o: o == {"a": "x"}),
    "discriminated union": (zod(DRAFT_2020, pet={"oneOf": [
        zod(kind={"type": "string", "const": "cat"}, lives={"type": "integer", **SAFE}), zod(kind={"type": "string", "const": "dog"})]}),
                            lambda o: o["pet"] == {"kind": "dog"} or (o["pet"]["kind"] == "cat" and isinstance(o["pet"]["lives"], int))),
    "record": (zod(DRAFT_2020, r={"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]}, "additionalProperties": {
        "type": "boolean"}, "required": ["a", "b"]}), lambda o: set(o["r"]) == {"a", "b"} and set(o["r"].values()) <= {True, False}),
    "record of named keys": ({**zod(r={"type": "object", "propertyNames": {"$ref": "#/definitions/Key"}, "minProperties": 1,
                                       "maxProperties": 2, "additionalProperties": {"type": "null"}}),
                              "definitions": {"Key": {"anyOf": [{"type": "string", "const": "k"}, {"enum": ["l", 3]}]}}},
                             lambda o: o["r"] and set(o["r"]) <= {"k", "l"} and set(o["r"].values()) == {None}),
    "record of numbers": (zod(DRAFT_2020, r={"type": "object", "propertyNames": {"type": "number"}, "additionalProperties": {}}),
                          lambda o: o["r"] == {}),  # no name is a number
    "tuple": (zod(DRAFT_2020, t={"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "end"}], "items": False, "minItems": 2}),
              lambda o: o["t"] in ([True, "end"], [False, "end"])),
    "tuple of draft 7": (zod(t={"type": "array", "minItems": 2, "maxItems": 2, "items": [{"type": "boolean"}, {"type": "null"}]}),
                         lambda o: o["t"] in ([True, None], [False, None])),
    "formats": (zod(DRAFT_2020, mail={"type": "string", "format": "email", "pattern": EMAIL, "maxLength": 30},
                    id={"type": "string", "format": "uuid"}, at={"type": "string", "format": "date-time"}),
                lambda o: re.match(EMAIL, o["mail"]) and re.fullmatch(r"[0-9A-Fa-f-]{36}", o["id"]) and re.match(r"\d{4}-", o["at"])),
    "recursion": ({**zod(v={"type": "boolean"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})},
                  lambda o: o["v"] in (True, False) and (o["next"] is None or o["next"]["v"] in (True, False))),
    "intersection": ({"$schema": DRAFT_7, "allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, {
        "type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}], "unevaluatedProperties": True, "maxProperties": 2},
                     lambda o: o in ({"a": True, "b": None}, {"a": False, "b": None})),
}


def chat(server=None, stream=False, **body):
    """The message and the finish reason."""
    body = {"model": "od-moe", "messages": [{"role": "user", "content": ASK}], "max_tokens": 400, **body}
    if not stream:
        status, _, o = (server or free()).ask("/v1/chat/completions", body)
        assert status == 200, o
        return o["choices"][0]["message"], o["choices"][0]["finish_reason"]
    events = parse_events((server or free()).ask("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})[2].decode())
    message, calls, finish = {"content": ""}, {}, None
    assert events[0][-1] == "[DONE]" and events[0][-2]["usage"], events
    for c in (c for e in events[0][:-1] for c in e["choices"]):
        message["content"] += c["delta"].get("content") or ""
        for piece in c["delta"].get("tool_calls", []):
            call = calls.setdefault(piece["index"], {"id": piece.get("id"), "function": {"name": piece["function"].get("name"), "arguments": ""}})
            call["function"]["arguments"] += piece["function"].get("arguments", "")
        finish = c["finish_reason"] or finish
    return {**message, "tool_calls": [*calls.values()]}, finish


def check(name, text):
    schema, good = SCHEMAS[name]
    o = json.loads(text)
    assert set(schema.get("required", [])) <= set(o) and good(o), (name, text)


@test
def ai_sdk_with_structured_outputs():
    for name, (schema, _) in SCHEMAS.items():
        for stream in False, True:
            m, finish = chat(stream=stream, response_format={"type": "json_schema", "json_schema": {
                "schema": schema, "strict": True, "name": "response"}})
            assert finish == "stop", (name, m)
            check(name, m["content"])


@test
def ai_sdk_in_tool_mode():
    """A named function: one call, though the request says nothing of parallel ones."""
    for name, (schema, _) in SCHEMAS.items():
        for stream in False, True:
            m, finish = chat(stream=stream, tool_choice={"type": "function", "function": {"name": "json"}}, tools=[
                {"type": "function", "function": {"name": "json", "description": "Respond with a JSON object.", "parameters": schema}}])
            assert finish == "tool_calls" and len(m["tool_calls"]) == 1 and m["tool_calls"][0]["id"], (name, finish, m)
            check(name, m["tool_calls"][0]["function"]["arguments"])


@test
def ai_sdk_over_responses():
    body = {"model": "od-moe", "input": [{"role": "developer", "content": "You are a king."}, {"role": "user", "content": [
        {"type": "input_text", "text": ASK}]}], "max_output_tokens": 400}
    for name, (schema, _) in SCHEMAS.items():
        status, _, o = free().ask("/v1/responses", {**body, "text": {"format": {
            "type": "json_schema", "strict": True, "name": "response", "description": "A reply.", "schema": schema}}})
        assert status == 200 and o["status"] == "completed", o
        check(name, o["output"][0]["content"][0]["text"])


@test
def librechat_titles():
    """LangChain's withStructuredOutput of a zod object, as a function and as a schema."""
    title = zod(language={**WORD, "description": "The detected language"}, title={**WORD, "description": "A concise title"})
    common = {"user": "66b1", "temperature": 0.2, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1, "stream": False}
    m, _ = chat(**common, tools=[{"type": "function", "function": {"name": "extract", "description": "", "parameters": title}}],
                tool_choice={"type": "function", "function": {"name": "extract"}}, parallel_tool_calls=False)
    as_schema, _ = chat(**common, response_format={"type": "json_schema", "json_schema": {
        "name": "extract", "description": "", "schema": title, "strict": True}})
    for text in m["tool_calls"][0]["function"]["arguments"], as_schema["content"]:
        o = json.loads(text)
        assert list(o) == ["language", "title"] and all(within(v, 20) for v in o.values()), o


@test
def what_cannot_be_held_of_tools():
    """Where a call is required, its arguments are held to the schema, or the request is refused with the keyword's path."""
    for what, keyword in ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "#/properties/a/uniqueItems"), (
            {"oneOf": [{"type": "array"}, {"minItems": 1}]}, "#/properties/a/oneOf"):
        ask = {"tools": [{"type": "function", "function": {"name": "json", "parameters": zod(a=what)}}], "tool_choice": "required"}
        status, _, o = free().ask("/v1/chat/completions", {"messages": [{"role": "user", "content": ASK}], **ask})
        assert status == 400 and "tools[0].function.parameters" + keyword in o["error"]["message"], (status, o)


def scripted(name, **scripts):
    folder = os.path.join(TMP, name)
    write_scripted(folder, TEMPLATE, {role: text + "</s>" for role, text in scripts.items()})
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    return Server(pack_dir=folder + ".pack")


def called(name, arguments):
    return f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'


def loop(server, name, arguments, final, **body):
    """A call, and then what is said of its result; streamed, as both programs ask for it."""
    system, user = {"role": "system", "content": "You are an assistant."}, {"role": "user", "content": ASK}
    m, finish = chat(server, True, messages=[system, user], **body)
    call, = m["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"]), finish) == (name, arguments, "tool_calls"), (m, finish)
    call = {**call, "type": "function"}
    m, finish = chat(server, True, messages=[system, user, {"role": "assistant", "content": m["content"], "tool_calls": [call]}, {
        "role": "tool", "tool_call_id": call["id"], "content": "it is done"}], **body)
    assert (m["content"], m["tool_calls"], finish) == (final, [], "stop"), (m, finish)


@test
def records_in_calls_without_quotes():
    """Gemma's names of members have none."""
    case = next(c for c in call_cases() if c.name == "gemma4/call")
    s = Server(pack_dir=pack_of(case)[0])
    record = {"type": "object", "propertyNames": {"type": "string", "enum": ["gold", "iron"]}, "additionalProperties": {"type": "boolean"}}
    m, _ = chat(s, tool_choice={"type": "function", "function": {"name": "json"}}, tools=[{"type": "function", "function": {
        "name": "json", "parameters": zod(r={**record, "minProperties": 1, "maxProperties": 2})}}])
    o = json.loads(m["tool_calls"][0]["function"]["arguments"])["r"]
    assert o and set(o) <= {"gold", "iron"} and set(o.values()) <= {True, False}, m
    assert s.stop() == 0, s.log


@test
def continue_edits_files():
    edit = {"filepath": "src/king.ts", "edits": [{"old_string": "let a = \"<b>\"", "new_string": "let a = '\\n'", "replace_all": True}]}
    tools = [{"type": "function", "function": {"name": "multi_edit", "description": "Makes edits.", "parameters": {
        "type": "object", "required": ["filepath", "edits"], "properties": {
            "filepath": {"type": "string", "description": "The path"},
            "edits": {"type": "array", "description": "Edits", "items": {"type": "object", "required": ["old_string", "new_string"], "properties": {
                "old_string": {"type": "string"}, "new_string": {"type": "string"}, "replace_all": {"type": "boolean"}}}}}}}},
             {"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": {
                 "type": "object", "required": ["filepath"], "properties": {"filepath": {"type": "string"}}}}}]
    s = scripted("continue", user="I edit it.\n" + called("multi_edit", edit), tool="The file has changed.")
    loop(s, "multi_edit", edit, "The file has changed.", tools=tools, max_tokens=4096)
    assert s.stop() == 0, s.log


@test
def continue_applies_an_edit():
    """The whole file is written anew; the old one is sent as a prediction."""
    code = "let king = 'Otto';\nlet queen = 'Ida';\n```"
    s = scripted("apply", user=code)
    m, finish = chat(s, True, messages=[{"role": "user", "content": "Apply it."}], max_tokens=2048, stop=["```\n\n"],
                     prediction={"type": "content", "content": "let king = 'Ott';\n"})
    assert (m["content"], finish) == (code, "stop"), m
    assert s.stop() == 0, s.log


@test
def librechat_agents():
    """Tools of MCP servers, with zod's marks; the model is asked for usage in the stream."""
    args = {"query": "kings", "limit": 3, "filter": {"year": None}}
    name = "search_mcp_tales"
    parameters = {**zod(query={"type": "string"}, limit_={"type": "integer", "format": "int32", "default": 5, **SAFE}, filter_={
        "type": "object", "properties": {"year": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "additionalProperties": {}})}
    s = scripted("librechat", user=called(name, args), tool="I found three.")
    loop(s, name, args, "I found three.", user="66b1", temperature=1, top_p=1, frequency_penalty=0, presence_penalty=0, n=1, tools=[
        {"type": "function", "function": {"name": name, "description": "Searches tales.", "parameters": parameters}}])
    assert s.stop() == 0, s.log


run_tests()
