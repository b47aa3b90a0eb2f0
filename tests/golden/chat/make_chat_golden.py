#!/usr/bin/env python3
"""Writes constructs.json and random.json: templates, and what Python's jinja2 makes of them in the environment of
transformers' apply_chat_template. Needs jinja2 3.1.6:  python3 make_chat_golden.py [SEED COUNT FILE]
With arguments: only random templates, as many as asked for, to compare in bulk (build/tests/test_jinja_golden FILE)."""
import json
import os
import random
import re
import sys
import warnings
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "2026-02-03T04:05:06"
HERE = os.path.dirname(os.path.abspath(__file__))
warnings.simplefilter("ignore")


class AssistantTracker(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _support(self, context, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[AssistantTracker, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromisoformat(NOW).strftime(f)
    return env


ENV = environment()


def solve(case, extra):
    """The case with `rendered`, or with `error` where rendering fails."""
    values = json.loads(json.dumps({"tools": None, "documents": None, "add_generation_prompt": None, "messages": None, **extra,
                                    **{k: v for k, v in case.items() if k not in ("name", "template")}}))
    try:
        text = ENV.from_string(case["template"]).render(**values)
        text.encode("utf-8")
        return dict(case, rendered=text)
    except Exception as e:
        return dict(case, error="%s: %s" % (type(e).__name__, e))


def portable(case):
    """No addresses, no integers beyond 64 bits (refused here), no constant that is no sequence cut by a slice (jinja2 folds
    it to an undefined value)."""
    text = case.get("rendered", "")
    return not re.search(r" object at 0x|generator object|\d{19,}", text) and not re.search(
        r"(\b[0-9][0-9a-fx_.e-]*|true|True|false|None|none|\}|null)\)*\[[^\]]*:", case["template"])


# ---- constructs of published templates, family by family, in our words ----

TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Reads the \"weather\".\nNow & <here>.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Where, e.g. Zürich"},
            "days": {"type": ["integer", "null"], "minimum": 1, "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "near": {"type": "array", "items": {"type": "number"}}}}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": [1.0, None, True]}}}
TALK = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}, {"role": "user", "content": "W?"},
        {"role": "assistant", "content": None, "reasoning_content": "need it", "tool_calls": [CALL, CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "{\"t\": 21}"},
        {"role": "tool", "name": "weather", "tool_call_id": "x", "content": [{"type": "text", "text": "warm"}, {"type": "image"}]},
        {"role": "assistant", "content": "It's warm"}]
EXTRA = {"messages": TALK, "tools": [TOOL], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
         "x": 1, "s": "Hello, World", "n": 42, "f": 2.5, "l": [1, 2, 3], "d": {"a": 1, "b": [1, 2], "c": {"k": "v"}},
         "m": {"role": "user", "content": "it's", "a": None}, "t": True, "b": False, "empty": [], "words": ["b", "A", "c", "a"],
         "nested": [[1, 2], [3, [4]]], "nothing": None,
         "rows": [{"role": "user", "text": "a", "a": 3}, {"role": "Bot", "text": "b", "a": 1}, {"role": "user", "text": "C", "a": 2}]}
STYLES = {
    "headers-trim": "{{- bos_token }}{% for m in messages if m.content is string %}{{- '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}{% endfor %}",
    "date-default": "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}{%- endif %}Today: {{ date_string }}",
    "system-pop": "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}[{{ system_message }}]{{ loop_messages|length }}",
    "alternate": "{%- set ns = namespace(i=0) %}{%- for m in messages if m.role in ('user', 'assistant') and not m.tool_calls %}{%- if (m.role == 'user') != (ns.i % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}{%- set ns.i = ns.i + 1 %}{%- endfor %}{{ ns.i }}",
    "alternate-fails": "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}{% endfor %}",
    "inst": "{%- for message in messages[1:4] %}{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}{%- else %}{{- ' ' + message.content.split('</think>')[-1].lstrip('\\n') + eos_token }}{%- endif %}{%- endfor %}",
    "available-tools": "[AVAILABLE_TOOLS] [{%- for tool in tools %}{%- set tool = tool.function %}{{- '{\"type\": \"function\", \"function\": {' }}{%- for key, val in tool.items() if key != 'return' %}{%- if val is string %}{{- '\"' + key + '\": \"' + val + '\"' }}{%- else %}{{- '\"' + key + '\": ' + val|tojson }}{%- endif %}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' }}{%- endif %}{%- endfor %}[/AVAILABLE_TOOLS]",
    "call-ids": "{%- for m in messages if m.tool_calls is defined and m.tool_calls is not none %}[TOOL_CALLS] [{%- for c in m.tool_calls %}{%- set out = c.function|tojson %}{{- out[:-1] }}{%- if not c.id is defined or c.id|length != 9 %}{{- raise_exception('ids must have 9 characters') }}{%- endif %}{{- ', \"id\": \"' + c.id + '\"}' }}{{- ', ' if not loop.last else ']' + eos_token }}{%- endfor %}{%- endfor %}",
    "tool-group": "{%- for m in messages %}{%- if m.role == 'tool' %}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}{{- '\\n<tool_response>\\n' }}{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}{{- part.text if part.type == 'text' else '<|' ~ part.type ~ '|>' }}{%- endfor %}{%- endif %}{{- '\\n</tool_response>' }}{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- endfor %}",
    "last-query": "{%- set ns = namespace(multi=true, last=messages|length - 1) %}{%- for m in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi and m.role == 'user' and m.content is string and not(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{{ ns.last }} {{ ns.multi }}",
    "xml-parameters": "{%- macro render_extra_keys(json_dict, handled_keys) %}{%- if json_dict is mapping %}{%- for k in json_dict if k not in handled_keys %}{%- if json_dict[k] is mapping or (json_dict[k] is sequence and json_dict[k] is not string) %}{{- '\\n<' ~ k ~ '>' ~ (json_dict[k] | tojson | safe) ~ '</' ~ k ~ '>' }}{%- else %}{{- '\\n<' ~ k ~ '>' ~ (json_dict[k] | string) ~ '</' ~ k ~ '>' }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro %}{%- for tool in tools %}{%- set tool = tool.function if tool.function is defined else tool %}<function><name>{{ tool.name }}</name>{%- for name, field in tool.parameters.properties|items %}\n<parameter>\n<name>{{ name }}</name>{{ render_extra_keys(field, ['name', 'type']) }}\n</parameter>{%- endfor %}{{ render_extra_keys(tool.parameters, ['type', 'properties']) }}</function>{%- endfor %}",
    "xml-call": "{%- for m in messages if m.tool_calls %}{%- for c in m.tool_calls %}{%- set c = c.function if c.function else c %}{{- '<tool_call>\\n<function=' + c.name + '>\\n' }}{%- for k, v in c.arguments|items %}{{- '<parameter=' + k + '>\\n' }}{%- set v = v if v is string else v | tojson | safe %}{{- v }}{{- '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}{%- endfor %}",
    "arg-key-value": "{% for m in messages if m.tool_calls %}{% for tc in m.tool_calls %}{% set tc = tc.function %}{{ '\n<tool_call>' + tc.name }}\n{% set _args = tc.arguments %}{% for k, v in _args.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% endfor %}",
    "is-first": "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', first_sp=true) %}{%- for m in messages %}{%- if m['role'] == 'system' %}{%- if ns.first_sp %}{% set ns.system_prompt = ns.system_prompt + m['content'] %}{% set ns.first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + m['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for m in messages %}{%- if m['role'] == 'tool' %}{% set ns.is_tool = true %}{%- if ns.is_output_first %}{{'<outputs><output>' + m['content']|string + '</output>'}}{%- set ns.is_output_first = false %}{%- else %}{{'<output>' + m['content']|string + '</output>'}}{%- endif %}{%- endif %}{%- endfor %}{%- if ns.is_tool %}{{'</outputs>'}}{%- endif %}",
    "thinking-flag": "{%- if not thinking is defined %}{%- set thinking = false %}{%- endif %}{% if thinking %}<think>{% else %}</think>{% endif %}{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}{{ '/nothink' if enable_thinking is defined and not enable_thinking else '' }}",
    "split-reasoning": "{%- for m in messages if m.role == 'assistant' %}{%- set content = m.content if m.content is string else '' %}{%- set reasoning = '' %}{%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}{%- elif '</think>' in content %}{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}[{{ reasoning }}|{{ content }}]{%- endfor %}",
    "channels": "{%- macro type_of(spec) -%}{%- if spec.type is iterable and spec.type is not string -%}{{ spec.type | join(' | ') }}{%- elif spec.enum -%}{{ '\"' + spec.enum|join('\" | \"') + '\"' }}{%- elif spec.type == 'array' -%}{{ type_of(spec['items']) }}[]{%- elif spec.type in ('number', 'integer') -%}number{%- else -%}{{ spec.type }}{%- endif -%}{%- endmacro -%}{%- for tool in tools %}{%- set tool = tool.function %}// {{ tool.description.replace('\\n', '\\n// ') }}\ntype {{ tool.name }} = (_: {\n{%- for name, spec in tool.parameters.properties.items() %}\n{{ name }}{{ '' if name in (tool.parameters.required or []) else '?' }}: {{ type_of(spec) }},{% if spec.default is defined %} // default: {{ spec.default }}{% endif %}\n{%- endfor %}\n}) => any;\n{%- endfor %}",
    "format-pipe": "{{ '{}:{:>4}|{:<4}|{:.2f}'.format('a', 7, 'b', 2.345) }} {{ '%s=%d (%.1f%%)' % ('x', 3, 45.67) }} {{ '%-5s|%05d' | format('ab', 42) }}",
    "turns": "{%- for m in messages %}{%- set role = 'model' if m.role == 'assistant' else m.role %}{{ '<start_of_turn>' + role + '\n' + (m.content | trim if m.content is string else '') + '<end_of_turn>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}",
    "content-parts": "{%- for m in messages %}{%- if m['content'] is iterable and m['content'] is not string %}{%- for item in m['content'] %}{%- if item['type'] == 'image' %}{{ '<image>' }}{%- elif item['type'] == 'text' %}{{ item['text'] | trim }}{%- endif %}{%- endfor %}{%- elif m['content'] is none %}none{%- endif %}{%- endfor %}",
    "dictsort": "{%- macro schema(d) -%}{%- for k, v in d | dictsort %}{{ k }}:{% if v is mapping %}<{{ schema(v) }}>{% elif v is sequence and v is not string %}[{{ v | map('string') | join(',') }}]{% else %}{{ v }}{% endif %}{{ ',' if not loop.last }}{%- endfor %}{%- endmacro -%}{{ schema(tools[0].function) }}",
    "documents": "{%- if documents %}{{- raise_exception('none here') }}{%- endif %}{%- set documents = [{'title': 'T', 'text': 'body'}, {'title': 'U'}] %}{%- for document in documents %}\n\nDocument: {{ loop.index0 }}\n{%- for key, value in document.items() %}\n{{ key|title }}: {{ value }}{%- endfor %}{%- endfor %}",
    "call-block": "{% macro turn(role, last=false) %}<{{ role }}>{{ caller(role|upper) }}{{ '</s>' if last }}{% endmacro %}{% for m in messages if m.content is string %}{% call(r) turn(m.role, loop.last) %}{{ r }}:{{ m.content | trim }}{% endcall %}{% endfor %}",
    "kwargs": "{%- macro m(a, b=2) -%}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{%- endmacro -%}{{ m(1) }}{{ m(1, b=3, c=4) }}{{ m(*[1, 2, 3], **{'z': 1}) }}",
    "generation": "{% for m in messages[:3] %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}",
    "recursive": "{% for item in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': [{'n': 4}]}]}] recursive %}{{ loop.depth }}.{{ item.n }}({{ loop(item.c) if item.c }}){% endfor %}",
    "break-continue": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% if m.tool_calls %}{% break %}{% endif %},{% else %}never{% endfor %}|{% for i in [1] %}{% continue %}{% else %}else{% endfor %}",
    "lazy-condition": "{% set ns = namespace(done=false) %}{% for i in range(6) if not ns.done %}{{ i }}{% if i == 2 %}{% set ns.done = true %}{% endif %}{% endfor %}",
    "neighbours": "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ m.role }}>{{ (loop.nextitem | default({'role': 'end'})).role }} {% if loop.changed(m.role) %}*{% endif %}{% endfor %}",
    "select": "{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list }} {{ (messages | selectattr('role', 'equalto', 'system') | first).content }} {{ messages | rejectattr('tool_calls') | list | length }} {{ tools | map(attribute='function.parameters.properties.unit.enum.0') | join }}",
    "set-block": "{% set text %}\n  {% for m in messages[:2] %}\n  - {{ m.role }}\n  {% endfor %}\n{% endset %}[{{ text }}]{% set shout | upper | trim %} abc {% endset %}[{{ shout }}]",
    "whitespace": "  {% if true %}\n    a\n  {%- endif %}\n\n  {# note #}\n  {{ 'b' }}\n\t{%+ if true +%}\n c {% endif -%}\n\n d\n{% raw %}\n {{ x }} {% endraw %}\n end\n",
    "escapes": "{{ 'tab\\tnl\\nq\\'q\\\\ \\x41 \\u00e9 \\101 \\q' }}{{ \"it's\" }}{{ 'a' 'b' }}",
    "markup": "{{ '<a>' | safe + '<b>' }} {{ '<b>' + ('<a>' | e) }} {{ '<' | e | e }} {{ '<x>' | safe ~ '<y>' }} {{ ['<x>' | safe] }}",
    "numbers": "{{ [1e16, 1e15, 1.5e-5, 0.0001, 123456789012345678.0, 1/3, 2**0.5, -0.0, 1e300*1e10, 7//2, -7//2, 7%-3, -7.5//2, -7.5%2, 2**-2, 10/5] }} {{ 1_000 + 0x1f + 0b11 + 0o17 }} {{ 5|round }} {{ 2.5|round }} {{ 3.14159|round(3) }} {{ 1234|filesizeformat }}",
    "unicode": "{{ 'straße ÀÉ ΑΣ'|upper }} {{ 'STRASSE ÀÉ ΟΔΟΣ'|lower }} {{ 'élan vital'|title }} {{ '日本語テキスト'[1:4] }} {{ '😀é'|length }} {{ ['é', '\\u200b', '😀', '\\x7f'] }} {{ '😀\\u2028'|tojson }} {{ 'é😀'|tojson(ensure_ascii=true) }}",
    "undefined": "[{{ nope }}][{{ m.nope }}][{{ nope|default('d') }}][{{ m.a|default('n') }}][{{ m.a|default('n', true) }}][{{ nope is defined }}][{{ not nope }}][{{ nope|length }}][{{ nope|list }}][{{ 'a' ~ nope }}][{{ nope == nope2 }}][{{ [nope] }}][{{ 'x' in nope }}]{% for i in nope %}never{% endfor %}",
    "undefined-call": "{{ nope() }}", "undefined-add": "{{ 'a' + nope }}", "undefined-json": "{{ nope|tojson }}", "none-add": "{{ 'a' + none }}",
    "none-iterate": "{% for x in none %}{% endfor %}", "no-method": "{{ l.append(4) }}", "private": "[{{ m.__class__ }}][{{ m._x }}]{{ m.__class__.__mro__ }}",
    "unpack-fails": "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "loop-assign": "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "dict-attribute": "{{ {'items': 1}.items is callable }} {{ {'items': 1}['items'] }} {{ {'keys': 2, 'k': 3}.k }} {{ d.items()|list }} {{ d['get'] is callable }} {{ m.get('zz') }}",
    "joiner": "{% set pipe = joiner(' | ') %}{% for x in l %}{{ pipe() }}{{ x }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "group": "{% for role, items in rows|groupby('role') %}{{ role }}={{ items|map(attribute='text')|join }};{% endfor %}{% for g in rows|groupby('role', case_sensitive=true) %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
    "macro-scope": "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}{{ x }}{% for i in [1] %}{% set x = 3 %}{{ f() }}{% endfor %}{% with x = 7, y = x %}{{ x }}{{ y }}{{ f() }}{% endwith %}",
    "filter-block": "{% filter replace('a', 'b') | upper %}a {{ 'a' }}{% if t %} c{% endif %}{% endfilter %}",
    "indent": "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent('> ', blank=true) }}|{{ d|tojson(indent=4)|indent(2) }}",
    "chained": "{{ 1 < 2 < 3 > 2 }} {{ 1 in [1] in [[1]] }} {{ not 1 in [2] }} {{ 1 if 0 else 2 if 0 else 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -1|abs }} {{ 'a' ~ 1 + 2 }} {{ 6 // 4 * 2 }}",
    "strip-sets": "{{ 'xxabcxx'.strip('x') }} {{ '\\n a \\n'.rstrip('\\n') }}| {{ 'a=b=c'.rsplit('=', 1) }} {{ 'a  b'.split(' ') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'aXbXc'.partition('X') }} {{ 'abc'.removeprefix('a') }} {{ 'l1\\nl2\\r\\nl3'.splitlines() }}",
}

# ---- random templates ----

TEXTS = ["", "a", "abc", "Hello World", "  pad ", "a,b,,c", "x=y=z", "it's", 'q"q', "both'\"", "tab\there", "line1\nline2\r\nline3",
         "<b>&amp;</b>", "ünïcödé", "日本語 text", "😀 emoji", "12", " 42 ", "3.7", "-5", "1e3", "0x1f", "nan", "ÀÉ ß straße",
         "don't stop-now (ok)", "%s and %d", "{} {0}", "a\\b", "\u2028sep", "ΑΣ ΟΔΟΣ", "trailing\n", "user", "role",
         "<think>\nx</think>\n\nanswer", "e\u0301", "\u00a0nbsp\u00a0", "1_000", "Ⅷ", "²"]
NUMBERS = ["0", "1", "2", "3", "-1", "7", "10", "100", "255", "0x1f", "12345678901", "0.0", "2.5", "-0.5", "3.14159", "1e20", "1e-7",
           "1e16", "123456789.123", "0.1", "1e15", "2.675"]
NAMES = ["x", "s", "n", "f", "l", "d", "m", "nothing", "t", "undef", "rows", "nested", "empty", "words", "b"]
FILTERS = """abs|capitalize|center(9)|count|d('dv')|default('z', true)|dictsort|dictsort(by='value')|dictsort(reverse=true)|e|escape
filesizeformat|first|float|forceescape|indent|indent(2, true)|indent('> ', true, true)|int|int(9)|int(0,16)|int(base=2)|items|list|join
join(', ')|join('-', attribute='a')|last|length|list|lower|map('upper')|list|map(attribute='a')|list|map(attribute='role', default='?')|list
map('int')|join(',')|max|min|max(attribute='a')|min(case_sensitive=true)|reject('odd')|list|reject|list|rejectattr('a','eq',1)|list
replace('a','b')|replace('','-')|replace('l','L',1)|reverse|list|round|round(1)|round(2,'floor')|round(1,'ceil')|round(-1)|safe|select|list
select('string')|list|select('in',[1,2,'a'])|list|selectattr('role','equalto','user')|list|slice(2)|list|slice(3,'f')|list|sort
sort(reverse=true)|sort(attribute='a')|sort(case_sensitive=true)|sort(attribute='role,text')|string|sum|sum(attribute='a')|sum(start=2)|title
tojson|tojson(indent=2)|tojson(ensure_ascii=true)|tojson(separators=(',',':'),sort_keys=true)|tojson(indent=0)|trim|trim('a')|truncate(5)
truncate(8,true)|truncate(10,false,'..',0)|unique|list|upper|urlencode|wordcount|batch(2)|list|batch(3,'-')|list|groupby('role')|attr('a')
format(1,'x')|groupby('role')|map(attribute='grouper')|list""".replace("\n", "|")
FILTERS = re.findall(r"(?:[^|(]|\((?:[^()]|\([^()]*\))*\))+", FILTERS)
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable",
         "sequence", "callable", "lower", "upper", "odd", "even", "divisibleby(3)", "in [1,2,'a']", "in 'abc'", "eq 1", "equalto('a')",
         "ne 1", "gt 1", "ge(2)", "lt 5", "sameas none", "escaped", "filter", "test", "== 'abc'"]
METHODS = """upper() lower() title() capitalize() swapcase() strip() lstrip() rstrip() strip('ab') lstrip('x') rstrip('\\n') split() split(',')
split(None,1) rsplit() rsplit(None,1) split(',',maxsplit=1) splitlines() splitlines(true) startswith('a') startswith(('a','H')) endswith('c')
replace('a','b') replace('a','b',1) replace('','.') find('b') rfind('l') index('a') count('a') count('') find('o',5) find('a',-2) join(['1','2'])
join(words) join('xyz') zfill(5) ljust(6) rjust(6,'*') center(9) center(8,'é') isdigit() isalpha() isalnum() isspace() isupper() islower()
istitle() isnumeric() isdecimal() isidentifier() isprintable() isascii() partition(',') rpartition('=') removeprefix('a') removesuffix('c')
expandtabs(4) format(1,2) format(a=1) items() keys() values() get('a') get('zz') get('zz','dd') items()|list copy() append(1) pop() count(1)
index(2) role text a b length real bit_length() is_integer() __class__ _private nope nope()""".split()
PERCENT = ["%s|%5d|%-6s|%r", "%05.1f %x", "%(a)s %%", "%+d %e %g", "%c%a", "%10.3s|", "%s", "%.2f", "%08d", "%#x %o"]
BRACES = ["{} {}", "{0}{1}{0}", "{a}|{b}", "{:>8}|{:<6}", "{:05d} {:x}", "{:.2f} {:e}", "{0[a]}", "{!r} {!s:>5}", "{:,} {:_}", "{:+} {: }",
          "{:%}", "{:{}}", "{{}}{}", "{:*^9}", "{:g} {:b}", "{:#x} {:o}", "{:010.3f} {:,.2f}"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def maybe(self, p):
        return self.r.random() < p

    def quoted(self, s):
        q = json.dumps(s, ensure_ascii=False)
        return "'" + q[1:-1].replace('\\"', '"') + "'" if "'" not in s and self.maybe(.5) else q

    def literal(self):
        return self.r.choice([lambda: self.quoted(self.r.choice(TEXTS))] * 2 + [
            lambda: self.r.choice(NUMBERS), lambda: self.r.choice(["true", "false", "none"]), lambda: self.r.choice(NAMES),
            lambda: self.r.choice(NAMES)])()

    def primary(self, d):
        e = lambda: self.expression(d - 1)
        return self.r.choice([self.literal] * 6 + [
            lambda: "[" + ", ".join(e() for _ in range(self.r.randint(0, 3))) + "]", lambda: "(" + e() + ", " + e() + ")",
            lambda: "{" + self.quoted(self.r.choice(["a", "b", "role", "k é"])) + ": " + e() + "}",
            lambda: "range(%s)" % self.r.choice(["3", "1, 4", "5, 0, -2"]), lambda: "dict(a=%s, b=%s)" % (e(), e()),
            lambda: "(" + e() + ")"])() if d > 0 else self.literal()

    def postfix(self, d):
        e = self.primary(d)
        for _ in range(self.r.choice([0, 0, 1, 1, 2])):
            part = lambda: self.r.choice(["", "", "1", "-1", "2", "-2", "0", "5", "-100"])
            e = self.r.choice([
                lambda: "(" + e + ")." + self.r.choice(METHODS),
                lambda: e + "[" + self.r.choice(["0", "-1", "1", "'a'", "'role'", self.literal()]) + "]",
                lambda: e + "[" + part() + ":" + part() + self.r.choice(["", ":", ":2", ":-1", ":-2"]) + "]"])()
        return e

    def filtered(self, d):
        e = self.postfix(d)
        for _ in range(self.r.choice([0, 0, 1, 1, 2])):
            e += "|" + self.r.choice(FILTERS)
        return e

    def expression(self, d):
        f, k = (lambda: self.filtered(d - 1)), self.r.random()
        if d <= 0:
            return self.literal()
        if k < .5:
            return self.filtered(d)
        if k < .7:
            return f() + " " + self.r.choice(["+", "-", "*", "/", "//", "%", "**", "~", "~", "+"]) + " " + f()
        if k < .78:
            return f() + " " + self.r.choice(["==", "!=", "<", ">", "<=", ">=", "in", "not in"]) + " " + f()
        if k < .86:
            return "(" + f() + ") is " + self.r.choice(["", "", "not "]) + self.r.choice(TESTS)
        if k < .9:
            return f() + " " + self.r.choice(["and", "or"]) + " " + f()
        if k < .93:
            return self.r.choice(["not ", "-", "+"]) + f()
        if k < .95:
            return self.quoted(self.r.choice(PERCENT)) + " % " + self.r.choice(
                ["(1,2,3,4)", "(2.5,255)", "d", "n", "f", "s", "('a',7,'b','c')", "(3,)", "(-3, 1e10, 0.0001)", "words"])
        if k < .97:
            return self.quoted(self.r.choice(BRACES)) + ".format(" + self.r.choice(
                ["1,2", "'a','b'", "a=1,b='x'", "3.14159,2.5", "d,1", "255,16", "1234567,89012", "n,f", "s,n", "-5,0.001"]) + ")"
        return f() + " if " + f() + (" else " + f() if self.maybe(.7) else "")

    def tag(self, text):
        space = lambda: self.r.choice(["", "", "\n", " ", "  \n", "\n  ", "\n\n"])
        sign = lambda: self.r.choice(["", "", "", "-", "+"])
        return space() + "{%" + sign() + " " + text + " " + sign() + "%}" + space()

    def body(self, d):
        return "".join(self.statement(d - 1) for _ in range(self.r.randint(0, 3)))

    def statement(self, d):
        k, e, name = self.r.random(), self.expression(1), self.r.choice(["x", "y", "i", "s"])
        if d <= 0 or k < .3:
            return self.r.choice(["text", "  ", "\n", " a\n", "é"]) + "{{" + self.r.choice(["", "-"]) + " " + e + " " + self.r.choice(["", "-"]) + "}}"
        if k < .4:
            return self.tag("set " + name + " = " + e)
        if k < .46:
            return self.tag("set ns." + name + " = " + e) + "{{ ns." + name + " }}"
        if k < .6:
            return self.tag("if " + e) + self.body(d) + (self.tag("elif x") + self.body(d) if self.maybe(.3) else "") + \
                (self.tag("else") + self.body(d) if self.maybe(.5) else "") + self.tag("endif")
        if k < .8:
            head = self.r.choice(["i in l", "i in rows", "y in words", "a, c in d.items()", "i in range(4)", "i in d", "i in undef",
                                  "i in rows if i.a > 1", "i in l if loop is undefined", "a, c in [[1,2],[3,4]]"])
            show = self.r.choice(["loop.index", "loop.first", "loop.last", "loop.revindex0", "loop.length", "i", "y", "a", "loop.previtem",
                                  "loop.nextitem", "loop.cycle('p','q')", "loop.changed(i)", "loop.depth", "loop"])
            leave = self.tag("if loop.index == 2") + self.tag(self.r.choice(["break", "continue"])) + self.tag("endif")
            return self.tag("for " + head) + "{{ " + show + " }}" + self.body(d) + (leave if self.maybe(.25) else "") + self.body(d) + \
                (self.tag("else") + self.body(d) if self.maybe(.3) else "") + self.tag("endfor")
        if k < .87:
            return self.tag("macro f" + self.r.choice(["(a)", "(a, b=2)", "()", "(x='d')", "(a, b=a)"])) + self.body(d) + self.r.choice(
                ["{{ a }}", "{{ b }}", "{{ varargs }}", "{{ kwargs }}", "{{ x }}"]) + self.tag("endmacro") + "{{ f" + self.r.choice(
                ["()", "(1)", "(1,2)", "(a=3)", "(b=1, a=2)", "(1,2,3)", "(zz=1)"]) + " }}"
        if k < .91:
            return self.tag("set " + name + self.r.choice(["", " | upper", " | trim"])) + self.body(d) + self.tag("endset")
        if k < .94:
            return self.tag("filter " + self.r.choice(["upper", "trim", "replace('e','E')|title"])) + self.body(d) + self.tag("endfilter")
        if k < .96:
            return self.tag("with y = " + e + ", z = x") + self.body(d) + "{{ y }}{{ z }}" + self.tag("endwith")
        if k < .98:
            return "{#" + self.r.choice(["", "-"]) + " note " + self.r.choice(["", "-", "+"]) + "#}\n"
        return self.tag("raw").replace("+%}", "%}") + "{{ raw }} {% x %}" + self.tag("endraw")

    def template(self):
        if self.maybe(.6):
            return "{{ " + self.expression(self.r.randint(1, 3)) + " }}"
        return "{% set ns = namespace(x=0,y='') %}" + "".join(self.statement(3) for _ in range(self.r.randint(1, 4))) + \
            self.r.choice(["", "\n", "\n\n"])


def random_cases(seed, count):
    """Mostly templates that render; one in fifteen of those that fail."""
    maker, cases = Maker(seed), []
    while len(cases) < count:
        case = solve({"name": "random/%d" % len(cases), "template": maker.template()}, EXTRA)
        if portable(case) and ("rendered" in case or maker.maybe(1 / 15)):
            cases.append(case)
    return cases


def save(name, cases):
    note = "made by make_chat_golden.py; extra holds for every case"
    with open(name, "w") as f:
        f.write('{"note": %s, "jinja2": %s, "now": %s,\n"extra": %s,\n"cases": [\n' % tuple(
            json.dumps(v, ensure_ascii=False) for v in (note, jinja2.__version__, NOW, EXTRA)))
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]}\n")
    print("%s: %d cases, %d of them fail" % (name, len(cases), sum("error" in c for c in cases)))


if len(sys.argv) == 4:
    save(sys.argv[3], random_cases(int(sys.argv[1]), int(sys.argv[2])))
else:
    save(os.path.join(HERE, "constructs.json"), [solve({"name": k, "template": v}, EXTRA) for k, v in STYLES.items()])
    save(os.path.join(HERE, "random.json"), random_cases(1, 500))
