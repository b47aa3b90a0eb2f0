#!/usr/bin/env python3
"""Log probabilities, penalties and logit bias by od-main --prompts. Log probabilities are those of the golden logits, which
PyTorch made (tests/golden/talebook), and the same with drafts, on clusters and among other texts."""
import array
import atexit
import collections
import json
import math
import os
import subprocess

from cluster_util import BIN, HANG_S, SLOW, TMP, generate, pack, run_tests, test
from serve_util import Server, stop_servers

atexit.register(stop_servers)
GOLDEN = "tests/golden/talebook"
TOKENS = 20 if SLOW else 60
KING = "Once upon a time there was a king"


def main(lines, *args):
    path = os.path.join(TMP, "lines.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(o) + "\n" for o in lines))
    return subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--prompts", path, "--json", *map(str, args)],
                          capture_output=True, text=True, timeout=HANG_S)


def answers(lines, *args):
    p = main(lines, *args)
    assert p.returncode == 0, p.stderr
    found = {o["index"]: o for o in map(json.loads, p.stdout.splitlines())}
    return [found[i + 1] for i in range(len(lines))]


def golden():
    """Prompts with logits: (text, ids, rows of logits)."""
    for g in json.load(open(os.path.join(GOLDEN, "golden.json"), encoding="utf-8")):
        if "logits_file" not in g:
            continue
        n, vocab = g["logits_shape"]
        a = array.array("f")
        with open(os.path.join(GOLDEN, g["logits_file"]), "rb") as f:
            a.fromfile(f, n * vocab)
        yield g["prompt_text"], g["prompt_ids"], g["greedy_ids"], [a[i * vocab:(i + 1) * vocab] for i in range(n)]


def check_row(t, token, row):
    """od-bench conform's tolerance for a logit, twice: a log probability is a difference of two."""
    tolerance = 2 * 2e-4 * max(abs(x) for x in row)
    best = max(row)
    log_sum = best + math.log(math.fsum(math.exp(x - best) for x in row))
    assert t["token"] == token
    assert abs(t["logprob"] - (row[token] - log_sum)) <= tolerance, (t["logprob"], row[token] - log_sum)
    top = sorted(row, reverse=True)[:len(t["top"])]
    for (i, logprob), x in zip(t["top"], top):
        assert abs(logprob - (row[i] - log_sum)) <= tolerance and abs(row[i] - x) <= tolerance, (i, logprob, row[i], x)
    assert [p for _, p in t["top"]] == sorted((p for _, p in t["top"]), reverse=True)


@test
def they_are_those_of_pytorchs_logits():
    cases = list(golden())
    assert len(cases) >= 3
    lines = [{"prompt": text, "max_tokens": 3, "logprobs": i * 10, "prompt_logprobs": True} for i, (text, _, _, _) in enumerate(cases)]
    for args in (), ("--parallel", 3), ("--prefill-rows", 5):
        for (_, ids, greedy, rows), line, o in zip(cases, lines, answers(lines, "--resident", *args)):
            told = o["logprobs"]
            assert o["prompt_ids"] == ids and [t["token"] for t in told] == ids + o["token_ids"]
            assert [t["position"] for t in told] == list(range(len(told)))
            assert told[0]["logprob"] is None and told[0]["top"] == []
            for t, token, row in zip(told[1:], ids[1:] + greedy[:1], rows):
                assert len(t["top"]) == line["logprobs"]
                check_row(t, token, row)


@test
def a_server_tells_those_of_prompts_as_vllm_does():
    server = Server("--parallel", 3)
    for k, (text, ids, greedy, rows) in zip((0, 5, 20), golden()):
        o = server.complete(text, 1, prompt_logprobs=k, n=2, logprobs=2)
        (a, b), bare = o["choices"], server.complete(ids, 0, prompt_logprobs=k)["choices"][0]
        assert a["prompt_logprobs"] == b["prompt_logprobs"] == bare["prompt_logprobs"] and bare["text"] == "" and bare["logprobs"] is None
        assert len(a["logprobs"]["tokens"]) == len(b["logprobs"]["tokens"]) == 1 and len(a["logprobs"]["top_logprobs"][0]) == 2
        first, *others = a["prompt_logprobs"]
        assert first is None and len(others) == len(ids) - 1
        for position, token, row in zip(others, ids[1:], rows):
            own, *best = [{"token": int(t), **v} for t, v in position.items()]
            rank = 1 + sum(x > row[token] for x in row)
            assert own["token"] == token and (own["rank"] == rank or min(abs(x - row[token]) for i, x in enumerate(row) if i != token) < 1e-4)
            best = sorted([*best, *([own] if own["rank"] <= k else [])], key=lambda t: t["rank"])
            assert [t["rank"] for t in best] == list(range(1, k + 1))
            check_row({**own, "top": [(t["token"], t["logprob"]) for t in best]}, token, row)
            for t in (own, *best):
                status, _, text_of = server.ask("/detokenize", {"tokens": [ids[1], t["token"]]})
                assert status == 200 and text_of["content"].endswith(t["decoded_token"]), (t, text_of)
    for fields, param in ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"prompt_logprobs": -1}, "prompt_logprobs"), \
            ({"prompt_logprobs": True}, "prompt_logprobs"), ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"):
        for path, prompt in ("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}):
            status, _, o = server.ask(path, {**prompt, **fields})
            assert status == 400 and o["error"]["param"] == param, (path, fields, o)


def some_lines():
    return [{"prompt": prompt, "max_tokens": TOKENS, "logprobs": n, "prompt_logprobs": n > 0, **o}
            for n, (prompt, o) in enumerate([(KING, {}), (KING, {"temperature": 1, "seed": 3}), ("The wolf", {"frequency_penalty": 1.5}),
                                             ("A bird", {"presence_penalty": -0.5, "temperature": 0.7}),
                                             ("Then", {"logit_bias": {"310": -100, "261": 2}})])]


@test
def they_are_the_same_with_drafts_and_on_clusters():
    lines = some_lines()
    plain = answers(lines, "--resident")
    for o, line in zip(plain, lines):
        assert len(o["logprobs"]) == len(o["token_ids"]) + (len(o["prompt_ids"]) if line["prompt_logprobs"] else 0)
    for args in ("--resident", "--parallel", 4, "--draft", "lookup"), ("--local", 2, "--draft", "off"), ("--local", 2, "--draft", 4), \
                ("--local", 3, "--draft", 8, "--parallel", 4):
        got = answers(lines, *args)
        for a, b in zip(plain, got):
            assert a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"], (args, a["prompt"])
        assert "--draft" not in args or args[-1] == "off" or sum(o["drafted_tokens"] for o in got) > 0, args


@test
def penalties_and_bias_do_what_they_say():
    plain, banned, forced, penalised = answers([
        {"prompt": KING, "max_tokens": TOKENS}, {"prompt": KING, "max_tokens": TOKENS, "logit_bias": {"310": -100, "261": -100}},
        {"prompt": KING, "max_tokens": 5, "logit_bias": {"440": 100}},
        {"prompt": KING, "max_tokens": TOKENS, "frequency_penalty": 2, "presence_penalty": 2}], "--resident")
    assert {310, 261} <= set(plain["token_ids"]) and not {310, 261} & set(banned["token_ids"])
    assert forced["token_ids"] == [440] * 5
    repeats = [len(o["token_ids"]) - len(set(o["token_ids"])) for o in (plain, penalised)]
    assert repeats[1] < repeats[0] / 2, repeats
    by_option = generate("--resident", "--frequency-penalty", 2, "--presence-penalty", 2, prompt=KING, tokens=TOKENS)
    assert by_option["token_ids"] == penalised["token_ids"]


@test
def drafts_are_drawn_with_all_settings():
    """A shadow that did not know them would draft banned and repeated tokens."""
    ids = generate("--resident", prompt=KING, tokens=TOKENS)["token_ids"]
    common = [t for t, _ in collections.Counter(ids).most_common(12)]
    lines = [{"prompt": KING, "max_tokens": TOKENS, "logit_bias": {str(t): -100 for t in common}},
             {"prompt": KING, "max_tokens": TOKENS, "frequency_penalty": 2, "presence_penalty": 2}]
    for line in lines:
        for log2_ms in range(1, 9):  # main does not wait for the shadow
            (o,) = answers([line], "--local", 2, "--draft", 2, "--worker-arg", f"--load-time={2 ** log2_ms}")
            if 0.85 * o["drafted_tokens"] > 5:
                break
        # All 38 of 38 here; 25 of 40, and 28 of 38, if the shadow is not told.
        assert o["accepted_tokens"] > 0.85 * o["drafted_tokens"] > 5, (line, o["accepted_tokens"], o["drafted_tokens"])


BAD = {
    "a list": ({"logit_bias": [1]}, "logit_bias"),
    "no token": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "no number": ({"logit_bias": {"5": "1"}}, "token 5"),
    "too much": ({"logit_bias": {"5": 101}}, "-100 to 100"),
    "too many": ({"logit_bias": {str(i): 1 for i in range(1025)}}, "1024"),
    "a penalty": ({"frequency_penalty": 2.5}, "frequency_penalty"),
    "another": ({"presence_penalty": -3}, "presence_penalty"),
    "logprobs": ({"logprobs": 21}, "logprobs"),
    "no number of them": ({"logprobs": True}, "logprobs"),
    "prompt_logprobs": ({"prompt_logprobs": 1, "logprobs": 1}, "prompt_logprobs"),
    "prompt_logprobs alone": ({"prompt_logprobs": True}, "logprobs"),
}


@test
def bad_values_are_refused():
    for name, (o, said) in BAD.items():
        p = main([{"prompt": "a"}, {"prompt": "a", **o}], "--resident")
        assert p.returncode == 1 and p.stdout == "" and "line 2" in p.stderr and said in p.stderr, (name, p.stderr)
    p = main([{"prompt": "a", "max_tokens": 1}, {"prompt": "a", "logit_bias": {"4096": 1}}], "--resident")
    found = {o["index"]: o for o in map(json.loads, p.stdout.splitlines())}
    assert p.returncode == 1 and "4095, found 4096" in found[2]["error"] and "error" not in found[1], (p.stdout, p.stderr)
    for option in "--frequency-penalty", "--presence-penalty":
        p = subprocess.run([os.path.join(BIN, "od-main"), "--resident", "--prompt", "a", option, "2.1"], capture_output=True, text=True)
        assert p.returncode == 2 and option in p.stderr, p.stderr


if __name__ == "__main__":
    run_tests()
