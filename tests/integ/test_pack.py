#!/usr/bin/env python3
"""od-pack against a reader that was written from docs/PACK-FORMAT.md alone: bits, paddings, fingerprint, quantisation,
resuming. Standard library only."""
import collections
import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pack_reader as pr
import tiny_checkpoint as tc
from model_config import Model
from pack_commands import (BIG_FILES, OD_PACK, QUANT, Skip, at, check_record, contents, good, limit, make_det, make_partial,
                           read, refused, run_tests, same_bits, write)

TALEBOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "models", "talebook")
EVERY = ",".join(pr.PRECISIONS)
SPEC = Model(tc.CONFIG)


# ---- what a pack holds ----

def test_bits_bf16():
    tens = tc.tensors(tc.CONFIG, bits=tc.any_bits)
    tc.write_checkpoint(at("hard"), tc.CONFIG, tens)
    good(at("hard"), at("hard.pack"), "--shadow", "none")
    same_bits(pr.Pack(at("hard.pack")), tens)
    good("verify", at("hard.pack"), "--against", at("hard"))


def test_bits_mixed_types():
    kinds = ["BF16", "F16", "F32"]
    pick = lambda name: kinds[sum(name.encode()) % 3]
    tens = tc.tensors(tc.CONFIG, seed=2, dtype=pick, bits=tc.any_bits)
    tc.write_checkpoint(at("mixed"), tc.CONFIG, tens, shards=3)
    good(at("mixed"), at("mixed.pack"), "--shadow", "none")
    pack = pr.Pack(at("mixed.pack"))
    same_bits(pack, tens)
    assert {d for e in pack.experts.values() for d in e.dtype} == set(kinds)
    good("verify", at("mixed.pack"), "--against", at("mixed"))


def test_bits_of_bytes():
    """Experts of both FP8 types among others, whatever their bits; no SM bytes, and shares like any others."""
    kinds = ["F8_E4M3", "F8_E5M2", "BF16"]
    pick = lambda name: kinds[sum(name.encode()) % 3] if "experts" in name else "BF16"
    tens = tc.tensors(tc.CONFIG, seed=3, dtype=pick, bits=tc.any_bits)
    tc.write_checkpoint(at("bytes"), tc.CONFIG, tens)
    for codec in pr.CODECS:
        path = at("bytes." + codec)
        good(at("bytes"), path, "--shadow", "none", "--codec", codec)
        pack = pr.Pack(path)
        same_bits(pack, tens)
        assert pack.fingerprint() == pack.model["fingerprint"]
        assert {d for e in pack.experts.values() for d in e.dtype} == set(kinds)
        good("verify", path, "--against", at("bytes"))
    good("--share", "1/2", path, at("bytes.share"))
    good("verify", at("bytes.share"))


def entropy(counts):
    n = sum(counts.values())
    return -sum(c / n * math.log2(c / n) for c in counts.values())


def test_codecs():
    """Each codec through the reader: what is said of it, sizes, and one fingerprint."""
    cfg = dict(tc.CONFIG, hidden_size=256, intermediate_size=384, num_hidden_layers=1, num_local_experts=5)
    kinds = ["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"]
    tens = tc.tensors(cfg, seed=9, dtype=lambda name: kinds[int(name.split(".")[5])] if "experts" in name else "BF16")
    tc.write_checkpoint(at("kinds"), cfg, tens)
    fingerprints, bits = set(), {}
    for codec in pr.CODECS:
        path = at("kinds." + codec)
        good(at("kinds"), path, "--shadow", "none", "--codec", codec)
        pack, info = pr.Pack(path), json.loads(good("info", "--json", path).stdout)
        same_bits(pack, tens)
        good("verify", path, "--against", at("kinds"))
        assert pack.model["codec"] == info["codec"] == codec and info["schema_version"] == 3
        found = collections.Counter(c for e in pack.experts.values() for c in e.codecs)
        told = {(d["dtype"], c): n for d in info["expert_dtypes"] for c, n in d["chunks"].items() if n}
        other = {("planes", "F16"): "zstd", ("planes", "F8_E4M3"): "zstd", ("planes", "F8_E5M2"): "zstd",
                 ("lz4", "F8_E4M3"): "raw"}  # which has no repeats to find
        assert told == found == {(k, other.get((codec, k), codec)): 3 for k in kinds}, found
        text = good("info", path).stdout
        for d in info["expert_dtypes"]:
            bits[codec, d["dtype"]] = d["bits_per_weight"]
            assert "%s %d weights, %.2f bits each" % (d["dtype"], d["weights"], d["bits_per_weight"]) in " ".join(text.split())
        fingerprints.add(info["fingerprint"])
    assert len(fingerprints) == 1
    for kind, width in (("BF16", 2), ("F16", 2), ("F32", 4), ("F8_E4M3", 1), ("F8_E5M2", 1)):
        tops = collections.Counter()
        for name, (dtype, shape, raw) in tens.items():
            if "experts" in name and dtype == kind:
                tops.update(raw if width == 1 else ((raw[i] << 1 | raw[i - 1] >> 7) & 255
                                                    for i in range(width - 1, len(raw), width)))
        floor = 8 * (width - 1) + entropy(tops)
        assert bits["raw", kind] == 8 * width
        assert floor - 0.01 < bits["zstd", kind] < floor + 0.12, (kind, floor, bits)
        assert floor - 0.01 < bits["planes", kind] < floor + 0.2, (kind, floor, bits)
        assert floor - 0.01 < bits["lz4", kind] <= 8 * width - (0 if kind == "F8_E4M3" else 0.01), (kind, floor, bits)
    refused(at("kinds"), at("none"), "--codec", "lzma", says=["--codec", "planes"], status=2)
    refused("info", at("kinds.raw"), "--codec", "raw", says=["--codec belongs to packing"], status=2)


def change(path, of_model, of_header):
    """A pack as another version might have written it: fields changed, all sums made good."""
    model, data = json.loads(read(path, "model.json")), bytearray(read(path, "experts.bin"))
    of_model(model)
    for t in model["experts"]["table"]:
        head = data[t["offset"]:t["offset"] + 4096]
        of_header(head)
        head[8:16] = struct.pack("<Q", pr.xxh3(head[16:]))
        data[t["offset"]:t["offset"] + 4096] = head
        t["header_xxh3"] = "%016x" % pr.xxh3(head)
    write(data, path, "experts.bin")
    write(json.dumps(model).encode(), path, "model.json")
    sums = [hashlib.sha256(read(path, n)).hexdigest() + "  " + n + "\n" for n in pr.SMALL
            if os.path.exists(os.path.join(path, n))]
    write("".join(sums).encode(), path, "SHA256SUMS")


def put(at_, form, value):
    return lambda head: struct.pack_into(form, head, at_, value)


def test_other_schemas():
    """A pack of another version, as such a one is or in parts, is refused with the command that makes it anew, which does."""
    good(at("kinds"), at("whole"), "--shadow", "none", "--codec", "zstd")
    want, again = contents(at("whole")), "make it again: od-pack --force CHECKPOINT PACK"

    def older(schema):
        def of_model(model):
            model["schema_version"] = schema
            if schema == 1:
                del model["codec"]
        return of_model

    def header(schema):
        def of_header(head):
            struct.pack_into("<I", head, 16, schema)
            if schema < 3:
                head[70:72] = bytes(2)
        return of_header

    same = lambda _: None
    for schema in (1, 2, 5):
        for of_model, of_header, says in (
                (older(schema), header(schema), ["model.json", "schema_version", "expected 3 or 4"]),
                (older(schema), same, ["model.json", "schema_version", "expected 3 or 4"]),
                (same, header(schema), ["experts.bin", "expert (0, 0)", '"schema"', "expected 3"])):
            shutil.copytree(at("whole"), at("other"))
            change(at("other"), of_model, of_header)
            before = contents(at("other"))
            for args in (["info", at("other")], ["verify", at("other")], ["shadow", at("other"), "int8"],
                         ["--share", "1/2", at("other"), at("other.share")]):
                refused(*args, says=[*says, ", found %d" % schema, again])
            try:
                pr.Pack(at("other"))
                raise AssertionError("the reader takes it")
            except pr.Bad:
                pass
            assert contents(at("other")) == before and not os.path.exists(at("other.share"))
            good("--force", at("kinds"), at("other"), "--shadow", "none", "--codec", "zstd")
            assert contents(at("other")) == want
            shutil.rmtree(at("other"))


def test_newer_pack():
    """What this version does not know is named, and what to do."""
    again = "make it again"
    for of_model, of_header, says in (
            (lambda m: m.update(codec="rans"), lambda h: None, ["codec", "rans", "planes"]),
            (lambda m: None, put(192 + 10, "B", 4), ["expert (0, 0)", "shard 0", "codec 4", "0 to 3", again]),
            (lambda m: None, put(64, "B", 12), ["expert (0, 0)", "type 12", again]),
            (lambda m: None, put(70, "B", 2), ["expert (0, 0)", "n_mats", "expected 3, found 2"]),
            (lambda m: None, put(71, "B", 3), ["expert (0, 0)", "n_biases", "expected 0, found 3"]),
            (lambda m: None, put(192 + 9, "B", 1), ["sm_codec", "1"])):
        shutil.rmtree(at("new"), ignore_errors=True)
        shutil.copytree(at("kinds.planes"), at("new"))
        change(at("new"), of_model, of_header)
        refused("verify", at("new"), says=says)


def test_many_shards():
    """Matrices of several shards, the last one shorter; rows longer than a shard may be."""
    cfg = dict(tc.CONFIG, hidden_size=1100, head_dim=16, intermediate_size=1000, num_hidden_layers=1,
               num_local_experts=2, vocab_size=4)
    one = dict(cfg, hidden_size=2, intermediate_size=600000, num_local_experts=1, num_experts_per_tok=1, tie_word_embeddings=True)
    block = tc.finite_bits(random.Random(3), "BF16", 50000)
    bits = lambda rng, dtype, n: (block * (n // 50000 + 2))[(n % 997) * 2:][:2 * n]
    for name, c, shards in (("wide", cfg, 3 + 3 + 3), ("long", one, 3 + 3 + 2)):
        tens = tc.tensors(c, bits=bits)
        tc.write_checkpoint(at(name), c, tens)
        good(at(name), at(name + ".pack"), "--shadow", EVERY)
        pack = pr.Pack(at(name + ".pack"))
        same_bits(pack, tens)
        for precision in pr.PRECISIONS:
            pack.shadow(precision)
        good("verify", at(name + ".pack"), "--against", at(name))
        (n,) = struct.unpack_from("<I", pack.experts[0, 0].header, 28)
        assert n == shards, n
        shutil.rmtree(at(name + ".pack"))


def test_every_pattern_among_others():
    """All 65536 patterns in the midst of weights as they are: raw blocks and coded ones in one chunk of planes."""
    cfg = dict(tc.CONFIG, hidden_size=130, head_dim=16, intermediate_size=17000, num_hidden_layers=1,
               num_local_experts=1, num_experts_per_tok=1, vocab_size=4)
    usual = tc.finite_bits(random.Random(4), "BF16", 50000)
    every = struct.pack("<65536H", *(k * 40503 & 65535 for k in range(65536)))

    def bits(rng, dtype, n):
        raw = (usual * (n // 50000 + 2))[n % 997 * 2:][:2 * n]
        return raw if n < 300000 else raw[:2 * 16000] + every + raw[2 * 16000 + len(every):]

    kinds, block = collections.Counter(), pr.planes_block

    def counted(data, at_, *args):
        kinds[struct.unpack_from("<H", data, at_ + 6)[0]] += 1
        return block(data, at_, *args)

    tens = tc.tensors(cfg, bits=bits)
    tc.write_checkpoint(at("every"), cfg, tens)
    good(at("every"), at("every.pack"), "--shadow", "none")
    pr.planes_block = counted
    try:
        same_bits(pr.Pack(at("every.pack")), tens)
    finally:
        pr.planes_block = block
    assert kinds[0] > 100 and kinds[1] > 9, kinds
    good("verify", at("every.pack"), "--against", at("every"))
    shutil.rmtree(at("every.pack"))


# ---- shadows ----

f32s = lambda *v: struct.pack("<%df" % len(v), *v)


def bits(x):
    return struct.unpack("<I", f32s(x))[0]


def hard_rows(n, huge):
    """Rows of n f32 weights on which a quantiser could stumble; huge: beyond the range of FP16."""
    rng = random.Random(12)
    noise = lambda scale=0.02: [pr.f32(rng.gauss(0, scale)) for _ in range(n)]
    fill = lambda *v: (list(v) * n)[:n]
    halves = [(a + b) / 2 for a, b in zip(pr.NF4, pr.NF4[1:])]
    beside = lambda x: [struct.unpack("<f", struct.pack("<I", bits(x) + d))[0] for d in (-1, 0, 1)]
    near = [y for x in halves if x for y in beside(x)]  # and their neighbours: 0.0... is none of them
    assert sum(pr.f32(x) == x for x in halves) > 3  # ties do occur
    rows = [fill(0.0), fill(-0.0), fill(0.0, -0.0, 0.0), fill(0.7), fill(-1e-3), fill(2.0 ** -149), fill(-(2.0 ** -149), 0.0),
            fill(2.0 ** -126, -(2.0 ** -130)), fill(100 * 2.0 ** -149, 3 * 2.0 ** -149), [1.0] + fill(*near)[1:],
            [-0.25] + [x / 4 for x in fill(*near)[1:]], [127.0] + fill(*[k + 0.5 for k in range(-127, 127)])[1:],
            [1.0] + fill(-0.0)[1:], fill(*[0.0] * 64, 1.0), noise(1e-30), noise(1e-42), noise(100.0)]
    # Halves of f16's last bit, at its subnormals, its largest, and where subnormals begin.
    rows.append(fill(*[(k + 0.5) * 2.0 ** -24 for k in range(6)], 2.0 ** -25, pr.f32(2.0 ** -25 * 1.0000001),
                     2.0 ** -14 - 2.0 ** -25, 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, 65504.0, -65519.99, 2.0 ** -26))
    if huge:
        rows += [fill(3.4028234663852886e38, -1.0, 1e38), fill(65520.0), fill(3.3895313892515355e38), noise(1e37)]
    return rows + [noise() for _ in range(4)]


def quant_tensors(huge):
    pick = lambda name: ["F32", "F16", "BF16"][sum(name.encode()) % 3]
    tens = tc.tensors(QUANT, seed=4, dtype=pick)
    for name, n in ((SPEC.expert_name(0, 0, "gate"), 136), (SPEC.expert_name(0, 1, "down"), 200),
                    (SPEC.dense_name("attn_o", 0), 136)):
        shape, rows = tens[name][1], hard_rows(n, huge)
        raw = f32s(*[w for row in rows for w in row]) + tc.finite_bits(random.Random(9), "F32", n * (shape[0] - len(rows)))
        tens[name] = ("F32", shape, raw)
    name = SPEC.expert_name(0, 1, "gate")  # the hard ones once more, cut to 16 bits
    hard = tens[SPEC.expert_name(0, 0, "gate")][2]
    tens[name] = ("BF16", [200, 136], b"".join(hard[i + 2:i + 4] for i in range(0, len(hard), 4)))
    for mat, dtype in (("up", "F8_E4M3"), ("down", "F8_E5M2")):
        name = SPEC.expert_name(0, 0, mat)
        tens[name] = (dtype, tens[name][1], tc.finite_bits(random.Random(14), dtype, 200 * 136))
    return tens


def check_error(record, precision, rows):
    """However it is done: no weight is further off than half of the widest step, of FP16's last bit, allow."""
    for r, row in enumerate(rows):
        size = len(row) if precision == "int8" else 64
        got = record.weights(r)
        for at in range(0, len(row), size):
            most = max(map(abs, row[at:at + size]))
            allowed = {"int8": most / 253, "fp16": most / 2048}.get(precision, most * 0.153)
            for w, g in zip(row[at:at + size], got[at:at + size]):
                assert abs(w - g) <= allowed + 2.0 ** -25 * (precision == "fp16") + 2.0 ** -142, (r, w, g)


def test_shadow_bits():
    """Each precision against its definition; FP16 on weights that it can express."""
    for kind, huge in (("huge", True), ("quant", False)):
        tens = quant_tensors(huge)
        tc.write_checkpoint(at(kind), QUANT, tens)
    p = refused(at("huge"), at("huge.pack"), "--shadow", EVERY, says=["fp16", "row 18", "65504", "int8 and nf4 can", "is complete",
                                                                   "without these shadows: fp16;", "od-pack shadow " + at("huge.pack") + " fp16"])
    assert sum(n in p.stderr for n in tens) == 1, p.stderr
    good(at("quant"), at("quant.pack"), "--shadow", "fp16,nf4")
    for kind, precisions in (("huge", ["int8", "nf4"]), ("quant", ["fp16", "nf4"])):
        pack = pr.Pack(at(kind + ".pack"))
        for precision in precisions:
            for name, record in pack.shadow(precision).items():
                dtype, (n_out, n_in), raw = pack.tensors[name]
                w = pr.decode(dtype, raw)
                rows = [w[r * n_in:(r + 1) * n_in] for r in range(n_out)]
                check_record(record, precision, rows)
                check_error(record, precision, rows)
        good("verify", at(kind + ".pack"), "--against", at(kind))


def test_fingerprint():
    pack = pr.Pack(at("quant.pack"))
    assert pack.model["fingerprint"] == pack.fingerprint()
    good(at("quant"), at("quant.none"), "--shadow", "none")
    assert pr.Pack(at("quant.none")).model["fingerprint"] == pack.fingerprint()
    seen = {pack.fingerprint()}
    changed = tc.tensors(QUANT, seed=4)
    for name, cfg, tokenizer in (("eps", dict(QUANT, rms_norm_eps=2e-5), True), ("tok", QUANT, False),
                                 ("bits", QUANT, True)):
        tens = pr.Pack(at("quant.pack")).tensors if name != "bits" else changed
        tc.write_checkpoint(at("fp-" + name), cfg, tens, tokenizer=tokenizer)
        p = good(at("fp-" + name), at("fp-" + name + ".pack"), "--shadow", "none")
        assert ("no tokenizer.json" in p.stderr) == (not tokenizer)
        other = pr.Pack(at("fp-" + name + ".pack"))
        assert other.model["fingerprint"] == other.fingerprint()
        seen.add(other.fingerprint())
    assert len(seen) == 4


def test_tokeniser_files():
    """A pack has one tokeniser: tokenizer.json, else tiktoken.model, else tokenizer.model."""
    tens = pr.Pack(at("quant.pack")).tensors
    files = {"tokenizer.model": "ranked_llama/tokenizer.model", "tiktoken.model": "ranked_kimi/tiktoken.model",
             "tokenizer.json": "tok_gpt2.json"}
    seen, expected = set(), []
    tc.write_checkpoint(at("tokeniser"), QUANT, tens, tokenizer=False)
    for name, golden in files.items():  # each one counts more than those before
        expected = [name]
        shutil.copy(os.path.join("tests/golden/tokenizer", golden), at("tokeniser", name))
        if name == "tiktoken.model":
            shutil.copy("tests/golden/tokenizer/ranked_kimi/tokenizer_config.json", at("tokeniser"))
        p = good(at("tokeniser"), at("tokeniser.pack-" + name), "--shadow", "none")
        assert "no tokenizer.json" not in p.stderr
        assert [f for f in files if os.path.exists(at("tokeniser.pack-" + name, f))] == expected
        good("verify", at("tokeniser.pack-" + name), "--against", at("tokeniser"))
        pack = pr.Pack(at("tokeniser.pack-" + name))
        assert pack.model["fingerprint"] == pack.fingerprint()
        seen.add(pack.fingerprint())
    assert len(seen) == 3
    os.remove(at("tokeniser", "tokenizer.json"))
    with open(at("tokeniser", "tiktoken.model"), "a") as f:
        f.write("!!\n")
    refused(at("tokeniser"), at("tokeniser.bad"), says=["tiktoken.model", "BASE64 RANK"])


def test_same_bytes_every_time():
    make_det()
    tens = tc.tensors(tc.CONFIG, seed=5)
    tc.write_checkpoint(at("det3"), tc.CONFIG, tens, shards=3)
    tc.write_checkpoint(at("det4"), tc.CONFIG, tens, shards=4, index=False)
    want = contents(at("det.pack"))
    assert sorted(want) == sorted(["SHA256SUMS", "config.json", "generation_config.json", "model.json", "tokenizer.json",
                                   *BIG_FILES])
    for source, threads in (("det", "4"), ("det3", "2"), ("det4", "3")):
        good(at(source), at("det.again"), "--threads", threads)
        assert contents(at("det.again")) == want, source
        shutil.rmtree(at("det.again"))
    good(at("det"), at("det.none"), "--shadow", "none")
    assert set(contents(at("det.none"))) == set(want) - {"shadow-int8.bin"}


def test_index_counts():
    """A publication that uses shards of another: they also have tensors that the index has elsewhere, with other bits, or not at
    all; and the index has one that no file has."""
    tens, stale = tc.tensors(tc.CONFIG, seed=20), tc.tensors(tc.CONFIG, seed=21)
    tc.write_checkpoint(at("index"), tc.CONFIG, tens, shards=3)
    index = os.path.join(at("index"), "model.safetensors.index.json")
    with open(index) as f:
        d = json.load(f)
    for file in set(d["weight_map"].values()):
        part = {n: t for n, t in tens.items() if d["weight_map"][n] == file}
        more = {n: stale[n] for n in list(tens)[::5] if n not in part}
        tc.write_safetensors(os.path.join(at("index"), file),
                             {**more, **part, file + ".weight_scale_inv": ("F32", [1], b"\0\0\x80\x3f")})
    d["weight_map"]["gone.weight_scale_inv"] = file
    with open(index, "w") as f:
        json.dump(dict(d, metadata={"total_size": 1.5}), f)
    good(at("index"), at("index.pack"), "--shadow", "none")
    assert pr.Pack(at("index.pack")).tensors == tens
    good("verify", at("index.pack"), "--against", at("index"))


def test_tied_head_and_ignorable():
    cfg = dict(tc.CONFIG, tie_word_embeddings=True)
    tens = tc.tensors(cfg, seed=6)
    extra = dict(tens, **{"model.layers.0.self_attn.rotary_emb.inv_freq": ("F64", [4], bytes(range(32)))})
    extra["lm_head.weight"] = tens["model.embed_tokens.weight"]  # published by some, read by nobody
    tc.write_checkpoint(at("tied"), cfg, extra)
    good(at("tied"), at("tied.pack"))
    same_bits(pr.Pack(at("tied.pack")), tens)
    good("verify", at("tied.pack"), "--against", at("tied"))


def test_talebook():
    """The demonstration model: its experts as small as they should be."""
    good(TALEBOOK, at("talebook.zstd"), "--codec", "zstd", "--shadow", "none")
    assert json.loads(good("info", "--json", at("talebook.zstd")).stdout)["bits_per_weight"] <= 10.65
    shutil.rmtree(at("talebook.zstd"))
    good(TALEBOOK, at("talebook.pack"), "--codec", "planes")
    info = json.loads(good("info", "--json", at("talebook.pack")).stdout)
    pack = pr.Pack(at("talebook.pack"))
    stored = sum(e.stored for e in pack.experts.values())
    weights = sum(len(m) // 2 for e in pack.experts.values() for m in e.mats)
    assert info["expert_stored_bytes"] == stored and info["expert_weights"] == weights == 18874368
    assert 8 * stored / weights <= 10.72, stored / weights
    assert abs(info["bits_per_weight"] - 8 * stored / weights) < 1e-9
    assert info["fingerprint"] == pack.fingerprint() and [x["precision"] for x in info["shadows"]] == ["int8"]
    assert (info["layers"], info["experts"], info["top_k"], info["expert_dtype"]) == (12, 8, 2, "BF16")
    text = good("info", at("talebook.pack")).stdout
    assert info["fingerprint"] in text and "%.2f bits a weight" % info["bits_per_weight"] in text
    raw = read(TALEBOOK, "model.safetensors")
    (n,) = struct.unpack_from("<Q", raw)
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            assert pack.tensors[name] == (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end]), name
    good("verify", at("talebook.pack"), "--against", TALEBOOK)
    shutil.rmtree(at("talebook.pack"))


# ---- making one: interruptions, what is in the way ----

def test_resume_after_full_disk():
    want = contents(at("det.pack"))
    sizes = {n: len(want[n]) for n in BIG_FILES}
    seen = set()
    for nbytes in (1000, sizes["dense.bin"] - 100, sizes["dense.bin"] + 1000, sizes["experts.bin"] // 2,
                   sizes["experts.bin"] - 4096):
        p = refused(at("det"), at("full"), says=["error", "full.partial", "File too large"], preexec=limit(nbytes))
        assert not os.path.exists(at("full"))
        assert nbytes == 1000 or "kept in " + at("full.partial") + ";" in p.stderr, p.stderr
        p = good(at("det"), at("full"))
        seen.add(p.stderr.split("resuming: ")[1].split(" of ")[0] if "resuming" in p.stderr else None)
        assert contents(at("full")) == want, nbytes
        assert not os.path.exists(at("full.partial"))
        shutil.rmtree(at("full"))
    assert seen == {"0", "4", "5"}, seen


def test_killed_at_any_moment():
    tens = tc.tensors(dict(tc.CONFIG, num_hidden_layers=8), seed=7)
    cfg = dict(tc.CONFIG, num_hidden_layers=8)
    tc.write_checkpoint(at("kill"), cfg, tens)
    args = [at("kill"), at("kill.pack"), "--shadow", "int8,nf4"]
    good(at("kill"), at("kill.whole"), *args[2:])
    want, kills = contents(at("kill.whole")), 0
    for step in range(20):
        name = "experts.bin" if step < 12 else "shadow-int8.bin" if step < 16 else "shadow-nf4.bin"
        stop = len(want[name]) * step // 10 if step < 12 else len(want[name]) * (step % 4) // 4
        p = subprocess.Popen([OD_PACK, *args], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        watched = at("kill.pack.partial", name if step < 12 else name + ".tmp")
        while p.poll() is None:
            try:
                if os.stat(watched).st_size >= stop:
                    p.kill()
                    break
            except FileNotFoundError:
                pass
        status = p.wait()
        kills += status == -signal.SIGKILL
        if os.path.exists(at("kill.pack")):  # complete or not at all
            good("verify", at("kill.pack"))
        else:
            good(*args)
        assert contents(at("kill.pack")) == want, step
        shutil.rmtree(at("kill.pack"))
        shutil.rmtree(at("kill.pack.partial"), ignore_errors=True)
    assert kills > 0


def test_damaged_partial():
    want = contents(at("det.pack"))
    pack = pr.Pack(at("det.pack"))
    table = pack.model["experts"]["table"]
    for where in (table[2]["offset"] + 20, table[2]["offset"] + 4096 + 5, table[3]["offset"] - 1):
        make_partial("damaged")
        path = at("damaged.partial", "experts.bin")
        data = bytearray(read(path))
        data[where] ^= 4
        write(data, path)
        write(b"rubbish", at("damaged.partial", "model.json"))
        p = good(at("det"), at("damaged"))
        assert "resuming: 2 of 6 experts" in p.stderr, p.stderr
        assert contents(at("damaged")) == want
        shutil.rmtree(at("damaged"))


def test_partial_of_another_checkpoint():
    tc.write_checkpoint(at("other"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=8))
    make_partial("switch")
    p = good(at("other"), at("switch"))
    assert "starting over" in p.stderr and "resuming" not in p.stderr
    good("verify", at("switch"), "--against", at("other"))
    refused("verify", at("switch"), "--against", at("det"), says=["differs"])
    make_partial("recode")
    p = good(at("det"), at("recode"), "--codec", "raw")
    assert "coded otherwise: starting over" in p.stderr and json.loads(read(at("recode"), "model.json"))["codec"] == "raw"
    make_partial("older")  # by an od-pack whose schema is another
    note = read(at("older.partial"), "source.txt")
    assert note.startswith(b"od-pack partial, schema 3,"), note
    write(note.replace(b"schema 3", b"schema 2", 1), at("older.partial"), "source.txt")
    p = good(at("det"), at("older"))
    assert "starting over" in p.stderr and contents(at("older")) == contents(at("det.pack"))
    # The same file, written again: nothing says that it has the same bytes.
    shutil.copytree(at("det"), at("touched"))
    refused(at("touched"), at("touch.pack"), preexec=limit(40000))
    os.utime(at("touched", "model.safetensors"), ns=(1, 1))
    assert "starting over" in good(at("touched"), at("touch.pack")).stderr


def test_force():
    good(at("det"), at("force.pack"))
    refused(at("other"), at("force.pack"), says=["force.pack exists", "--force"])
    good("verify", at("force.pack"), "--against", at("det"))
    good(at("other"), at("force.pack") + "/", "--force")
    good("verify", at("force.pack"), "--against", at("other"))
    assert not os.path.exists(at("force.pack.partial"))
    os.makedirs(at("home", "precious"))
    refused(at("det"), at("home"), "--force", says=["is not a pack"])
    assert os.path.isdir(at("home", "precious"))
    os.makedirs(at("empty"))
    good(at("det"), at("empty"))


def test_links():
    """A link to a folder on a larger disk: everything happens there, the link stays."""
    os.makedirs(at("disk"))
    os.makedirs(at("small"))
    os.symlink("../disk/pack/", at("small", "link"))
    refused(at("det"), at("small", "link"), says=["kept in " + at("disk", "pack.partial") + ";"], preexec=limit(50000))
    assert os.listdir(at("small")) == ["link"]
    good(at("det"), at("small", "link") + "/")  # of no folder yet
    good("verify", at("disk", "pack"), "--against", at("det"))
    refused(at("other"), at("small", "link"), says=["exists already", "--force"])
    good("--force", at("other"), at("small", "link"))
    good("verify", at("disk", "pack"), "--against", at("other"))
    os.symlink(at("small", "link"), at("small", "again"))
    good("--force", at("det"), at("small", "again"))
    good("verify", at("small", "again"), "--against", at("det"))
    good("--share", "1/2", at("small", "link"), at("disk", "share"))
    os.symlink(at("disk", "shared"), at("small", "share"))
    good("--share", "1/2", at("small", "link"), at("small", "share"))
    assert contents(at("disk", "shared")) == contents(at("disk", "share"))
    assert sorted(os.listdir(at("disk"))) == ["pack", "share", "shared"]
    os.makedirs(at("small", "here"))
    p = subprocess.run([OD_PACK, at("det"), "."], cwd=at("small", "here"), capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    good("verify", at("small", "here"), "--against", at("det"))


def test_links_refused():
    os.makedirs(at("wrong", "home", "precious"))
    os.symlink("nowhere/pack", at("wrong", "unmounted"))
    os.symlink("b", at("wrong", "a"))
    os.symlink("a", at("wrong", "b"))
    os.symlink("home", at("wrong", "link"))
    before = sorted(os.listdir(at("wrong")))
    for name, says in [("unmounted", "is a symbolic link to " + at("wrong", "nowhere/pack")), ("a", "too many symbolic links"),
                       ("link", "is not a pack")]:
        refused("--force", at("det"), at("wrong", name), says=[says])
    refused("--share", "1/2", at("det.pack"), at("wrong", "unmounted"), says=["is a symbolic link to"])
    assert sorted(os.listdir(at("wrong"))) == before and os.listdir(at("wrong", "home")) == ["precious"]


def test_mount_point():
    """Known before all is packed: nothing can be renamed to the root of a file system."""
    os.makedirs(at("mount", "disk"))
    os.symlink("disk", at("mount", "link"))
    unshare = lambda *command: subprocess.run(["unshare", "-rm", *command], capture_output=True, text=True)
    mount = 'mount -t tmpfs none "$1" || exit 77; shift; exec "$@"'
    if shutil.which("unshare") is None or unshare("sh", "-c", mount, "sh", at("mount", "disk"), "true").returncode != 0:
        raise Skip("no mounts in a name space of its own here")
    p = unshare("sh", "-c", mount, "sh", at("mount", "disk"), OD_PACK, at("det"), at("mount", "link"))
    assert p.returncode == 1 and "is the root of a file system" in p.stderr and "kept" not in p.stderr, p.stderr
    assert sorted(os.listdir(at("mount"))) == ["disk", "link"]


def test_one_writer():
    os.makedirs(at("busy.partial"))
    fd = os.open(at("busy.partial"), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    write(b"theirs", at("busy.partial"), "dense.bin")
    assert "kept" not in refused(at("det"), at("busy"), says=["another od-pack"]).stderr
    assert contents(at("busy.partial")) == {"dense.bin": b"theirs"}
    os.close(fd)
    good(at("det"), at("busy"))


def test_shadow_left_over():
    """A partial made with shadows, finished with others; one that is whole is not made again."""
    for args, want in ((["--shadow", "none"], "det.none"), ([], "det.pack")):
        make_partial("less")
        shutil.copy(at("det.pack", "shadow-int8.bin"), at("less.partial"))
        shutil.copy(at("quant.pack", "shadow-fp16.bin"), at("less.partial"))
        write(b"half", at("less.partial"), "shadow-nf4.bin.tmp")
        p = good(at("det"), at("less"), *args)
        assert ("shadow-int8.bin is there already" in p.stderr) == (args == []), p.stderr
        assert contents(at("less")) == contents(at(want))
        shutil.rmtree(at("less"))


def inodes(path):
    return {n: os.stat(os.path.join(path, n)).st_ino for n in os.listdir(path)}


def test_add_shadows():
    """To a finished pack, of which nothing else changes, to the bytes that packing with them gives."""
    good(at("det"), at("add.pack"), "--shadow", "none")
    good(at("det"), at("every.pack"), "--shadow", EVERY)
    before, whole = inodes(at("add.pack")), contents(at("every.pack"))
    p = good("shadow", at("add.pack"), "nf4,fp16")
    after = inodes(at("add.pack"))
    assert {n: i for n, i in after.items() if n in before} == before
    assert set(after) - set(before) == {"shadow-nf4.bin", "shadow-fp16.bin"}
    good("shadow", at("add.pack"), EVERY, "--threads", "1")
    assert {n: i for n, i in inodes(at("add.pack")).items() if n in after} == after  # those stay
    assert contents(at("add.pack")) == whole
    p = good("shadow", at("add.pack"), "nf4,int8")
    assert p.stderr.count("is there already") == 2 and f"Now in {at('add.pack')}: int8,nf4." in p.stdout
    good("shadow", "--force", at("add.pack"), "nf4")
    again = inodes(at("add.pack"))
    assert again["shadow-nf4.bin"] != after["shadow-nf4.bin"] and again["shadow-fp16.bin"] == after["shadow-fp16.bin"]
    assert contents(at("add.pack")) == whole
    good("verify", at("add.pack"))
    shadows = {x["precision"]: x for x in json.loads(good("info", "--json", at("add.pack")).stdout)["shadows"]}
    pack = pr.Pack(at("add.pack"))
    n = sum(pack.tensors[name][1][0] * pack.tensors[name][1][1] for name in pack.shadow_names())
    text = good("info", at("add.pack")).stdout
    assert set(shadows) == set(pr.PRECISIONS)
    for precision, x in shadows.items():
        size = os.path.getsize(at("add.pack", "shadow-%s.bin" % precision))
        assert (x["file"], x["bytes"]) == ("shadow-%s.bin" % precision, size) and abs(x["bits_per_weight"] - 8 * size / n) < 1e-9
        assert precision + ": " + x["file"] in text and "%.2f bits a weight" % (8 * size / n) in text
    os.remove(at("add.pack", "shadow-fp16.bin"))  # the others do not miss it
    good("verify", at("add.pack"))
    fd = os.open(at("add.pack"), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    refused("shadow", at("add.pack"), "fp16", says=["another od-pack"])
    os.close(fd)
    refused("shadow", at("nowhere"), "int8", says=["no pack at"])
    refused("shadow", TALEBOOK, "int8", says=["is a checkpoint, not a pack"])
    assert "shadow        none" in good("info", at("det.none")).stdout


def test_shadow_of_before():
    """A file of a precision that there is no more: said, and otherwise as if it were not there."""
    good(at("det"), at("old.pack"), "--shadow", "int8")
    for gone in "int8-g64", "nf4-dq":
        write(b"ODSHADOW", at("old.pack"), "shadow-%s.bin" % gone)
        refused("shadow", at("old.pack"), gone, status=2, says=["some of int8, fp16, nf4 with", 'found "%s"' % gone])
    for command in "info", "verify":
        p = good(command, at("old.pack"))
        for gone in "int8-g64", "nf4-dq":
            assert "shadow-%s.bin is of a precision that this version does not have" % gone in p.stderr, p.stderr
    assert [x["precision"] for x in json.loads(good("info", "--json", at("old.pack")).stdout)["shadows"]] == ["int8"]
    good("shadow", at("old.pack"), "nf4")
    good("--force", at("det"), at("old.pack"), "--shadow", "int8")
    assert contents(at("old.pack")) == contents(at("det.pack"))


def test_add_interrupted():
    """Killed: the pack is as before, and the next run needs no help. Full disk: the pack is as before, and nothing is left."""
    want = contents(at("kill.whole"))
    bare = {n: d for n, d in want.items() if not n.startswith("shadow")}
    shutil.copytree(at("kill.whole"), at("stop.pack"))
    for name in set(want) - set(bare):
        os.remove(at("stop.pack", name))
    kills = 0
    for step in range(8):
        name = "shadow-int8.bin" if step < 4 else "shadow-nf4.bin"
        p = subprocess.Popen([OD_PACK, "shadow", at("stop.pack"), "int8,nf4"], stderr=subprocess.DEVNULL)
        while p.poll() is None:
            try:
                if os.stat(at("stop.pack", name + ".tmp")).st_size >= len(want[name]) * (step % 4) // 4:
                    p.kill()
                    break
            except FileNotFoundError:
                pass
        kills += p.wait() == -signal.SIGKILL
        now = contents(at("stop.pack"))
        assert {n: d for n, d in now.items() if not n.endswith(".tmp")}.items() <= want.items()
        good("verify", at("stop.pack"))
        good("shadow", at("stop.pack"), "int8,nf4")
        assert contents(at("stop.pack")) == want
        for n in set(want) - set(bare):
            os.remove(at("stop.pack", n))
    write(b"of a precision that nobody asks for", at("stop.pack"), "shadow-fp16.bin.tmp")
    size = len(want["shadow-nf4.bin"])
    for nbytes in (100, 5000, size - 4096, size - 1):
        refused("shadow", at("stop.pack"), "nf4", preexec=limit(nbytes),
                says=["no nf4 shadow", "File too large", "is complete", "od-pack shadow " + at("stop.pack") + " nf4"])
        assert contents(at("stop.pack")) == bare
    fp16 = len(read(at("quant.pack"), "shadow-fp16.bin"))  # what is smaller still fits
    refused("shadow", at("quant.none"), "fp16,nf4", preexec=limit(fp16 - 1), says=["without these shadows: fp16;"])
    assert read(at("quant.none"), "shadow-nf4.bin") == read(at("quant.pack"), "shadow-nf4.bin")
    good("verify", at("quant.none"))


def test_full_disk_in_the_shadow():
    """While packing: the pack is complete without it."""
    want = contents(at("det.none"))
    refused(at("det"), at("nodisk"), preexec=limit(len(read(at("det.pack"), "shadow-int8.bin")) - 1),
            says=["no int8 shadow", "is complete", "od-pack shadow " + at("nodisk") + " int8"])
    assert contents(at("nodisk")) == want and not os.path.exists(at("nodisk.partial"))
    good("shadow", at("nodisk"), "int8")
    assert contents(at("nodisk")) == contents(at("det.pack"))


def test_memory():
    """Far below 512 MiB, although the model is larger than what is allowed here."""
    cfg = dict(tc.CONFIG, hidden_size=1024, intermediate_size=16384, num_hidden_layers=1, num_local_experts=2)
    tens, at_ = {}, 0
    head = {}
    for name, shape in Model(cfg).tensors():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at_, at_ + size]}
        at_ += size
    tc.write_small(at("large"), cfg)
    tc.write_safetensors(at("large", "model.safetensors"), {}, head)
    os.truncate(at("large", "model.safetensors"), os.path.getsize(at("large", "model.safetensors")) + at_)
    assert at_ > 380 << 20
    script = ("import resource, subprocess, sys; rc = subprocess.call(sys.argv[1:]); "
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(rc)")
    for args in ([at("large"), at("large.pack")], ["shadow", at("large.pack"), "nf4,fp16"], ["verify", at("large.pack")]):
        p = subprocess.run([sys.executable, "-c", script, OD_PACK, *args, "--threads", "4"], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        kib = int(p.stdout.split()[-1])
        # Sanitizers keep freed memory and shadow it; the ceiling is measured without them.
        assert kib < 256 << 10 or "-" in os.path.basename(os.environ.get("B", "build")), kib
    shutil.rmtree(at("large"))
    shutil.rmtree(at("large.pack"))


run_tests(globals())
