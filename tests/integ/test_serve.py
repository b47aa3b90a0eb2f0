#!/usr/bin/env python3
"""od-main serve: answers are those of od-main --prompt, for one client and for sixteen; who sends nonsense, too much, too slowly or
goes away is told so, or nothing, and disturbs no other."""
import atexit
import errno
import glob
import http.client
import json
import math
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading

from cluster_util import BIN, HANG_S, SLOW, TMP, Daemon, Skip, generate, hosts_file, pack, run_tests, test, tool, wait_for
from serve_util import JSON, Server, parse_events, stop_servers

atexit.register(stop_servers)
PROMPT = "Once upon a time there was a king"
LONG = "king " * 900
GREEDY = {"temperature": 0}
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 16, "--max-body", "1MiB"))
    return _shared[0]


def text_of(o):
    return o["choices"][0]["text"]


# ---- Answers ----


@test
def greedy_text_is_that_of_od_main():
    for prompt, tokens in (PROMPT, 24), ("The bird", 1), ("Märchen: „Es war ein König“ 🐦", 30), ("", 5):
        a = generate("--resident", prompt=prompt, tokens=tokens)
        o = server().complete(prompt, tokens)
        assert text_of(o) == a["text"] and o["object"] == "text_completion", (o, a)
        assert o["choices"][0]["finish_reason"] == ("stop" if a["finish"] == "eos" else "length"), (o, a["finish"])
        assert o["usage"]["prompt_tokens"] == len(a["prompt_ids"]) and o["usage"]["completion_tokens"] == len(a["token_ids"])
        assert o["usage"]["total_tokens"] == len(a["prompt_ids"]) + len(a["token_ids"])


@test
def sampled_text_is_too():
    for extra in {"seed": 7, "temperature": 0.9}, {"seed": 8, "temperature": 1.3, "top_k": 20}, \
                 {"seed": 9, "temperature": 1.0, "top_p": 0.8, "min_p": 0.02}, {"seed": 3, "temperature": 0.7, "repetition_penalty": 1.3}, \
                 {"seed": 5, "temperature": 0.9, "dry_multiplier": 1.5, "dry_allowed_length": 1}, {"seed": 5, "temperature": 1, "typical_p": 0.5}, \
                 {"seed": 6, "temperature": 1, "xtc_probability": 0.5, "xtc_threshold": 0.05}, \
                 {"seed": 6, "temperature": 1, "top_n_sigma": 1, "dynatemp_range": 0.8, "dynatemp_exponent": 0.5}, {"temperature": 0, "min_tokens": 9}:
        args = [x for k, v in extra.items() for x in ("--" + k.replace("_", "-"), v)]
        assert text_of(server().complete(PROMPT, 20, **extra)) == generate("--resident", *args, prompt=PROMPT, tokens=20)["text"], extra
    texts = {text_of(server().complete(PROMPT, 20, temperature=1.5)) for _ in range(4)}
    assert len(texts) > 1, "without a seed it is random"


@test
def a_stream_gives_the_same():
    for prompt, tokens in (PROMPT, 40), ("🐦 ü", 12):
        whole = server().complete(prompt, tokens)
        events, comments = server().stream(prompt=prompt, max_tokens=tokens, stream_options={"include_usage": True})
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == text_of(whole)
        assert [e["choices"][0]["finish_reason"] for e in events[:-1]][-1] == "length"
        assert all(e["choices"][0]["finish_reason"] is None for e in events[:-2])
        assert events[-1]["choices"] == [] and {**events[-1]["usage"], "prompt_tokens_details": 0} == \
            {**whole["usage"], "prompt_tokens_details": 0}, events[-1]
        assert len({e["id"] for e in events}) == 1 and all(e["object"] == "text_completion" for e in events)
    events, _ = server().stream(prompt=PROMPT, max_tokens=3)
    assert all("usage" not in e for e in events)


@test
def a_long_prompt_tells_its_progress():
    _, comments = server().stream(prompt=LONG, max_tokens=2)
    progress = [tuple(map(int, re.fullmatch(r"choice 0: prompt (\d+)/(\d+) tokens", c).groups())) for c in comments if "prompt" in c]
    assert len(progress) >= 1 and progress == sorted(progress) and all(done < n and n > 900 for done, n in progress), comments


@test
def stop_strings_end_a_text():
    whole = text_of(server().complete(PROMPT, 60))
    word = whole.split()[5]
    for stop in word, [word], ["never comes", word]:
        o = server().complete(PROMPT, 60, stop=stop)
        assert text_of(o) == whole[:whole.index(word)] and o["choices"][0]["finish_reason"] == "stop", o
        events, _ = server().stream(prompt=PROMPT, max_tokens=60, stop=stop)
        assert "".join(e["choices"][0]["text"] for e in events) == whole[:whole.index(word)]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert text_of(server().complete(PROMPT, 60, stop=None)) == whole == text_of(server().complete(PROMPT, 60, stop=[]))


@test
def prompts_have_four_forms():
    ids = generate("--resident", prompt=PROMPT, tokens=1)["prompt_ids"]
    bird = "The bird"
    bird_ids = generate("--resident", prompt=bird, tokens=1)["prompt_ids"]
    a, b = text_of(server().complete(PROMPT, 9)), text_of(server().complete(bird, 9))
    assert text_of(server().complete(ids, 9)) == a
    for prompts in [PROMPT, bird], [ids, bird_ids]:
        o = server().complete(prompts, 9)
        assert [(c["index"], c["text"]) for c in o["choices"]] == [(0, a), (1, b)], o
        assert o["usage"]["prompt_tokens"] == len(ids) + len(bird_ids) and o["usage"]["completion_tokens"] == 18
        events, _ = server().stream(prompt=prompts, max_tokens=9)
        for i, text in enumerate([a, b]):
            assert "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) == text
    o = server().complete([PROMPT, bird], 9, n=2, seed=5, temperature=1)
    assert [c["index"] for c in o["choices"]] == [0, 1, 2, 3] and o["choices"][0]["text"] != o["choices"][1]["text"]
    assert o["choices"][0]["text"] == text_of(server().complete(PROMPT, 9, seed=5, temperature=1))
    assert o["choices"][3]["text"] == text_of(server().complete(bird, 9, seed=6, temperature=1))
    assert o["usage"]["prompt_tokens"] == len(ids) + len(bird_ids) and o["usage"]["completion_tokens"] == 36


@test
def echo_repeats_the_prompt():
    text = text_of(server().complete(PROMPT, 6))
    assert text_of(server().complete(PROMPT, 6, echo=True)) == PROMPT + text
    ids = generate("--resident", prompt=PROMPT, tokens=1)["prompt_ids"]
    assert text_of(server().complete(ids, 6, echo=True)) == PROMPT + text
    o = server().complete(PROMPT, 0, echo=True)
    assert text_of(o) == PROMPT and o["usage"]["completion_tokens"] == 0 and o["choices"][0]["finish_reason"] == "length"
    events, _ = server().stream(prompt=PROMPT, max_tokens=6, echo=True)
    assert "".join(e["choices"][0]["text"] for e in events) == PROMPT + text


@test
def defaults_are_those_of_openai_and_of_the_model():
    o = server().ask("/v1/completions", {"prompt": PROMPT})[2]
    assert o["usage"]["completion_tokens"] == 16 and text_of(o) == text_of(server().complete(PROMPT, 16, **GREEDY))
    o = server().complete(PROMPT, 1000000)  # to the end of the context, or of the text
    assert o["choices"][0]["finish_reason"] in ("length", "stop")
    assert o["usage"]["total_tokens"] <= 1025


def engine_logprobs(prompt, tokens, n):
    """[(token, log probability, best others)] by od-main --prompts, prompt included."""
    path = os.path.join(TMP, "logprobs.jsonl")
    with open(path, "w") as f:
        json.dump({"prompt": prompt, "max_tokens": tokens, "logprobs": n, "prompt_logprobs": True}, f)
    p = tool("od-main", "--pack", pack(), "--resident", "--json", "--prompts", path)
    return [(t["token"], t["logprob"], t["top"]) for t in json.loads(p.stdout)["logprobs"]]


def one_token(i):
    return server().ask("/detokenize", {"tokens": [300, i]})[2]["content"][len(server().ask("/detokenize", {"tokens": [300]})[2]["content"]):]


@test
def log_probabilities_are_those_of_the_engine():
    expected = engine_logprobs(PROMPT, 6, 3)
    o = server().complete(PROMPT, 6, logprobs=3, echo=True)
    l = o["choices"][0]["logprobs"]
    assert l["token_logprobs"] == [e[1] for e in expected] and l["token_logprobs"][0] is None, l
    assert l["tokens"][1:] == [one_token(e[0]) for e in expected[1:]] and "".join(l["tokens"][1:]) == text_of(o), l
    assert l["tokens"][0] == "<s>" and l["top_logprobs"][0] is None
    for top, own, text, e in list(zip(l["top_logprobs"], l["token_logprobs"], l["tokens"], expected))[1:]:
        best = {one_token(t): p for t, p in reversed(e[2])}
        assert top == {**best, text: own}, (top, best)
        assert sum(math.exp(p) for p in top.values()) <= 1 + 1e-9
    assert [text_of(o)[i:i + len(t)] for i, t in list(zip(l["text_offset"], l["tokens"]))[1:]] == l["tokens"][1:]
    # What lm-eval does: the prompt's own, as token ids, with one more token.
    ids = [e[0] for e in expected]
    m = server().complete(ids[:-1], 1, logprobs=1, echo=True)["choices"][0]["logprobs"]
    assert m["token_logprobs"][1:-1] == [e[1] for e in expected[1:-1]]
    assert [p == max(t.values()) for p, t in zip(m["token_logprobs"][9:], m["top_logprobs"][9:])] == [True] * (len(ids) - 9)


@test
def log_probabilities_come_in_streams_and_without_echo():
    whole = server().complete(PROMPT, 8, logprobs=2, stop=" zzz")["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == 8 and whole["text_offset"][0] == 0
    for fields in {}, {"echo": True}:
        whole = server().complete(PROMPT, 8, logprobs=2, **fields)["choices"][0]["logprobs"]
        events, _ = server().stream(prompt=PROMPT, max_tokens=8, logprobs=2, **fields)
        parts = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]
        assert {k: sum((p[k] for p in parts), []) for k in whole} == whole, parts
    zero = server().complete(PROMPT, 2, logprobs=0)["choices"][0]["logprobs"]
    assert [list(t) for t in zero["top_logprobs"]] == [[t] for t in zero["tokens"]]
    none = server().complete(PROMPT, 0, logprobs=1, echo=True)["choices"][0]["logprobs"]
    assert len(none["tokens"]) == 9
    assert server().complete(PROMPT, 2)["choices"][0]["logprobs"] is None


# ---- Other endpoints ----


@test
def models_are_listed():
    status, _, o = server().ask("/v1/models")
    assert status == 200 and o["object"] == "list" and [m["id"] for m in o["data"]] == ["talebook"], o
    assert o["data"][0]["object"] == "model" and o["data"][0]["max_model_len"] == 1024
    assert server().ask("/v1/models/talebook")[2] == o["data"][0]
    status, _, o = server().ask("/v1/models/gpt-4")
    assert status == 404 and o["error"]["code"] == "model_not_found", o
    assert server().complete(PROMPT, 1, model="whatever")["model"] == "talebook"


@test
def a_name_that_was_given_is_checked():
    s = Server("--model-name", "tales/1")
    assert s.ask("/v1/models/tales/1")[0] == 200
    assert s.complete(PROMPT, 1, model="tales/1")["model"] == "tales/1"
    status, _, o = s.ask("/v1/completions", {"prompt": PROMPT, "model": "talebook"})
    assert status == 404 and o["error"]["code"] == "model_not_found" and o["error"]["param"] == "model", o
    assert s.stop() == 0, s.log


@test
def tokens_and_back():
    ids = generate("--resident", prompt=PROMPT, tokens=1)["prompt_ids"]
    o = server().ask("/tokenize", {"prompt": PROMPT})[2]
    assert (o["tokens"], o["count"], o["max_model_len"]) == (ids, len(ids), 1024), o
    assert server().ask("/tokenize", {"prompt": PROMPT, "add_special_tokens": False})[2]["tokens"] == ids[1:]
    assert server().ask("/tokenize", {"content": PROMPT})[2]["tokens"] == ids[1:]
    assert server().ask("/tokenize", {"content": PROMPT, "add_special": True})[2]["tokens"] == ids
    assert server().ask("/tokenize", {"content": "<s>"})[2]["tokens"] == [1]
    assert server().ask("/tokenize", {"content": "<s>", "parse_special": False})[2]["tokens"] != [1]
    o = server().ask("/detokenize", {"tokens": ids[1:]})[2]
    assert o["content"].strip() == PROMPT and o["prompt"] == o["content"], o
    for path, body, param in ("/tokenize", {}, "prompt"), ("/tokenize", {"content": 3}, "content"), ("/detokenize", {}, "tokens"), \
                             ("/detokenize", {"tokens": [1, 10**6]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"), \
                             ("/tokenize", {"content": "a", "with_pieces": True}, "with_pieces"):
        status, _, o = server().ask(path, body)
        assert status == 400 and o["error"]["param"] == param, (path, body, o)


@test
def metrics_count():
    s = server()
    before = {n: s.metric(n) for n in ("od_main_tokens_total", "od_main_prompt_tokens_total", 'od_texts_total{finish="length"}',
                                       "od_time_to_first_token_seconds_count", "od_queue_time_seconds_count")}
    s.complete(PROMPT, 7)
    grown = {n: s.metric(n) - v for n, v in before.items()}
    assert list(grown.values()) == [7, 9, 1, 1, 1], grown
    text = s.ask("/metrics")[2].decode()
    assert s.ask("/metrics")[1]["Content-Type"].startswith("text/plain; version=0.0.4")
    helped = re.findall(r"^# HELP (\S+) ", text, re.M)
    typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert len(helped) == len(set(helped)) and set(helped) == set(typed)
    for line in text.splitlines():
        if not line.startswith("#"):
            name = re.fullmatch(r"([a-z_]+)(\{[^}]*\})? [-+0-9.e]+", line).group(1)
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in typed else name
            assert base in typed and (typed[base] == "counter") == name.endswith("_total"), line
    buckets = [int(v) for v in re.findall(r'^od_time_to_first_token_seconds_bucket\{le="[^"]+"\} (\d+)$', text, re.M)]
    assert buckets == sorted(buckets) and buckets[-1] == s.metric("od_time_to_first_token_seconds_count")


@test
def a_cluster_answers_alike():
    s = Server("--parallel", 4, mode=("--local", 2))
    assert text_of(s.complete(PROMPT, 24)) == generate("--resident", prompt=PROMPT, tokens=24)["text"]
    o = s.complete([PROMPT, "The bird"], 12, n=2, seed=4, temperature=0.8)
    r = server().complete([PROMPT, "The bird"], 12, n=2, seed=4, temperature=0.8)
    assert [c["text"] for c in o["choices"]] == [c["text"] for c in r["choices"]]
    assert s.ask("/health")[0] == 200
    text = s.ask("/metrics")[2].decode()
    assert len(re.findall(r'^od_worker_loads_total\{worker="[^"]+"\} \d+$', text, re.M)) == 2, text
    assert len(re.findall(r'^od_shadow_steps_total\{shadow="[^"]+"\} \d+$', text, re.M)) == 1, text
    assert s.stop() == 0, s.log


def local_workers(s):
    children = [pid for task in glob.glob(f"/proc/{s.p.pid}/task/*/children") for pid in open(task).read().split()]
    return [int(pid) for pid in children if "od-worker" in open(f"/proc/{pid}/comm").read()]


@test
def a_server_ends_if_none_of_its_own_workers_is_left():
    """They are not started again; the server is, as a service."""
    s = Server(mode=("--local", 2))
    want = text_of(s.complete(PROMPT, 8))
    first, second = local_workers(s)
    os.kill(first, signal.SIGKILL)
    assert text_of(s.complete(PROMPT, 8)) == want
    os.kill(second, signal.SIGKILL)
    status, _, o = s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
    assert status in (500, 503) and "no worker is left to run experts" in json.dumps(o), (status, o)
    assert s.p.wait(HANG_S) == 1 and re.search(r"level=error .*no worker is left to run experts: .*and is not started again", s.log), s.log


# ---- Refusals ----

BAD_FIELDS = [
    ({"prompt": 3}, "prompt"), ({}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"),
    ({"prompt": None}, "prompt"), ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"), ({"prompt": [1, "a"]}, "prompt"), ({"prompt": [[1, 99999]]}, "prompt"), ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"), ({"prompt": ["a"] * 300}, "prompt"), ({"prompt": "king " * 3000}, "prompt"),
    ({"prompt": "a", "max_tokens": "3"}, "max_tokens"), ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"), ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"), ({"prompt": "a", "temperature": -1}, "temperature"),
    ({"prompt": "a", "top_p": 1.5}, "top_p"), ({"prompt": "a", "top_k": -2}, "top_k"), ({"prompt": "a", "min_p": 2}, "min_p"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"), ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty"),
    ({"prompt": "a", "presence_penalty": -2.5}, "presence_penalty"), ({"prompt": "a", "seed": 1.5}, "seed"),
    ({"prompt": "a", "seed": 10**20}, "seed"), ({"prompt": "a", "seed": 2**63}, "seed"),
    ({"prompt": "a", "logit_bias": [1]}, "logit_bias"), ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"1": "a"}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"99999999999": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"7": 1, "07": 1}}, "logit_bias"),
    ({"prompt": "a", "seed": 10**20}, "seed"),
    ({"prompt": "a", "stop": 3}, "stop"), ({"prompt": "a", "stop": ["x", 3]}, "stop[1]"), ({"prompt": "a", "stop": ""}, "stop"),
    ({"prompt": "a", "stop": ["x"] * 65}, "stop"), ({"prompt": "a", "stop": "a\0b"}, "stop"), ({"prompt": "a", "stream": 1}, "stream"),
    ({"prompt": "a", "stream_options": 1}, "stream_options"),
    ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"prompt": "a", "n": 0}, "n"), ({"prompt": "a", "n": 1000}, "n"), ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
    ({"prompt": "a", "response_format": "text"}, "response_format"), ({"prompt": "a", "guided_json": {"type": "thing"}}, "guided_json"),
    ({"prompt": "a", "min_tokens": -1}, "min_tokens"), ({"prompt": "a", "min_tokens": 4, "max_tokens": 3}, "min_tokens"),
    ({"prompt": "a", "stop_token_ids": 5}, "stop_token_ids"), ({"prompt": "a", "stop_token_ids": [5, 99999]}, "stop_token_ids"),
    ({"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids"), ({"prompt": "a", "stop_token_ids": [5] * 1025}, "stop_token_ids"),
    ({"prompt": "a", "typical_p": 1.1}, "typical_p"), ({"prompt": "a", "top_n_sigma": -2}, "top_n_sigma"),
    ({"prompt": "a", "xtc_probability": 2}, "xtc_probability"), ({"prompt": "a", "xtc_threshold": -0.1}, "xtc_threshold"),
    ({"prompt": "a", "dynatemp_range": -1}, "dynatemp_range"), ({"prompt": "a", "dynatemp_exponent": -1}, "dynatemp_exponent"),
    ({"prompt": "a", "dry_multiplier": -1}, "dry_multiplier"), ({"prompt": "a", "dry_base": 101}, "dry_base"),
    ({"prompt": "a", "dry_allowed_length": -1}, "dry_allowed_length"), ({"prompt": "a", "dry_penalty_last_n": -2}, "dry_penalty_last_n"),
    ({"prompt": "a", "dry_sequence_breakers": 3}, "dry_sequence_breakers"), ({"prompt": "a", "dry_sequence_breakers": ["x"] * 33}, "dry_sequence_breakers"), ({"prompt": "a", "model": 3}, "model"), ({"prompt": "a", "echo": "yes"}, "echo"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"), ({"prompt": "a", "logprobs": "all"}, "logprobs"),
]


def assert_error(answer, status, param=None, what=None):
    assert answer[0] == status, (what, answer[0], answer[2])
    e = answer[2]["error"]
    assert set(e) == {"message", "type", "param", "code"} and e["message"] and isinstance(e["type"], str), (what, answer[2])
    assert e["param"] == param and (param is None or param in e["message"]), (what, e)


@test
def wrong_fields_are_named():
    c = server().connect()
    for body, param in BAD_FIELDS:
        assert_error(server().ask("/v1/completions", body, connection=c), 400, param, str(body)[:80])
    o = server().ask("/v1/completions", {"prompt": "king " * 3000})[2]
    assert o["error"]["code"] == "context_length_exceeded", o
    assert "an array of token ids is empty" in server().ask("/v1/completions", {"prompt": [[3], []]})[2]["error"]["message"]


@test
def what_changes_nothing_is_ignored():
    o = server().complete(PROMPT, 5, user="me", metadata={"a": 1}, store=True, an_unknown_field=[1], best_of=1, suffix=None, n=None,
                          suffix_=1, response_format={"type": "text"}, guided_json=None, min_tokens=0, logit_bias={}, top_k=-1)
    assert text_of(o) == text_of(server().complete(PROMPT, 5)), o
    assert text_of(server().complete(PROMPT, 5.0)) == text_of(o)


@test
def logit_bias_and_penalties_reach_the_sampler():
    first = server().ask("/tokenize", {"content": text_of(server().complete(PROMPT, 1))})[2]["tokens"]
    assert len(first) == 1
    biased = server().complete(PROMPT, 8, logit_bias={str(first[0]): -100})
    assert text_of(biased) != text_of(server().complete(PROMPT, 8))
    one = server().complete(PROMPT, 5, logit_bias={"300": 100})
    assert one["usage"]["completion_tokens"] == 5 and len(set(text_of(one).split())) <= 1, one
    plain = text_of(server().complete(PROMPT, 60))
    assert text_of(server().complete(PROMPT, 60, frequency_penalty=2)) != plain != text_of(server().complete(PROMPT, 60, presence_penalty=2))


NOT_JSON = [b"", b"{", b"nonsense", b"[1]", b"3", b"null", b'{"prompt": "a"} x', b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xc3"}',
            b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "seed": 1e999}',
            b"[" * 200000, b'{"a":' * 100000 + b"1" + b"}" * 100000, b"\0" * 100,
            b'{"\0": 1']


@test
def bodies_that_are_no_json_objects():
    for path in "/v1/completions", "/tokenize", "/detokenize":
        for body in NOT_JSON:
            assert_error(server().ask(path, body), 400, what=(path, body[:40]))


@test
def statuses_of_http():
    s = server()
    good = {"prompt": "a", "max_tokens": 1}
    assert_error(s.ask("/v1/nothing"), 404)
    assert_error(s.ask("/v1/completions/", good), 404)
    assert_error(s.ask("/nothing"), 404)
    assert_error(s.ask("/%00"), 404)  # not "/", which is a page
    assert s.ask("/v1/mod%65ls")[0] == 200 and s.ask("/v1/models%00")[0] == 404
    for path, method, allow in ("/v1/completions", "GET", "OPTIONS, POST"), ("/v1/completions", "DELETE", "OPTIONS, POST"), \
                               ("/health", "POST", "OPTIONS, GET, HEAD"), ("/v1/models", "PUT", "OPTIONS, GET, HEAD"):
        a = s.ask(path, good if method in ("POST", "PUT") else None, method=method)
        assert_error(a, 405)
        assert a[1]["Allow"] == allow, a[1]
    for kind in "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None, "application/jsonx":
        assert_error(s.ask("/v1/completions", json.dumps(good), headers={"Content-Type": kind}), 415, what=kind)
    for kind in "application/json; charset=utf-8", "Application/JSON", "application/json;x":
        assert s.ask("/v1/completions", json.dumps(good), headers={"Content-Type": kind})[0] == 200, kind
    for coding, status in ("gzip", 415), ("zstd", 415), ("identity", 200), ("Identity", 200):
        answer = s.ask("/v1/completions", json.dumps(good), headers={"Content-Encoding": coding})
        assert answer[0] == status and (status == 200 or "Content-Encoding" in answer[2]["error"]["message"]), (coding, answer)
    c = s.connect()
    c.putrequest("POST", "/v1/completions")
    c.putheader("Content-Type", "application/json")
    c.endheaders()
    r = c.getresponse()
    assert r.status == 411 and json.loads(r.read())["error"]["type"] == "invalid_request_error"
    status, _, text = s.ask("/health", method="HEAD")
    assert status == 200 and text == b""
    assert s.ask("/v1/completions", method="OPTIONS")[0] == 204


@test
def bodies_that_are_too_large():
    s = server()
    assert_error(s.ask("/v1/completions", json.dumps({"prompt": "a", "x": "y" * (2 << 20)})), 413)
    assert_error(s.ask("/v1/completions", b" " * (100 << 20)), 413)

    def pieces():
        for _ in range(40):
            yield b"x" * 65536

    c = s.connect()
    c.request("POST", "/v1/completions", pieces(), JSON, encode_chunked=True)
    assert c.getresponse().status == 413
    with s.socket() as k:  # who asks first is told before it sends anything
        k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
                  b"Content-Length: 99999999\r\n\r\n")
        assert k.recv(12) == b"HTTP/1.1 413"
    with s.socket() as k:
        k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: 99999999999999\r\n\r\n")
        assert k.recv(12) == b"HTTP/1.1 413"
    body = json.dumps({"prompt": "Once upon", "max_tokens": 2, "x": "y" * 900000})
    assert s.ask("/v1/completions", body)[0] == 200


@test
def a_chunked_body_is_a_body():
    c = server().connect()
    body = json.dumps({"prompt": PROMPT, "max_tokens": 4}).encode()
    c.request("POST", "/v1/completions", (body[i:i + 7] for i in range(0, len(body), 7)), JSON, encode_chunked=True)
    assert text_of(json.loads(c.getresponse().read())) == text_of(server().complete(PROMPT, 4))


@test
def a_connection_serves_many_requests():
    c = server().connect()
    for i in range(20):
        assert server().ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, connection=c)[0] == 200
        assert server().ask("/nothing", connection=c)[0] == 404
        assert server().ask("/v1/models", connection=c)[0] == 200


# ---- Who may ask ----


@test
def a_host_that_is_not_ours_is_refused():
    for host, status in ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("LOCALHOST.:8080", 200), ("a.localhost", 200), \
                        ("evil.example", 403), ("evil.example:8080", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil", 403), \
                        ("", 403), ("[::1", 403), ("10.0.0.1", 200):
        a = server().ask("/v1/models", headers={"Host": host})
        assert a[0] == status, (host, a)
        if status == 403:
            assert_error(a, 403)
    assert_error(server().ask("/v1/completions", {"prompt": "a"}, headers={"Host": "evil.example"}), 403)


@test
def names_can_be_allowed():
    s = Server("--allow-host", "host.docker.internal", "--allow-host=Box.lan")
    for host, status in ("host.docker.internal", 200), ("HOST.docker.internal.:8080", 200), ("box.lan:80", 200), ("localhost", 200), \
                        ("docker.internal", 403), ("evil.example", 403):
        a = s.ask("/v1/models", headers={"Host": host})
        assert a[0] == status, (host, a)
        assert status == 200 or "--allow-host" in a[2]["error"]["message"], a
    assert s.stop() == 0, s.log
    for name in "http://a", "a:80", "*", "":
        p = run_serve("--allow-host", name)
        assert p.returncode == 2 and "--allow-host" in p.stderr, (name, p.stderr)


def raw(s, data):
    """All that the server sends before it hangs up."""
    answer = b""
    with s.socket() as k:
        k.sendall(data)
        try:
            while piece := k.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    return answer


@test
def white_space_around_values_is_none_of_them():
    """RFC 9110, 5.5. libmicrohttpd itself reads Content-Length, Transfer-Encoding, Connection and Expect."""
    keys = os.path.join(TMP, "keys4.txt")
    open(keys, "w").write("a-key\n")
    keyed = Server("--api-key-file", keys, "--cors", "https://chat.example")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    for s, name, value in (server(), b"Host", b"localhost"), (server(), b"Content-Type", b"application/json"), \
                          (server(), b"Content-Encoding", b"identity"), (keyed, b"Authorization", b"Bearer a-key"), \
                          (keyed, b"x-api-key", b"a-key"), (keyed, b"Origin", b"https://chat.example"):
        for spaced in value, b" " + value, b"\t " + value, value + b" ", value + b"\t", b"\t" + value + b" \t ":
            h = {b"Host": b"localhost", b"Content-Type": b"application/json", b"Content-Length": b"%d" % len(body), b"Connection": b"close"}
            h.update({} if s is not keyed or name in (b"Authorization", b"x-api-key") else {b"x-api-key": b"a-key"})
            h[name] = spaced
            answer = raw(s, b"POST /v1/completions HTTP/1.1\r\n" + b"".join(k + b":" + v + b"\r\n" for k, v in h.items()) + b"\r\n" + body)
            assert answer.startswith(b"HTTP/1.1 200"), (name, spaced, answer)
            assert name != b"Origin" or b"Access-Control-Allow-Origin: https://chat.example\r\n" in answer, (spaced, answer)
    inner = raw(keyed, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: a- key\r\nConnection: close\r\n\r\n")
    assert inner.startswith(b"HTTP/1.1 401"), inner
    coding = raw(server(), b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n")  # else its end would be waited for
    assert coding.startswith(b"HTTP/1.1 400") and b"chunked" in coding, coding
    assert keyed.stop() == 0, keyed.log


@test
def other_protocols_are_told_at_once():
    import ssl
    s = Server("--header-seconds", "600")
    k = s.socket()
    try:
        ssl._create_unverified_context().wrap_socket(k, server_hostname="localhost")
        assert False
    except (ssl.SSLError, ConnectionError):
        pass
    s.wait_for("does not speak TLS")
    for hello in b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03", b"\x00\x01", b"\xff", b"\x05\x01\x00":
        answer = raw(s, hello)  # not after ten minutes
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), (hello, answer)
    assert raw(s, b"\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert s.complete(PROMPT, 1) and s.stop() == 0, s.log


def quiet(*options):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    s = Server.__new__(Server)
    s.log_path, s.port = os.path.join(TMP, "quiet.log"), port
    with open(s.log_path, "w") as log:
        s.p = subprocess.Popen([os.path.join(BIN, "od-main"), "serve", "--pack", pack(), "--resident", *options, "--listen",
                                f"127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)

    def serves():
        try:
            return s.ask("/health")[0] == 200
        except OSError:
            return False
    wait_for(serves, lambda: s.log)
    s.complete(PROMPT, 4)
    assert s.ask("/v1/nothing")[0] == 404
    assert s.stop() == 0 and s.log == "", s.log


@test
def a_quiet_server_logs_nothing_of_what_goes_well():
    for options in ["--quiet"], ["--log-level", "warn"], ["--log-level", "error"]:
        quiet(*options)


@test
def localhost_is_both_loopback_addresses():
    s = Server("--max-connections", 2, listen="localhost:0")
    for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
        try:
            taken = [socket.create_connection((address, s.port), timeout=HANG_S) for _ in range(2)]
        except OSError:
            assert family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"), address
            continue
        # As many connections as there may be: one more is served when one of them has gone.
        late = http.client.HTTPConnection(address, s.port, timeout=HANG_S)
        late.request("GET", "/health")
        for c in taken:
            c.close()
        assert late.getresponse().status == 200
        late.close()
        for _ in range(20):
            c = http.client.HTTPConnection(address, s.port, timeout=HANG_S)
            c.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 2}', {"Content-Type": "application/json"})
            assert c.getresponse().status == 200
            c.close()
    assert s.descriptors() < 100 and s.stop() == 0


@test
def keys_are_asked_for():
    path = os.path.join(TMP, "keys.txt")
    with open(path, "w") as f:
        f.write("# of people\nfirst-key\n\n  second-key\r\n")
    s = Server("--api-key-file", path)
    body = {"prompt": PROMPT, "max_tokens": 1}
    for headers in {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer first-ke"}, {"Authorization": "Bearer first-key2"}, \
                   {"Authorization": "Basic first-key"}, {"Authorization": "first-key"}, {"x-api-key": "wrong"}, {"x-api-key": ""}, \
                   {"Authorization": "Bearer # of people"}, {"Authorization": "Bearer "}:
        for path_, b in ("/v1/completions", body), ("/v1/models", None), ("/metrics", None), ("/nothing", None):
            a = s.ask(path_, b, headers=headers)
            assert_error(a, 401, what=(headers, path_))
            assert a[1]["WWW-Authenticate"] == "Bearer" and "first" not in str(a[2]) and a[2]["error"]["code"] == "invalid_api_key"
    for headers in {"Authorization": "Bearer first-key"}, {"Authorization": "bearer second-key"}, {"X-Api-Key": "second-key"}:
        assert s.ask("/v1/completions", body, headers=headers)[0] == 200, headers
        assert s.ask("/v1/models", headers={**headers, "Host": "models.example"})[0] == 200
    assert s.ask("/health")[0] == 200
    assert s.stop() == 0, s.log


@test
def pages_of_one_origin_may_ask():
    s = Server("--cors", "https://chat.example")
    a = s.ask("/v1/completions", method="OPTIONS", headers={"Origin": "https://chat.example",
                                                             "Access-Control-Request-Method": "POST"})
    assert a[0] == 204 and a[1]["Access-Control-Allow-Origin"] == "https://chat.example", a[1].items()
    assert "POST" in a[1]["Access-Control-Allow-Methods"] and "authorization" in a[1]["Access-Control-Allow-Headers"].lower()
    a = s.ask("/v1/completions", method="OPTIONS", headers={"Origin": "https://chat.example", "Access-Control-Request-Headers":
                                                            "authorization,x-stainless-os"})
    assert a[1]["Access-Control-Allow-Headers"] == "authorization,x-stainless-os", a[1].items()
    assert s.ask("/v1/models", headers={"Origin": "https://chat.example"})[1]["Access-Control-Allow-Origin"] == "https://chat.example"
    assert s.ask("/v1/models", headers={"Origin": "https://evil.example"})[1]["Access-Control-Allow-Origin"] is None
    assert server().ask("/v1/models", headers={"Origin": "https://chat.example"})[1]["Access-Control-Allow-Origin"] is None
    assert s.stop() == 0, s.log


def run_serve(*args):
    return tool("od-main", "serve", "--pack", pack(), "--resident", *args, ok=None)


@test
def addresses_beyond_loopback_need_keys_and_tls():
    keys = os.path.join(TMP, "keys2.txt")
    open(keys, "w").write("a-key\n")
    empty = os.path.join(TMP, "empty.txt")
    open(empty, "w").write("# none\n")
    for args, status, said in (["--listen", "0.0.0.0:0"], 2, "--insecure"), (["--listen", ":0"], 2, "--insecure"), \
                              (["--listen", "0.0.0.0:0", "--api-key-file", keys], 2, "--tls-cert"), \
                              (["--tls-cert", keys], 2, "--tls-key"), (["--listen", "[::1"], 2, "--listen"), \
                              (["--listen", "127.0.0.1:99999"], 2, "65535"), (["--api-key-file", empty], 1, "found none"), \
                              (["--api-key-file", "/nothing"], 1, "/nothing"), (["--tls-cert", keys, "--tls-key", keys], 1, "PEM"), \
                              (["--queue", "x"], 2, "--queue"), (["--prompt", "a"], 2, "--prompt"), (["--max-body", "0"], 2, "--max-body"):
        p = run_serve(*args)
        assert p.returncode == status and said in p.stderr, (args, p.returncode, p.stderr)


@test
def tls_is_spoken():
    import ssl
    cert, key = os.path.join(TMP, "cert.pem"), os.path.join(TMP, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"], check=True, capture_output=True)
    keys = os.path.join(TMP, "keys3.txt")
    open(keys, "w").write("tls-key\n")
    s = Server("--tls-cert", cert, "--tls-key", key, "--api-key-file", keys)
    context = ssl.create_default_context(cafile=cert)

    def connect():
        return http.client.HTTPSConnection("127.0.0.1", s.port, timeout=HANG_S, context=context)

    auth = {"Authorization": "Bearer tls-key"}
    o = s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 20}, headers=auth, connection=connect())
    assert o[0] == 200 and text_of(o[2]) == text_of(server().complete(PROMPT, 20))
    assert s.ask("/v1/models", connection=connect())[0] == 401
    c = connect()
    c.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 20, "stream": True}), {**JSON, **auth})
    events, _ = parse_events(c.getresponse().read().decode())
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == text_of(o[2]) and events[-1] == "[DONE]"
    with s.socket() as k:  # no TLS
        k.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in k.recv(1000)
    s.wait_for("speaks HTTPS only")
    c = connect()  # one that goes away
    c.request("POST", "/v1/completions", json.dumps({"prompt": LONG, "max_tokens": 100, "ignore_eos": True}), {**JSON, **auth})
    c.sock.close()
    wait_for(lambda: "od_requests_open 0" in s.ask("/metrics", headers=auth, connection=connect())[2].decode())
    assert s.stop() == 0, s.log


# ---- Clients that behave badly ----


def assert_idle(s):
    wait_for(lambda: s.metric("od_requests_open") == 0)
    assert s.metric("od_texts_running") == 0 and s.metric("od_texts_waiting") == 0


@test
def garbage_is_answered_or_hung_up():
    s = Server("--header-seconds", "1")  # some of it is the beginning of a header, by its looks
    for data in (b"nonsense\r\n\r\n", b"\0" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50,
                 b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + b"x: " + b"y" * 100000 + b"\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n"
                 b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n{}",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: abc\r\n\r\n{}",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                 b"zz\r\n", b"GET /%00%ff%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET http://a/ HTTP/1.1\r\n\r\n"):
        with s.socket() as k:
            try:
                k.sendall(data)
                k.shutdown(socket.SHUT_WR)
                while piece := k.recv(65536):
                    assert not piece.startswith(b"HTTP/1.1 200"), (data[:40], piece)
            except OSError as e:  # the server has hung up
                assert e.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN), e
    assert s.complete(PROMPT, 1)


@test
def bodies_without_a_certain_end_are_refused():
    """What a proxy takes for another request must not be read as a part of this one (RFC 9112, 6.3)."""
    s = Server()
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    for headers in ([b"Content-Length: %d" % len(body), b"Content-Length: 2"], [b"Content-Length: 2", b"Content-Length: %d" % len(body)],
                    [b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"]):
        with s.socket() as k:
            k.sendall(b"\r\n".join([b"POST /v1/completions HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]) +
                      b"\r\n\r\n" + body)
            answer = b""
            try:
                while piece := k.recv(65536):  # to the end: it hangs up
                    answer += piece
            except ConnectionResetError:
                pass
            assert answer.startswith(b"HTTP/1.1 400") and b"expected one header Content-Length" in answer, (headers, answer)
    assert s.stop() == 0, s.log


@test
def clients_come_again_after_as_many_silent_ones_as_may_be():
    s = Server("--header-seconds", "1", "--max-connections", "8")
    silent = [s.socket() for _ in range(8)]
    assert [k.recv(1) for k in silent] == [b""] * 8  # all in the same second: no connection is left
    c = s.connect()
    c.request("GET", "/v1/models")
    assert c.getresponse().status == 200
    c.close()
    assert s.stop() == 0, s.log


@test
def silent_and_slow_clients_are_dropped():
    s = Server("--header-seconds", "1")
    silent = s.socket()
    slow = s.socket()
    slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    body = s.socket()
    body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
    stop = threading.Event()

    def drip():  # never silent for long, never done
        while not stop.wait(0.2):
            for k in slow, body:
                try:
                    k.sendall(b"x")
                except OSError:
                    pass

    t = threading.Thread(target=drip)
    t.start()
    assert s.complete(PROMPT, 3)
    assert silent.recv(100) == b""
    try:
        assert slow.recv(100) == b""
    except ConnectionError:
        pass
    assert body.recv(12) == b"HTTP/1.1 408"
    stop.set()
    t.join()
    assert s.stop() == 0, s.log


def vanish(k):
    k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    k.close()


@test
def a_request_without_memory_is_told_so():
    if SLOW:
        raise Skip("sanitizers need address space")
    s = Server()
    s.complete(PROMPT, 1)
    size = int(re.search(r"VmSize:\s+(\d+)", s.pid_file("status")).group(1)) << 10
    before = resource.prlimit(s.p.pid, resource.RLIMIT_AS, (size, -1))
    seen = set()

    def ask():
        try:
            seen.add(s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "x": ["y"] * 1000})[0])
        except (OSError, http.client.HTTPException):  # it had none for the connection
            pass

    for _ in range(8):
        clients = [threading.Thread(target=ask) for _ in range(8)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()
    resource.prlimit(s.p.pid, resource.RLIMIT_AS, before)
    assert seen <= {200, 503}, seen
    assert "memory" in s.log
    for line in s.log.splitlines():
        assert "status=499" not in line or "reason=" in line, line
    assert s.complete(PROMPT, 1) and s.stop() == 0, s.log


@test
def who_goes_away_frees_its_text():
    s = server()
    for stream in False, True:
        for reset in False, True:
            before = s.metric('od_texts_total{finish="cancelled"}')
            c = s.connect()
            # Long prompts first; and texts for minutes, so that they do not end before the client is gone.
            c.request("POST", "/v1/completions", json.dumps({"prompt": [LONG] * 4 + [PROMPT] * 200, "max_tokens": 100000,
                                                              "ignore_eos": True, "stream": stream}), JSON)
            wait_for(lambda: s.metric("od_texts_running") > 0)  # a text that still waits is not counted when it is cancelled
            vanish(c.sock) if reset else c.sock.close()
            assert_idle(s)
            assert s.metric('od_texts_total{finish="cancelled"}') > before
    assert s.complete(PROMPT, 2)


def busy(s):
    """A stream of many texts, each to the end of the context: minutes."""
    c, r = s.open_stream(prompt=[PROMPT] * 200, max_tokens=100000, ignore_eos=True)
    assert r.status == 200
    return c, r


@test
def who_goes_away_while_it_waits_frees_its_place():
    s = Server("--parallel", 1, "--queue", 2)
    c, r = busy(s)
    waiting = s.socket()
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(body), body))
    wait_for(lambda: s.metric("od_requests_open") == 2)
    vanish(waiting)
    wait_for(lambda: s.metric("od_requests_open") == 1)
    r.close()
    c.close()
    assert s.stop() == 0, s.log


@test
def a_full_queue_answers_429():
    s = Server("--parallel", 1, "--queue", 1)
    c, r = busy(s)
    c2, r2 = s.open_stream(prompt="The bird", max_tokens=4)
    a = s.ask("/v1/completions", {"prompt": PROMPT})
    assert_error(a, 429)
    assert int(a[1]["Retry-After"]) > 0 and a[2]["error"]["type"] == "rate_limit_error", a[1].items()
    assert s.ask("/health")[0] == 200
    r.close()
    c.close()
    events, comments = parse_events(r2.read().decode())
    assert any(re.fullmatch(r"choice 0: waiting, place \d+", x) for x in comments), comments
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == text_of(server().complete("The bird", 4))
    assert s.stop() == 0, s.log


@test
def health_answers_during_prefill():
    s = Server("--prefill-rows", 16)
    c, r = s.open_stream(prompt=[LONG] * 8, max_tokens=2)
    answers = 0
    while s.metric("od_requests_open") > 0 and answers < 50:
        assert s.ask("/health")[0] == 200
        answers += 1
    assert answers > 0
    r.read()
    assert s.stop() == 0, s.log


@test
def health_names_no_machine_to_strangers():
    path = os.path.join(TMP, "health_keys.txt")
    with open(path, "w") as f:
        f.write("the-key\n")
    key = {"Authorization": "Bearer the-key"}
    d = Daemon("worker")
    s = Server("--api-key-file", path, mode=("--workers", hosts_file([d], "health_hosts.txt")))
    wait_for(lambda: s.ask("/health")[0] == 200)
    d.kill()
    assert_error(s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, headers=key), 503)
    for headers, named in ({}, False), ({"x-api-key": "wrong"}, False), (key, True):
        status, _, o = s.ask("/health", headers=headers)
        assert status == 503 and o["status"] == "failed", o
        assert (str(d.port) in o["error"]["message"]) == named, (headers, o)
    s.wait_for("the self-test of /health failed: no worker is left")
    assert s.stop() == 0, s.log
    assert s.log.count('msg="a text failed" request=') == 1, s.log


@test
def health_says_why_not():
    d = Daemon("worker")
    hosts = hosts_file([d], "gone.txt")
    d.kill()
    s = Server(mode=("--workers", hosts), ready=False)
    status, _, o = s.ask("/health")
    assert status == 503 and o["status"] == "loading", o
    assert_error(s.ask("/v1/completions", {"prompt": "a"}), 503)
    assert_error(s.ask("/v1/models"), 503)
    d.start()
    s.wait_ready()
    wait_for(lambda: s.ask("/health")[0] == 200)
    assert text_of(s.complete(PROMPT, 8)) == text_of(server().complete(PROMPT, 8))
    d.kill()
    a = s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    assert_error(a, 503)
    status, _, o = s.ask("/health")
    assert status == 503 and str(d.port) in o["error"]["message"], o
    d.start()
    wait_for(lambda: s.ask("/health")[0] == 200)
    assert text_of(s.complete(PROMPT, 8)) == text_of(server().complete(PROMPT, 8))
    assert s.stop() == 0, s.log
    d.kill()


@test
def a_pack_that_is_none_ends_it():
    s = Server(ready=False, pack_dir=TMP)
    assert s.p.wait(timeout=HANG_S) == 1
    assert "level=error" in s.log


# ---- Many, and the end ----


@test
def sixteen_clients_get_what_each_gets_alone():
    s = server()
    asked = [{"prompt": f"Once upon a time there {'was ' * (i % 5 + 1)}{i}", "max_tokens": 10 + i, "temperature": i % 3 * 0.5, "seed": i,
              **({"stop": [" the"]} if i % 4 == 0 else {})} for i in range(16)]
    alone = [s.ask("/v1/completions", a)[2]["choices"] for a in asked]
    bad = []

    def client(i):
        try:
            for turn in range(2 if SLOW else 5):
                a = asked[(i + turn) % 16]
                if turn % 2:
                    events, _ = s.stream(**a)
                    text = "".join(e["choices"][0]["text"] for e in events)
                else:
                    text = text_of(s.ask("/v1/completions", a)[2])
                if text != alone[(i + turn) % 16][0]["text"]:
                    bad.append((a, text, alone[(i + turn) % 16]))
        except Exception as e:
            bad.append(repr(e))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad, bad[0]


@test
def descriptors_and_memory_stay():
    s = server()

    def turn(i):
        s.complete(PROMPT, 2)
        s.stream(prompt=PROMPT, max_tokens=2)
        s.ask("/v1/completions", b"{" * 50000)
        s.ask("/nothing")
        k = s.socket()
        k.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"pro')
        vanish(k)
        c, r = s.open_stream(prompt=LONG if i % 20 == 0 else PROMPT, max_tokens=50)
        vanish(c.sock or r.fp.raw._sock)
        r.close()

    for i in range(20 if SLOW else 60):
        turn(i)
    assert_idle(s)
    wait_for(lambda: s.metric("od_connections") == 1)
    fds, rss = s.descriptors(), s.rss_kib()
    for i in range(20 if SLOW else 60):
        turn(i)
    assert_idle(s)
    wait_for(lambda: s.metric("od_connections") == 1)
    wait_for(lambda: s.descriptors() <= fds)  # it closes the last connection soon
    assert SLOW or s.rss_kib() < rss + 3000, (rss, s.rss_kib())


@test
def sigterm_drains():
    s = Server("--parallel", 1, "--drain-seconds", 3600, mode=("--local", 1, "--worker-arg", "--run-time=1"))
    c, r = s.open_stream(prompt=PROMPT, max_tokens=200, ignore_eos=True)
    s.p.send_signal(signal.SIGTERM)
    s.wait_for("no more requests")
    a = s.ask("/v1/completions", {"prompt": "a"})
    assert_error(a, 503)
    assert "Retry-After" in a[1]
    status, _, o = s.ask("/health")
    assert status == 503 and o["status"] == "draining", o
    events, _ = parse_events(r.read().decode())
    assert events[-1] == "[DONE]", events[-1]
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == text_of(server().complete(PROMPT, 200, ignore_eos=True))
    assert s.p.wait(timeout=HANG_S) == 0


@test
def the_end_comes_at_the_limit():
    s = Server("--parallel", 1, "--drain-seconds", 0.2)
    c, r = busy(s)
    assert s.stop() == 0, s.log
    events, _ = parse_events(r.read().decode())
    assert events[-1] != "[DONE]" and "error" in events[-1], events[-1]
    assert "still open are cancelled" in s.log


@test
def a_second_signal_ends_at_once():
    s = Server("--parallel", 1)
    c, r = busy(s)
    s.p.send_signal(signal.SIGTERM)
    s.wait_for("no more requests")
    s.p.send_signal(signal.SIGTERM)
    assert s.p.wait(timeout=HANG_S) == 128 + signal.SIGTERM
    r.close()


@test
def hosts_are_read_again():
    d, more = Daemon("worker"), Daemon("worker")
    hosts = hosts_file([d], "again.txt")
    s = Server(mode=("--workers", hosts))
    first = text_of(s.complete(PROMPT, 6))
    hosts_file([more], "again.txt")
    s.p.send_signal(signal.SIGHUP)

    def moved():
        s.complete(PROMPT, 1)
        return f":{more.port}" in s.ask("/metrics")[2].decode()

    wait_for(moved)
    d.kill()
    assert text_of(s.complete(PROMPT, 6)) == first
    assert s.stop() == 0, s.log
    more.kill()


if __name__ == "__main__":
    run_tests()
