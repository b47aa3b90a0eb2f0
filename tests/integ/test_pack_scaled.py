#!/usr/bin/env python3
"""od-pack and weights that are published with scales, against the reader that was written from docs/PACK-FORMAT.md
alone: bits, codecs, resuming, what is refused, damaged and forged packs. Standard library only."""
import json
import os
import random
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pack_reader as pr
import scaled_checkpoint as sc
import tiny_checkpoint as tc
from pack_commands import (at, contents, forge_header, good, limit, read, refused, run_tests, write)

# No extent is a multiple of a group or of a block; one layer.
CFG = dict(tc.CONFIG, hidden_size=152, head_dim=16, intermediate_size=136, num_hidden_layers=1, num_local_experts=2,
           vocab_size=130)
# Matrices of two shards, which meet in the midst of a block.
LARGE = dict(CFG, hidden_size=1664, intermediate_size=400, vocab_size=8)
X = "model.layers.0.block_sparse_moe.experts.1.w2."
Q = "model.layers.0.self_attn.q_proj."


def publication(name, of, codes, cfg=CFG, shards=1, seed=1):
    """Writes the checkpoint at(name)."""
    bits = tc.finite_bits if codes != "any" else tc.any_bits
    pub = sc.publish(cfg, tc.tensors(cfg, seed=seed, bits=bits), of, random.Random(seed), codes)
    sc.write(at(name), pub, shards=shards)
    return pub


def same_bits(pack, pub):
    assert pack.tensors == pub.plain
    assert set(pack.scaled) == set(pub.scaled)
    for name, m in pub.scaled.items():
        assert pack.scaled[name] == m, name
    assert pack.fingerprint() == pack.model["fingerprint"]


def check(name, pub, codec, *args):
    """Packs it, and looks at the pack in every way there is."""
    path = at(name + "." + codec)
    good(at(name), path, "--shadow", "none", "--codec", codec, *args)
    pack = pr.Pack(path)
    same_bits(pack, pub)
    good("verify", path, "--against", at(name))
    info = json.loads(good("info", "--json", path).stdout)
    raw = sum(len(m.codes) + len(m.scales) + len(m.divisor) if isinstance(m, pr.Scaled) else len(m)
              for e in pack.experts.values() for m in e.mats)
    assert info["expert_raw_bytes"] == raw and info["codec"] == codec and info["fingerprint"] == pack.fingerprint()
    types = {}
    for e in pack.experts.values():
        for dtype, m in zip(e.dtype, e.mats):
            types.setdefault(dtype, set()).add(m.dtype_line() if isinstance(m, pr.Scaled) else dtype)
    assert {d["dtype"]: d["type"] for d in info["expert_dtypes"]} == {
        dtype: min(t) if len(t) == 1 else dtype + "*several" for dtype, t in types.items()}, types
    text = good("info", path).stdout
    assert all(d["type"] in text for d in info["expert_dtypes"]), text
    return pack


# ---- what a pack holds ----

def test_values_by_hand():
    """Of the reader, so that what is compared with it means something. A product of two f32 is rounded once, to even."""
    f32, f16 = lambda v: struct.pack("<f", v), lambda v: struct.pack("<e", v)
    third = 11184811 / 2 ** 25  # f32(1 / 3)
    nv = b"\x15" + bytes(7) + b"\x05" + bytes(7)  # with 3 / 7 and 1 / 7: 14380471 / 2^25 and 9586981 / 2^26
    for m, want in (
            (("U4B8", [1, 4], b"\x9c\x0f", "BF16", (0, 0), b"\0\x3f"), [2, 0.5, 3.5, -4]),
            (("U8B128", [2, 2], b"\x00\x80\xff\x7f", "F16", (1, 0), f16(2) + f16(-0.25)), [-256, 0, -31.75, 0.25]),
            (("I8", [2, 2], b"\x00\x80\xff\x7f", "F32", (0, 0), f32(third)),
             [0, -128 * third, -third, 11097430 / 2 ** 18]),
            (("F4_E2M1", [1, 4], b"\x9c\x70", "F8_E8M0", (0, 0), b"\x80"), [-4, -1, 0, 12]),
            (("F4_E2M1", [1, 32], nv, "F8_E4M3", (0, 16), b"\x44\x38", f32(7)),
             [10785353 / 2 ** 23, 14380471 / 2 ** 26, *[0] * 14, 14380472 / 2 ** 25, *[0] * 15]),
            (("F8_E4M3", [3, 1], b"\x7e\xb8\x01", "F32", (2, 0), f32(3) + f32(-2)), [1344, -3, -2.0 ** -8]),
            (("F8_E5M2", [1, 2], b"\x7b\x81", "F16", (0, 0), f16(1.5)), [86016, -1.5 * 2.0 ** -16])):
        m = pr.Scaled(*m)
        m.check()
        assert list(m.values()) == want, (m, list(m.values()), want)


def test_every_kind():
    """Any bits of codes, scales and divisors; router, embedding and norms beside them."""
    for i, (name, kind) in enumerate(sc.KINDS.items()):
        pub = publication(name, sc.linear(kind), "any", shards=1 + i % 3)
        assert all(len(set(m.codes)) == 256 for m in pub.scaled.values()), name
        pack = check(name, pub, pr.CODECS[i % 4])
        assert {n for e in pack.experts.values() for n in e.dtype} == {kind.dtype}
        shutil.rmtree(at(name))


def test_every_codec():
    """What can be made smaller is; never as planes."""
    coded = {"raw": "raw", "zstd": "zstd", "lz4": "lz4", "planes": "zstd"}
    for name in ("fp8-blocks", "int8-rows", "w4-128", "nvfp4", "mxfp4", "w8"):
        pub, fingerprints = publication("few", sc.linear(sc.KINDS[name]), "few"), set()
        for codec in pr.CODECS:
            pack = check("few", pub, codec)
            assert {c for e in pack.experts.values() for _, c in e.codecs} == {coded[codec]}, (name, codec)
            fingerprints.add(pack.fingerprint())
            shutil.rmtree(at("few." + codec))
        assert len(fingerprints) == 1


def test_odd_rows():
    cfg = dict(CFG, hidden_size=151, intermediate_size=135)
    for name in ("fp8-blocks", "int8-rows", "mxfp8", "e5m2-rows"):
        check("odd", publication("odd", sc.linear(sc.KINDS[name]), "any", cfg=cfg), "zstd", "--force")


def test_some_with_scales():
    """Experts alone, all but w2, and all kinds side by side."""
    for name, of in (("experts", sc.experts(sc.KINDS["fp8-rows"])), ("down", sc.not_down(sc.KINDS["w4-32"])),
                     ("mixed", sc.every_kind)):
        pub = publication(name, of, "any", shards=3)
        check(name, pub, "planes")
        assert name != "mixed" or len({m.dtype_line() for m in pub.scaled.values()}) > 5


def test_fp8_that_needs_no_scales():
    """Experts and dense matrices may have it as it is, beside others that have scales, where config.json names no scales."""
    for dtype in pr.F8:
        of = sc.experts(sc.KINDS["nvfp4"])
        tens = tc.tensors(CFG, dtype=lambda name: dtype if sc.linear(True)(name) else "BF16", bits=tc.any_bits)
        for name, pub in (("plain8", sc.Publication(CFG, tens, tens, {})),
                          ("some8", sc.publish(CFG, tens, of, random.Random(4), "any")._replace(config=CFG))):
            sc.write(at(name), pub)
            check(name, pub, "planes", "--force")


def test_fingerprint_tells_them_apart():
    """The same codes with another scale, divisor, type or block are another model."""
    seen = set()
    for name, change in (("nvfp4", {}), ("nvfp4", {"scales": 0}), ("nvfp4", {"divisor": 0}), ("fp8-rows", {}),
                         ("fp8-rows", {"dtype": "I8"}), ("fp8-rows", {"scale_dtype": "F16"})):
        kind = sc.KINDS[name]
        pub = sc.publish(CFG, tc.tensors(CFG), sc.linear(kind), random.Random(2), "any")
        m = pub.scaled[X + "weight"]
        flip = {k: getattr(m, k)[:-1] + bytes([getattr(m, k)[-1] ^ 1]) for k, v in change.items() if v == 0}
        pub.scaled[X + "weight"] = m = m._replace(**{**change, **flip})
        pub.tensors.update(sc.as_published(kind, X + "weight", m))
        sc.write(at("print"), pub)
        seen.add(check("print", pub, "zstd", "--force").fingerprint())
    assert len(seen) == 6


def test_many_shards():
    """Shards that meet inside a block of rows both have its scales, and all have the divisor."""
    kinds = ("fp8-blocks", "fp8-tensor", "mxfp8", "w4-128", "nvfp4", "int8-rows")
    for name in kinds:
        pub = publication("shards", sc.linear(sc.KINDS[name]), "any", cfg=LARGE)
        pack = check("shards", pub, "zstd")
        (n,) = struct.unpack_from("<I", pack.experts[0, 0].header, 28)
        assert n == 6, n
        shutil.rmtree(at("shards.zstd"))
    cfg = dict(tc.CONFIG, hidden_size=8, head_dim=2, intermediate_size=600000, num_hidden_layers=1, num_local_experts=1,
               num_experts_per_tok=1, vocab_size=4)  # a row to a shard
    pub = publication("shards", sc.experts(sc.KINDS["w4-128"]), "any", cfg=cfg)
    check("shards", pub, "lz4")


def test_divisors_are_what_their_bits_say():
    for by in (0.0, -0.0, -3.0, float("nan"), float("inf"), 2.0 ** -149):
        pub = publication("by", sc.experts(sc.KINDS["nvfp4"]), "near")
        for name, m in list(pub.scaled.items()):
            pub.scaled[name] = m._replace(divisor=struct.pack("<f", by))
            pub.tensors.update(sc.as_published(sc.KINDS["nvfp4"], name, pub.scaled[name]))
        sc.write(at("by"), pub)
        check("by", pub, "planes", "--force")


# ---- making one ----

def test_same_bytes_every_time():
    cfg, resumed = dict(CFG, num_local_experts=6), set()
    for name in ("nvfp4", "fp8-blocks"):
        pub = publication("det", sc.linear(sc.KINDS[name]), "near", cfg=cfg)
        good(at("det"), at("det.pack"), "--threads", "1", "--force", "--shadow", "int8")
        want = contents(at("det.pack"))
        assert "shadow-int8.bin" in want
        sc.write(at("det3"), pub, shards=3)
        for source, threads in (("det", "4"), ("det3", "2")):
            good(at(source), at("again"), "--threads", threads, "--shadow", "int8")
            assert contents(at("again")) == want, (name, source)
            shutil.rmtree(at("again"))
        for n in ("dense.bin", "experts.bin"):  # a full disk in the midst of either
            for size in (1000, len(want[n]) // 2, len(want[n]) - 4096):
                refused(at("det"), at("full"), "--shadow", "int8", says=["full.partial", "File too large"], preexec=limit(size))
                p = good(at("det"), at("full"), "--shadow", "int8")
                resumed.add(p.stderr.split("resuming: ")[1].split(" experts")[0] if "resuming" in p.stderr else None)
                assert contents(at("full")) == want, (name, n, size)
                shutil.rmtree(at("full"))
    assert {"3 of 6", "5 of 6"} <= resumed, resumed


def test_shadows_of_models_in_few_bits():
    """A shadow that is larger than the experts as published is not made by default, and never without a word."""
    large = dict(CFG, hidden_size=256, intermediate_size=256, num_local_experts=2, num_hidden_layers=1)
    for name, bits in (("fp8-blocks", 8.0), ("nvfp4", 4.5), ("mxfp4", 4.25), ("w4-32", 4.5), (None, 16)):
        sc.write(at("few"), publication("few", sc.linear(sc.KINDS[name] if name else None), "near", cfg=large))
        p = good(at("few"), at("few.pack"), "--force")
        assert os.path.exists(at("few.pack", "shadow-int8.bin")) == (name is None), name
        # INT8 has 8 bits, and 32 for each row of 256; NF4 has 4, and 32 for each 64 weights.
        assert ("no int8 shadow: it would have 8.12 bits" in p.stderr) == (name is not None), p.stderr
        assert name is None or "the model has %.2f" % bits in p.stderr, (name, p.stderr)
        p = good("shadow", at("few.pack"), "int8,nf4")
        # NVFP4 has a divisor besides its 4.5 bits.
        for precision, larger in (("int8", name is not None), ("nf4", name in ("mxfp4", "w4-32"))):
            assert os.path.exists(at("few.pack", "shadow-%s.bin" % precision)), (name, precision)
            assert ("warning: %s has" % precision in p.stderr) == larger, (name, precision, p.stderr)


def test_against_another_publication():
    """A code, a scale or a divisor that differs is found, and its matrix named."""
    pub = publication("one", sc.linear(sc.KINDS["nvfp4"]), "any")
    good(at("one"), at("one.pack"), "--shadow", "none")
    for module in (X, Q):
        for suffix, where in (("weight_packed", 700), ("weight_scale", 99), ("weight_global_scale", 2)):
            tens = dict(pub.tensors)
            dtype, shape, raw = tens[module + suffix]
            tens[module + suffix] = (dtype, shape, raw[:where] + bytes([raw[where] ^ 8]) + raw[where + 1:])
            tc.write_checkpoint(at("two"), pub.config, tens)
            refused("verify", at("one.pack"), "--against", at("two"), says=["differs", module])
    publication("two", sc.linear(sc.KINDS["mxfp4"]), "any")
    refused("verify", at("one.pack"), "--against", at("two"))


# ---- what is refused ----

_good = {}


def bad(kind, says, change=lambda t: None, of=sc.linear, config=None):
    """A good publication, in which change(tensors) breaks something; says: words of the message."""
    if (kind, of) not in _good:
        tens = tc.tensors(CFG)
        pub = sc.publish(CFG, tens, of(sc.KINDS[kind]), random.Random(3), "any") if kind else \
            sc.Publication(CFG, tens, tens, {})
        _good[kind, of] = pub
    pub = _good[kind, of]
    tens = dict(pub.tensors)
    change(tens)
    cfg = pub.config if config is None else dict(CFG, quantization_config=config)
    shutil.rmtree(at("bad.pack"), ignore_errors=True)
    tc.write_checkpoint(at("bad"), cfg, tens)
    p = refused(at("bad"), at("bad.pack"), "--shadow", "none", says=["error", *says])
    places = ["config.json"] if config is not None else ["model.safetensors", "checkpoint " + at("bad")]
    assert any(place in p.stderr for place in places), p.stderr
    assert not os.path.exists(at("bad.pack")) and not os.path.exists(at("bad.pack.partial")), says
    assert "kept in" not in p.stderr
    return p.stderr


def put(name, dtype, shape, raw=None):
    """Adds a tensor, or another in a tensor's place."""
    size = {"I64": 8, "F64": 8, "I32": 4, "F32": 4, "BF16": 2, "F16": 2}.get(dtype, 1)
    for n in shape:
        size *= n
    return lambda t: t.update({name: (dtype, shape, bytes(size) if raw is None else raw)})


def without(name):
    return lambda t: t.pop(name)


def both(*changes):
    def change(t):
        for c in changes:
            c(t)
    return change


def test_good_ones_are_not_refused():
    """So that the refusals below are for what is said."""
    for kind in (None, "fp8-rows", "fp8-tensor", "int8-rows", "w4-32", "nvfp4", "mxfp4", "w8", "fp8-blocks"):
        tens = tc.tensors(CFG)
        pub = sc.publish(CFG, tens, sc.linear(sc.KINDS[kind]), random.Random(3), "any") if kind else \
            sc.Publication(CFG, tens, tens, {})
        sc.write(at("fine"), pub)
        good(at("fine"), at("fine.pack"), "--shadow", "none", "--force")
    for end in ("input_scale", "input_global_scale", "input_zero_point", "activation_scale", "k_scale", "v_scale", "q_scale",
                "kv_scale", "output_scale"):
        put(X + end, "F32", [1])(pub.tensors)
        put(Q + end, "BF16", [])(pub.tensors)
    sc.write(at("fine"), pub)
    same_bits(pr.Pack(at("fine.pack")), pub)
    before = contents(at("fine.pack"))
    good(at("fine"), at("fine.pack"), "--shadow", "none", "--force")
    assert contents(at("fine.pack")) == before


def test_long_config():
    """Modules that stay as they are, each by its name, as compressed-tensors writes them: here most of Qwen3-235B's experts."""
    pub = sc.publish(CFG, tc.tensors(CFG), sc.linear(sc.KINDS["fp8-rows"]), random.Random(3), "any")
    ignore = [f"model.layers.{i}.mlp.experts.{e}.{m}_proj" for i in range(94) for e in range(128) for m in ("gate", "up", "down")]
    config = dict(pub.config["quantization_config"], ignore=ignore)
    pub = pub._replace(config=dict(pub.config, quantization_config=config))
    sc.write(at("long"), pub)
    assert os.path.getsize(os.path.join(at("long"), "config.json")) > 1 << 20
    good(at("long"), at("long.pack"), "--shadow", "none")
    same_bits(pr.Pack(at("long.pack")), pub)


def test_other_ways_to_scale():
    """Zero points, orders of columns, GPTQ and AWQ, other methods: by name, with what would do instead."""
    for kind in ("w4-32", "int8-rows", "fp8-rows"):
        bad(kind, [X + "weight_zero_point"], put(X + "weight_zero_point", "I32", [19, 5]))
        bad(kind, [X + "weight_g_idx"], put(X + "weight_g_idx", "I32", [136]))
        bad(kind, [Q + "weight_g_idx"], put(Q + "weight_g_idx", "I32", [152]))
    gptq = [put(X + end, "I32", [17, 152]) for end in ("qweight", "qzeros", "g_idx")]
    gptq.append(put(X + "scales", "F16", [2, 152]))
    for end, change in zip(("qweight", "qzeros", "g_idx", "scales"), gptq):
        bad(None, [X + end], change)
    bad(None, [X, "publication"], both(without(X + "weight"), *gptq))
    bad(None, [X, "publication"], both(without(X + "weight"), *gptq[:2], gptq[3]))  # as AWQ has it
    bad(None, [X + "weight_scale_2", "Model Optimizer", "publication"],
        both(put(X + "weight", "U8", [152, 68]), put(X + "weight_scale", "F8_E4M3", [152, 8]), put(X + "weight_scale_2", "F32", [])))
    for method in ("gptq", "awq", "bitsandbytes", "modelopt", "mxfp4", "FP8", ""):
        for kind in (None, "fp8-rows"):
            bad(kind, ["quantization_config", method, "publication"], config={"quant_method": method})
    for config in ({}, {"quant_method": 4}, {"quant_method": None}, {"bits": 4}):
        bad("fp8-rows", ["quantization_config", "publication"], config=config)


def test_scales_that_do_not_belong():
    """Beside weights that need none, twice, or for what is never scaled."""
    for end in ("weight_scale", "weight_scale_inv", "weight_global_scale"):
        bad(None, [X], put(X + end, "F32", [1]))
        bad(None, [Q], put(Q + end, "F32", [1]))
        for plain in ("model.embed_tokens.", "model.norm.", "model.layers.0.block_sparse_moe.gate.",
                      "model.layers.0.input_layernorm."):
            bad(None, [plain], put(plain + end, "F32", [1]))
    for dtype in ("F16", "F32"):
        bad(None, [X], both(put(X + "weight", dtype, [152, 136]), put(X + "weight_scale", "F32", [152, 1])))
    bad("fp8-rows", [X], put(X + "weight_scale_inv", "F32", [1]))
    bad("fp8-rows", [X], put(X + "weight_global_scale", "F32", [1]))
    bad("mxfp4", [X], put(X + "weight_global_scale", "F32", [1]))
    bad("w4-32", [X], put(X + "weight_global_scale", "F32", [1]))
    bad("w4-32", [X], put(X + "weight", "BF16", [152, 136]))
    bad("fp8-rows", [X], put(X + "weight_packed", "I32", [152, 17]))
    for name, shape in (("model.embed_tokens.", [130, 152]), ("model.norm.", [152])):
        for dtype in ("F8_E4M3", "I8"):
            bad("fp8-rows", [name], both(put(name + "weight", dtype, shape), put(name + "weight_scale", "F32", [])))


def test_scales_that_are_missing():
    for kind, suffix in (("int8-rows", "weight"), ("w8", "weight_packed"), ("w4-32", "weight_packed"),
                         ("nvfp4", "weight_packed"), ("mxfp4", "weight_packed")):
        for module in (X, Q):
            bad(kind, [module + suffix, "weight_scale"], without(module + "weight_scale"))
            bad(kind, [module], without(module + suffix))
    bad("nvfp4", [X, "weight_global_scale"], without(X + "weight_global_scale"))
    bad("fp8-rows", [X], without(X + "weight"))
    # FP8 needs none in general, but here somebody said that there are some, or scales what it meets.
    for kind, suffix in (("fp8-rows", "weight_scale"), ("fp8-blocks", "weight_scale_inv"), ("e5m2-rows", "weight_scale")):
        for module in (X, Q):
            bad(kind, [module + "weight", "weight_scale"], without(module + suffix))
    for suffix in ("input_scale", "input_global_scale"):
        bad(None, [X + "weight", "weight_scale"], both(put(X + "weight", "F8_E4M3", [152, 136]), put(X + suffix, "F32", [])))


def test_shapes_of_scales():
    """No power of two makes these of 152 x 136 weights, or their form is none."""
    for shape in ([151], [2], [0], [151, 1], [4, 1], [1, 4], [2, 6], [152, 17], [152, 136], [1, 136], [152, 1, 1],
                  [153, 1], [0, 1], [136, 1], [1, 152]):
        bad("fp8-rows", [X + "weight_scale"], put(X + "weight_scale", "BF16", shape))
    for shape in ([152, 4], [152, 6], [152, 17], [151, 5], [152, 0], [5]):
        bad("w4-32", [X + "weight_scale"], put(X + "weight_scale", "BF16", shape))
    for shape in ([152, 4], [152, 10], [151, 9], [152, 17]):
        bad("nvfp4", [X + "weight_scale"], put(X + "weight_scale", "F8_E4M3", shape))
        bad("mxfp4", [X + "weight_scale"], put(X + "weight_scale", "U8", shape))
    for shape in ([3, 3], [3, 2], [2, 1], [1, 1], [1], [], [152, 1]):  # good ones, but config.json says otherwise
        bad("fp8-blocks", [X + "weight_scale_inv", "[2, 2]", "weight_block_size"], put(X + "weight_scale_inv", "F32", shape))
    for shape in ([2], [0], [152], [152, 1]):
        bad("nvfp4", [X + "weight_global_scale"], put(X + "weight_global_scale", "F32", shape))


def test_types_of_scales():
    for dtype in ("I8", "F64", "I32", "I64", "F8_E4M3", "F8_E5M2", "BOOL"):
        for kind in ("fp8-rows", "int8-rows"):
            bad(kind, [X + "weight_scale", dtype], put(X + "weight_scale", dtype, [152, 1]))
    for dtype in ("I8", "F64", "U8", "F8_E4M3", "F8_E8M0"):
        bad("w4-32", [X + "weight_scale", dtype], put(X + "weight_scale", dtype, [152, 5]))
    for dtype in ("I8", "F32", "BF16", "F8_E5M2"):
        bad("nvfp4", [X + "weight_scale"], put(X + "weight_scale", dtype, [152, 9]))
    for dtype in ("BF16", "F64", "I32", "U8"):
        bad("nvfp4", [X + "weight_global_scale"], put(X + "weight_global_scale", dtype, [1]))


def test_packed_weights():
    """weight_packed of another shape or type, and a weight_shape that says otherwise."""
    for says in ((152, 128), (136, 152), (152, 0), (-152, -136), (1 << 62, 4)):
        bad("w4-32", [X + "weight_shape"], put(X + "weight_shape", "I64", [2], struct.pack("<2q", *says)))
    bad("w4-32", [X + "weight_shape"], put(X + "weight_shape", "I64", [1], struct.pack("<q", 152)))
    bad("w4-32", [X + "weight_shape"], put(X + "weight_shape", "I64", [3], struct.pack("<3q", 152, 136, 1)))
    bad("w4-32", [X + "weight_shape"], put(X + "weight_shape", "F32", [2], struct.pack("<2f", 152, 136)))
    for shape in ([152, 18], [152, 16], [151, 17], [17, 152], [152, 136], [2584], [152, 17, 1]):
        bad("w4-32", [X + "weight_packed"], put(X + "weight_packed", "I32", shape))
    for dtype in ("I64", "I8", "F32"):
        bad("w4-32", [X + "weight_packed"], put(X + "weight_packed", dtype, [152, 17]))
    for dtype, shape in (("U8", [152, 67]), ("U8", [152, 136]), ("I8", [152, 68]), ("U8", [68, 152])):
        bad("nvfp4", [X + "weight_packed"], put(X + "weight_packed", dtype, shape))
    bad("int8-rows", [X + "weight"], put(X + "weight", "U8", [152, 136]))
    bad("int8-rows", [X + "weight"], put(X + "weight", "I8", [136, 152]))
    bad("int8-rows", [X + "weight"], put(X + "weight", "F8_E8M0", [152, 136]))


def test_rows_that_do_not_fill_words():
    """140 weights of 4 bits are 17.5 words of 32."""
    cfg = dict(CFG, intermediate_size=140)
    tens = tc.tensors(cfg)
    del tens[X + "weight"]
    for words in (17, 18):
        put(X + "weight_packed", "I32", [152, words])(tens)
        put(X + "weight_scale", "BF16", [152, 1])(tens)
        put(X + "weight_shape", "I64", [2], struct.pack("<2q", 152, 140))(tens)
        tc.write_checkpoint(at("words"), cfg, tens)
        refused(at("words"), at("words.pack"), says=["model.safetensors", X + "weight_packed"])


# ---- packs that are damaged or forged ----

def flips(pack):
    """A place in each kind of region: codes, divisors, scales, what the headers say of them."""
    model, head = json.loads(read(pack, "model.json")), read(pack, "experts.bin")
    for t in model["dense"]["tensors"]:
        if "scales" in t and t["role"] in ("attn_k", "head"):
            codes = t["shape"][0] * t["shape"][1] // 2
            for i in (0, codes - 1, codes, codes + 3, codes + 4, t["bytes"] - 1):
                yield "dense.bin", t["offset"] + i
    t = model["experts"]["table"][1]
    for i in (64, 67, 68, 69, 70, 71, 168, 172, 175, 180, 184, 191, 192 + 40):
        yield "experts.bin", t["offset"] + i
    for s in range(3):
        first, stored, _, raw = struct.unpack_from("<QIII", head, t["offset"] + 192 + 64 * s + 24)
        assert stored == raw
        codes = 152 * 136 // 2
        for i in (0, codes - 1, codes, codes + 3, codes + 4, raw - 1):
            yield "experts.bin", t["offset"] + first + i


def test_flipped_bits():
    publication("flip", sc.linear(sc.KINDS["nvfp4"]), "any")
    good(at("flip"), at("flip.pack"), "--shadow", "none", "--codec", "raw")
    places = list(flips(at("flip.pack")))
    for name, i in places:
        data = bytearray(read(at("flip.pack"), name))
        data[i] ^= 1 << i % 8
        write(data, at("flip.pack"), name)
        refused("verify", at("flip.pack"), says=[name])
        data[i] ^= 1 << i % 8
        write(data, at("flip.pack"), name)
    good("verify", at("flip.pack"))
    assert len(places) == 12 + 13 + 18


def test_forged_headers():
    """Types and blocks that make no sense, all sums made good."""
    types = [*range(14), 127, 255]
    blocks = [0, 1, 2, 3, 4, 8, 15, 16, 17, 24, 32, 64, 127, 128, 129, 136, 152, 256, 1 << 30, 1 << 31, (1 << 32) - 1]
    for base in ("nvfp4", "fp8-blocks", "w4-32", "fp8-tensor"):
        publication("forge", sc.linear(sc.KINDS[base]), "any")
        good(at("forge"), at("forge.pack"), "--shadow", "none", "--codec", "raw", "--force")
        fields = [(i, "B", types) for i in (64, 66, 67, 69)] + [(70, "B", [1, 255]), (71, "B", [1])]
        fields += [(i, "I", blocks) for i in (168, 172, 184, 188)] + [(192 + 40, "I", [0, 1, 10336, (1 << 32) - 1])]
        for where, form, values in fields:
            for value in values:
                seen = []

                def change(head, data):
                    seen.append(struct.unpack_from("<" + form, head, where)[0])
                    struct.pack_into("<" + form, head, where, value)

                forge_header(change, base="forge.pack")
                if seen[0] == value:
                    good("verify", at("forged.pack"))
                    continue
                p = refused("verify", at("forged.pack"))
                assert "experts.bin" in p.stderr or "fingerprint" in p.stderr, (base, where, value, p.stderr)


def test_forged_model():
    """What model.json says of a dense matrix's scales."""
    publication("forge", sc.linear(sc.KINDS["nvfp4"]), "any")
    good(at("forge"), at("forge.pack"), "--shadow", "none", "--codec", "raw", "--force")

    def forged(change):
        forge_header(lambda head, data: None, base="forge.pack", of_model=lambda m: change(m["dense"]["tensors"]))
        return refused("verify", at("forged.pack"), says=["model.json"]).stderr

    def first(tensors, role):
        return next(t for t in tensors if t["role"] == role)

    odd = [-1, 3, 8, 1 << 31, 1 << 62, (1 << 63) - 1, 1.5, "16", None, [], {}, True]
    types = ["I8", "F8_E5M2", "U4B8", "BF16", "", None, 6]
    for key, values in (("dtype", types), ("block_rows", odd), ("block_cols", odd)):
        for value in values:
            forged(lambda ts: first(ts, "attn_k")["scales"].update({key: value}))
        forged(lambda ts: first(ts, "attn_k")["scales"].pop(key))
    for value in ({}, [], None, "F32", 1):
        forged(lambda ts: first(ts, "attn_k").update(scales=value))
    forged(lambda ts: first(ts, "attn_k").pop("scales"))
    for role in ("router", "embed", "final_norm"):
        forged(lambda ts: first(ts, role).update(scales=first(ts, "attn_k")["scales"]))
    for value in ("I8", "F8_E8M0", "NF4", "U8B128", "BF16", "I32"):
        forged(lambda ts: first(ts, "attn_k").update(dtype=value))
    for change in (lambda t: t.update(dtype="Q9"), lambda t: t["scales"].update(dtype="Q9")):
        assert "make it again: od-pack --force CHECKPOINT PACK" in forged(lambda ts: change(first(ts, "attn_k")))


def test_forged_copies():
    """Scales and divisors that two shards have, not the same in one of them; every checksum is good."""
    for kind, n in (("fp8-blocks", 1), ("nvfp4", 4), ("fp8-tensor", 1)):
        publication("forge", sc.linear(sc.KINDS[kind]), "any", cfg=LARGE)
        good(at("forge"), at("forge.pack"), "--shadow", "none", "--codec", "raw", "--force")
        codes = [rows * 1664 // (2 if kind == "nvfp4" else 1) for rows in (315, 85)]
        # fp8-blocks: the last of three rows of 13 F32 scales, which is the first of the other shard's two.
        places = [(0, codes[0] + (2 * 13 * 4 if kind == "fp8-blocks" else 0)), (1, codes[1])]
        for shard, at_ in places:
            def change(head, data):
                first, = struct.unpack_from("<Q", head, 192 + 64 * shard + 24)
                size, = struct.unpack_from("<I", head, 192 + 64 * shard + 32)
                first += json.loads(read(at("forge.pack"), "model.json"))["experts"]["table"][1]["offset"]
                data[first + at_] ^= 1
                struct.pack_into("<Q", head, 192 + 64 * shard + 56, pr.xxh3(data[first:first + size]))

            forge_header(change, base="forge.pack")
            refused("verify", at("forged.pack"), says=["experts.bin", "expert (0, 1)"])
            try:
                pr.Pack(at("forged.pack"))
            except pr.Bad:
                continue
            raise AssertionError("the reader takes it")


run_tests(globals())
