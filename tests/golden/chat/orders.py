#!/usr/bin/env python3
"""Writes orders.json: templates with the conditions that published ones have, conversations as clients send them, what the template
should be given, written by hand, and what Python's jinja2 makes of that. Needs jinja2:  python3 orders.py"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "clients"))
import published_templates  # noqa: E402

TOOL_TURNS = """
{%- if message.role == 'tool' %}
{%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}"""
TEMPLATES = {
    # Content is looked into only where there is no thought; the last question is searched from the end.
    "searches": """{%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == 'user' and not(message.content.startswith('<tool_response>')) %}
{%- set ns.multi_step_tool = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role in ['user', 'system'] %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{%- set content = message.content %}{%- set thought = '' %}
{%- if message.reasoning_content is defined and message.reasoning_content is not none %}{%- set thought = message.reasoning_content %}
{%- elif '</think>' in message.content %}{%- set thought = message.content.split('</think>')[0] %}{%- set content = message.content.split('</think>')[-1] %}{%- endif %}
{{- '<|im_start|>assistant\\n' }}{%- if loop.index0 > ns.last and (loop.last or thought) %}{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- content.lstrip('\\n') }}
{%- for call in message.tool_calls %}{{ '\\n' if not loop.first or content }}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}{{ '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}""" + TOOL_TURNS + """{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    # The system is first or not at all; parts in every role; some user must ask.
    "strict": """{%- macro text(content) %}{%- if content is string %}{{ content }}{% elif content is iterable and content is not mapping %}
{%- for item in content %}{%- if 'text' in item %}{{ item.text }}{% else %}{{ raise_exception('Unexpected item') }}{% endif %}{%- endfor %}
{%- elif content is none or content is undefined %}{% else %}{{ raise_exception('Unexpected content') }}{% endif %}{%- endmacro %}
{%- if not messages %}{{ raise_exception('No messages') }}{% endif %}
{%- if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ raise_exception('No user query found') }}{% endif %}
{%- for message in messages %}{%- set content = text(message.content) | trim %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning') }}{% endif %}
{%- if message.role == 'assistant' %}{{ '<|assistant|>' + content }}{%- for call in message.tool_calls or [] %}
{{- '<tool_call><function=' + call.function.name + '>' }}{%- for k, v in call.function.arguments|items %}{{ '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>' }}
{%- endfor %}{{ '</function></tool_call>' }}{%- endfor %}
{%- elif message.role in ('system', 'user', 'tool') %}{{ '<|' + message.role + '|>' + content }}
{%- else %}{{ raise_exception('Unexpected role') }}{% endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}""",
    # No system, turns alternate, no tools.
    "alternates": """{{ bos_token }}{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    # Calls only where content is none; a text otherwise.
    "none": """{%- for message in messages %}{%- if message['role'] == 'system' %}{{ message['content'] }}{%- elif message['role'] == 'user' %}{{ '<User>' + message['content'] }}
{%- elif message['role'] == 'assistant' and message['content'] is none %}{{ '<Assistant>' }}{%- for tool in message['tool_calls'] %}
{{- '<call>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n' + tool['function']['arguments'] + '</call>' }}{%- endfor %}{{ eos_token }}
{%- elif message['role'] == 'assistant' and message['content'] is not none %}{{ '<Assistant>' + message['content'] + eos_token }}
{%- elif message['role'] == 'tool' %}{{ '<out>' + message['content'] + '</out>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<Assistant>' }}{% endif %}""",
    # The first message may be the system's or a developer's, others of these are lost; one call a message, its name is the result's.
    "first-only": """{%- if messages[0].role in ('developer', 'system') %}{{ '<dev>' + messages[0].content }}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- set last = namespace(name=none) %}{%- for message in rest %}{%- if message.role == 'user' %}{{ '<user>' + message.content }}
{%- elif message.role == 'assistant' %}{%- if 'tool_calls' in message %}{%- set call = message.tool_calls[0].function %}{%- set last.name = call.name %}
{{- '<assistant to=' + call.name + '>' + call.arguments|tojson }}{%- else %}{{ '<assistant>' + message.content }}{%- endif %}
{%- elif message.role == 'tool' %}{%- if last.name is none %}{{ raise_exception('no call before this result') }}{% endif %}{{ '<' + last.name + '>' + message.content|tojson }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}""",
    # One call at once; ids of nine letters.
    "one-call": """{%- for message in messages %}{%- if message.tool_calls %}{%- if message.tool_calls|length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- if message.tool_calls[0].id|length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}{{ '[TOOL_CALLS]' + message.tool_calls[0].function|tojson }}
{%- else %}{{ '[' + message.role + ']' + message.content }}{%- endif %}{%- endfor %}""",
    # Ids are written, and a name in the place of the role.
    "ids": """{%- for message in messages %}{{ '<|im_' + (message.get('name') or message['role']) + '|>' }}{%- if message.role == 'tool' %}{{ '## Return of ' + message.tool_call_id + '\\n' }}{% endif %}
{{- message['content'] if message['content'] }}{%- if message.get('tool_calls') %}{{ '<|tool_calls_section_begin|>' }}{%- for call in message['tool_calls'] %}
{{- '<|tool_call_begin|>' + call['id'] + '<|tool_call_argument_begin|>' }}{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}{{ '<|tool_call_end|>' }}
{%- endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %}{%- endfor %}""",
    # Parts are a matter of the role.
    "user-parts": """{%- if messages[0]['role'] in ['system', 'developer'] %}{{ '<|turn>system\\n' + (messages[0]['content'] ~ '') | trim + '<turn|>' }}{%- set messages = messages[1:] %}{%- endif %}
{%- for message in messages %}{{ '<|turn>' + message.role + '\\n' }}{%- if message['content'] is string %}{{ message['content'] | trim }}{%- elif message['content'] is sequence %}
{%- for item in message['content'] %}{%- if item['type'] == 'text' %}{{ item['text'] | trim }}{%- endif %}{%- endfor %}{%- endif %}{{ '<turn|>' }}{%- endfor %}""",
    # Content is a list, of which the first part counts.
    "one-part": """{%- for message in messages %}{{ '<beginning_of_sentence>' + message['role'] + '\\n' + message['content'][0]['text'] + '<end_of_sentence>' }}{%- endfor %}""",
    # None is printed.
    "prints": """{%- for message in messages %}{{ '<' ~ message.role ~ '>' ~ message.content }}{%- for call in message.tool_calls %}{{ '<call>' ~ call.function.name ~ ' ' ~ call.function.arguments }}{% endfor %}{%- endfor %}""",
    # A blank line stands behind content that is there.
    "shorter": """{%- for message in messages %}{{ '<' + message.role + '>' }}{%- if message.content is not none %}{{ message.content + '\\n' }}{% endif %}
{%- for call in message.tool_calls %}{{ '<tool_call>' + call.function.name + '(' + call.function.arguments|tojson + ')</tool_call>' }}{% endfor %}{%- endfor %}""",
    # Thoughts have other names.
    "thinking": """{%- for message in messages %}{{ '<' + message.role + '>' }}{% if message.thinking %}{{ '[' + message.thinking + ']' }}{% endif %}{{ message.content }}{%- endfor %}""",
    "blocks": """{%- for message in messages %}{{ '<' + message.role + '>' }}{%- if message.content is string %}{{ message.content }}{%- else %}{%- for b in message.content %}
{%- if b.type == 'text' %}{{ b.text }}{%- elif b.type == 'thinking' %}{{ '[THINK]' + b.thinking + '[/THINK]' }}{%- endif %}{%- endfor %}{%- endif %}{%- endfor %}""",
    # An assistant says something.
    "said": """{%- for message in messages %}{%- if message.role == 'assistant' and not message.content and not message.tool_calls %}{{ raise_exception('content or calls') }}{% endif %}{{ '<' + message.role + '>' + message.content }}{%- endfor %}""",
    # A developer is neither the system nor just any role.
    "developers": """{%- for message in messages %}{%- if message.role == 'developer' %}{{ '<|dev|>' }}{%- elif message.role == 'system' %}{{ '<|sys|>' }}{%- else %}{{ '<' + message.role + '>' }}{%- endif %}{{ message.content }}{%- endfor %}""",
}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def says(text, *calls, **more):
    return dict({"role": "assistant", "content": text}, **({"tool_calls": list(calls)} if calls else {}), **more)


def call(id, name="f", arguments='{"a": 1.50}'):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id, text, **more):
    return dict({"role": "tool", "tool_call_id": id, "content": text}, **more)


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


U, V, A, B, S, R = user("u"), user("v"), says("a"), says("b"), system("s"), result("c1", "r")
C = says(None, call("c1"))
F = {"name": "f"}  # what a result gets from its call
TEXT, OBJECT = {"a": 1.50}, {"a": 1.5}
# template, request, what the template is given; None: the request itself.
CASES = [
    ("searches", [U, C, R], [U, says("", call("c1")), R]),
    ("searches", [U, says(None, call("c1"), reasoning_content="t"), R], [U, says("", call("c1"), reasoning_content="t"), R]),
    ("searches", [U, says(None, call("c1"), call("c2", "g")), R, result("c2", "q"), A, V],
     [U, says("", call("c1"), call("c2", "g")), R, result("c2", "q"), A, V]),
    ("searches", [S, system(parts("x", "y")), user(parts("z"))], [S, system("x\ny"), user("z")]),
    ("searches", [U, S, A, {"role": "developer", "content": "d"}, V], [U, S, A, system("d"), V]),
    ("strict", [U, S], [S, U]),
    ("strict", [S, {"role": "developer", "content": "d"}, U, system("x")], [system("s\n\nd\n\nx"), U]),
    ("strict", [S, U, A, system("x"), V], [S, U, A, user("x"), V]),
    ("strict", [S, U, C, R, system("x"), B, V], [S, U, says(None, call("c1", arguments={"a": "1.50"})), R, user("x"), B, V]),
    ("strict", [system(parts("x", "y")), user(parts("x", "y")), says(parts("x")), user(parts("z"))], None),
    ("strict", [S], [S, user("")]),
    ("strict", [A], [user(""), A]),
    ("strict", [S, A, V], None),
    ("alternates", [S, U], [user("s\n\nu")]),
    ("alternates", [S, U, A, system("x"), V], [user("s\n\nu"), A, user("x\n\nv")]),
    ("alternates", [U, S], [user("s\n\nu")]),
    ("alternates", [U, V, A, B, U], [user("u\n\nv"), says("a\n\nb"), U]),
    ("alternates", [A, U], [user(""), A, U]),
    ("alternates", [U, C, R, V], [U, says('[call of f: {"a": 1.50}]'), user("[result of f]\nr\n\nv")]),
    ("alternates", [S], [user("s")]),
    ("none", [U, C, R], None),
    ("none", [U, says("", call("c1")), R], [U, C, R]),
    ("none", [U, says("a", call("c1")), R], [U, A, C, R]),
    ("first-only", [S, {"role": "developer", "content": "d"}, U], [system("s\n\nd"), U]),
    ("first-only", [U, {"role": "developer", "content": "d"}], [system("d"), U]),
    ("first-only", [U, A, S, V], [U, A, user("s"), V]),
    ("first-only", [U, says(None, call("c1"), call("c2", "g")), result("c2", "q"), R, V],
     [U, says("", call("c1", arguments=OBJECT)), R, says("", call("c2", "g", OBJECT)), result("c2", "q"), V]),
    ("first-only", [U, R], [U, user("[result]\nr")]),
    ("one-call", [U, says(None, call("aaaaaaaa1"), call("bbbbbbbb2", "g")), result("aaaaaaaa1", "r"), result("bbbbbbbb2", "q")],
     [U, says("", call("aaaaaaaa1", arguments=OBJECT)), result("aaaaaaaa1", "r"), says("", call("bbbbbbbb2", "g", OBJECT)),
      result("bbbbbbbb2", "q")]),
    ("ids", [U, says(None, call("toolu_1"), call("call_x", "g")), result("toolu_1", "r"), result("call_x", "q"), says(None, call("functions.f:0")),
             result("functions.f:0", "p")],
     [U, says(None, call("functions.f:0"), call("functions.g:1", "g")), result("functions.f:0", "r"), result("functions.g:1", "q"),
      says(None, call("functions.f:2")), result("functions.f:2", "p")]),
    ("user-parts", [system(parts("x", "y")), user(parts("x ", "y")), A], [system("x\ny"), user(parts("x ", "y")), A]),
    ("one-part", [S, user(parts("x", "y")), A], [system(parts("s")), user(parts("x\ny")), says(parts("a"))]),
    ("prints", [U, C, {"role": "assistant"}], [U, says("", call("c1")), says("")]),
    ("shorter", [U, C], [U, says(None, call("c1", arguments=OBJECT))]),
    ("shorter", [U, says("", call("c1"))], [U, says("", call("c1", arguments=OBJECT))]),
    ("thinking", [U, says("a", reasoning="t"), V], [U, says("a", thinking="t"), V]),
    ("blocks", [U, says("a", reasoning_content="t"), V], [U, says([{"type": "thinking", "thinking": "t"}, *parts("a")]), V]),
    ("said", [U, {"role": "assistant"}, V], [U, V]),
    ("developers", [S, {"role": "developer", "content": "d"}, U], None),
    ("strict", [U, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, V], [U, says("no"), V]),
    ("strict", [user([{"type": "image_url", "image_url": {"url": "x"}}, *parts("u")])],
     [user(parts("[an image that this model cannot see]", "u"))]),
    ("strict", [dict(U, name=None, x=[1]), dict(A, tool_calls=[], refusal=None, function_call=None), V], [U, A, V]),
]
TOKENS = {"bos_token": "<bos>", "eos_token": "</s>"}


def main():
    env, cases = published_templates.environment(), []
    for template, request, given in CASES:
        text = env.from_string(TEMPLATES[template]).render(
            messages=given or request, tools=None, documents=None, add_generation_prompt=True, **TOKENS)
        # Numbers are written as the model wrote them, which tojson does not know.
        cases.append({"template": template, "messages": request, "rendered": text.replace('{"a": 1.5}', '{"a": 1.50}')})
    with open(os.path.join(HERE, "orders.json"), "w", encoding="utf-8") as f:
        f.write('{"note": "made by orders.py", "tokens": %s,\n"templates": {\n' % json.dumps(TOKENS))
        f.write(",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in TEMPLATES.items()) + "},\n\"cases\": [\n")
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]}\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
