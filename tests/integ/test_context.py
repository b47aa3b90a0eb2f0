#!/usr/bin/env python3
"""The context that --ctx-size does not name: what the model was trained for, as far as memory allows; never a refusal."""
import atexit
import os
import re

import tiny_checkpoint as tc
from cluster_util import TMP, Daemon, hosts_file, run_tests, test, tool, wait_for
from serve_util import Server, stop_servers

atexit.register(stop_servers)
TRAINED = 262144
LEAST = 4096
WIDE = {"num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128, "num_hidden_layers": 4,
        "max_position_embeddings": 1 << 20}  # 256 KiB a token, so 1.1 TB for the four texts that are the default
PROMPT = list(range(3, 13))


def pack_of(name, **fields):
    path = os.path.join(TMP, name)
    if not os.path.exists(path + ".pack"):
        cfg = {**tc.CONFIG, **fields}
        tc.write_checkpoint(path, cfg, tc.tensors(cfg))
        tool("od-pack", path, path + ".pack")
    return path + ".pack"


def context(s):
    models, one = s.ask("/v1/models")[2]["data"][0], s.ask("/v1/models/" + s.ask("/v1/models")[2]["first_id"])[2]
    assert models["max_model_len"] == models["max_input_tokens"] == one["max_model_len"], models
    assert f"ctx_tokens={models['max_model_len']}" in s.log, s.log
    return models["max_model_len"]


def served(*args, **kw):
    s = Server(*args, **kw)
    n = context(s)
    assert s.complete(PROMPT, 4, ignore_eos=True)["usage"]["completion_tokens"] == 4
    assert s.stop() == 0, s.log
    return n, s.log


@test
def a_model_gets_what_it_was_trained_for():
    pack_dir = pack_of("long", max_position_embeddings=TRAINED)
    n, log = served(pack_dir=pack_dir)
    assert n == TRAINED and "as many as memory allows" not in log, log
    assert served(pack_dir=pack_of("short", max_position_embeddings=500))[0] == 500
    assert served("--ctx-size", 8192, pack_dir=pack_dir)[0] == 8192


@test
def a_text_may_fill_it():
    s = Server(pack_dir=pack_of("long", max_position_embeddings=TRAINED))
    ids = [3 + i % 90 for i in range(6000)]
    o = s.ask("/v1/completions", {"prompt": ids, "max_tokens": 2, "ignore_eos": True})
    assert o[0] == 200 and o[2]["usage"]["prompt_tokens"] == 6000, o
    assert s.stop() == 0, s.log


@test
def where_memory_is_short_it_gets_what_fits():
    pack_dir = pack_of("wide", **WIDE)
    n, log = served(pack_dir=pack_dir)
    assert LEAST <= n < WIDE["max_position_embeddings"] and n % 64 == 0, n
    assert f"context: {n} tokens, as many as memory allows; the model was trained for {WIDE['max_position_embeddings']}" in log, log
    for size, tokens in ("100MiB", LEAST), ("1GiB", 4096), ("1536MiB", 6144):
        assert served("--state-memory", size, pack_dir=pack_dir)[0] == tokens, size


@test
def without_a_limit_all_texts_fit_at_once():
    """A text that gives no max_tokens may not be promised the pages of all others, or they would wait for it."""
    s = Server("--parallel", 2, "--state-memory", "2304MiB", pack_dir=pack_of("wide", **WIDE))  # two of 4608 tokens
    assert context(s) == 9216
    refused = s.ask("/v1/completions", {"prompt": PROMPT * 1000, "max_tokens": 1})
    assert refused[0] == 400 and "9216 maximum" in refused[2]["error"]["message"], refused
    streams = [s.open_stream(prompt=PROMPT, max_tokens=-1, ignore_eos=True) for _ in range(2)]
    wait_for(lambda: s.metric("od_texts_running") == 2)  # else the second one waits until the first has ended
    for c, _ in streams:
        c.close()
    assert s.stop() == 0, s.log


@test
def what_is_asked_for_is_strict():
    p = tool("od-main", "--pack", pack_of("wide", **WIDE), "--resident", "--prompt", "a", "--ctx-size", 1 << 20, ok=False)
    assert re.search(r"needs .* of memory .* are available", p.stderr), p.stderr
    p = tool("od-main", "--pack", pack_of("short", max_position_embeddings=500), "--resident", "--prompt", "a", "--ctx-size", 501, ok=False)
    assert "--ctx-size: expected at most 500" in p.stderr, p.stderr


@test
def a_shadow_with_less_memory_agrees():
    """Main's default is what main has memory for."""
    pack_dir = pack_of("wide", **WIDE)
    shadow = Daemon("shadow", "--memory-limit", "2500MB", pack_dir=pack_dir)
    worker = Daemon("worker", pack_dir=pack_dir)
    n, log = served(pack_dir=pack_dir, mode=("--workers", hosts_file([shadow, worker])))
    assert n >= LEAST and "refused" not in log, log
    assert "main allows texts of" in shadow.text(), shadow.text()


if __name__ == "__main__":
    run_tests()
