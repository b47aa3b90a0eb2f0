#!/usr/bin/env python3
"""od-bench synth, read back without its code: layout, statistics, determinism, refusals. Standard library only."""
import bisect
import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import model_config
import pack_reader as pr
import tap_tests

BENCH = os.path.join(os.environ.get("B", "build"), "bin", "od-bench")
TMP = tempfile.mkdtemp(prefix="od-synth-")
MASK = (1 << 64) - 1
TINY = dict(L=4, H=64, I=128, E=8, A=4, KV=2, D=16, V=512)


def synth(name, *args, ok=True):
    path = os.path.join(TMP, name)
    p = subprocess.run([BENCH, "synth", path, *args], capture_output=True, text=True)
    assert (p.returncode == 0) == ok, p.stderr
    return path if ok else p


def read_safetensors(path):
    """name -> (dtype, shape, bytes); checks that the tensors cover the file without gaps."""
    with open(path, "rb") as f:
        raw = f.read()
    (n,) = struct.unpack("<Q", raw[:8])
    assert n % 8 == 0 and raw[8] == ord("{")
    header = json.loads(raw[8:8 + n])
    assert header.pop("__metadata__")["format"] == "pt"
    at, out = 0, {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        assert begin == at, name
        width = pr.WIDTH.get(t["dtype"], 1)  # U8
        assert end - begin == width * math.prod(t["shape"]), name
        out[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])
        at = end
    assert 8 + n + at == len(raw)
    return out


def read_checkpoint(path):
    single = os.path.join(path, "model.safetensors")
    if os.path.exists(single):
        return read_safetensors(single)
    with open(single + ".index.json") as f:
        index = json.load(f)
    out = {}
    for file in sorted(set(index["weight_map"].values())):
        tensors = read_safetensors(os.path.join(path, file))
        assert set(tensors) == {n for n, f in index["weight_map"].items() if f == file}
        out.update(tensors)
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in out.values())
    return out


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def widen(tensor):
    dtype, _, raw = tensor
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
    return list(struct.unpack(f"<{len(raw) // (2 if dtype == 'F16' else 4)}{'e' if dtype == 'F16' else 'f'}", raw))


def to_bf16(x):
    (u,) = struct.unpack("<I", struct.pack("<f", x))
    return struct.pack("<H", (u + 0x7FFF + (u >> 16 & 1)) >> 16)


def expected_shapes(c, tied=False):
    s = {"model.embed_tokens.weight": [c["V"], c["H"]], "model.norm.weight": [c["H"]]}
    if not tied:
        s["lm_head.weight"] = [c["V"], c["H"]]
    for l in range(c["L"]):
        p = f"model.layers.{l}."
        s[p + "input_layernorm.weight"] = s[p + "post_attention_layernorm.weight"] = [c["H"]]
        s[p + "self_attn.q_proj.weight"] = [c["A"] * c["D"], c["H"]]
        s[p + "self_attn.k_proj.weight"] = s[p + "self_attn.v_proj.weight"] = [c["KV"] * c["D"], c["H"]]
        s[p + "self_attn.o_proj.weight"] = [c["H"], c["A"] * c["D"]]
        s[p + "block_sparse_moe.gate.weight"] = [c["E"], c["H"]]
        for e in range(c["E"]):
            q = p + f"block_sparse_moe.experts.{e}."
            s[q + "w1.weight"] = s[q + "w3.weight"] = [c["I"], c["H"]]
            s[q + "w2.weight"] = [c["H"], c["I"]]
    return s


def exponent_entropy(raw):
    count = [0] * 256
    for i in range(0, len(raw), 2):
        count[(raw[i + 1] & 0x7F) << 1 | raw[i] >> 7] += 1
    n = len(raw) // 2
    return -sum(k / n * math.log2(k / n) for k in count if k)


class Splitmix:
    """The published generator: Steele, Lea, Flood 2014."""
    def __init__(self, state):
        self.state = state & MASK

    @staticmethod
    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return self.mix(self.state)

    def bell(self):
        a, b = self.next(), self.next()
        return sum(x >> s & 0xFFFF for x in (a, b) for s in (0, 16, 32, 48)) - 262140


def remake(name, shape, std, seed):
    """A matrix as synth_weights.h says, in single steps of IEEE binary32."""
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001B3 & MASK
    golden = 0x9E3779B97F4A7C15
    tensor = Splitmix.mix(Splitmix.mix((seed + golden) & MASK) ^ h)
    columns, gain, out = Splitmix(~tensor), [], []
    for _ in range(shape[1]):
        x = columns.next()
        gain.append(2 + (x >> 32) % 3 if x % 256 == 0 else 1)
    per_sigma = f32(53510.92)
    spread, sigma = f32(f32(0.2) / per_sigma), f32(f32(std) / per_sigma)
    for r in range(shape[0]):
        g = Splitmix(Splitmix.mix((tensor + r * golden) & MASK))
        scale = f32(sigma * f32(1 + f32(g.bell() * spread)))
        out += [to_bf16(f32(f32(g.bell() * scale) * gain[c])) for c in range(shape[1])]
    return b"".join(out)


def test_names_shapes_and_formats():
    with open(os.path.join(tiny, "config.json")) as f:
        c = json.load(f)
    assert c["architectures"] == ["MixtralForCausalLM"] and c["model_type"] == "mixtral"
    found = [c[k] for k in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_local_experts",
                            "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")]
    assert found == list(TINY.values()) and c["num_experts_per_tok"] == 2
    assert c["sliding_window"] is None and c["torch_dtype"] == "bfloat16" and c["rms_norm_eps"] == 1e-5
    assert {n: t[1] for n, t in weights.items()} == expected_shapes(TINY)
    assert {t[0] for t in weights.values()} == {"BF16"}


def test_weights_look_trained():
    pooled = b"".join(t[2] for n, t in weights.items() if ".experts." in n)
    assert 2.5 < exponent_entropy(pooled) < 2.7, exponent_entropy(pooled)
    for name, t in weights.items():
        x = widen(t)
        mean = sum(x) / len(x)
        std = math.sqrt(sum(v * v for v in x) / len(x) - mean * mean)
        assert len(set(x)) > len(x) / 50 and all(map(math.isfinite, x)), name
        if "norm" in name:
            assert 0.9 < mean < 1.1 and 0.05 < std < 0.15 and min(x) > 0.3, name
        else:
            assert abs(mean) < 5 * std / math.sqrt(len(x)) and 0.01 < std < 0.7, name
        if ".experts." in name:
            assert 2.4 < exponent_entropy(t[2]) < 2.8, (name, exponent_entropy(t[2]))


def test_the_generator_is_the_documented_one():
    for name, std in (("model.layers.2.block_sparse_moe.experts.5.w1.weight", 1 / 8),
                      ("model.layers.0.block_sparse_moe.gate.weight", 1.5 / 8), ("lm_head.weight", 2.5 / 8)):
        shape = weights[name][1]
        rows = min(shape[0], 64)
        assert remake(name, [rows, shape[1]], std, 1) == weights[name][2][:rows * shape[1] * 2], name


def digest(path):
    h = hashlib.sha256()
    for name in sorted(os.listdir(path)):
        with open(os.path.join(path, name), "rb") as f:
            h.update(name.encode() + f.read())
    return h.hexdigest()


def test_seed_decides_every_byte():
    again = synth("again", "--preset", "tiny", "--seed", "1")
    other = synth("other", "--preset", "tiny", "--seed", "2")
    assert digest(again) == digest(tiny)
    for name, t in read_checkpoint(other).items():
        same = sum(a == b for a, b in zip(widen(t), widen(weights[name])))
        assert same < len(t[2]) / 2 * 0.15, name
    values = [t[2] for t in weights.values()]
    assert len(set(values)) == len(values), "two tensors are alike"


def test_shards_hold_the_same_tensors():
    path = synth("shards", "--preset", "tiny", "--shards", "5")
    assert read_checkpoint(path) == weights
    files = sorted(n for n in os.listdir(path) if n.endswith(".safetensors"))
    assert files == [f"model-{i:05d}-of-00005.safetensors" for i in range(1, 6)]
    sizes = [os.path.getsize(os.path.join(path, n)) for n in files]
    assert max(sizes) < 1.3 * min(sizes), sizes
    most = synth("most", "--preset", "tiny", "--shards", str(len(weights)))
    assert read_checkpoint(most) == weights
    p = synth("toomany", "--preset", "tiny", "--shards", str(len(weights) + 1), ok=False)
    assert f"at most {len(weights)}" in p.stderr


def test_other_formats_round_the_same_values():
    wide = read_checkpoint(synth("f32", "--preset", "tiny", "--dtype", "f32", "--layers", "1"))
    half = read_checkpoint(synth("f16", "--preset", "tiny", "--dtype", "f16", "--layers", "1"))
    brain = read_checkpoint(synth("bf16", "--preset", "tiny", "--dtype", "bf16", "--layers", "1"))
    assert wide.keys() == half.keys() == brain.keys()
    for name, t in wide.items():
        x = widen(t)
        assert t[0] == "F32" and half[name][0] == "F16"
        assert struct.pack(f"<{len(x)}e", *x) == half[name][2], name
        assert b"".join(map(to_bf16, x)) == brain[name][2], name
    for dtype, values in pr.F8.items():
        small = read_checkpoint(synth(dtype, "--preset", "tiny", "--dtype", dtype.lower(), "--layers", "1"))
        assert small.keys() == wide.keys()
        nearest = sorted((v, b & 1, b) for b, v in enumerate(values) if abs(v) < math.inf)
        for name, t in small.items():
            if ".experts." not in name:
                assert t == brain[name], name
                continue
            assert (t[0], t[1]) == (dtype, wide[name][1])
            for x, b in zip(widen(wide[name]), t[2]):
                at = bisect.bisect_left(nearest, (x,))
                near = min(nearest[max(0, at - 2):at + 2], key=lambda v: (abs(v[0] - x), v[1]))
                assert values[b] == near[0], (dtype, x, b)


def test_odd_tensors_of_bytes():
    """Bytes and halves in one file, none of them aligned."""
    shape = ["--layers", "3", "--hidden", "15", "--intermediate", "7", "--experts", "3", "--top-k", "1", "--heads", "1",
             "--kv-heads", "1", "--head-dim", "6", "--vocab", "261", "--dtype"]
    small = read_checkpoint(synth("odd8", *shape, "f8_e4m3"))
    brain = read_checkpoint(synth("odd16", *shape, "bf16"))
    assert {n for n in small if small[n] != brain[n]} == {n for n in brain if ".experts." in n}


def test_options_reach_the_files():
    path = synth("options", "--layers", "1", "--hidden", "48", "--intermediate", "32", "--experts", "3", "--top-k", "3",
                 "--heads", "6", "--kv-heads", "3", "--head-dim", "10", "--vocab", "260", "--ctx", "77", "--tied",
                 "--sliding-window", "9")
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    assert c["sliding_window"] == 9 and c["tie_word_embeddings"] is True and c["max_position_embeddings"] == 77
    shapes = {n: t[1] for n, t in read_checkpoint(path).items()}
    assert shapes == expected_shapes(dict(L=1, H=48, I=32, E=3, A=6, KV=3, D=10, V=260), tied=True)


def test_tokenizer_has_every_byte():
    with open(os.path.join(tiny, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    with open("deploy/models/talebook/tokenizer.json", encoding="utf-8") as f:
        model = json.load(f)
    vocab, merges = t["model"].pop("vocab"), t["model"].pop("merges")
    model["model"].pop("vocab")
    model["model"].pop("merges")
    assert t == model  # all but the words is like a trained tokenizer's
    assert merges == [] and sorted(vocab.values()) == list(range(512))
    # GPT-2's bytes_to_unicode
    glyphs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    hidden = [b for b in range(256) if b not in glyphs]
    for b in range(256):
        assert vocab[chr(b) if b in glyphs else chr(256 + hidden.index(b))] == 3 + b
    assert [vocab[s] for s in ("<unk>", "<s>", "</s>")] == [0, 1, 2]


def test_an_existing_folder_is_kept():
    path = synth("kept", "--preset", "tiny", "--shards", "3")
    before = digest(path)
    p = synth("kept", "--preset", "tiny", ok=False)
    assert p.returncode == 2 and path in p.stderr and "--force" in p.stderr and digest(path) == before
    with open(os.path.join(path, "notes.txt"), "w") as f:
        f.write("mine")
    synth("kept", "--preset", "tiny", "--force")
    names = sorted(os.listdir(path))
    assert names == sorted(os.listdir(tiny) + ["notes.txt"]), names
    assert read_checkpoint(path) == weights
    file = os.path.join(TMP, "file")
    with open(file, "w") as f:
        f.write("x")
    p = synth("file", "--preset", "tiny", "--force", ok=False)
    assert "not a folder" in p.stderr and os.path.getsize(file) == 1


def test_force_replaces_nothing_of_others():
    """A pack, a checkpoint of somebody else's (also when it lies among our own files), and any other folder stay as they are."""
    header = b'{"__metadata__":{"format":"pt"}}'
    for name, files in (("pack", dict(config="{}", manifest="x")), ("folder", dict(notes="mine")),
                        ("published", {"config": "{}", "model-00001-of-00002.safetensors": len(header).to_bytes(8, "little") + header})):
        os.mkdir(os.path.join(TMP, name))
        for file, text in files.items():
            with open(os.path.join(TMP, name, file if "." in file else file + ".json"), "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
        before = digest(os.path.join(TMP, name))
        p = synth(name, "--preset", "tiny", "--force", ok=False)
        assert p.returncode == 2 and "made by od-bench synth" in p.stderr and name in p.stderr, p.stderr
        assert digest(os.path.join(TMP, name)) == before, name
    path = synth("among", "--preset", "tiny", "--shards", "3")
    shutil.copy(os.path.join(TMP, "published", "model-00001-of-00002.safetensors"), path)
    before = digest(path)
    p = synth("among", "--preset", "tiny", "--force", ok=False)
    assert p.returncode == 2 and "model-00001-of-00002.safetensors was not made by" in p.stderr and digest(path) == before, p.stderr
    os.mkdir(os.path.join(TMP, "empty"))
    assert "config.json" in os.listdir(synth("empty", "--preset", "tiny", "--force"))


def test_impossible_shapes_are_refused():
    for words, args in (("--heads 4 is not a multiple of --kv-heads 3", ["--kv-heads", "3"]),
                        ("--head-dim: expected an even number", ["--head-dim", "7"]),
                        ("--top-k 9 is more than --experts 8", ["--top-k", "9"]),
                        ("--vocab: expected 260", ["--vocab", "100"]),
                        ("--hidden 64 is not a multiple of --heads 6: give --head-dim", ["--heads", "6"]),
                        ("--dtype: expected one of bf16, f16, f32, f8_e4m3, f8_e5m2", ["--dtype", "int8"])):
        p = synth("refused", "--preset", "tiny", *args, ok=False)
        assert p.returncode == 2 and words in p.stderr, p.stderr
    p = synth("refused", "--layers", "2", ok=False)
    assert "--hidden is missing" in p.stderr
    assert not os.path.exists(os.path.join(TMP, "refused"))


def test_a_full_file_system_is_told_before_writing():
    path = f"/dev/shm/od-synth-{os.getpid()}"  # memory: never the 50 TiB that this model takes
    p = synth(path, "--preset", "mixtral-8x22b", "--hidden", "49152", "--layers", "1400", ok=False)
    assert "takes" in p.stderr and "left" in p.stderr and path in p.stderr, p.stderr
    assert not os.path.exists(path)


def test_json_and_next_step():
    p = subprocess.run([BENCH, "synth", os.path.join(TMP, "json"), "--preset", "tiny", "--json"], capture_output=True,
                       text=True, check=True)
    r = json.loads(p.stdout)
    assert r["weight_bytes"] == sum(len(t[2]) for t in weights.values()) and r["n_experts"] == 32
    sanitized = "build-" in BENCH  # their shadow memory counts as ours
    assert sanitized or 0 < r["peak_rss_bytes"] < 64 << 20
    p = subprocess.run([BENCH, "synth", os.path.join(TMP, "text"), "--preset", "tiny"], capture_output=True, text=True,
                       check=True)
    assert re.search(r"Next: od-pack \S+/text PACK", p.stdout) and p.stderr == ""


def test_families():
    """A published shape with one layer and few experts: the tensors are those that the reader expects, and it runs."""
    path = synth("family", "--family", "olmoe", "--layers", "1", "--experts", "8", "--vocab", "300", "--ctx", "128")
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    assert (c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["num_experts"]) == (2048, 1024, 1, 8)
    found = read_checkpoint(path)
    assert {n: t[1] for n, t in found.items()} == dict(model_config.Model(c).tensors())
    for name, t in found.items():
        assert len(set(t[2][:4096])) > 50, name + " is constant"
    pack = path + ".pack"
    subprocess.run([os.path.join(os.path.dirname(BENCH), "od-pack"), path, pack], check=True, capture_output=True)
    main = [os.path.join(os.path.dirname(BENCH), "od-main"), "--resident", "--pack", pack, "--json", "--ignore-eos"]
    p = subprocess.run([*main, "--prompt", "ab", "--max-tokens", "3"], capture_output=True, text=True, check=True)
    assert len(json.loads(p.stdout)["token_ids"]) == 3, p.stdout
    shutil.rmtree(path)
    for args, says in ((["--dtype", "mxfp4"], "--layers is missing"), (["--preset", "tiny", "--dtype", "mxfp4"], "--family"),
                       (["--family", "olmoe", "--dtype", "mxfp4"], "olmoe has no such experts"),
                       (["--family", "gpt_oss", "--dtype", "f8_e4m3"], "F8_E4M3: gpt_oss has experts in one tensor"),
                       (["--family", "olmoe", "--hidden", "64"], "--hidden"), (["--family", "x"], "deepseek_v3"),
                       (["--family", "olmoe", "--preset", "tiny"], "--preset"),
                       (["--family", "deepseek_v3", "--layers", "3"], "none of the 3 layers"),
                       (["--family", "glm4_moe", "--experts", "7"], "num_experts_per_tok")):
        p = synth("family-bad", *args, ok=False)
        assert says in p.stderr and not os.path.exists(os.path.join(TMP, "family-bad")), p.stderr


def test_recurrent_families():
    """Layers with gated delta rules and one with attention."""
    tools = os.path.dirname(BENCH)
    for family, stacked in (("qwen3_next", False), ("qwen3_5_moe", True)):
        path = synth("recurrent", "--family", family, "--layers", "4", "--experts", "11", "--vocab", "300", "--ctx", "128", "--force")
        with open(os.path.join(path, "config.json")) as f:
            c = json.load(f)
        model, found = model_config.Model(c), read_checkpoint(path)
        want = dict(model.tensors())
        if stacked:
            want = {model.dense_name(role, layer): shape for role, layer, shape in model.dense}
            want |= {model.stacked_name(m, part): [11, 1024 if part == "up" else 2048, 2048 if part == "up" else 512]
                     for m in range(4) for part in ("up", "down")}
        assert {n: t[1] for n, t in found.items()} == want
        for name, about in (("input_layernorm", 0), ("linear_attn.norm", 1)):
            norm = widen(found[f"model.layers.0.{name}.weight"])
            assert abs(sum(norm) / len(norm) - about) < 0.2, (name, sum(norm) / len(norm))
        subprocess.run([os.path.join(tools, "od-pack"), path, path + ".pack", "--force"], check=True, capture_output=True)
        p = subprocess.run([os.path.join(tools, "od-main"), "--resident", "--pack", path + ".pack", "--json", "--ignore-eos", "--prompt", "ab",
                            "--max-tokens", "3"], capture_output=True, text=True, check=True)
        assert len(json.loads(p.stdout)["token_ids"]) == 3, p.stdout
        shutil.rmtree(path)
        shutil.rmtree(path + ".pack")
    p = synth("family-bad", "--family", "qwen3_next", "--layers", "3", ok=False)
    assert "at least one of 3 layers" in p.stderr


def test_gemma():
    """A layer with a window and one without, a dense network beside the experts."""
    tools = os.path.dirname(BENCH)
    path = synth("gemma", "--family", "gemma4", "--layers", "2", "--experts", "9", "--vocab", "300", "--ctx", "128")
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    model, found = model_config.Model(c), read_checkpoint(path)
    want = {model.dense_name(role, layer): shape for role, layer, shape in model.dense}
    for m in range(2):
        want |= {model.stacked_name(m, "up"): [9, 2 * 704, 2816], model.stacked_name(m, "down"): [9, 2816, 704]}
    assert {n: t[1] for n, t in found.items()} == want
    # The logits of experts are as in other families: the router's rows are multiplied by 2816^-0.5.
    router = widen(found["model.layers.0.router.proj.weight"])
    assert 1 < (sum(x * x for x in router) / len(router)) ** 0.5 < 4
    subprocess.run([os.path.join(tools, "od-pack"), path, path + ".pack"], check=True, capture_output=True)
    p = subprocess.run([os.path.join(tools, "od-main"), "--resident", "--pack", path + ".pack", "--json", "--ignore-eos", "--prompt", "ab",
                        "--max-tokens", "3"], capture_output=True, text=True, check=True)
    assert len(json.loads(p.stdout)["token_ids"]) == 3, p.stdout
    shutil.rmtree(path)
    shutil.rmtree(path + ".pack")


def test_stacked_family():
    """GPT-OSS, whose experts of a layer are one tensor: in MXFP4 as published, and in BF16. Values of both are alike."""
    std = {}
    for dtype in ("mxfp4", "bf16"):
        path = synth("stacked", "--family", "gpt_oss", "--layers", "1", "--experts", "4", "--vocab", "300", "--ctx", "128",
                     *(["--dtype", dtype] if dtype == "bf16" else []))
        with open(os.path.join(path, "config.json")) as f:
            c = json.load(f)
        assert ("quantization_config" in c) == (dtype == "mxfp4") and c["num_hidden_layers"] == 1
        model, found = model_config.Model(c), read_checkpoint(path)
        h, i, p = 2880, 2880, "model.layers.0.mlp.experts."
        want = {model.dense_name(role, layer): shape for role, layer, shape in model.dense}
        want |= {p + "gate_up_proj_bias": [4, 2 * i], p + "down_proj_bias": [4, h]}
        if dtype == "mxfp4":
            want |= {p + "gate_up_proj_blocks": [4, 2 * i, h // 32, 16], p + "gate_up_proj_scales": [4, 2 * i, h // 32],
                     p + "down_proj_blocks": [4, h, i // 32, 16], p + "down_proj_scales": [4, h, i // 32]}
        else:
            want |= {p + "gate_up_proj": [4, h, 2 * i], p + "down_proj": [4, i, h]}
        assert {n: t[1] for n, t in found.items()} == want
        for name in ("gate_up_proj", "down_proj"):
            if dtype == "mxfp4":
                codes, scales = found[p + name + "_blocks"], found[p + name + "_scales"]
                assert codes[0] == scales[0] == "U8" and set(codes[2][:4096]) > set(range(16, 112, 9))
                n = len(scales[2]) // 2 // 90 * 90  # whole rows from the middle
                scales, codes = scales[2][n:n + 9000], codes[2][16 * n:16 * n + 144000]
                blocks = [pr.code_values("F4_E2M1", codes[k:k + 16]) for k in range(0, len(codes), 16)]
                assert all(max(map(abs, b)) >= 4 for b in blocks)  # no smaller scale would do
                x = [v * pr.E8M0[s] for b, s in zip(blocks, scales) for v in b]
            else:
                x = widen(("BF16", None, found[p + name][2][-2 * 288000:]))
            std[dtype, name] = math.sqrt(sum(v * v for v in x) / len(x)) * math.sqrt(2880)
        pack = path + ".pack"
        tools = os.path.dirname(BENCH)
        subprocess.run([os.path.join(tools, "od-pack"), path, pack, "--force"], check=True, capture_output=True)
        p = subprocess.run([os.path.join(tools, "od-main"), "--resident", "--pack", pack, "--json", "--ignore-eos", "--prompt", "ab",
                            "--max-tokens", "3"], capture_output=True, text=True, check=True)
        assert len(json.loads(p.stdout)["token_ids"]) == 3, p.stdout
        shutil.rmtree(path)
        shutil.rmtree(pack)
    for name in ("gate_up_proj", "down_proj"):
        assert abs(std["mxfp4", name] / std["bf16", name] - 1) < 0.05, std
    assert abs(std["bf16", "gate_up_proj"] - 1) < 0.2, std  # with outliers


def main():
    global tiny, weights
    tiny = synth("tiny", "--preset", "tiny")
    weights = read_checkpoint(tiny)
    return tap_tests.run([f for n, f in globals().items() if n.startswith("test_")])


if __name__ == "__main__":
    try:
        sys.exit(1 if main() else 0)
    finally:
        shutil.rmtree(TMP)
