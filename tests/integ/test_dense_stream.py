#!/usr/bin/env python3
"""Dense weights of several times main's memory: the same tokens as with all of them in memory, within the limit, alone, with workers, from
a GGUF file and in a real control group; and a byte that changes on the disk ends the text, not the server. Standard library only."""
import array
import atexit
import concurrent.futures
import contextlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import time

import gguf_checkpoint
import tiny_checkpoint
from cluster_util import BIN, CHECKPOINT, FAR, HANG_S, SLOW, TMP, Skip, run_tests, test, tool
from serve_util import Server, stop_servers

atexit.register(stop_servers)
PROMPT, TOKENS = "Once upon a time there was a king", 8
CTX = "--ctx-size", "256"
LAYERS = 36
VOCAB = 4096
_made = {}


def checkpoint(layers):
    """Attention is nearly all of it; the tokeniser is the demo checkpoint's."""
    path = os.path.join(TMP, f"heavy-{layers}")
    if path not in _made:
        tool("od-bench", "synth", path, "--layers", layers, "--hidden", 1024, "--heads", 32, "--kv-heads", 2, "--head-dim", 128,
             "--intermediate", 128, "--experts", 4, "--top-k", 2, "--vocab", VOCAB)
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(CHECKPOINT, name), path)
        _made[path] = path
    return path


def heavy():
    """A pack, and the bytes of its dense weights."""
    path = os.path.join(TMP, "heavy.pack")
    if path not in _made:
        tool("od-pack", "--shadow", "none", checkpoint(LAYERS), path)
        _made[path] = os.path.getsize(os.path.join(path, "dense.bin"))
    return path, _made[path]


def write(model, *args, env=None, inside=None, tokens=TOKENS):
    """What od-main says of a text, and its messages."""
    argv = [os.path.join(BIN, "od-main"), "--pack", model, "--json", "--prompt", PROMPT, "--max-tokens", str(tokens), "--ignore-eos",
            "--draft", "off", *CTX, *map(str, args)]
    p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, **(env or {})}, preexec_fn=inside)
    assert p.returncode == 0, (p.returncode, p.stderr)
    return json.loads(p.stdout), p.stderr


def expected(model):
    if ("text", model) not in _made:
        r, said = write(model)
        assert r["dense_bytes"] == 0 and "each step reads" not in said, said
        _made["text", model] = r["token_ids"]
    return _made["text", model]


def least(model, *args, env=None):
    """The smallest --memory that works, as it says itself."""
    argv = [os.path.join(BIN, "od-main"), "--pack", model, "--prompt", PROMPT, *CTX, *args, "--memory", "20MB"]
    err = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=HANG_S, env={**os.environ, **(env or {})}).stderr
    found = re.search(r"\((\d+) bytes\) are needed for two layers of the dense weights at a time, one context", err)
    assert found, err
    return int(found.group(1))


def check(r, said, model, limit):
    main = [n for n in r["nodes"] if n["name"] == "main"][0]
    found = re.search(r"dense weights: .* stay in memory, each step reads .* from the disk", said)
    assert found and r["dense_bytes"] > 0 and r["dense_wait_s"] > 0, (r, said)
    assert r["token_ids"] == expected(model)
    assert SLOW or main["peak_rss_bytes"] <= limit, (main["peak_rss_bytes"], limit)


@test
def the_same_tokens_at_every_budget():
    model, dense = heavy()
    small = least(model)
    read = []
    assert small < dense / 4, (small, dense)  # or this would be about little
    for more in 2**20, dense // 8, dense // 2:
        r, said = write(model, "--memory", small + more)
        check(r, said, model, small + more)
        read.append(r["dense_bytes"])
    # A prompt of one chunk, and a step for each further token; the ring may be ahead.
    assert (dense - small) * 0.9 * TOKENS < read[0] < dense * (TOKENS + 2), read
    assert read[0] > read[1] > read[2], read
    all_of_it = int(re.search(r"with (\d+) bytes of memory all would stay", said).group(1))
    r, said = write(model, "--memory", all_of_it + 2**20)
    assert r["dense_bytes"] == 0 and r["token_ids"] == expected(model), said


@test
def however_rows_come():
    model, _ = heavy()
    for args in ("--prefill-rows", 3), ("--threads", 1), ("--draft", "lookup"):
        limit = least(model) + 8 * 2**20
        r, said = write(model, "--memory", limit, *args)
        check(r, said, model, limit)


@test
def with_workers():
    model, _ = heavy()
    limit = least(model, "--local", 2) + 4 * 2**20
    r, said = write(model, "--local", 2, "--memory", limit, "--predictor", "none")
    check(r, said, model, limit)


def byte_tokenizer():
    """A token for each byte, in GPT-2's letters, and others for the rest of the vocabulary."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [b for b in range(256) if b not in seen]
    letter = {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(unseen)}}
    tokens = ["<s>", "</s>", *(letter[b] for b in range(256))]
    tokens += [f"<{i}>" for i in range(VOCAB - len(tokens))]
    gg, key = gguf_checkpoint, "tokenizer.ggml."
    return {key + "model": (gg.STRING, "gpt2"), key + "pre": (gg.STRING, "qwen2"), key + "tokens": (gg.ARRAY, (gg.STRING, tokens)),
            key + "merges": (gg.ARRAY, (gg.STRING, [])),
            key + "token_type": (gg.ARRAY, (gg.I32, [3, 3] + [1] * 256 + [3] * (VOCAB - 258))),
            key + "bos_token_id": (gg.U32, 0), key + "eos_token_id": (gg.U32, 1)}


@test
def from_a_gguf_file():
    """Its rows of queries and keys are in another order than in memory."""
    path = os.path.join(TMP, "heavy.gguf")
    kv, tensors = gguf_checkpoint.convert(checkpoint(8))
    gguf_checkpoint.write_file(path, {**kv, **byte_tokenizer()}, tensors)
    limit = least(path) + 4 * 2**20
    r, said = write(path, "--memory", limit)
    check(r, said, path, limit)


def pack_of(name, cfg, tensors):
    path = os.path.join(TMP, name)
    os.mkdir(path)
    tiny_checkpoint.write_safetensors(os.path.join(path, "model.safetensors"), tensors)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(cfg, f)
    for file in "tokenizer.json", "tokenizer_config.json":
        shutil.copy(os.path.join(CHECKPOINT, file), path)
    tool("od-pack", "--shadow", "none", path, path + ".pack")
    return path + ".pack"


@test
def matrices_with_scales():
    rng = random.Random(1)
    cfg, tensors = gguf_checkpoint.load(checkpoint(8))
    for name, (_, shape, _) in list(tensors.items()):
        if "self_attn" in name:
            codes = rng.randbytes(shape[0] * shape[1]).translate(bytes(b & 0xb7 for b in range(256)))  # magnitudes of at most 15, no NaN
            blocks = [-(-n // 128) for n in shape]
            scales = array.array("f", [rng.choice((0.002, 0.02)) for _ in range(math.prod(blocks))])
            tensors[name] = "F8_E4M3", shape, codes
            tensors[name + "_scale_inv"] = "F32", blocks, scales.tobytes()
    cfg["quantization_config"] = {"activation_scheme": "dynamic", "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    pack = pack_of("scaled", cfg, tensors)
    limit = least(pack) + 4 * 2**20
    r, said = write(pack, "--memory", limit)
    check(r, said, pack, limit)
    assert len(set(r["token_ids"])) > 4, r


@test
def a_head_that_is_the_embedding():
    cfg, tensors = gguf_checkpoint.load(checkpoint(8))
    del tensors["lm_head.weight"]
    pack = pack_of("tied", {**cfg, "tie_word_embeddings": True}, tensors)
    limit = least(pack) + 4 * 2**20
    r, said = write(pack, "--memory", limit)
    check(r, said, pack, limit)


@test
def a_device_with_memory_of_its_own():
    model, _ = heavy()
    limit = least(model, "--threads", 1, env=FAR) + 8 * 2**20
    r, said = write(model, "--memory", limit, env=FAR, tokens=4)
    assert "each step reads" in said and r["token_ids"] == expected(model)[:4], said


@contextlib.contextmanager
def control_group(limit):
    """Yields what a child calls to enter it. Version 1 or 2, whichever has the memory controller here."""
    name, path = f"od-dense-{os.getpid()}", None
    with open("/proc/self/cgroup") as f:
        groups = [line.rstrip("\n").split(":", 2) for line in f]
    for _, controllers, own in groups:
        for base, file in ((f"/sys/fs/cgroup/memory{own}", "memory.limit_in_bytes"), (f"/sys/fs/cgroup{own}", "memory.max")):
            if (controllers.split(",").count("memory") or controllers == "") and path is None:
                try:
                    os.mkdir(os.path.join(base, name))
                    path = os.path.join(base, name)
                    with open(os.path.join(path, file), "w") as f:
                        f.write(str(limit))
                except OSError:
                    if path:
                        os.rmdir(path)
                    path = None
    if path is None:
        raise Skip("no control group with a limit of memory can be made here")

    def enter():
        with open(os.path.join(path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    try:
        yield enter
    finally:
        for _ in range(100):  # its pages are given up after its processes
            with contextlib.suppress(OSError):
                os.rmdir(path)
                break
            time.sleep(0.1)


@test
def in_a_real_control_group():
    if SLOW:
        raise Skip("a sanitizer's own memory")
    model, dense = heavy()
    limit = least(model) + 24 * 2**20
    assert limit < dense / 2, (limit, dense)
    with control_group(limit) as enter:
        r, said = write(model, "--memory", limit - 12 * 2**20, inside=enter)
    check(r, said, model, limit)
    assert "past the page cache" in said or "tmpfs" in subprocess.run(["df", TMP], capture_output=True, text=True).stdout, said


@test
def texts_beside_each_other():
    model, _ = heavy()
    s = Server(mode=(*CTX, "--parallel", 4, "--draft", "off", "--memory", least(model) + 80 * 2**20), pack_dir=model)
    assert "each step reads" in s.log, s.log
    prompts = "Once", "The dragon", "A girl " * 30, "In the"
    text = lambda prompt: s.complete(prompt, tokens=12, temperature=0, ignore_eos=True)["choices"][0]["text"]
    alone = [text(p) for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, prompts)) == alone
    assert s.metric("od_main_dense_bytes_total") > 0 and s.metric("od_main_dense_wait_seconds_total") > 0
    assert s.stop() == 0, s.log


@test
def a_byte_that_changes_ends_texts_until_it_is_right():
    model, _ = heavy()
    with open(os.path.join(model, "model.json"), encoding="utf-8") as f:
        tensor = [t for t in json.load(f)["dense"]["tensors"] if t["role"] == "attn_q" and t["layer"] == 7][0]
    s = Server(mode=(*CTX, "--memory", least(model) + 8 * 2**20), pack_dir=model)
    ask = lambda: s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
    status, _, first = ask()
    assert status == 200 and "each step reads" in s.log, (first, s.log)

    def flip():
        with open(os.path.join(model, "dense.bin"), "r+b") as f:
            f.seek(tensor["offset"] + tensor["bytes"] // 2)
            b = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([b[0] ^ 8]))

    for _ in range(2):
        flip()
        for _ in range(2):
            status, _, o = ask()
            assert status == 500, o
            found = re.search(r"tensor attn_q of layer 7: .*dense\.bin at offset (\d+): checksum: expected [0-9a-f]{16}, found [0-9a-f]{16} "
                              r"\(tried 3 times\)", o["error"]["message"])
            assert found and 0 <= tensor["offset"] + tensor["bytes"] // 2 - int(found.group(1)) < 2**20, o
        flip()
        status, _, o = ask()
        assert status == 200 and o["choices"] == first["choices"], o
    assert s.stop() == 0, s.log


if __name__ == "__main__":
    run_tests()
