#!/usr/bin/env python3
"""od-main --draft: several tokens a step, from the shadow or from the text itself. Whatever is drafted, the texts are those of
plain decoding, in this process and on clusters of any shape, with daemons that are killed and stopped meanwhile.

    test_drafts.py			(in make check)
    OD_PROMPTS=100 test_drafts.py	everything for each model: 100 prompts a setting, a line each (make soak-drafts)
    test_drafts.py NAME...		only these tests"""
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time

import wrong_shadow
from cluster_util import (BIN, FAR, HANG_S, SLOW, TMP, Daemon, generate, hosts_file, pack, run_tests, shadow_args, test, tool,
                          worker_args)

PROMPTS = int(os.environ.get("OD_PROMPTS", "0"))
N = PROMPTS or (4 if SLOW else 8)
DRAFTS = ("off", "auto", 1, 4, 16) if not PROMPTS else ("off", "auto", *range(1, 17))
WORDS = ("once upon a time there was king who had three sons and the eldest went into dark forest to find golden bird that "
         "sang only at night").split()


RARE = [  # samplers of llama.cpp, and tokens that must not come yet
    {"dry_multiplier": 1, "dry_allowed_length": 1}, {"dry_multiplier": 0.8, "dry_sequence_breakers": ["e", " th"], "typical_p": 0.9},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05}, {"top_n_sigma": 1.2, "dynatemp_range": 0.5}, {"typical_p": 0.7, "min_tokens": 5},
    {"xtc_probability": 0.4, "min_p": 0.02, "dry_multiplier": 2, "dry_penalty_last_n": 900}, {"min_tokens": 5, "stop_token_ids": [60, 71, 90]},
]


class Model:
    """A checkpoint, and the od-main that runs it."""
    stops = " the ", " and", "."
    words, tokens = ((1, 3, 8, 20), (5, 30, 60)) if not PROMPTS else ((1, 3, 8), (4, 12, 24))
    temperatures = 0, 0.7, 1.2
    bias = {"310": -100, "261": 3.5, "47": -1}
    repeats = {"max_tokens": 40}  # a text that says the same again and again
    args = ()  # of a cluster with a shadow

    def __init__(self, name):
        self.name, self.main, self._pack = name, os.path.join(BIN, "od-main"), None

    def make_pack(self):
        if self.name == "talebook":
            tool("od-pack", "shadow", pack(), "nf4")
            return pack()
        return self.pack_of(f"deploy/models/{self.name}")

    def pack_of(self, checkpoint):
        out = os.path.join(TMP, self.name + ".pack")
        tool("od-pack", checkpoint, out, "--shadow", "int8,nf4")
        return out

    def pack(self):
        self._pack = self._pack or self.make_pack()
        return self._pack


class Tiny(Model):
    """A checkpoint as transformers saves it, with random weights and 128 positions. Its texts are noise."""
    stops = "b", "nd", "e", "="
    words, tokens = (1, 3, 8, 14), (5, 30, 60)
    bias = {"71": -100, "66": 1.5, "47": -1}
    repeats = {"max_tokens": 100, "temperature": 0.7, "top_k": 2}

    def make_pack(self):
        return self.pack_of(f"tests/golden/families/{self.name}")


class Recurrent(Tiny):
    """Every second layer of main keeps fixed state (tests/unit/sum_pack.h). No shadow knows such layers: this one has the
    layers that the pack says, gets tokens only, and is often wrong. The hotter a text, the more tokens are right."""
    temperatures = 0, 0.7, 1.2, 4, 8
    args = "--align-kv", 0

    def __init__(self, name):
        super().__init__("recurrent")
        self.checkpoint, self.main = name, os.path.join(os.path.dirname(BIN), "tests", "od-main-sum")

    def make_pack(self):
        return self.pack_of(f"tests/golden/families/{self.checkpoint}")


TALEBOOK = Model("talebook")
OTHERS = [Tiny("deepseek_v2_lite"), Tiny("deepseek_v2_groups"), Tiny("qwen2_moe_norm"), Tiny("qwen3_next_plain"), Tiny("gemma4_shared_kv"), Recurrent("mixtral_top3")]
MODELS = [TALEBOOK, *([Model("talebook-fine")] if PROMPTS else []), *OTHERS]


def some_prompts(model, seed):
    """Greedy and at several temperatures, some with few candidates or a stop string."""
    rng = random.Random(seed)
    out = []
    for i in range(N):
        o = {"prompt": " ".join(rng.choice(WORDS) for _ in range(rng.choice(model.words))).capitalize(),
             "max_tokens": rng.choice(model.tokens), "temperature": model.temperatures[i % len(model.temperatures)],
             "seed": rng.randrange(1000)}
        if rng.random() < 0.3:
            o["stop"] = rng.choice(model.stops)
        if rng.random() < 0.3:
            o.update(rng.choice([{"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}]))
        if i % 4 == 1:
            o |= {"frequency_penalty": 0.8, "presence_penalty": (0.5, -0.5)[i % 8 == 1]}
        if i % 4 == 2:
            o["logit_bias"] = model.bias
        if i % 4 == 3:
            o |= rng.choice(RARE)
        out.append(o)
    return out


def texts(model, prompts, *args, pack_dir=None, parallel=1, far=False):
    path = os.path.join(TMP, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(o) + "\n" for o in prompts))
    p = subprocess.run([model.main, "--pack", pack_dir or model.pack(), "--prompts", path, "--parallel", str(parallel),
                        "--json", *map(str, args)], capture_output=True, text=True, timeout=HANG_S * (1 + PROMPTS // 10),
                       env=dict(os.environ, **(FAR if far else {})))
    assert p.returncode == 0, p.stderr
    return {o["index"]: o for o in map(json.loads, p.stdout.split("\n")[:-1])}  # other line separators may be in a text


_plain = {}


def plain(model, prompts, *how):
    key = model.name, json.dumps(prompts), how
    if key not in _plain:
        _plain[key] = texts(model, prompts, "--resident", "--draft", "off", *how)
    return _plain[key]


def total(out, name):
    return sum(o[name] for o in out.values())


def check_same(model, prompts, *args, parallel=1, how=(), **kw):
    """how: options that plain decoding gets too."""
    want, begin = plain(model, prompts, *how), time.monotonic()
    got = texts(model, prompts, *args, *how, parallel=parallel, **kw)
    assert got.keys() == want.keys(), (model.name, args)
    for i, o in want.items():
        for name in "token_ids", "text", "finish", "prompt_tokens", "tokens":
            assert got[i][name] == o[name], (model.name, args, how, parallel, prompts[i - 1], name, o[name], got[i][name])
    if PROMPTS:
        print(f"# {model.name}, {parallel} at once, {'far, ' if kw.get('far') else ''}{' '.join(map(str, args + how))}: "
              f"{len(got)} prompts, {total(got, 'tokens')} tokens the same; {total(got, 'drafted_tokens')} drafted, "
              f"{total(got, 'accepted_tokens')} accepted; {time.monotonic() - begin:.1f} s", flush=True)
    return got


def settings(model):
    """(precision of the shadow, texts at once, drafts)"""
    if PROMPTS:
        return itertools.chain(itertools.product(["int8"], (1, 4), DRAFTS), itertools.product(["nf4"], (1, 4), ("off", "auto")),
                               (("nf4", 1 if n % 2 else 4, n) for n in range(1, 17)))
    if model is TALEBOOK:
        return itertools.chain(itertools.product(["int8"], (1, 4), DRAFTS), itertools.product(["nf4"], (1, 4), ("auto", 4, 16)))
    return ("int8", 1, 1), ("nf4", 4, 4), ("int8", 4, 16), ("nf4", 1, "auto")


@test
def drafts_of_any_length_change_nothing():
    for model in MODELS:
        prompts, drafted, accepted = some_prompts(model, 1), 0, 0
        for precision, parallel, draft in settings(model):
            args = "--local", 2, "--draft", draft, *model.args, *shadow_args(f"--precision={precision}")
            got = check_same(model, prompts, *args, parallel=parallel)
            for log2_ms in range(6):  # the shadow may not have had its turn: loads take longer each time
                if draft in ("off", "auto") or total(got, "drafted_tokens") > 0:
                    break
                got = check_same(model, prompts, *args, *worker_args(f"--load-time={2 ** log2_ms}"), parallel=parallel)
            now = total(got, "drafted_tokens"), total(got, "accepted_tokens")
            assert now[1] <= now[0] and (draft != "off" or now[0] == 0), (model.name, draft, precision, parallel)
            assert now[0] > 0 or draft in ("off", "auto"), (model.name, draft, precision)
            drafted, accepted = drafted + now[0], accepted + now[1]
            # Every token needs a row of its own. Rows that were undone are counted apart, and texts share steps.
            if parallel == 1 and model is TALEBOOK:
                assert total(got, "expert_uses") == (total(got, "tokens") - N) * 12 * 2, (draft, total(got, "expert_uses"))
        assert 0 < accepted < drafted or SLOW, (model.name, drafted, accepted)  # some were right, some were undone


@test
def a_draft_from_the_text_itself_changes_nothing():
    for model in MODELS if PROMPTS else [TALEBOOK, OTHERS[0], OTHERS[-1]]:
        prompts, drafted = some_prompts(model, 2) + [{"prompt": w.capitalize(), **model.repeats} for w in WORDS[:N]], 0
        for where in ("--resident",), ("--local", 2, *model.args), ("--local", 2, "--predictor", "none"):
            for parallel in (1, 4) if PROMPTS or model is TALEBOOK else (4,):
                drafted += total(check_same(model, prompts, *where, "--draft", "lookup", parallel=parallel), "drafted_tokens")
        assert drafted > 0, model.name


@test
def clusters_of_any_shape_write_the_same():
    for model in MODELS:
        prompts = some_prompts(model, 3)
        for workers in (1, 3, 8) if PROMPTS or model is TALEBOOK else (3,):
            for draft in (4, "auto") if PROMPTS else (4,):
                check_same(model, prompts, "--local", workers, "--draft", draft, *model.args)
        if PROMPTS or model is TALEBOOK:
            check_same(model, prompts, "--local", 3, "--draft", 4, *model.args, *worker_args("--slots=1"), parallel=4)
            check_same(model, prompts, "--local", 2, "--draft", 4, *model.args, *shadow_args("--departure=late"))
            align = () if model.args else ("--align-token", 2, "--align-kv", 3)
            check_same(model, prompts, "--local", 3, "--draft", 16, *align, *model.args)
        for how in (("--repetition-penalty", 1.2), ("--profile", "bf16")) if PROMPTS else [("--repetition-penalty", 1.2)]:
            check_same(model, prompts, "--local", 2, "--draft", 4, *model.args, how=how, parallel=4)


@test
def the_host_need_not_see_the_memory_of_the_device():
    for model in MODELS if PROMPTS else [OTHERS[0], OTHERS[-1]]:
        prompts = some_prompts(model, 6)
        for draft, parallel in itertools.product((1, 4, 16, "auto", "lookup"), (1, 4)) if PROMPTS else ((4, 4), ("auto", 1)):
            check_same(model, prompts, "--local", 3, "--draft", draft, *model.args, parallel=parallel, far=True)


@test
def drafts_need_fewer_steps():
    a = generate("--local", 2, "--draft", "off", tokens=120)
    b = generate("--local", 2, "--draft", 4, "--ignore-eos", *worker_args("--load-time=2"), tokens=120)
    assert a["accepted_tokens"] == 0 and a["decode_layers"] == 12 * 119
    # The steps of a draft of four right tokens are a fifth; a busy machine may leave the shadow behind.
    assert b["accepted_tokens"] > 40, b["accepted_tokens"]
    assert b["decode_layers"] == 12 * (119 - b["accepted_tokens"])


@test
def a_shadow_of_other_weights_changes_nothing():
    wrong = os.path.join(TMP, "wrong.pack")
    wrong_shadow.make(pack(), wrong)
    prompts = [{"prompt": "Once upon a time there was a king", "max_tokens": 60 if SLOW else 300, "temperature": t}
               for t in (0, 1)]
    check_same(TALEBOOK, prompts, "--local", 2, pack_dir=wrong)


class Chaos(threading.Thread):
    """Kills, stops and continues the daemons in turn, until stopped."""

    def __init__(self, daemons):
        super().__init__(daemon=True)
        self.daemons, self.ended, self.n = daemons, threading.Event(), 0

    def run(self):
        rng = random.Random(5)
        while not self.ended.wait(0.7):
            d = self.daemons[self.n % len(self.daemons)]
            if rng.random() < 0.5:
                d.restart()
            else:
                d.signal(signal.SIGSTOP)
                time.sleep(rng.choice([0.1, 2]))
                d.signal(signal.SIGCONT)
            self.n += 1

    def end(self):
        self.ended.set()
        self.join()


@test
def daemons_that_die_in_the_middle_of_a_draft_change_nothing():
    for model in MODELS if PROMPTS else [TALEBOOK]:
        daemons = [Daemon("shadow", pack_dir=model.pack()),
                   *(Daemon("worker", "--load-time=3", pack_dir=model.pack()) for _ in range(3))]
        hosts, prompts = hosts_file(daemons), some_prompts(model, 4)
        chaos = Chaos(daemons[:3])  # one worker can always serve
        chaos.start()
        try:
            drafts = [4, 16, "auto"] if PROMPTS else [4, 16]
            while drafts:
                check_same(model, prompts, "--workers", hosts, "--draft", drafts.pop(0), *model.args, parallel=4)
                assert chaos.is_alive()
                if not drafts and chaos.n <= 3:  # a fast machine is done before much has happened
                    drafts = [4]
        finally:
            chaos.end()
            for d in daemons:
                d.kill()


@test
def what_cannot_draft_is_refused():
    def refused(*args):
        p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--prompt", "x", *map(str, args)],
                           capture_output=True, text=True, timeout=HANG_S)
        assert p.returncode == 2 or p.returncode == 1, p
        return p.stderr

    worker = Daemon("worker")
    assert "--draft lookup" in refused("--resident", "--draft", 4)
    assert "--draft lookup" in refused("--local", 1, "--predictor", "none", "--draft", 4)
    assert "--draft lookup" in refused("--workers", hosts_file([worker]), "--draft", 4)
    for bad in 0, 17, -1, "x", "", "4x":
        assert "1 to 16" in refused("--local", 1, f"--draft={bad}")
    worker.kill()


if __name__ == "__main__":
    run_tests()
