#!/usr/bin/env python3
"""/v1/choices: the probabilities are those that /v1/completions tells of each choice behind the prompt, and PyTorch's; the same bits alone
and in company, on clusters, and whatever is cached; the prompt is computed once."""
import array
import atexit
import json
import math
import os

import chat_scripts
from cluster_util import TMP, pack, run_tests, test, tool
from scripted_checkpoint import EOS, write_scripted
from serve_util import Server, stop_servers

atexit.register(stop_servers)
PAGE = 64
GOLDEN = "tests/golden/talebook"
STORY = ("Once upon a time there was a king who had three sons, of whom two were clever and wise, but the third did not "
         "speak much, and was simple, and was called the Simpleton. When the king had become old and weak, and was thinking of his end, "
         "he did not know which of his sons should inherit the kingdom after him. Then he said to them: Go forth, and he who")
CHOICES = [" brings", " brings me the most beautiful carpet", "m", "s", " is the wisest of all shall have it", ", when"]
USER = [{"role": "user", "content": "Once upon a time there was a king"}]
_shared = []


def server():
    """One for all tests that leave it as it was."""
    if not _shared:
        _shared.append(Server("--parallel", 8))
    return _shared[0]


def ask(s=None, **fields):
    status, _, o = (s or server()).ask("/v1/choices", {"choices": CHOICES, **({} if "messages" in fields else {"prompt": STORY}), **fields})
    assert status == 200, (status, o)
    return o


def ids_of(text, add=True):
    return server().ask("/tokenize", {"prompt": text, "add_special_tokens": add})[2]["tokens"]


def told(ids):
    """The log probability of each token of a text, from the second one on."""
    return server().complete(ids, 0, echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]


def same_begin(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def by_hand(prompt, texts, ends=(), mean=False):
    """What the answer must say of texts, as tokens with the prompt, by /v1/completions."""
    begin = min(same_begin(prompt, t) for t in texts)
    parts = [told(t)[begin:] for t in texts]
    end = [math.log(sum(math.exp(told([*t, e])[-1]) for e in ends)) if ends else 0 for t in texts]
    total = [sum(p) + e for p, e in zip(parts, end)]
    score = [t / (len(p) + bool(ends)) if mean else t for t, p in zip(total, parts)]
    weight = [math.exp(s - max(score)) for s in score]
    return parts, end, total, [w / sum(weight) for w in weight], begin


def check(o, prompt, texts, ends=(), mean=False):
    parts, end, total, probability, begin = by_hand(prompt, texts, ends, mean)
    for i, c in enumerate(o["choices"]):
        assert c["index"] == i and c["n_tokens"] == len(parts[i]), (c, parts[i])
        assert abs(c["logprob"] - total[i]) < 1e-9 and abs(c["probability"] - probability[i]) < 1e-9, (c, total[i], probability[i])
        assert ("end_logprob" in c) == bool(ends) and (not ends or abs(c["end_logprob"] - end[i]) < 1e-9)
        assert "logprobs" not in c or [t["logprob"] for t in c["logprobs"]["content"]] == parts[i]
    assert o["best"] == max(range(len(total)), key=lambda i: probability[i])
    u = o["usage"]
    assert u["prompt_tokens"] == begin + sum(map(len, parts)) and u["completion_tokens"] == 0, (u, begin)


def answer(o):
    return o["choices"], o["best"]


@test
def they_are_those_of_completions():
    ids = ids_of(STORY)
    o = ask(logprobs=True)
    assert [c["text"] for c in o["choices"]] == CHOICES and o["object"] == "choices" and o["model"] == "talebook"
    assert 0.999 < sum(c["probability"] for c in o["choices"]) < 1.001
    check(o, ids, [ids_of(STORY + c) for c in CHOICES])
    check(ask(normalize="mean"), ids, [ids_of(STORY + c) for c in CHOICES], mean=True)
    eos = json.load(open(os.path.join(pack(), "config.json")))["eos_token_id"]
    check(ask(ends=True, logprobs=True), ids, [ids_of(STORY + c) for c in CHOICES], ends=[eos])
    check(ask(ends=True, normalize="mean"), ids, [ids_of(STORY + c) for c in CHOICES], ends=[eos], mean=True)
    texts = [[*ids, *ids_of(c, False)] for c in CHOICES]  # behind ids a choice is cut by itself
    check(ask(prompt=ids), ids, texts)


@test
def words_cross_the_border():
    prompt, choices = "The king and the que", ["en", "ens went home", "stion", " is"]
    ids, texts = ids_of(prompt), [ids_of(prompt + c) for c in choices]
    begin = min(same_begin(ids, t) for t in texts)
    assert begin < len(ids) and any(same_begin(ids, t) == len(ids) for t in texts), (ids, texts)
    check(ask(prompt=prompt, choices=choices), ids, texts)


@test
def they_are_pytorchs():
    for g in json.load(open(os.path.join(GOLDEN, "golden.json"), encoding="utf-8")):
        if "logits_file" not in g or len(g["prompt_ids"]) < 6:
            continue
        n, vocab = g["logits_shape"]
        logits = array.array("f")
        with open(os.path.join(GOLDEN, g["logits_file"]), "rb") as f:
            logits.fromfile(f, n * vocab)
        ids = g["prompt_ids"]
        tail = server().ask("/detokenize", {"tokens": ids[-3:]})[2]["content"]
        if ids_of(tail, False) != ids[-3:]:
            continue
        rows = [logits[i * vocab:(i + 1) * vocab] for i in range(len(ids) - 4, len(ids) - 1)]
        want = [r[t] - max(r) - math.log(math.fsum(math.exp(x - max(r)) for x in r)) for r, t in zip(rows, ids[-3:])]
        got = ask(prompt=ids[:-3], choices=["x", tail], logprobs=True)["choices"][1]
        tolerance = 2 * 2e-4 * max(abs(x) for r in rows for x in r)  # as test_logprobs.py
        assert all(abs(t["logprob"] - w) <= tolerance for t, w in zip(got["logprobs"]["content"], want)), (got, want)
        assert abs(got["logprob"] - sum(want)) <= 3 * tolerance
        return
    assert False, "no golden text whose end can be cut off"


@test
def messages_are_a_prompt():
    prompt = rendered(pack(), USER).removeprefix("<s>")
    o, want = ask(messages=USER, logprobs=True), ask(prompt=prompt, ends=True, logprobs=True)  # a chat's answer ends
    assert o["choices"] == want["choices"] and o["best"] == want["best"] and "end_logprob" in o["choices"][0]
    assert ask(messages=USER, ends=False)["choices"] == ask(prompt=prompt)["choices"]


def rendered(checkpoint, messages):
    path = os.path.join(TMP, "messages.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"messages": messages, "add_generation_prompt": True}, f)
    return tool("od-main", "template", "--checkpoint", checkpoint, "--messages", path).stdout


@test
def a_choice_is_content_where_a_model_thinks():
    """gpt-oss writes it in a channel of its own; others behind a thought."""
    path, _ = chat_scripts.pack_of(next(c for c in chat_scripts.call_cases() if c.name.startswith("gpt_oss/")))
    s = Server(pack_dir=path)
    want = ask(s, prompt=rendered(path, USER) + "<|channel|>final<|message|>", choices=["yes", "no"], logprobs=True)
    got = ask(s, messages=USER, choices=["yes", "no"], logprobs=True, ends=False)
    assert answer(got) == answer(want) and got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]
    template = next(c["template"] for name in ("chat_cases.json", "chat_cases-3.json") for c in chat_scripts.golden(name)["cases"]
                    if c["family"] == "qwen3_5_moe")
    path = os.path.join(TMP, "thinks")
    write_scripted(path, template, {"user": "A thought.</think>An answer." + EOS}, ["</think>"], begin="", start=lambda _: "<think>")
    tool("od-pack", path, path + ".pack", "--shadow", "none")
    s = Server(pack_dir=path + ".pack")
    status, _, o = s.ask("/v1/choices", {"messages": USER, "choices": ["yes", "no"]})
    assert status == 400 and o["error"]["param"] == "messages" and "within a thought" in o["error"]["message"], o
    prompt = rendered(path, USER) + "\n</think>\n\n"  # as the template writes a thought that is left out
    assert answer(ask(s, messages=USER, choices=["yes", "no"], ends=False, enable_thinking=False)) == answer(ask(s, prompt=prompt, choices=["yes", "no"]))


@test
def an_end_tells_a_choice_from_a_longer_one():
    choices = [" brings me", " brings me the most"]
    short, long = ask(choices=choices)["choices"]
    assert short["logprob"] > long["logprob"]  # always: the longer one begins with it
    a, b = ask(choices=choices, ends=True)["choices"]
    assert a["logprob"] == short["logprob"] + a["end_logprob"] and b["logprob"] == long["logprob"] + b["end_logprob"]


@test
def a_control_token_is_none_in_a_choice():
    o = ask(choices=["</s>", "<s>", "x"], logprobs=True)
    assert all(t["token"] not in ("</s>", "<s>") for c in o["choices"] for t in c["logprobs"]["content"])
    assert o["choices"][0]["n_tokens"] > 1


@test
def the_same_alone_in_company_and_on_clusters():
    pages = len(ids_of(STORY)) // PAGE
    assert pages >= 1
    want = answer(ask(ends=True, logprobs=True))
    for args, mode in ((), ("--resident",)), (("--prefix-cache-mib", 0), ("--resident",)), (("--parallel", 3), ("--local", "2")):
        s = Server(*args, mode=mode)
        for again in range(2):  # then all is there
            before = s.metric("od_main_shared_prompt_tokens_total")
            o = ask(s, ends=True, logprobs=True)
            assert answer(o) == want, (args, mode)
            shared = s.metric("od_main_shared_prompt_tokens_total") - before
            cached = o["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (pages * PAGE if again and "--prefix-cache-mib" not in args else 0), (cached, args, mode)
            least = 0 if "--prefix-cache-mib" in args else (len(CHOICES) - 1 + again) * pages * PAGE
            assert shared >= least, (shared, args, mode)
        alone = ask(s, choices=[CHOICES[1], CHOICES[2]], ends=True, logprobs=True)["choices"][0]
        assert {**alone, "index": 1, "probability": want[0][1]["probability"]} == want[0][1]
        assert s.stop() == 0, s.log


@test
def models_with_recurrent_state_too():
    path = os.path.join(TMP, "recurrent.pack")
    tool("od-pack", "tests/golden/families/qwen3_next_plain", path)
    prompt = [(7 * i * i + 3) % 250 for i in range(80)]
    answers = []
    for args in (), ("--parallel", 4), ("--prefix-cache-mib", 0, "--parallel", 4):
        s = Server(*args, pack_dir=path)
        answers.append(answer(ask(s, prompt=prompt, choices=["a", "bc", "def", "g"])))
        if not args or args[0] == "--parallel":
            assert s.metric("od_main_shared_prompt_tokens_total") == 3 * PAGE, args
        assert s.stop() == 0, s.log
    assert answers[0] == answers[1] == answers[2]


BAD = [({"choices": None}, "choices"), ({"choices": ["a"]}, "choices"), ({"choices": [str(i) for i in range(129)]}, "choices"),
       ({"choices": "ab"}, "choices"), ({"choices": ["a", ""]}, "choices"), ({"choices": ["a", 3]}, "choices"), ({"choices": ["a", "b", "a"]}, "choices"),
       ({"choices": ["a", ["b"]]}, "choices"), ({"prompt": None}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": []}, "prompt"),
       ({"prompt": [[1]]}, "prompt"), ({"prompt": [1, 99999]}, "prompt"), ({"messages": USER}, "prompt"), ({"prompt": "king " * 3000}, "prompt"),
       ({"normalize": "max"}, "normalize"), ({"normalize": 1}, "normalize"), ({"ends": 1}, "ends"), ({"logprobs": 1}, "logprobs"),
       ({"stream": True}, "stream"), ({"top_logprobs": 2}, "top_logprobs"), ({"choices": ["a", "b\ud800"]}, None),
       ({"prompt": None, "messages": []}, "messages"), ({"prompt": None, "messages": USER, "tools": 3}, "tools"), ({"use_beam_search": True}, "use_beam_search")]


@test
def bad_requests_are_refused():
    for fields, param in BAD:
        body = {k: v for k, v in {"prompt": "a", "choices": ["b", "c"], **fields}.items() if v is not None}
        status, _, o = server().ask("/v1/choices", body)
        assert status == 400 and o["error"]["param"] == param, (fields, status, o)
    assert server().ask("/v1/choices")[0] == 405
    assert len(ask(choices=[f" {i}" for i in range(128)])["choices"]) == 128


if __name__ == "__main__":
    run_tests()
