#!/usr/bin/env python3
"""Models published with scales: the same logits and tokens as their twins, which have the same weights as F32, by any
kernels, resident, in a cluster and from a spool, and those of an independent forward pass. Standard library only."""
import json
import os
import random
import shutil

import pack_reader as pr
import scaled_checkpoint as sc
import tiny_checkpoint as tc
from cluster_util import SLOW, TMP, Daemon, hosts_file, run_tests, test, tool, worker_args
from float64_model import conform, cpus, golden, read_weights

# No extent is a multiple of a group, a block or a kernel's rows.
SMALL = ["--layers", 2, "--hidden", 152, "--intermediate", 136, "--experts", 3, "--top-k", 2, "--heads", 4,
         "--kv-heads", 2, "--head-dim", 16, "--vocab", 300, "--ctx", 96]
# Experts of two shards to a matrix, which meet in the midst of a block.
LARGE = ["--layers", 1, "--hidden", 1664, "--intermediate", 400, "--experts", 2, "--top-k", 1, "--heads", 2,
         "--kv-heads", 2, "--head-dim", 16, "--vocab", 270, "--ctx", 96]
TOKENS = 3 if SLOW else 5
PROMPTS = [[1, 200, 202, 158, 187, 138], [1]]
OF = {**{name: sc.linear(kind) for name, kind in sc.KINDS.items()},
      "experts": sc.experts(sc.KINDS["fp8-rows"]), "not-down": sc.not_down(sc.KINDS["w4-32"]), "mixed": sc.every_kind}


def path(*names):
    return os.path.join(TMP, *names)


def synth(shape):
    name = path("plain-%d" % shape[3])
    if not os.path.exists(name):
        tool("od-bench", "synth", name, *shape, "--seed", 7)
    return name


_packs = {}


def packs(name, shape=SMALL):
    """Of the publication and of its twin; beside them their checkpoints, and the twin's golden folder."""
    key = name, shape[3]
    if key not in _packs:
        plain = synth(shape)
        scaled, twin = path("%s-%d" % key), path("%s-%d-twin" % key)
        with open(os.path.join(plain, "config.json")) as f:
            cfg = json.load(f)
        pub = sc.publish(cfg, read_weights(plain), OF[name], random.Random(8), "finite")
        sc.write(scaled, pub, shards=2, small=plain)
        sc.write_twin(twin, pub, small=plain)
        for p in (scaled, twin):
            tool("od-pack", p, p + ".pack")
        _packs[key] = scaled + ".pack", twin + ".pack"
    return _packs[key]


def folder(twin, prompts=PROMPTS, tokens=TOKENS):
    name = twin + ".golden"
    return name if os.path.exists(name) else golden(name, twin[:-len(".pack")], prompts, tokens)


def same_everywhere(name, runs, shape=SMALL, **kw):
    """Errors to the last digit, and every token, are the twin's."""
    scaled, twin = packs(name, shape)
    where = folder(twin, **kw)
    want = conform(where, twin, "--resident", "--cpu", "scalar")
    assert all(0 < p["max_logit_error"] < 1e-4 and p["tokens_compared"] >= 1 for p in want), (name, want)
    for args in runs:
        found = conform(where, scaled, *args)
        assert found == want, (name, args, found, want, conform(where, twin, *args))


@test
def every_kernel_gives_the_twins_logits():
    runs = [["--resident", "--cpu", "scalar", "--threads", 1]]
    runs += [["--resident", "--cpu", cpu, "--threads", 2, "--prefill-rows", rows]
             for cpu, rows in zip(cpus()[1:], (7, 256, 4))]
    for name in OF:
        same_everywhere(name, runs)


@test
def workers_and_a_shadow_give_them_too():
    names = list(OF)
    for i, name in enumerate(names):
        same_everywhere(name, [["--local", 2 + i % 2, "--threads", 1, *(worker_args("--cache-mib", 1 + i) if i % 3 else [])]])


@test
def shards_that_share_scales():
    """A prompt for the experts' many rows, a token for one."""
    runs = [["--resident", "--threads", 2], ["--resident", "--cpu", cpus()[-1]], ["--local", 2, "--threads", 1]]
    for name in ("fp8-blocks", "nvfp4", "w4-128"):
        same_everywhere(name, runs, shape=LARGE, prompts=[[1, 200, 202]], tokens=2)


@test
def profile_bf16_too():
    """Its errors are beyond f32's, but the same as the twin's."""
    def report(pack, *args):
        p = tool("od-bench", "conform", "--golden", folder(twin), "--pack", pack, "--json", "--profile", "bf16",
                 "--tolerance", 1, *args, ok=None)
        return json.loads(p.stdout)["prompts"]

    for name in OF:
        scaled, twin = packs(name)
        for cpu in cpus() if name in ("nvfp4", "w4-32", "fp8-blocks") else cpus()[-1:]:
            args = ["--resident", "--cpu", cpu, "--threads", 2]
            found = report(scaled, *args)
            assert found == report(twin, *args), (name, cpu)
            assert all(p["max_logit_error"] > 1e-4 for p in found), found


@test
def shadows_are_those_of_the_twin():
    """Every byte but the fingerprint, and the checksum over it."""
    def data(pack, precision):
        with open(os.path.join(pack, "shadow-%s.bin" % precision), "rb") as f:
            raw = f.read()
        return raw[:8], raw[16:48], raw[80:]

    for name in OF:
        precisions = ["int8"] if name not in ("nvfp4", "mixed") else ["int8", "nf4", "fp16"]
        for pack in packs(name):
            tool("od-pack", "shadow", pack, ",".join(precisions))
            tool("od-pack", "verify", pack)
        for precision in precisions:
            a, b = [data(pack, precision) for pack in packs(name)]
            assert a == b, (name, precision)
    for pack in packs("fp8-blocks", LARGE):
        tool("od-pack", "shadow", pack, "int8")
        tool("od-pack", "verify", pack)
    a, b = [data(pack, "int8") for pack in packs("fp8-blocks", LARGE)]
    assert a == b


@test
def packs_hold_what_was_published():
    """As the reader reads them, and with it the weights that the twin was made of."""
    for name in ("mixed", "fp8-blocks"):
        scaled, twin = [pr.Pack(p) for p in packs(name)]
        for n in [*scaled.tensors, *scaled.scaled]:
            assert list(scaled.weights(n)) == list(twin.weights(n)), n
        assert scaled.fingerprint() == scaled.model["fingerprint"] != twin.fingerprint()


def text(pack, *args):
    p = tool("od-main", "--pack", pack, "--json", "--prompt", "A king", "--max-tokens", TOKENS, *args)
    return json.loads(p.stdout)["token_ids"]


@test
def shares_and_spools():
    """A share carried by hand, and one that is pulled from the store."""
    for name in ("nvfp4", "fp8-blocks"):
        scaled, twin = packs(name)
        want = text(twin, "--resident")
        assert text(scaled, "--resident") == want
        shares = [path("%s-share%d" % (name, w)) for w in (1, 2)]
        for w, share in enumerate(shares):
            tool("od-pack", "--share", "%d/2" % (w + 1), scaled, share)
            tool("od-pack", "verify", share)
        workers = [Daemon("worker", pack_dir=share) for share in shares]
        assert text(scaled, "--workers", hosts_file(workers)) == want
        for w in workers:
            w.kill()


@test
def bytes_of_a_token_count_scales():
    """Of each row its own, and a divisor; beside them what is plain, and norms, in memory of 4 bytes."""
    scaled, _ = packs("nvfp4")
    with open(path("plain-152", "config.json")) as f:
        c = json.load(f)
    h, inner, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    q, kv = [c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads")]

    def nvfp4(*shapes):
        return sum(n_out * (n_in // 2 + -(-n_in // 16)) + 4 for n_out, n_in in shapes)

    layer = nvfp4((q, h), (kv, h), (kv, h), (h, q)) + 2 * c["num_local_experts"] * h
    layer += c["num_experts_per_tok"] * nvfp4((inner, h), (inner, h), (h, inner))
    rest, norms = layers * layer + nvfp4((c["vocab_size"], h)) + 2 * h, (2 * layers + 1) * h
    args = "--pack", scaled, "--tokens", 2, "--runs", 1, "--json"
    p = json.loads(tool("od-bench", "precision", *args, "--precision", "bf16").stdout)["precisions"][0]
    assert p["bytes_per_token"] == rest + 4 * norms, (p, rest, norms)
    assert json.loads(tool("od-bench", "decode", *args, "--resident").stdout)["weight_bytes_per_token"] == rest + 2 * norms


run_tests()
