#!/usr/bin/env python3
"""od-main template: where it finds a checkpoint's or a pack's chat template, what it prints, what it refuses. Standard
library. The expected texts are written by hand from what the templates say."""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_checkpoint as tc
from pack_commands import at, good, read, refused, run_tests, write

OD_MAIN = os.path.join(os.getcwd(), os.environ.get("B", "build"), "bin", "od-main")
PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}" \
        "{% if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}"
MESSAGES = [{"role": "user", "content": "Grüße\n"}, {"role": "assistant", "content": "it's"}]


def template(*args, stdin=None):
    return subprocess.run([OD_MAIN, "template", *args], capture_output=True, input=stdin)


def prints(expected, *args, stdin=None):
    p = template(*args, stdin=stdin)
    assert p.returncode == 0 and p.stderr == b"", (args, p.returncode, p.stderr)
    assert p.stdout == expected.encode(), (args, p.stdout, expected)


def fails(*args, says=(), status=1):
    p = template(*args)
    assert p.returncode == status, (args, p.returncode, p.stderr)
    assert p.stdout == b"", (args, p.stdout)
    for word in says:
        assert word in p.stderr.decode(), (args, word, p.stderr)


def save(value, *names):
    write((value if isinstance(value, str) else json.dumps(value)).encode(), *names)
    return os.path.join(*names)


def checkpoint(name, files):
    """A folder with these files; the messages lie beside it."""
    shutil.rmtree(at(name), ignore_errors=True)
    os.makedirs(at(name))
    for file, value in files.items():
        save(value, at(name), file)
    return at(name)


def test_places():
    """A file of its own counts more than the field of tokenizer_config.json; tokens are strings or objects."""
    messages = save(MESSAGES, at("messages.json"))
    config = {"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    expected = "<s>[user]Grüße\n[assistant]it's</s>"
    args = ["--messages", messages]
    prints(expected, "--checkpoint", checkpoint("c", {"tokenizer_config.json": dict(config, chat_template=PLAIN)}), *args)
    prints(expected, "--checkpoint", checkpoint("c", {"tokenizer_config.json": config, "chat_template.jinja": PLAIN + "\n"}), *args)
    prints(expected, "--checkpoint", checkpoint("c", {"tokenizer_config.json": config,
                                                      "chat_template.json": {"chat_template": PLAIN}}), *args)
    prints("<a>", "--checkpoint", checkpoint("c", {"special_tokens_map.json": {"bos_token": {"content": "<a>"}},
                                                   "chat_template.jinja": "{{ bos_token }}"}), *args)


def test_two_files_of_tokens():
    """special_tokens_map.json counts more than tokenizer_config.json, but not if the latter lists the added tokens. The expected
    texts are what AutoTokenizer of transformers 5.23 makes of these files (tokenizer_class PreTrainedTokenizerFast)."""
    names = [n + "_token" for n in ("bos", "eos", "unk", "pad", "sep")]
    a, b, none = ({n: t for n in names} for t in ("<a>", "<b>", None))
    as_objects = {n: {"content": "<a>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} for n in names}
    listed = {"added_tokens_decoder": {"3": {"content": "<b>", "special": True}}}
    image = {"image_token": "<i>"}
    for config, token_map, expected in (
            ({}, a, "<a><a><a><a><a>|"), (b, a, "<a><a><a><a><a>|"), (b, as_objects, "<a><a><a><a><a>|"), (none, a, "<a><a><a><a><a>|"),
            (b, {"eos_token": "<a>"}, "<b><a><b><b><b>|"), (b, {"eos_token": None}, "<b><b><b><b>|"),
            (dict(b, **listed), a, "<b><b><b><b><b>|"), (dict(b, **listed), as_objects, "<b><b><b><b><b>|"),
            (listed, a, "|"), (dict(none, **listed), a, "|"), ({}, image, "|<i>"), (listed, image, "|"),
            (image, {"image_token": "<j>"}, "|<i>"), (dict(image, **listed), {"image_token": "<j>"}, "|<i>"),
            ({"extra_special_tokens": image}, {"image_token": "<j>"}, "|<i>"),
            ({"model_specific_special_tokens": image}, {"image_token": "<j>"}, "|<i>"),
            ({"extra_special_tokens": image}, {"extra_special_tokens": {"image_token": "<j>"}}, "|<j>")):
        c = checkpoint("two", {"special_tokens_map.json": token_map, "tokenizer_config.json": config,
                               "chat_template.jinja": "".join("{{ %s }}" % n for n in names) + "|{{ image_token }}"})
        prints(expected, "--checkpoint", c, "--messages", save(MESSAGES, at("m.json")))


def test_tokens_of_the_model():
    """Tokens that only some models have may stand in objects of their own; a list there has no names."""
    text = {"chat_template.jinja": "{{ bos_token }}{{ image_token }}{{ think }}|{{ boi_token }}"}
    args = ["--messages", save(MESSAGES, at("m.json"))]
    own = {"bos_token": "<s>", "extra_special_tokens": {"image_token": "<i>", "think": {"content": "<t>"}},
           "model_specific_special_tokens": {"boi_token": "<b>", "n": 3}}
    prints("<s><i><t>|<b>", "--checkpoint", checkpoint("own", dict(text, **{"tokenizer_config.json": own})), *args)
    own = {"bos_token": "<s>", "extra_special_tokens": ["<i>"], "model_specific_special_tokens": None}
    prints("<s>|", "--checkpoint", checkpoint("own", dict(text, **{"tokenizer_config.json": own})), *args)


def test_big_integers():
    """Many a tokenizer_config.json has one; a client's may be in the messages' variables. Both are doubles, as in JavaScript."""
    config = {"model_max_length": 1000000000000000019884624838656, "chat_template": PLAIN, "bos_token": "<s>"}
    c = checkpoint("big", {"tokenizer_config.json": config})
    prints("<s>[user]Grüße\n[assistant]it's", "--checkpoint", c, "--messages", save(MESSAGES, at("m.json")))
    c = checkpoint("big", {"tokenizer_config.json": dict(config, chat_template="{{ n > 2 and n == 1e20 }} {{ m }}")})
    prints("True 7", "--checkpoint", c, "--messages", save({"messages": MESSAGES, "n": 10**20, "m": 7}, at("n.json")))
    call = {"function": {"name": "f", "arguments": json.dumps({"a": 1, "b": 10**20, "c": [2]})}}  # its other numbers stay integers
    c = checkpoint("big", {"chat_template.jinja": "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}"
                                                  "{% if k != 'b' %}{{ v }} {% endif %}{% endfor %}"})
    prints("1 [2] ", "--checkpoint", c, "--messages", save([{"role": "assistant", "content": "", "tool_calls": [call]}], at("n.json")))


def test_named():
    """A list of templates: `tool_use` is for requests with tools."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools|length }}"},
             {"name": "rag", "template": "{% this is not looked at"}]
    c = checkpoint("named", {"tokenizer_config.json": {"chat_template": named}})
    prints("plain", "--checkpoint", c, "--messages", save(MESSAGES, at("m.json")))
    prints("tools 1", "--checkpoint", c, "--messages", save({"messages": MESSAGES, "tools": [{}]}, at("t.json")))
    prints("plain", "--checkpoint", c, "--messages", save({"messages": MESSAGES, "tools": None}, at("n.json")))
    c = checkpoint("named", {"tokenizer_config.json": {"chat_template": named[2:]}})
    fails("--checkpoint", c, "--messages", at("m.json"), says=["default", "tool_use"])


def test_variables():
    """An object gives everything that a template can read; what it does not give is none, not undefined."""
    c = checkpoint("v", {"chat_template.jinja": "{{ messages|length }} {{ tools }} {{ documents }} {{ add_generation_prompt }} "
                                                "{{ enable_thinking }} {{ nothing is defined }}"})
    prints("2 None None False  False", "--checkpoint", c, "--messages", save(MESSAGES, at("m.json")))
    given = {"messages": [], "tools": [1], "documents": {"a": 1.0}, "add_generation_prompt": True, "enable_thinking": False}
    prints("0 [1] {'a': 1.0} True False False", "--checkpoint", c, "--messages", save(given, at("o.json")))
    prints("2 None None False  False", "--checkpoint", c, "--messages", "-", stdin=json.dumps(MESSAGES).encode())


def test_refused():
    """Status 1 and a reason, nothing on stdout."""
    messages = save(MESSAGES, at("m.json"))
    none = checkpoint("none", {"tokenizer_config.json": {"bos_token": "<s>"}})
    fails("--checkpoint", none, "--messages", messages, says=[none, "no chat template"])
    fails("--checkpoint", at("nowhere"), "--messages", messages, says=["nowhere"])
    c = checkpoint("bad", {"chat_template.jinja": "a\n{% for x in y %}\n"})
    fails("--checkpoint", c, "--messages", messages, says=["chat_template.jinja", "line 2", "'endfor'"])
    c = checkpoint("bad", {"chat_template.jinja": "a\n\n{% include 'b' %}"})
    fails("--checkpoint", c, "--messages", messages, says=["line 3", "'include'", "not supported"])
    c = checkpoint("bad", {"chat_template.jinja": "text {{ raise_exception('only ' ~ messages|length) }}"})
    fails("--checkpoint", c, "--messages", messages, says=["only 2"])
    c = checkpoint("good", {"chat_template.jinja": "x"})
    fails("--checkpoint", c, "--messages", save("[1, ", at("broken.json")), says=["broken.json", "JSON"])
    fails("--checkpoint", c, "--messages", at("missing.json"), says=["missing.json"])
    c = checkpoint("bad", {"tokenizer_config.json": {"chat_template": 5}})
    fails("--checkpoint", c, "--messages", messages, says=["chat_template", "expected a string"])
    for args in ([], ["--checkpoint", c], ["--case", "x", "--checkpoint", c], ["--nonsense"], ["--ids", "--checkpoint", c, "--parse", "-"]):
        fails(*args, status=2)
    fails("--checkpoint", checkpoint("ids", {"chat_template.jinja": "a"}), "--messages", messages, "--ids", says=["no tokenizer"])


def test_case():
    """One object as in tests/golden/chat: all of it is in the file."""
    case = {"template": "{{ strftime_now('%d %b %Y') }} {{ bos_token }}{{ eos_token is defined }}{{ who }}{{ tools }}",
            "messages": [], "tools": None, "bos_token": "<s>", "eos_token": None, "now": "2026-02-03T04:05:06", "extra": {"who": "é"}}
    prints("03 Feb 2026 <s>FalseéNone", "--case", save(case, at("case.json")))
    fails("--case", save(dict(case, template="{{ nope.x }}"), at("case.json")), says=["'nope' is undefined", "line 1"])
    fails("--case", save(dict(case, now="yesterday"), at("case.json")), says=["yesterday"])
    fails("--case", save([case], at("case.json")), says=["object"])


def test_pack():
    """od-pack takes the files along; the model, and so its fingerprint, stays the same."""
    cfg = tc.CONFIG
    tc.write_checkpoint(at("ck"), cfg, tc.tensors(cfg))
    good(at("ck"), at("old.pack"), "--shadow", "none")
    save(PLAIN, at("ck"), "chat_template.jinja")
    save({}, at("ck"), "tokenizer_config.json")
    save({"bos_token": "<s>"}, at("ck"), "special_tokens_map.json")
    good(at("ck"), at("new.pack"), "--shadow", "none")
    good("verify", at("old.pack"))
    good("verify", at("new.pack"), "--against", at("ck"))
    prints_of = [json.loads(read(at(p), "model.json"))["fingerprint"] for p in ("old.pack", "new.pack")]
    assert prints_of[0] == prints_of[1]
    prints("<s>[user]Grüße\n[assistant]it's[assistant]", "--checkpoint", at("new.pack"), "--messages",
           save({"messages": MESSAGES, "add_generation_prompt": True}, at("g.json")))
    fails("--checkpoint", at("old.pack"), "--messages", at("g.json"), says=["no chat template"])
    write(read(at("new.pack"), "chat_template.jinja") + b" ", at("new.pack"), "chat_template.jinja")
    refused("info", at("new.pack"), says=["chat_template.jinja", "SHA-256"])


def test_template_for_tools():
    """transformers saves it in a folder of its own; a pack has it, too."""
    with_tools = save({"messages": MESSAGES, "tools": [{}]}, at("t.json"))
    without = save(MESSAGES, at("w.json"))
    tc.write_checkpoint(at("two"), tc.CONFIG, tc.tensors(tc.CONFIG))
    save("plain", at("two"), "chat_template.jinja")
    os.makedirs(at("two", "additional_chat_templates"))
    save("tools", at("two", "additional_chat_templates"), "tool_use.jinja")
    save({"chat_template": [{"name": "tool_use", "template": "older"}]}, at("two"), "tokenizer_config.json")
    good(at("two"), at("two.pack"), "--shadow", "none")
    good("verify", at("two.pack"), "--against", at("two"))
    for folder in "two", "two.pack":
        prints("tools", "--checkpoint", at(folder), "--messages", with_tools)
        prints("plain", "--checkpoint", at(folder), "--messages", without)
    save("another", at("two", "additional_chat_templates"), "tool_use.jinja")
    refused("verify", at("two.pack"), "--against", at("two"), says=["chat_template_tool_use.jinja differs from", "tool_use.jinja"])
    os.remove(at("two", "chat_template.jinja"))  # the only template then
    prints("another", "--checkpoint", at("two"), "--messages", without)


def test_answers():
    """--parse: the expectations of answers.json, which were written by hand. Whether a thought is open is what the template's
    prompt says."""
    with open("tests/golden/chat/answers.json", encoding="utf-8") as f:
        golden = json.load(f)
    n = 0
    for case in golden["cases"]:
        text = golden["templates"].get(case["template"])
        if text is None or case["tools"] is not None or case["in_thought"]:
            continue
        folder = checkpoint("answers", {"chat_template.jinja": text})
        p = template("--checkpoint", folder, "--parse", "-", stdin=case["text"].encode())
        assert p.returncode == 0, (case["name"], p.stderr)
        got = json.loads(p.stdout)
        assert got == {k: case[k] for k in ("content", "reasoning", "tool_calls")}, (case["name"], got)
        n += 1
    assert n > 30, n
    folder = checkpoint("thinks", {"chat_template.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"})
    p = template("--checkpoint", folder, "--parse", "-", stdin=b"hm</think>Yes.")
    assert json.loads(p.stdout) == {"content": "Yes.", "reasoning": "hm", "tool_calls": []}, p.stdout
    fails("--checkpoint", folder, "--parse", "-", "--messages", "-", status=2, says=["--parse"])


def test_ids():
    """A token is one where the template writes it, and its letters where a user does."""
    letters = [chr(c) for c in range(97, 123)] + list("</>")
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)}, "merges": []},
                 "added_tokens": [{"id": 29, "content": "<s>", "special": True, "normalized": False}]}
    folder = checkpoint("ids_of", {"tokenizer.json": tokenizer, "chat_template.jinja": "<s>{% for m in messages %}{{ m.content }}{% endfor %}<s>"})
    messages = save([{"role": "user", "content": "a<s>"}], at("ids.json"))
    prints("[29, 0, 26, 18, 28, 29]", "--checkpoint", folder, "--messages", messages, "--ids")


def test_thought_alone():
    """An answer that ended in its thought has no content; the client sends that back. DeepSeek's template reads null only beside calls,
    and otherwise fails. Expected is what jinja2 makes of it with an empty text, which vLLM gives the template."""
    with open("tests/golden/chat/chat_cases.json", encoding="utf-8") as f:
        text = next(c["template"] for c in json.load(f)["cases"] if c["name"] == "deepseek_v3/three")
    folder = checkpoint("thought", {"chat_template.jinja": text, "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}})
    user = lambda content: {"role": "user", "content": content}
    messages = [user("Hi"), {"role": "assistant", "content": None, "reasoning_content": "hm"}, user("Go on")]
    prints("<s><｜User｜>Hi<｜Assistant｜><｜end▁of▁sentence｜><｜User｜>Go on<｜Assistant｜><think>\n", "--checkpoint", folder, "--messages",
           save({"messages": messages, "add_generation_prompt": True}, at("thought.json")))


def test_calls_come_back():
    """What --parse makes of a model's text, sent back as a message, is rendered as that text. jinja2 proved the same of each
    case's "echo" when answers.json was made; here the arguments are od-main's own."""
    with open("tests/golden/chat/answers.json", encoding="utf-8") as f:
        answers = json.load(f)
    templates = {}
    for name in "chat_cases.json", "chat_cases-3.json":
        with open("tests/golden/chat/" + name, encoding="utf-8") as f:
            for c in json.load(f)["cases"]:
                templates.setdefault(c["family"], c["template"])
    templates.update(answers["templates"])
    names = set()
    for c in answers["cases"]:
        if c["echo"] is None or c["tools"] is not None:
            continue
        folder = checkpoint("calls", {"chat_template.jinja": templates[c["template"]],
                                      "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}})
        a = json.loads(template("--checkpoint", folder, "--parse", "-", stdin=c["text"].encode()).stdout)
        assert len(a["tool_calls"]) == len(c["tool_calls"]) > 0, (c["name"], a)
        calls = [{"id": t.get("id", f"call_{i}"), "type": "function", "function": {"arguments": t["arguments"], "name": t["name"]}}
                 for i, t in enumerate(a["tool_calls"])]
        message = {"role": "assistant", "content": a["content"] or None, "reasoning_content": a["reasoning"], "tool_calls": calls,
                   "refusal": None}
        p = template("--checkpoint", folder, "--messages", "-", stdin=json.dumps([{"role": "user", "content": "Q"}, message]).encode())
        assert p.returncode == 0 and c["text"] in p.stdout.decode(), (c["name"], p.stdout, p.stderr)
        names.add(c["template"])
    assert len(names) >= 13, names


def test_orders():
    """Templates refuse orders and forms of messages, or lose them: each is given what it takes. What that is was written by hand, and
    rendered by jinja2 (tests/golden/chat/orders.py)."""
    with open("tests/golden/chat/orders.json", encoding="utf-8") as f:
        golden = json.load(f)
    folders = {name: checkpoint("order-" + name, {"chat_template.jinja": text, "tokenizer_config.json": golden["tokens"]})
               for name, text in golden["templates"].items()}
    wrong = []
    for c in golden["cases"]:
        request = save({"messages": c["messages"], "add_generation_prompt": True}, at("order.json"))
        p = template("--checkpoint", folders[c["template"]], "--messages", request)
        if p.returncode != 0 or p.stdout.decode() != c["rendered"]:
            wrong.append((c["template"], c["messages"], p.stdout.decode(), c["rendered"], p.stderr.decode()))
    assert not wrong, "\n".join(map(str, wrong))
    assert len(golden["cases"]) > 40


def test_integers_of_any_size():
    """As Python's json reads them and tojson writes them: with their digits, wherever a template meets them."""
    c = checkpoint("digits", {"chat_template.jinja": "{{ tools|tojson }}{{ n }}{% for m in messages %}{{ m.content }}"
                              "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{{ c.function.arguments.n }}{% endfor %}{% endfor %}"})
    schema = {"maximum": 2 ** 64 - 1, "enum": [-2 ** 63 - 1, 10 ** 400, 1e22], "const": 2 ** 63 - 1}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"n": 2 ** 64 + 1}}}
    request = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}], "n": 2 ** 70,
               "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
    prints(json.dumps(request["tools"]) + f"{2 ** 70}" + 'uf{"n": ' + f"{2 ** 64 + 1}}}{2 ** 64 + 1}", "--checkpoint", c, "--messages", save(request, at("big.json")))


def test_what_cannot_be_helped():
    """The template's own words, and once for each kind what was done."""
    refuses = "{% if messages|length > 2 %}{{ raise_exception('no more than two') }}{% endif %}" \
              "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    c = checkpoint("refuses", {"chat_template.jinja": refuses})
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    fails("--checkpoint", c, "--messages", save([user, answer, user], at("m.json")), says=["no more than two"])
    p = template("--checkpoint", c, "--messages", save([{"role": "system", "content": "s"}, user], at("m.json")))
    assert p.stdout == b"s\n\nu" and p.stderr.count(b"does not take system messages") == 1, p


run_tests(globals())
