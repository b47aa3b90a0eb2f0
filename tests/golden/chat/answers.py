#!/usr/bin/env python3
"""Writes answers.json: raw texts of models, and what they mean, for tests/unit/test_answer.c.

The expectations are written here by hand, after the formats' documentation, and never come from od-main. Those under "echo"
are proved by jinja2: a conversation with the call's "echo" as arguments must be rendered, by the checkpoint's template, to
exactly the text that the model wrote.

    python answers.py chat_cases.json chat_cases-3.json > answers.json      (jinja2 3.1.6)
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {
        "type": "object",
        "properties": {
            "place": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
            "f": {"type": "number"}, "b": {"type": "boolean"}, "x": {"type": ["string", "null"]},
            "where": {"anyOf": [{"type": "object"}, {"type": "null"}]}, "unit": {"enum": ["celsius", "fahrenheit"]},
        }, "required": ["place"]}}},
    {"type": "function", "function": {"name": "clock", "description": "Time.", "parameters": {"type": "object", "properties": {}}}},
]


class Source(dict):
    """An object that tojson writes as the text it was given as."""


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    if isinstance(value, Source):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(json.dumps(k, ensure_ascii=False) + ": " + tojson(v) for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(tojson(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=ensure_ascii)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def render(template, messages, tools, generate, bos="<s>", eos="</s>", **extra):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime(2026, 1, 2).strftime(form)
    return env.from_string(template).render(messages=messages, tools=tools, documents=None, add_generation_prompt=generate,
                                            bos_token=bos, eos_token=eos, **extra)


TEMPLATES = {}
for path in sys.argv[1:]:
    for c in json.load(open(path))["cases"]:
        TEMPLATES.setdefault(c["family"], c["template"])
# Only what shows the form, and writes calls as the published templates do.
CALLS = "{%- for m in messages %}{%- if m.role == 'assistant' %}{{ m.content or '' }}{%- for c in m.tool_calls or [] %}"
DONE = "{%- endfor %}{%- else %}{{ '[' ~ m.role ~ ']' ~ m.content }}{%- endif %}{%- endfor %}"
THINK = "{%- if add_generation_prompt %}{{ '<think>\n' }}{%- endif %}{# </think> #}"
SHORT = {
    "hermes": CALLS + "{{ '\n' if m.content }}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments"
              " | tojson }}}\n</tool_call>" + DONE + "{# <|im_end|> #}",
    "mistral": CALLS + "{{ '[TOOL_CALLS] [' if loop.first else ', ' }}{%- set out = c.function | tojson %}{{ out[:-1] ~ ', \"id\": \"' ~"
               " c.id ~ '\"}' }}{{ ']' if loop.last }}" + DONE + "{# length != 9 #}",
    "mistral-named": CALLS + "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments if c.function.arguments is string else"
                     " c.function.arguments | tojson }}" + DONE + "{# [THINK][/THINK] #}",
    "deepseek-v3.1": CALLS + "{{ '<｜tool▁calls▁begin｜>' if loop.first }}<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{"
                     " c.function.arguments }}<｜tool▁call▁end｜>{{ '<｜tool▁calls▁end｜>' if loop.last }}" + DONE +
                     "{# <think></think><｜end▁of▁sentence｜> #}",
    "llama": CALLS + "{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}" + DONE +
             "{# <|python_tag|><|eot_id|><|eom_id|> #}",
    "kimi": CALLS + "{{ '<|tool_calls_section_begin|>' if loop.first }}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{"
            " c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}<|tool_call_end|>{{"
            " '<|tool_calls_section_end|>' if loop.last }}" + DONE + "{# <|im_end|> #}",
    "cohere": "{# <|START_ACTION|> <|START_THINKING|> <|END_THINKING|> <|END_OF_TURN_TOKEN|> #}",
    "qwen-think": "{# <tool_call> <think> </think> <|im_end|> #}",
    "plain": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
TEMPLATES.update(SHORT)

cases = []


def case(name, template, text, content="", reasoning="", calls=(), tools=None, in_thought=False, echo=None, prompt=None, **extra):
    """calls: (name, arguments) or (name, arguments, id). echo: for each call, what the template must get so that jinja2 renders
    text again; a string starting with "source:" stands for an object with that text. in_thought None: the template decides."""
    made = [dict(zip(("name", "arguments", "id"), c)) for c in calls]
    for c in made:
        json.loads(c["arguments"])
    if echo is not None:
        check_echo(name, template, text, content, reasoning, made, echo, prompt, extra)
    cases.append({"name": name, "template": template, "tools": tools, "in_thought": in_thought, "text": text,
                  "content": content, "reasoning": reasoning, "tool_calls": made, "echo": echo})


def check_echo(name, template, text, content, reasoning, made, echo, prompt, extra):
    calls = []
    for c, e in zip(made, echo):
        if isinstance(e, str) and e.startswith("source:"):
            text_of = e[len("source:"):]
            e = Source(json.loads(text_of))
            e.text = text_of
        calls.append({"type": "function", "id": c.get("id", "c"), "function": {"name": c["name"], "arguments": e}})
    ask = [{"role": "user", "content": "Q"}]
    answer = {"role": "assistant", "content": content, "tool_calls": calls}
    if reasoning:
        answer["thinking" if "gpt_oss" in template else "reasoning_content"] = reasoning
    got = render(TEMPLATES[template], ask + [answer], TOOLS, False, **extra)
    before = prompt if prompt is not None else render(TEMPLATES[template], ask, TOOLS, True, **extra)
    if before + text not in got:
        sys.exit("%s: the template renders\n%r\nwhich has not\n%r" % (name, got, before + text))


A = '{"place": "Zürich", "days": 2, "tags": ["a", "b"], "x": null, "f": 1.5, "b": true}'
COMPACT = '{"place":"Z\\u00fcrich","days":2,"f":1.50,"big":123456789012345678901234567890,"e":{ },"s":"<tool_call>"}'
W = "get_weather"

# ---- JSON in tags ----
for t in ("qwen3_moe", "hermes"):
    src = "" if t == "qwen3_moe" else "source:"
    end = "<|im_end|>"
    case(t + "/call", t, '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>' % A, calls=[(W, A)], echo=[src + A],
         prompt="")
    case(t + "/compact", t, '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>' % COMPACT, calls=[(W, COMPACT)],
         echo=[src + COMPACT], prompt="")
    case(t + "/two", t, 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"place": "Bern"}}\n</tool_call>\n<tool_call>\n'
         '{"name": "clock", "arguments": {}}\n</tool_call>' + end, content="Let me look.",
         calls=[(W, '{"place": "Bern"}'), ("clock", "{}")])
case("qwen3_moe/thought", "qwen3_moe", "<think>\nI must\nlook.\n</think>\n\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n"
     "</tool_call><|im_end|>", reasoning="I must\nlook.", calls=[("clock", "{}")], echo=None)
case("qwen3_moe/thought-echo", "qwen3_moe", "<think>\nI must\nlook.\n</think>\n\nSo.\n<tool_call>\n{\"name\": \"clock\", \"arguments\":"
     " {}}\n</tool_call>", content="So.", reasoning="I must\nlook.", calls=[("clock", "{}")], echo=["{}"])
case("qwen3_moe/answer", "qwen3_moe", "<think>\n\n</think>\n\nIt is 21.5 °C.<|im_end|>\n", content="It is 21.5 °C.")
case("qwen3_moe/no-thought", "qwen3_moe", "It is 21.5 °C.\n", content="It is 21.5 °C.\n")
case("hermes/other-order", "hermes", '<tool_call>{"arguments": {"a": [1, {"name": "b"}]}, "name": "clock"}</tool_call>',
     calls=[("clock", '{"a": [1, {"name": "b"}]}')])
case("hermes/tag-in-string", "hermes", '<tool_call>{"name": "clock", "arguments": {"t": "a </tool_call> \\" }"}}</tool_call>.',
     content=".", calls=[("clock", '{"t": "a </tool_call> \\" }"}')])
BAD = {
    "bad-json": '<tool_call>\n{"name": "clock", "arguments": {"a": 01}}\n</tool_call>',
    "no-json": "<tool_call>\nclock()\n</tool_call>",
    "cut": '<tool_call>\n{"name": "clock", "argu',
    "no-name": '<tool_call>{"arguments": {}}</tool_call>',
    "name-not-string": '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    "args-not-object": '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>',
    "args-string": '<tool_call>{"name": "clock", "arguments": "{}"}</tool_call>',
    "no-args": '<tool_call>{"name": "clock"}</tool_call>',
    "other-json": '<tool_call>{"clock": {"arguments": {}}}</tool_call>',
    "too-deep": '<tool_call>{"name": "clock", "arguments": {"a": ' + "[" * 80 + "]" * 80 + "}}</tool_call>",
    "control": '<tool_call>{"name": "clock", "arguments": {"a": "\n"}}</tool_call>',
    "name-two-lines": '<tool_call>{"name": "a\\nb", "arguments": {}}</tool_call>',
    "long-name": '<tool_call>{"name": "%s", "arguments": {}}</tool_call>' % ("n" * 300),
    "empty": "<tool_call></tool_call>",
    "half-tag": "a <tool_cal b <tool_call",
    "close-only": "a </tool_call> b",
}
for k, v in BAD.items():
    case("hermes/" + k, "hermes", v, content=v)
    case("hermes/" + k + "-within", "hermes", "Well:\n\n" + v + "\nand.<|im_end|>", content="Well:\n\n" + v + "\nand.")
# A turn may end without the closing tag, or within it; text behind is no end.
for k, v in {"": "", "-line": "\n", "-half": "\n</tool_c"}.items():
    case("hermes/unclosed" + k, "hermes", '<tool_call>\n{"name": "clock", "arguments": {}}' + v, calls=[("clock", "{}")])
case("hermes/unclosed-within", "hermes", '<tool_call>\n{"name": "clock", "arguments": {}}\nand.<|im_end|>',
     content='<tool_call>\n{"name": "clock", "arguments": {}}\nand.')
case("hermes/unclosed-unknown", "hermes", '<tool_call>{"name": "rm", "arguments": {}}', tools=TOOLS,
     content='<tool_call>{"name": "rm", "arguments": {}}')
case("hermes/unclosed-thought", "qwen-think", 'I call.\n<tool_call>{"name": "clock", "arguments": {}}', in_thought=True,
     reasoning="I call.", calls=[("clock", "{}")])
case("hermes/unknown", "hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', tools=TOOLS,
     content='<tool_call>{"name": "rm", "arguments": {}}</tool_call>')
case("hermes/no-tools", "hermes", '<tool_call>{"name": "clock", "arguments": {}}</tool_call>', tools=[],
     content='<tool_call>{"name": "clock", "arguments": {}}</tool_call>')
case("hermes/break-behind", "hermes", 'So.\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>\n', content="So.",
     calls=[("clock", "{}")])
case("hermes/text-behind", "hermes", 'So.\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>\nDone.\n', content="So.\nDone.\n",
     calls=[("clock", "{}")])
case("hermes/bad-then-good", "hermes", '<tool_call> <tool_call>{"name": "clock", "arguments": {}}</tool_call>',
     content="<tool_call> ", calls=[("clock", "{}")])
case("hermes/good-bad-good", "hermes", '<tool_call>{"name": "clock", "arguments": {}}</tool_call>\n<tool_call>{]</tool_call>\n'
     '<tool_call>{"name": "clock", "arguments": {"z": 1}}</tool_call>', content="<tool_call>{]</tool_call>",
     calls=[("clock", "{}"), ("clock", '{"z": 1}')])

# ---- XML parameters: Qwen3-Coder's ----
QX = ("<tool_call>\n<function=get_weather>\n<parameter=place>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
      "<parameter=tags>\n[\"a\",  \"b\"]\n</parameter>\n<parameter=x>\nNone\n</parameter>\n<parameter=f>\n1.50\n</parameter>\n"
      "<parameter=b>\n%s\n</parameter>\n</function>\n</tool_call>")
for t in ("qwen3_next", "qwen3_5_moe"):
    before = "<|im_start|>assistant\n" if t == "qwen3_next" else "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    values = {"place": "Zürich", "days": "2", "tags": '["a",  "b"]', "x": "None", "f": "1.50"}
    case(t + "/untyped", t, QX % "True", calls=[(W, json.dumps({**values, "b": "True"}, ensure_ascii=False))],
         echo=[{**values, "b": "True"}], prompt=before)
    case(t + "/typed", t, QX % "True", tools=TOOLS, echo=[{**values, "b": "True"}], prompt=before, calls=[
        (W, '{"place": "Zürich", "days": 2, "tags": ["a",  "b"], "x": null, "f": 1.50, "b": true}')])
    case(t + "/typed-json", t, QX % "true", tools=TOOLS, echo=[{**values, "b": "true"}], prompt=before, calls=[
        (W, '{"place": "Zürich", "days": 2, "tags": ["a",  "b"], "x": null, "f": 1.50, "b":  true}')])
    case(t + "/lines", t, "<tool_call>\n<function=clock>\n<parameter=code>\n\n  if a < b:\n    \"x\\y\"\n\n</parameter>\n</function>\n"
         "</tool_call>", calls=[("clock", '{"code": "\\n  if a < b:\\n    \\"x\\\\y\\"\\n"}')],
         echo=[{"code": '\n  if a < b:\n    "x\\y"\n'}], prompt=before)
    case(t + "/tags-in-value", t, "<tool_call>\n<function=clock>\n<parameter=code>\n<a></parameter> </function>\n</parameter>\n"
         "</function>\n</tool_call>", calls=[("clock", '{"code": "<a></parameter> </function>"}')],
         echo=[{"code": "<a></parameter> </function>"}], prompt=before)
    case(t + "/none", t, "<tool_call>\n<function=clock>\n</function>\n</tool_call><|im_end|>", calls=[("clock", "{}")])
    case(t + "/tight", t, "<tool_call><function=clock><parameter=a>1</parameter></function></tool_call>", calls=[("clock", '{"a": "1"}')])
    for k, v in {
        "no-name": "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "ended-early": "<tool_call>\n<function=clock>\n<parameter=a>\n1\n</parameter>\n",
        "cut": "<tool_call>\n<function=clock>\n<parameter=a>\n1",
        "twice": "<tool_call>\n<function=clock>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
        "json": '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        "prose": "Write <function=f> in <tool_call> tags.",
    }.items():
        case(t + "/bad-" + k, t, v, content=v)
    one = "<function=clock>\n<parameter=a>\n1\n</parameter>\n</function>"
    case(t + "/unclosed", t, "<tool_call>\n" + one, calls=[("clock", '{"a": "1"}')])
    case(t + "/unclosed-half", t, "<tool_call>\n" + one + "\n</tool", calls=[("clock", '{"a": "1"}')])
    # Qwen3-Coder at times.
    case(t + "/unopened", t, "So.\n" + one + "\n</tool_call><|im_end|>", content="So.", calls=[("clock", '{"a": "1"}')])
    case(t + "/untagged", t, one + "\n" + one, calls=[("clock", '{"a": "1"}')] * 2)
    case(t + "/untagged-text", t, one + "\nand </tool_call>.", calls=[("clock", '{"a": "1"}')], content="and </tool_call>.")
    case(t + "/bad-then-good", t, "<tool_call>\n<function=clock>\n<parameter=a>\n1\n</parameter> and <tool_call>\n<function=clock>\n"
         "</function>\n</tool_call>", content="<tool_call>\n<function=clock>\n<parameter=a>\n1\n</parameter> and ", calls=[("clock", "{}")])
case("qwen3_next/no-thoughts", "qwen3_next", "<think>\nx\n</think>\n\ny", content="<think>\nx\n</think>\n\ny")
case("qwen3_next/said", "qwen3_next", "Let me look.\n\n<tool_call>\n<function=clock>\n</function>\n</tool_call>", content="Let me look.",
     calls=[("clock", "{}")], echo=[{}], prompt="<|im_start|>assistant\n")
case("qwen3_next/typed-odd", "qwen3_next", "<tool_call>\n<function=get_weather>\n<parameter=place>\n2\n</parameter>\n<parameter=days>\ntwo\n"
     "</parameter>\n<parameter=where>\n{\"a\": 1}\n</parameter>\n<parameter=unit>\ncelsius\n</parameter>\n<parameter=other>\n3\n"
     "</parameter>\n</function>\n</tool_call>", tools=TOOLS,
     calls=[(W, '{"place": "2", "days": "two", "where": {"a": 1}, "unit": "celsius", "other": "3"}')],
     echo=[{"place": "2", "days": "two", "where": '{"a": 1}', "unit": "celsius", "other": "3"}])
case("qwen3_5_moe/in-thought", "qwen3_5_moe", "I look.\n</think>\n\nYes.<|im_end|>", in_thought=None, reasoning="I look.", content="Yes.")
case("qwen3_5_moe/thought-echo", "qwen3_5_moe", "I look.\n</think>\n\nSo.\n\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
     in_thought=True, reasoning="I look.", content="So.", calls=[("clock", "{}")], echo=[{}])

# ---- GLM's ----
GX = ("<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2"
      "</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", \"b\"]</arg_value>\n<arg_key>x</arg_key>\n<arg_value>null</arg_value>\n"
      "<arg_key>f</arg_key>\n<arg_value>1.50</arg_value>\n<arg_key>b</arg_key>\n<arg_value>true</arg_value>\n</tool_call>")
gx = {"place": "Zürich", "days": "2", "tags": '["a", "b"]', "x": "null", "f": "1.50", "b": "true"}
case("glm4_moe/untyped", "glm4_moe", "\n<think></think>\n" + GX + "<|observation|>", echo=None,
     calls=[(W, '{"place": "Zürich", "days": 2, "tags": ["a", "b"], "x": null, "f": 1.50, "b": true}')])
case("glm4_moe/typed", "glm4_moe", "\n<think></think>\n" + GX, tools=TOOLS, echo=[gx], prompt="<|assistant|>",
     calls=[(W, '{"place": "Zürich", "days": 2, "tags": ["a", "b"], "x": null, "f": 1.50, "b": true}')])
case("glm4_moe/thought", "glm4_moe", "\n<think>I look.</think>\nSo.\n" + GX, echo=[gx], content="So.", reasoning="I look.",
     calls=[(W, '{"place": "Zürich", "days": 2, "tags": ["a", "b"], "x": null, "f": 1.50, "b": true}')])
case("glm4_moe/quoted", "glm4_moe", "\n<think></think>\n<tool_call>clock\n<arg_key>q</arg_key>\n<arg_value>\"a\"</arg_value>\n<arg_key>w"
     "</arg_key>\n<arg_value> two\n</arg_value>\n</tool_call>", calls=[("clock", '{"q": "\\"a\\"", "w": " two\\n"}')],
     echo=[{"q": '"a"', "w": " two\n"}], prompt="<|assistant|>")
case("glm4_moe/deep", "glm4_moe", "<tool_call>clock\n<arg_key>a</arg_key>\n<arg_value>" + "[" * 80 + "]" * 80 + "</arg_value>\n</tool_call>",
     calls=[("clock", '{"a": "' + "[" * 80 + "]" * 80 + '"}')])
case("glm4_moe/string-typed", "glm4_moe", "<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
     tools=TOOLS, calls=[(W, '{"place": "2"}')])
case("glm4_moe/one-line", "glm4_moe", "<tool_call>clock</tool_call><tool_call>clock<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
     calls=[("clock", "{}"), ("clock", '{"a": "b"}')])
for k, v in {"no-value": "<tool_call>clock\n<arg_key>a</arg_key>\n</tool_call>", "no-name": "<tool_call>\n</tool_call>",
             "json": '<tool_call>{"name": "clock", "arguments": {}}</tool_call>', "prose": "the <tool_call> tag",
             "two-words": "<tool_call>a b</tool_call>"}.items():
    case("glm4_moe/bad-" + k, "glm4_moe", v, content=v)

# ---- MiniMax's ----
MX = ("<minimax:tool_call>\n<invoke name=\"get_weather\"><parameter name=\"place\">Zürich</parameter><parameter name=\"days\">2</parameter>"
      "<parameter name=\"tags\">[\"a\",\"b\"]</parameter></invoke>\n<invoke name=\"clock\"></invoke>\n</minimax:tool_call>")
case("minimax_m2/untyped", "minimax_m2", "I look.\n</think>\n\nSo.\n" + MX + "[e~[\n", in_thought=None, reasoning="I look.", content="So.",
     calls=[(W, '{"place": "Zürich", "days": "2", "tags": "[\\"a\\",\\"b\\"]"}'), ("clock", "{}")])
case("minimax_m2/typed", "minimax_m2", "I look.\n</think>\n\nSo.\n" + MX, in_thought=True, reasoning="I look.", content="So.",
     tools=TOOLS, calls=[(W, '{"place": "Zürich", "days": 2, "tags": ["a","b"]}'), ("clock", "{}")],
     echo=[{"place": "Zürich", "days": "2", "tags": '["a","b"]'}, {}])
case("minimax_m2/published-lines", "minimax_m2", "<minimax:tool_call>\n<invoke name=\"clock\">\n<parameter name=\"a\">1</parameter>\n"
     "<parameter name=\"b\">2</parameter>\n</invoke>\n</minimax:tool_call>", calls=[("clock", '{"a": "1", "b": "2"}')])
case("minimax_m2/second-bad", "minimax_m2", "<minimax:tool_call>\n<invoke name=\"clock\">\n</invoke>\n<invoke name=\"rm\">\n</invoke>\n"
     "</minimax:tool_call>", tools=TOOLS, calls=[("clock", "{}")], content="<invoke name=\"rm\">\n</invoke>\n</minimax:tool_call>")
case("minimax_m2/never-closed-thought", "minimax_m2", "I call.\n" + MX + "[e~[", in_thought=True, reasoning="I call.", calls=[
    (W, '{"place": "Zürich", "days": "2", "tags": "[\\"a\\",\\"b\\"]"}'), ("clock", "{}")])
case("minimax_m2/thought-about", "minimax_m2", "I could\n" + MX + "\nbut no.\n</think>\n\nNo.", in_thought=True,
     reasoning="I could\n" + MX + "\nbut no.", content="No.")
case("minimax_m2/thought-about-last", "minimax_m2", MX + "\n</think>\n\nNo.", in_thought=True, reasoning=MX, content="No.")
case("minimax_m2/bad-cut", "minimax_m2", "a\n<minimax:tool_call>\n<invoke name=\"clock\">", content="a\n<minimax:tool_call>\n<invoke name=\"clock\">")
case("minimax_m2/bad-empty", "minimax_m2", "<minimax:tool_call>\n</minimax:tool_call>", content="<minimax:tool_call>\n</minimax:tool_call>")

# ---- Types by schemas as Pydantic and zod write them ----
REFS = [{"type": "function", "function": {"name": "clock", "parameters": {
    "$defs": {"Where": {"type": "object", "properties": {"city": {"type": "string"}, "in": {"$ref": "#/$defs/Where"}}},
              "Loop": {"$ref": "#/$defs/Loop"}},
    "type": "object", "properties": {
        "ref": {"$ref": "#/$defs/Where"}, "maybe": {"anyOf": [{"$ref": "#/$defs/Where"}, {"type": "null"}], "default": None},
        "all": {"allOf": [{"$ref": "#/$defs/Where"}], "description": "Old Pydantic."}, "untyped": {"properties": {"a": {}}},
        "list": {"items": {"$ref": "#/$defs/Where"}}, "text": {"type": "string"}, "loop": {"$ref": "#/$defs/Loop"}}}}}]
REF_VALUES = {"ref": '{"city": "Bern"}', "maybe": "null", "all": '{"city": "Bern", "in": {}}', "untyped": "{}", "list": '[{"city": "x"}]',
              "text": '{"city": "Bern"}'}
REF_ARGS = ", ".join('"%s": %s' % (k, v if k != "text" else json.dumps(v)) for k, v in REF_VALUES.items())
for t, parameter, whole in (
        ("qwen3_next", "<parameter=%s>\n%s\n</parameter>\n", "<tool_call>\n<function=clock>\n%s</function>\n</tool_call>"),
        ("glm4_moe", "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n", "<tool_call>clock\n%s</tool_call>"),
        ("minimax_m2", '<parameter name="%s">%s</parameter>', '<minimax:tool_call>\n<invoke name="clock">%s</invoke>\n</minimax:tool_call>')):
    text = whole % "".join(parameter % (k, v) for k, v in REF_VALUES.items())
    spaced = REF_ARGS.replace('"maybe": ', '"maybe":  ') if t == "qwen3_next" else REF_ARGS
    case(t + "/schema-refs", t, text, tools=REFS, calls=[("clock", "{" + spaced + "}")])
    case(t + "/schema-loop", t, whole % (parameter % ("loop", "Bern")), tools=REFS, calls=[("clock", '{"loop": "Bern"}')])

# ---- Mistral's ----
case("mistral/array", "mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"place":"Bern"}, "id": "abcDEF012"}, {"name": "clock",'
     ' "arguments": {}, "id": "000000001"}]', calls=[(W, '{"place":"Bern"}', "abcDEF012"), ("clock", "{}", "000000001")],
     echo=['source:{"place":"Bern"}', "source:{}"], prompt="[user]Q")
case("mistral/no-id", "mistral", 'Well.[TOOL_CALLS][{"name": "clock", "arguments": {}}]', content="Well.", calls=[("clock", "{}")])
case("mistral/named-too", "mistral", '[TOOL_CALLS]clock[ARGS]{"a": 1}', calls=[("clock", '{"a": 1}')])
case("mistral-named/two", "mistral-named", '[TOOL_CALLS]get_weather[ARGS]{"place":"Bern"}[TOOL_CALLS]clock[ARGS]{}',
     calls=[(W, '{"place":"Bern"}'), ("clock", "{}")], echo=['{"place":"Bern"}', "{}"])
case("mistral-named/id", "mistral-named", '[TOOL_CALLS]clock[CALL_ID]abcDEF012[ARGS]{"a": "]"}', calls=[("clock", '{"a": "]"}', "abcDEF012")])
case("mistral-named/thought", "mistral-named", '[THINK]I look.[/THINK]So.[TOOL_CALLS]clock[ARGS]{}', reasoning="I look.", content="So.",
     calls=[("clock", "{}")])
for k, v in {"empty": "[TOOL_CALLS] []", "text": "[TOOL_CALLS] are calls.",
             "no-args": "[TOOL_CALLS]clock[ARG]{}", "args-list": "[TOOL_CALLS]clock[ARGS][1]", "half": "see [TOOL_CALL] and [TOOL"}.items():
    case("mistral/bad-" + k, "mistral", v, content=v)
case("mistral/open", "mistral", '[TOOL_CALLS] [{"name": "clock", "arguments": {}}', calls=[("clock", "{}")])
case("mistral/cut", "mistral", '[TOOL_CALLS] [{"name": "clock", "arguments": {}', content='[TOOL_CALLS] [{"name": "clock", "arguments": {}')
case("mistral/second-cut", "mistral", '[TOOL_CALLS] [{"name": "clock", "arguments": {}}, {"name": "cl', calls=[("clock", "{}")],
     content=', {"name": "cl')
case("mistral/second-bad", "mistral", '[TOOL_CALLS] [{"name": "clock", "arguments": {}}, {"name": 1}]', calls=[("clock", "{}")],
     content=', {"name": 1}]')

# ---- DeepSeek's ----
DB, DE, D1, D2, DS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
V3 = DB + D1 + "function" + DS + 'get_weather\n```json\n{"place":"Bern"}\n```' + D2 + "\n" + D1 + "function" + DS + "clock\n```json\n{}\n```" + D2 + DE
case("deepseek_v3/two", "deepseek_v3", V3 + "<｜end▁of▁sentence｜>", calls=[(W, '{"place":"Bern"}'), ("clock", "{}")],
     echo=['{"place":"Bern"}', "{}"], prompt="<｜Assistant｜>")
case("deepseek_v3/thought", "deepseek_v3", "I look.\n</think>\n\nSo." + V3, in_thought=None, reasoning="I look.", content="So.",
     calls=[(W, '{"place":"Bern"}'), ("clock", "{}")])
case("deepseek_v3/again-opened", "deepseek_v3", "<think>\nI look.\n</think>\n\nSo.", in_thought=None, reasoning="I look.", content="So.")
case("deepseek_v3/only-thought", "deepseek_v3", "I look and", in_thought=None, reasoning="I look and")
case("deepseek_v3/fence-in-string", "deepseek_v3", DB + D1 + "function" + DS + 'clock\n```json\n{"t": "```"}\n```' + D2 + DE,
     calls=[("clock", '{"t": "```"}')])
case("deepseek_v3/bad-31", "deepseek_v3", DB + D1 + "clock" + DS + "{}" + D2 + DE, content=DB + D1 + "clock" + DS + "{}" + D2 + DE)
case("deepseek_v3/second-bad", "deepseek_v3", V3[:-len(DE)] + "\n" + D1 + "x" + DE, calls=[(W, '{"place":"Bern"}'), ("clock", "{}")],
     content=D1 + "x" + DE)
V31 = DB + D1 + 'get_weather' + DS + '{"place":"Bern"}' + D2 + D1 + "clock" + DS + "{}" + D2 + DE
case("deepseek-v3.1/two", "deepseek-v3.1", V31, calls=[(W, '{"place":"Bern"}'), ("clock", "{}")], echo=['{"place":"Bern"}', "{}"])
case("deepseek-v3.1/thought", "deepseek-v3.1", "I look.</think>So." + V31 + "<｜end▁of▁sentence｜>", in_thought=True, reasoning="I look.",
     content="So.", calls=[(W, '{"place":"Bern"}'), ("clock", "{}")])
case("deepseek-v3.1/ended-early", "deepseek-v3.1", V31[:-len(DE)], calls=[(W, '{"place":"Bern"}'), ("clock", "{}")])
case("deepseek-v3.1/unclosed", "deepseek-v3.1", V31[:-len(D2 + DE)], calls=[(W, '{"place":"Bern"}'), ("clock", "{}")])
case("deepseek_v3/unclosed", "deepseek_v3", V3[:-len("```" + D2 + DE) - 1], calls=[(W, '{"place":"Bern"}'), ("clock", "{}")])
case("deepseek-v3.1/cut", "deepseek-v3.1", DB + D1 + "clock" + DS + '{"a', content=DB + D1 + "clock" + DS + '{"a')

# ---- Harmony ----
case("gpt_oss/final", "gpt_oss", "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>It is\n21.5.\n"
     "<|return|>", reasoning="I look.", content="It is\n21.5.\n")
case("gpt_oss/call", "gpt_oss", "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather"
     " <|constrain|>json<|message|>" + COMPACT + "<|call|>", reasoning="I look.", calls=[(W, COMPACT)])
case("gpt_oss/role-first", "gpt_oss", " to=functions.get_weather<|channel|>commentary json<|message|>" + COMPACT + "<|call|>",
     calls=[(W, COMPACT)], echo=["source:" + COMPACT])
case("gpt_oss/thought-echo", "gpt_oss", "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.get_weather<|channel|>"
     "commentary json<|message|>" + A + "<|call|>", reasoning="I look.", calls=[(W, A)], echo=["source:" + A])
case("gpt_oss/no-end", "gpt_oss", "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}", calls=[("clock", "{}")])
case("gpt_oss/preamble", "gpt_oss", "<|channel|>commentary<|message|>First the time.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.clock<|message|>{}<|call|>", content="First the time.", calls=[("clock", "{}")])
case("gpt_oss/two-thoughts", "gpt_oss", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
     "<|start|>assistant<|channel|>final<|message|>c<|return|>", reasoning="a\nb", content="c")
case("gpt_oss/plain", "gpt_oss", "Hello to=you.", content="Hello to=you.")
case("gpt_oss/only-thought", "gpt_oss", "<|channel|>analysis<|message|>I look and", reasoning="I look and")
case("gpt_oss/other-tags", "gpt_oss", "<|channel|>final<|message|><think>x</think> <tool_call>{}</tool_call><|return|>",
     content="<think>x</think> <tool_call>{}</tool_call>")
for k, v in {"json": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{\"a\": }<|call|>",
             "deep": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{\"a\": " + "[" * 80 + "]" * 80 + "}<|call|>",
             "not-json": "<|channel|>commentary to=python code<|message|>print(1)<|call|>",
             "header": "<|channel|>commentary to=functions.clo"}.items():
    case("gpt_oss/bad-" + k, "gpt_oss", v, content=v)
case("gpt_oss/unknown", "gpt_oss", "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>", tools=TOOLS,
     content="<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>")

# ---- Llama's, Kimi's, Cohere's ----
LL = '{"name": "get_weather", "parameters": {"place":"Bern"}}'
case("llama/bare", "llama", LL, calls=[(W, '{"place":"Bern"}')], echo=['source:{"place":"Bern"}'])
case("llama/python-tag", "llama", "<|python_tag|>" + LL + "<|eom_id|>", calls=[(W, '{"place":"Bern"}')])
case("llama/typed", "llama", '{"type": "function", "name": "clock", "parameters": {}}<|eot_id|>', calls=[("clock", "{}")])
for k, v in {"json": '{"temp": 21.5, "name": "x"}', "named": '{"name": "Ada", "age": 36}', "later": "Use " + LL, "code": "{ x = 1; }",
             "python": '<|python_tag|>print("x")', "open": '{"name": "clock", "parameters": {'}.items():
    case("llama/not-" + k, "llama", v, content=v)
case("llama/no-tools", "llama", LL, tools=[], content=LL)
KI = ('<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"place":"Bern"}<|tool_call_end|>'
      '<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>')
case("kimi/two", "kimi", "So." + KI, content="So.", calls=[(W, '{"place":"Bern"}', "functions.get_weather:0"), ("clock", "{}", "functions.clock:1")],
     echo=['{"place":"Bern"}', "{}"])
case("cohere/call", "cohere", '<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "clock",'
     ' "parameters": {"a": 1}}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>', reasoning="I look.", calls=[("clock", '{"a": 1}', "0")])

# ---- Gemma's ----
Q = '<|"|>'
GM = "<|tool_call>call:get_weather{b:true,days:2,f:1.50,place:" + Q + "Zürich, \"{x}\"" + Q + ",tags:[" + Q + "a" + Q + ",{k:null}],x:{}}<tool_call|>"
gm = '{"b": true, "days": 2, "f": 1.50, "place": "Zürich, \\"{x}\\"", "tags": ["a", {"k": null}], "x": {}}'
case("gemma4/call", "gemma4", GM, calls=[(W, gm)], echo=[GM[len("<|tool_call>call:get_weather{"):-len("}<tool_call|>")]])
case("gemma4/unsorted", "gemma4", "<|tool_call>call:get_weather{z:1,a:2}<tool_call|><|tool_call>call:clock{}<tool_call|>",
     calls=[(W, '{"z": 1, "a": 2}'), ("clock", "{}")], echo=["z:1,a:2", ""])
case("gemma4/thought", "gemma4", "<|channel>thought\nhm\n<channel|>yes<turn|>\n", reasoning="hm", content="yes")
case("gemma4/no-label", "gemma4", "<|channel>thoughts are\nfree<channel|>yes", reasoning="thoughts are\nfree", content="yes")
case("gemma4/thought-call", "gemma4", "<|channel>thought\nhm<channel|>" + GM + "<|tool_response>", reasoning="hm", calls=[(W, gm)])
for k, v in {"bare-string": "<|tool_call>call:clock{a:Bern}<tool_call|>", "open": "<|tool_call>call:clock{a:1}", "no-call": "<|tool_call>clock{}<tool_call|>",
             "quote": "<|tool_call>call:clock{a:" + Q + "}<tool_call|>", "json": '<|tool_call>call:clock{"a": 1}<tool_call|>',
             "no-comma": "<|tool_call>call:clock{a:1 b:2}<tool_call|>",
             "json-string": '<|tool_call>call:clock{a:"x"}<tool_call|>', "word": "<|tool_call>call:clock{a:tru}<tool_call|>",
             "comma": "<|tool_call>call:clock{a:1,}<tool_call|>"}.items():
    case("gemma4/bad-" + k, "gemma4", v, content=v)

# ---- Thoughts, and text that is only text ----
case("qwen-think/tag-later", "qwen-think", "Use <think> tags.", content="Use <think> tags.")
case("qwen-think/call-in-own-thought", "qwen-think", '<think>\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>\n</think>\nNo.',
     reasoning='<tool_call>{"name": "clock", "arguments": {}}</tool_call>', content="No.")
case("qwen-think/own-thought-not-closed", "qwen-think", '<think>\nI call.\n<tool_call>{"name": "clock", "arguments": {}}</tool_call><|im_end|>',
     reasoning="I call.", calls=[("clock", "{}")])
case("qwen-think/cut", "qwen-think", "<think>\nI look", reasoning="I look")
case("qwen-think/cut-tag", "qwen-think", "<think>\nI look</thi", reasoning="I look</thi")
case("qwen-think/blank-lines", "qwen-think", "<think>\n\na\n\nb\n\n</think>\n\n\nc\n\nd\n\n<|im_end|>", reasoning="a\n\nb", content="c\n\nd\n\n")
case("qwen-think/after-end", "qwen-think", "a<|im_end|>\n<|im_start|>user\nb", content="a")
everything = ("<think>a</think><tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>[TOOL_CALLS] []<|channel|>final<|message|>x<|return|>"
              + DB + DE + "<|im_end|>[THINK]y[/THINK]{\"name\": \"a\", \"parameters\": {}}\n\n")
case("plain/everything", "plain", "\n" + everything, content="\n" + everything)
for t in ("olmoe", "mixtral", "deepseek_v2"):
    case(t + "/everything", t, everything, content=everything)
case("qwen2_moe/everything", "qwen2_moe", everything, content=everything[:everything.index("<|im_end|>")])
case("phimoe/everything", "phimoe", everything + "<|end|>", content=everything)
case("plain/utf-8", "plain", "Zürich 日本語 🙂 e\u0301", content="Zürich 日本語 🙂 e\u0301")

json.dump({"note": "made by answers.py", "templates": SHORT, "cases": cases}, sys.stdout, ensure_ascii=False, indent=1)
print()
