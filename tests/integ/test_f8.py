#!/usr/bin/env python3
"""Models with experts published in FP8: the same logits and tokens as the model that has the same values as BF16, by any
kernels, resident or in a cluster, and those of an independent forward pass. Standard library only."""
import json
import os
import shutil
import struct

import pack_reader as pr
import tiny_checkpoint as tc
from cluster_util import SLOW, TMP, Daemon, hosts_file, run_tests, test, tool
from float64_model import conform, cpus, golden, read_weights

SHAPE = ["--layers", 3, "--hidden", 48, "--intermediate", 40, "--experts", 5, "--top-k", 2, "--heads", 4, "--kv-heads", 2,
         "--vocab", 300, "--ctx", 96]
TOKENS = 6 if SLOW else 20
KINDS = ["F8_E4M3", "F8_E5M2"]
PROMPTS = [[1, 200, 202, 158, 187, 138], [1], [1, *range(40, 61)]]


def as_bf16(dtype, raw):
    """The same values; every one of them is a BF16, so the lower half of its f32 is zero."""
    wide = [struct.pack("<f", v) for v in pr.F8[dtype]]
    assert all(w[:2] == b"\0\0" for w in wide)
    out = bytearray(2 * len(raw))
    out[0::2], out[1::2] = raw.translate(bytes(w[2] for w in wide)), raw.translate(bytes(w[3] for w in wide))
    return bytes(out)


_packs = {}


def packs(kind):
    """Published in FP8, and with the same values as BF16."""
    if kind not in _packs:
        small, wide = [os.path.join(TMP, kind + end) for end in ("-small", "-wide")]
        tool("od-bench", "synth", small, *SHAPE, "--dtype", kind.lower(), "--seed", 7)
        tens = read_weights(small)
        assert {t[0] for n, t in tens.items() if ".experts." in n} == {kind}
        shutil.copytree(small, wide)
        tc.write_safetensors(os.path.join(wide, "model.safetensors"), {
            n: ("BF16", s, as_bf16(d, raw) if d == kind else raw) for n, (d, s, raw) in tens.items()})
        for path in (small, wide):
            tool("od-pack", path, path + ".pack")
        _packs[kind] = small + ".pack", wide + ".pack"
    return _packs[kind]


def both(folder, small, wide, *args):
    """To the last digit of the errors, and every token."""
    a, b = conform(folder, small, *args), conform(folder, wide, *args)
    assert a == b, (args, a, b)
    return a


@test
def unpacked_are_the_published_bytes():
    for kind in KINDS:
        small, wide = packs(kind)
        for path in (small, wide):
            tool("od-pack", "verify", path, "--against", path[:-len(".pack")])
        assert pr.Pack(small).tensors == read_weights(small[:-len(".pack")])
        info = json.loads(tool("od-pack", "info", "--json", small).stdout)
        assert info["expert_dtype"] == kind and info["expert_raw_bytes"] == info["expert_weights"]
        assert 5 < info["bits_per_weight"] < 8, info


@test
def logits_and_tokens_are_those_of_the_same_values():
    for kind in KINDS:
        small, wide = packs(kind)
        folder = golden(os.path.join(TMP, kind + "-golden"), small[:-len(".pack")], PROMPTS, TOKENS)
        first = both(folder, small, wide, "--resident", "--cpu", "scalar")
        assert all(0 < p["max_logit_error"] < 1e-4 and p["tokens_compared"] >= min(TOKENS, 3) for p in first), first
        for cpu in cpus()[1:]:
            assert both(folder, small, wide, "--resident", "--cpu", cpu, "--threads", 2, "--prefill-rows", 7) == first, cpu
        assert both(folder, small, wide, "--local", 2, "--threads", 1) == first


def said(pack, *args):
    return json.loads(tool("od-main", "--pack", pack, "--json", "--prompt", "A king", "--max-tokens", TOKENS, *args).stdout)


def text(pack, *args):
    return said(pack, *args)["token_ids"]


@test
def profile_bf16_too():
    """Rows are rounded there, so tokens are those of the profile, and one kernel class's own."""
    for kind in KINDS:
        small, wide = packs(kind)
        of_class = {}
        for cpu in cpus():
            ids = text(small, "--resident", "--profile", "bf16", "--cpu", cpu)
            assert ids == text(wide, "--resident", "--profile", "bf16", "--cpu", cpu), cpu
            assert ids == of_class.setdefault(cpu == "avx512bf16", ids), cpu
        assert text(small, "--local", 2, "--profile", "bf16", "--threads", 1) == of_class[max(of_class)]


@test
def a_cache_keeps_experts_without_sm_bytes():
    checkpoint = os.path.join(TMP, "larger")
    tool("od-bench", "synth", checkpoint, "--preset", "tiny", "--hidden", 256, "--intermediate", 512, "--dtype", "f8_e4m3")
    tool("od-pack", checkpoint, checkpoint + ".pack")
    worker = Daemon("worker", "--slots", 1, "--cache-mib", 2, pack_dir=checkpoint + ".pack")
    want = text(checkpoint + ".pack", "--resident")
    r = said(checkpoint + ".pack", "--workers", hosts_file([worker]), "--predictor", "none")
    assert r["token_ids"] == want and r["cache_hits"] > 0, r
    assert worker.alive()


@test
def planes_are_refused_by_name():
    p = tool("od-main", "--pack", packs(KINDS[0])[0], "--resident", "--resident-form", "planes", "--prompt", "A", ok=False)
    assert "F8_E4M3 weights" in p.stderr and "--resident-form bf16" in p.stderr, p.stderr


run_tests()
