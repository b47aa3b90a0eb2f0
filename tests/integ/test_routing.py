#!/usr/bin/env python3
"""od-main --routing cache-prior: a text's tokens depend on nothing but the text, whatever computes it and in whatever company; with
lambda 0 they are the router's; answers say how they were routed. Standard library only."""
import atexit
import concurrent.futures
import json
import os

import gpu_util
from cluster_util import (BIN, FAR, PROMPT, SLOW, TMP, TOKENS, Daemon, Lines, generate, hosts_file, pack, reference, run_calmly, run_tests,
                          main_args, shadow_args, test, tool, worker_args)
from float64_model import conform, cpus, golden
from serve_util import Server, stop_servers

atexit.register(stop_servers)
ROUTING = "--routing", "cache-prior:0.2"
CTX = "--ctx-size", "512"
_routed = []


def routed():
    if not _routed:
        _routed.append(generate("--resident", *ROUTING, prompt=PROMPT, tokens=TOKENS))
    return _routed[0]


@test
def an_independent_forward_pass():
    """Routes, logits and tokens of a small Mixtral with random weights, and of the plain router that they are other ones."""
    small = os.path.join(TMP, "small")
    tool("od-bench", "synth", small, "--layers", 3, "--hidden", 64, "--intermediate", 48, "--experts", 12, "--top-k", 3, "--heads", 4,
         "--kv-heads", 2, "--head-dim", 16, "--vocab", 300, "--ctx", 96, "--seed", 5)
    tool("od-pack", small, small + ".pack")
    prompts, tokens = [[1, 20, 102, 58, 87, 38, 90, 11, 20, 58], [1], [7, 7, 9, 30, 31, 32]], 3 if SLOW else 12
    routes = []
    for prior in (0.25, 1, 6), (0.6, 2, 4), (0.3, 0, 2), (1.0, 3, 12), (0.4, 2, 12), None:
        folder = golden(os.path.join(TMP, f"routes-{prior}"), small, prompts, tokens, prior)
        args = prior and ("--routing", f"cache-prior:{prior[0]}", "--routing-keep", prior[1], "--routing-cache", prior[2]) or ()
        for how in *(("--resident", "--cpu", c) for c in cpus()), ("--resident", "--prefill-rows", 2), ("--local", 2):
            conform(folder, small + ".pack", *how, *args)
        with open(os.path.join(folder, "golden.json")) as f:
            routes.append(json.dumps([e["routes_prefill"] for e in json.load(f)]))
    assert routes[3] == routes[5] and len(set(routes)) == 5, routes  # three of three are kept: the router's experts


@test
def routers_of_all_families():
    """With lambda 0 each is the plain one. With more the tokens are the same in chunks of any size; of models with recurrent layers, layers
    that share keys, groups of experts, a softmax over the chosen ones and SparseMixer also on a cluster with drafts."""
    folder = "tests/golden/families"
    clusters = "qwen3_next_plain", "gemma4_shared_kv", "deepseek_v3_groups", "gpt_oss_bf16", "phimoe_crossing"
    moved = 0
    for name in sorted(n for n in os.listdir(folder) if os.path.isdir(os.path.join(folder, n))):
        out = os.path.join(TMP, name + ".pack")
        tool("od-pack", os.path.join(folder, name), out, "--shadow", "int8")

        def tokens(*args):
            p = run_calmly([os.path.join(BIN, "od-main"), "--pack", out, "--json", "--max-tokens", "40", "--ignore-eos", "--prompt",
                            "ab ba abab", *map(str, args)])
            assert p.returncode == 0, (name, args, p.stderr)
            return json.loads(p.stdout)["token_ids"]
        plain = tokens("--resident")
        assert tokens("--resident", "--routing", "cache-prior:0") == plain, name
        prior = "--routing", "cache-prior:0.5", "--routing-keep", 1
        routed = tokens("--resident", *prior)
        moved += routed != plain
        assert tokens("--resident", *prior, "--prefill-rows", 1) == routed, name
        if name in clusters:
            assert tokens("--local", 2, *prior, "--draft", 3) == routed, name
    assert moved > 5, moved


def same(*args, environment=None):
    p = run_calmly(main_args(*ROUTING, *args, prompt=PROMPT, tokens=TOKENS), env={**os.environ, **(environment or {})})
    assert p.returncode == 0, (args, p.stderr)
    r = json.loads(p.stdout)
    assert r["token_ids"] == routed()["token_ids"], args
    return r


@test
def lambda_zero_is_the_router():
    r = generate("--resident", "--routing", "cache-prior:0", prompt=PROMPT, tokens=TOKENS)
    assert r["token_ids"] == reference()["token_ids"] and r["routing"] == "cache-prior:0:1:4", r
    assert reference()["routing"] == "router", reference()
    assert generate("--resident", "--routing", "router", prompt=PROMPT, tokens=TOKENS)["token_ids"] == reference()["token_ids"]


@test
def other_tokens_and_fewer_loads():
    assert routed()["token_ids"] != reference()["token_ids"] and routed()["routing"] == "cache-prior:0.2:1:4"
    half = "--memory", "64MB", "--draft", "off", "--predictor", "none", *CTX
    off, on = (generate(*half, *args, prompt=PROMPT, tokens=TOKENS) for args in ((), ("--routing", "cache-prior:0.4")))
    assert on["expert_uses"] == off["expert_uses"], (on, off)
    assert 0 < on["decode_loads"] < 0.85 * off["decode_loads"], (on["decode_loads"], off["decode_loads"])


@test
def on_one_machine():
    for args in (("--prefill-rows", 1), ("--prefill-rows", 3, "--threads", 1), ("--cpu", "scalar"), ("--draft", "lookup")):
        same("--resident", *args)
    for args in ((), ("--predictor", "trajectory"), ("--draft", "lookup")):
        same("--memory", "58MB", *CTX, *args)


@test
def on_a_cluster():
    tool("od-pack", "shadow", pack(), "nf4")
    for args in ((), ("--draft", 4), ("--draft", "off", "--align-kv", 0), ("--predictor", "none", *worker_args("--cache-mib=20")),
                 ("--draft", "auto", *shadow_args("--precision=nf4"))):
        r = same("--local", 3, *args)
        if not args:  # the shadow routes as main does, from main's recent experts
            assert r["recall"] > 0.97 and r["state_bytes"] > 0, r


@test
def on_devices_whose_memory_is_elsewhere():
    same("--resident", "--device", "cuda", environment=FAR)
    same("--resident", "--device", "cuda", environment={"OD_CUDA_PLUGIN": gpu_util.PLUGIN})
    same("--local", 2, "--draft", 3, "--device", "cuda", environment=FAR)


@test
def with_a_worker_that_is_killed():
    workers = [Daemon("worker", "--slots", 2) for _ in range(3)]
    shadow = Daemon("shadow")
    m = Lines("--workers", hosts_file([*workers, shadow]), *ROUTING)
    for victim in None, workers[0], shadow:
        m.ask()
        if victim:
            victim.kill()
        assert m.answer()["token_ids"] == routed()["token_ids"], m.said()
    assert m.close()[0] == 0
    for d in *workers, shadow:
        d.kill()


def texts_of(server):
    """What a server writes behind four prompts: alone, all at once, and again, when it has their prefixes."""
    story = PROMPT + " who had three sons, and the eldest went into the dark forest to find the golden bird that sang only at night. "
    prompts = [story * 3 + end for end in ("Then", "The king", "But the youngest", "In the")]
    text = lambda prompt: server.complete(prompt, tokens=40, temperature=0)
    alone = [text(p)["choices"][0]["text"] for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(text, prompts))
    assert [a["choices"][0]["text"] for a in answers] == alone
    assert all(a["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64 for a in answers), answers
    for path, body in (("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}),
                       ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16})):
        answers.append(server.ask(path, body)[2])
    assert len({a["system_fingerprint"] for a in answers}) == 1, answers
    return alone, answers[0]["system_fingerprint"]


@test
def beside_others_and_with_prefixes_of_files():
    folder = os.path.join(TMP, "prefixes")
    os.mkdir(folder, 0o700)
    told = {}
    # The last one has the files of all before it, and may use only those of its own routing.
    for args in (), ROUTING, ROUTING, (*ROUTING, "--routing-cache", 3), ():
        s = Server(*args, "--parallel", 4, "--prefix-cache", folder, mode=("--resident", *CTX))
        texts, fingerprint = texts_of(s)
        assert told.setdefault(fingerprint, texts) == texts, fingerprint
        assert s.stop() == 0, s.log
    assert len(told) == 3 and len({tuple(t) for t in told.values()}) == 3, told
    assert any(f.endswith("_router") for f in told) and any(f.endswith("_cache-prior:0.2:1:3") for f in told), told


@test
def on_shadows_of_some_layers_each():
    """Rows that were computed before the shadows came have their recent experts from main, by one shadow and the other."""
    workers, parts = [Daemon("worker") for _ in range(2)], [Daemon("shadow", "--precision", "bf16", "--layers", a) for a in ("0-3", "4-11")]
    m = Lines("--workers", hosts_file([*workers, *parts]), *ROUTING, "--draft", 3)
    for _ in range(2):
        m.ask()
        r = m.answer()
        assert r["token_ids"] == routed()["token_ids"], m.said()
    assert r["recalled_uses"] >= 0.98 * r["predicted_uses"] > 0, r
    assert m.close()[0] == 0
    for d in *workers, *parts:
        d.kill()


@test
def recall_is_that_of_the_same_routing():
    found = {}
    for routing in "router", "cache-prior:0.6":
        for where in (), ("--local", 2):
            r = json.loads(tool("od-bench", "recall", "--pack", pack(), "--prompts", "tests/bench/prompts.jsonl", "--limit", 2, "--tokens", 30, "--precision",
                                "int8", "--routing", routing, "--json", *where).stdout)
            assert r["recall"] > 0.95 and r["recalled_uses"] > 500, r
            found[routing, where] = r
    assert found["router", ()]["routing"] == "router" and found["cache-prior:0.6", ()]["routing"] == "cache-prior:0.6:1:4"
    assert found["router", ()]["by_token_index"] != found["cache-prior:0.6", ()]["by_token_index"]


def refused(*args):
    return tool("od-main", "--pack", pack(), "--resident", "--prompt", PROMPT, *args, ok=False).stderr


@test
def refusals():
    for value in "cache-prior", "cache-prior:", "cache-prior:1.01", "cache-prior:-0.1", "cache-prior:nan", "cache", "":
        assert f'expected router, or cache-prior:LAMBDA with LAMBDA from 0 to 1, found "{value}"' in refused("--routing", value), value
    assert "routing: experts that are kept: expected 0 to 2 (top-k), found 3" in refused(*ROUTING, "--routing-keep", 3)
    assert "routing: experts that count as cached: expected 1 to 8, found 9" in refused(*ROUTING, "--routing-cache", 9)
    assert "--routing-cache" in refused(*ROUTING, "--routing-cache", 0)
    for option in "--routing-keep", "--routing-cache":
        assert f"{option} needs --routing cache-prior:LAMBDA" in refused(option, 2)


run_tests()
