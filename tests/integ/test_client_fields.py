#!/usr/bin/env python3
"""Each field of docs/CLIENTS.md does what the page says, in each API: what is done is read, so that nonsense is refused; what is ignored
changes nothing; what is refused is refused by its name."""
import atexit
import re

from cluster_util import run_tests, test
from serve_util import Server, stop_servers

atexit.register(stop_servers)
BODIES = {
    "/v1/completions": {"prompt": "Once upon", "max_tokens": 6, "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 6, "temperature": 0},
    "/v1/responses": {"input": "Once upon", "max_output_tokens": 6, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 6, "temperature": 0},
    "options": {"num_predict": 6, "temperature": 0},  # of an answer of /api/chat
    "/tokenize": {"content": "Once upon"},
    "/api/chat": {"messages": [{"role": "user", "content": "Once upon"}], "options": {"num_predict": 6, "temperature": 0}, "stream": False},
    "/api/generate": {"prompt": "Once upon", "options": {"num_predict": 6, "temperature": 0}, "stream": False},
    "/api/show": {},
    "/v1/choices": {"prompt": "Once upon", "choices": [" a", " the"]},
}
N_ALL = 5  # the first ones
NONSENSE = 1e300  # no field takes it
_shared = []


def server():
    if not _shared:
        _shared.append(Server("--model-name", "tale"))
    return _shared[0]


def rows(title):
    """(field, API, what it says) of a list of the page."""
    with open("docs/CLIENTS.md", encoding="utf-8") as f:
        part = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", f.read(), re.S | re.M).group(1)
    for name, apis, note in re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", part, re.M):
        for api in list(BODIES)[:N_ALL] if apis == "all" else re.findall(r"`([^`]+)`", apis):
            if api in BODIES:  # /infill needs a model that fills in the middle: test_infill.py
                yield name, api, note


def send(api, body):
    if api == "options":
        api, body = "/api/chat", {**BODIES["/api/chat"], "options": body}
    status, _, o = server().ask(api, body)
    return status, o


def ask(api, name, value, without=None):
    outer, _, inner = name.partition(".")
    return send(api, {**{k: v for k, v in BODIES[api].items() if k != without}, outer: {inner: value} if inner else value})


def answer(o):
    return str(o.get("choices") or o.get("content") or [x["content"] for x in o.get("output", [])] or o.get("tokens")
               or o.get("message") or o.get("response") or o.get("model_info"))


def plain_answers():
    plain = {api: answer(send(api, body)[1]) for api, body in BODIES.items()}
    assert all(plain.values()), plain
    return plain


def message_of(error):
    return error if isinstance(error, str) else error["message"]


@test
def done_fields_are_read():
    seen = set()
    for name, api, note in rows("Done"):
        if name in ("tokens", "text", "documents") or (name, api) == ("prompt", "/tokenize"):  # of /detokenize; it has a row for what is in it; the template looks at it
            continue
        value = {"type": NONSENSE} if name == "text.format" else NONSENSE
        alias = re.fullmatch(r"as `(.*)`", note)
        status, o = ask(api, name, value, without=alias and alias.group(1))
        assert status in (400, 404), (name, api, status, o)
        seen.add(name)
    assert len(seen) > 40, seen


@test
def ignored_fields_change_nothing():
    plain, seen = plain_answers(), 0
    for name, api, _ in rows("Ignored"):
        for value in (NONSENSE, "x", {"a": 1}):
            status, o = ask(api, name, value)
            assert status == 200, (name, api, o)
            assert re.sub(r"'id': '[^']*'", "", answer(o)) == re.sub(r"'id': '[^']*'", "", plain[api]), (name, api, o)
        seen += 1
    assert seen > 60, seen


@test
def refused_fields_are_named():
    plain, seen = plain_answers(), 0
    for name, api, note in rows("Refused by name"):
        status, o = ask(api, name, {"a": 1})
        assert status == 400 and message_of(o["error"]).startswith(name), (name, api, o)
        nothing = [None, False, 0, "", [], {}] + ([eval(m.group(1), {"true": True})] if (m := re.match(r"`(.*)` is taken", note)) else [])
        for value in nothing:
            status, o = ask(api, name, value)
            assert status == 200 and answer(o) == plain[api], (name, api, value, o)
        seen += 1
    assert seen > 150, seen


def written(api, **fields):
    """The text, how many tokens it has, and why it ended."""
    limit = next(k for k in BODIES[api] if k.startswith("max_"))
    status, _, o = server().ask(api, {**BODIES[api], limit: 40, **fields})
    assert status == 200, (api, fields, o)
    end = o["choices"][0]["finish_reason"] if "choices" in o else o.get("stop_reason") or o["status"]
    if "choices" in o:
        texts = [o["choices"][0]["message"]["content"] if "message" in o["choices"][0] else o["choices"][0]["text"]]
    else:
        texts = [c["text"] for c in (o["content"] if "content" in o else [c for i in o["output"] for c in i["content"]])]
    return "".join(t or "" for t in texts), o["usage"].get("completion_tokens", o["usage"].get("output_tokens")), end


ENDS = {"/v1/completions": "stop", "/v1/chat/completions": "stop", "/v1/responses": "completed", "/v1/messages": "end_turn"}


@test
def samplers_and_stop_tokens_act_in_each_api():
    for api, end in ENDS.items():
        plain = written(api)[0]
        for fields in {"dry_multiplier": 5, "dry_allowed_length": 1}, {"typical_p": 0.1}, {"typ_p": 0.1}, \
                      {"xtc_probability": 1, "xtc_threshold": 0.01}, {"dynatemp_range": 5, "seed": 3}:
            assert written(api, **fields)[0] != plain, (api, fields)
        for off in {"dry_multiplier": 5, "dry_penalty_last_n": 0}, {"xtc_probability": 1, "xtc_threshold": 0.51}, {"top_n_sigma": -1}, \
                   {"dry_multiplier": 5, "dry_allowed_length": 1, "dry_sequence_breakers": [*"abcdefghijklmnopqrstuvwxyz .,\"!"]}, \
                   {"dry_multiplier": 0, "dry_base": 0, "typical_p": 1, "min_tokens": 0, "stop_token_ids": []}:
            assert written(api, **off)[0] == plain, (api, off)
        assert written(api, temperature=1, seed=1, top_n_sigma=0.001)[0] == plain, api  # the best logit alone is left
        ids = server().ask("/tokenize", {"content": plain, "add_special": False})[2]["tokens"]
        at = next(i for i in range(3, len(ids)) if ids[i] not in ids[:i])
        begin = server().ask("/detokenize", {"tokens": ids[:at]})[2]["content"]
        for more in {}, {"ignore_eos": True}, {"min_tokens": at}:
            text, n, why = written(api, stop_token_ids=[ids[at]], **more)
            assert text.strip() == begin.strip() and (n, why) == (at + 1, end), (api, more, text, begin, n, why)
        text, n, why = written(api, stop_token_ids=[ids[at]], min_tokens=at + 4)
        assert n > at + 3 and text.strip().startswith(begin.strip()) and text != plain, (api, text, plain, n)


@test
def eos_waits_for_min_tokens():
    eos = server().ask("/tokenize", {"content": "</s>", "parse_special": True, "add_special": False})[2]["tokens"]
    assert len(eos) == 1, eos
    for api, end in ENDS.items():
        for n in 0, 1, 7:
            assert written(api, logit_bias={str(eos[0]): 100}, min_tokens=n)[1:] == (n + 1, end), (api, n)
        assert written(api, logit_bias={str(eos[0]): 100}, min_tokens=40)[1] == 40, api


@test
def a_masked_token_keeps_its_log_probability():
    ask = lambda **f: server().ask("/v1/completions", {**BODIES["/v1/completions"], "logprobs": 5, "max_tokens": 6, **f})[2]["choices"][0]["logprobs"]
    plain = ask()
    first = server().ask("/tokenize", {"content": plain["tokens"][0], "add_special": False})[2]["tokens"]
    assert len(first) == 1, plain
    masked = ask(stop_token_ids=first, min_tokens=6)
    assert plain["tokens"][0] not in masked["tokens"], masked
    assert masked["top_logprobs"][0] == plain["top_logprobs"][0], (plain, masked)


@test
def unknown_fields_are_said_once():
    for _ in range(3):
        for api in BODIES:
            assert ask(api, "nobody_knows_it", {"a": 1})[0] == 200
    assert server().log.count("nobody_knows_it") == 1, server().log


@test
def no_limit_is_minus_one():
    for api, name in ("/v1/completions", "max_tokens"), ("/v1/completions", "n_predict"), ("/v1/chat/completions", "max_tokens"), \
                     ("/v1/chat/completions", "max_completion_tokens"), ("/v1/chat/completions", "n_predict"), \
                     ("/v1/responses", "max_output_tokens"), ("/v1/responses", "max_tokens"), ("/v1/messages", "max_tokens"):
        body = {k: v for k, v in BODIES[api].items() if not k.startswith("max_")}
        status, _, o = server().ask(api, {**body, name: -1, "ignore_eos": True})
        u = o["usage"]
        written = u.get("completion_tokens", u.get("output_tokens"))
        read = u.get("prompt_tokens", u.get("input_tokens")) + u.get("cache_read_input_tokens", 0)
        assert status == 200 and written + read == 1025, (api, name, u)  # one more than the context of the model
        assert server().ask(api, {**body, name: -2})[0] == 400
    assert server().ask("/v1/completions", {"prompt": "a", "max_tokens": None})[2]["usage"]["completion_tokens"] == 16


@test
def other_names_mean_the_same():
    body = {**BODIES["/v1/completions"], "max_tokens": 40}
    text = lambda **f: server().ask("/v1/completions", {**body, **f})[2]["choices"][0]["text"]
    assert text(repeat_penalty=1.5) == text(repetition_penalty=1.5) != text()
    assert text(repetition_penalty=1.5, repeat_last_n=0) == text()
    assert text(repetition_penalty=1.5, repeat_last_n=-1) == text(repetition_penalty=1.5) == text(repetition_penalty=1.5, repeat_last_n=10**6)
    assert text(repetition_penalty=1.5, repeat_last_n=2) != text(repetition_penalty=1.5)
    for api in "/v1/chat/completions", "/v1/responses", "/v1/messages":
        a, b = ({**BODIES[api], **f} for f in ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}))
        assert answer(server().ask(api, a)[2]) == answer(server().ask(api, b)[2])


if __name__ == "__main__":
    run_tests()
