#!/usr/bin/env python3
"""GGUF files and od-pack: packs made of them, verify and info, shadows, drafts and caches of a file that is used where it lies.
Whatever is made of a file, the texts and their probabilities are those of the file in one process."""
import hashlib
import json
import os
import shutil
import struct
import subprocess

import gguf_checkpoint as gg
import tiny_checkpoint as tc
from cluster_util import BIN, TMP, Skip, run_tests, shadow_args, test, tool, worker_args

FAMILIES = "tests/golden/families"
os.environ["CACHE_DIRECTORY"] = os.path.join(TMP, "cache")


# ---- Files ----

def tokenizer_keys(path):
    """The checkpoint's tokeniser, a byte-level BPE, as metadata."""
    with open(os.path.join(path, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    size = cfg.get("text_config", cfg)["vocab_size"]
    tokens, kinds = ["[PAD%d]" % i for i in range(size)], [5] * size
    for text, i in t["model"]["vocab"].items():
        tokens[i], kinds[i] = text, 1
    for a in t["added_tokens"]:
        tokens[a["id"]], kinds[a["id"]] = a["content"], 3 if a["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    return {"tokenizer.ggml.model": (gg.STRING, "gpt2"), "tokenizer.ggml.pre": (gg.STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (gg.ARRAY, (gg.STRING, tokens)), "tokenizer.ggml.token_type": (gg.ARRAY, (gg.I32, kinds)),
            "tokenizer.ggml.merges": (gg.ARRAY, (gg.STRING, merges)), "tokenizer.ggml.eos_token_id": (gg.U32, size - 1)}


def f16(x):
    return struct.pack("<e", x)


def q8_0(row):
    out = b""
    for i in range(0, len(row), 32):
        d = max(map(abs, row[i:i + 32])) / 127 or 1
        out += f16(d) + struct.pack("<32b", *(max(-127, min(127, round(v / d))) for v in row[i:i + 32]))
    return out


def q4_0(row):
    out = b""
    for i in range(0, len(row), 32):
        d = max(map(abs, row[i:i + 32])) / 7 or 1
        codes = [max(0, min(15, round(v / d) + 8)) for v in row[i:i + 32]]
        out += f16(d) + bytes(codes[k] | codes[k + 16] << 4 for k in range(16))
    return out


def quantised(tensors):
    """Matrices with rows of whole blocks as Q8_0 and Q4_0 in turn; other experts as F16."""
    out = []
    for i, (name, kind, shape, raw) in enumerate(tensors):
        n_in, matrix = shape[0], len(shape) > 1 and name.endswith(".weight") and "conv1d" not in name and "gate_inp" not in name
        if kind in ("BF16", "F16", "F32") and matrix and (n_in % 32 == 0 or "_exps" in name):
            values = gg.floats(kind, raw)
            rows = [values[k:k + n_in] for k in range(0, len(values), n_in)]
            if n_in % 32 == 0:
                kind, raw = (("Q8_0", b"".join(map(q8_0, rows))), ("Q4_0", b"".join(map(q4_0, rows))))[i % 2]
            else:
                kind, raw = "F16", b"".join(f16(v) for v in values)
        out.append((name, kind, shape, raw))
    return out


_files = {}


def file_of(family, quant=False, split=0):
    """The checkpoint as a GGUF file: its path (of a split one the last file's), and its tensors."""
    key = family, quant, split
    if key not in _files:
        kv, tensors = gg.convert(os.path.join(FAMILIES, family))
        kv.update(tokenizer_keys(os.path.join(FAMILIES, family)))
        if quant:
            tensors = quantised(tensors)
        path = os.path.join(TMP, "%s%s%s.gguf" % (family, "-q" if quant else "", "-s" if split else ""))
        if split:
            path = gg.write_split(path, kv, tensors, split)[-1]
        else:
            gg.write_file(path, kv, tensors)
        _files[key] = path, {name: (kind, shape, raw) for name, kind, shape, raw in tensors}
    return _files[key]


MODELS = [("qwen3_moe_plain", False), ("qwen3_moe_plain", True), ("mixtral_top3", True), ("deepseek_v3_groups", True), ("gemma4_shared_kv", True),
          ("gpt_oss_mxfp4", True), ("gpt_oss_bf16", False), ("qwen3_next_plain", True), ("qwen3_5_moe_stacked", True), ("phimoe_crossing", False)]


def path_of(model):
    return file_of(*model)[0]


def pack_of(model, *args):
    path = path_of(model)
    out = path + ".pack"
    if not os.path.exists(out):
        tool("od-pack", path, out, *args)
    return out


# ---- Texts ----

def texts(pack, *args):
    """Of some prompts, greedy and drawn: token ids and probabilities."""
    prompts = os.path.join(TMP, "prompts.jsonl")
    with open(prompts, "w", encoding="utf-8") as f:
        for i, text in enumerate(("once upon a time", "the the the the the", "xyz 123 abc")):
            f.write(json.dumps({"prompt": text, "max_tokens": 20, "temperature": 0.8 * (i % 2), "seed": i, "logprobs": 3}) + "\n")
    p = tool("od-main", "--pack", pack, "--prompts", prompts, "--json", "--ignore-eos", *args)
    return sorted(map(json.loads, p.stdout.splitlines()), key=lambda o: o["index"])


def core(outputs):
    return [(o["token_ids"], o["logprobs"]) for o in outputs]


_plain = {}


def plain(model):
    if model not in _plain:
        _plain[model] = core(texts(path_of(model), "--resident"))
        assert all(ids and probabilities for ids, probabilities in _plain[model])
    return _plain[model]


# ---- Packs ----

def header(experts, at):
    """magic, xxh3, schema, m, expert, n_shards, header_bytes, bytes, sm_offset, e_offset; types; SHA-256 of gate, up, down."""
    h = struct.unpack_from("<8sQ4I4Q", experts, at)
    assert h[0] == b"ODEXPERT"
    return h, experts[at + 64:at + 67], [experts[at + 72 + 32 * i:at + 104 + 32 * i] for i in range(3)]


def check_experts(tensors, pack):
    """Their published bytes are the file's, and blocks are coded only where this saves 3 percent."""
    with open(os.path.join(pack, "model.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    with open(os.path.join(pack, "experts.bin"), "rb") as f:
        experts = f.read()
    n_experts = 1 + max(e["expert"] for e in manifest["experts"]["table"])
    n = 0
    for e in manifest["experts"]["table"]:
        h, types, sums = header(experts, e["offset"])
        for i, part in enumerate(("gate", "up", "down")):
            name = e["source"][part]["tensor"]
            _, shape, raw = tensors[name]
            rows = len(raw) // n_experts
            own = raw[e["expert"] * rows:][:rows]
            assert hashlib.sha256(own).digest() == sums[i], (pack, name, e["expert"])
            n += 1
        for s in range(h[5]):
            at = e["offset"] + h[6] - (h[6] - 192 - (128 if experts[e["offset"] + 71] else 0)) + 64 * s
            mat, codec = experts[at + 8], experts[at + 10]
            stored, e_raw = struct.unpack_from("<I", experts, at + 32)[0], struct.unpack_from("<I", experts, at + 40)[0]
            if mat < 3 and types[mat] > 64:
                assert codec == 0 and stored == e_raw or codec == 1 and stored < e_raw - e_raw * 3 // 100, (codec, stored, e_raw)
    assert n > 0
    return manifest


@test
def packs_give_the_bits_of_their_files():
    for model in MODELS:
        pack = pack_of(model)
        manifest = check_experts(file_of(*model)[1], pack)
        assert manifest["schema_version"] == 4, manifest["schema_version"]
        assert tool("od-pack", "verify", pack).stdout.endswith(": good\n")
        assert "the same as" in tool("od-pack", "verify", pack, "--against", path_of(model)).stdout
        assert core(texts(pack, "--resident")) == plain(model), model
        assert core(texts(pack, "--local", 2)) == plain(model), model


@test
def dense_tensors_are_the_checkpoints():
    """Rows that llama.cpp moves are back in their order; what has another form says so."""
    for family in "mixtral_top3", "qwen3_next_plain", "qwen3_5_moe_stacked":
        cfg, tensors = gg.load(os.path.join(FAMILIES, family))
        with open(os.path.join(pack_of((family, False)), "model.json"), encoding="utf-8") as f:
            dense = json.load(f)["dense"]["tensors"]
        own = {t["role"]: t for t in dense if t.get("layer", 0) == 0}
        forms = {t["role"]: t["form"] for t in dense if "form" in t}
        assert forms == ({} if family == "mixtral_top3" else {"delta_a_log": "negative_exp"}), forms
        same = {"mixtral_top3": {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}}.get(family, {})
        for role, name in same.items():
            dtype, _, raw = next(t for n, t in tensors.items() if n.endswith("layers.0." + name + ".weight"))
            assert own[role]["dtype"] == dtype and own[role]["sha256"] == hashlib.sha256(raw).hexdigest(), (family, role)
        if family == "mixtral_top3":
            assert own["attn_q"]["source"]["rows"] == "pairs", own["attn_q"]["source"]
        if family == "qwen3_next_plain":
            assert (own["delta_b"]["source"]["rows"], own["delta_a"]["source"]["rows"]) == ("first_runs", "second_runs")


@test
def split_files_are_one_model():
    path, tensors = file_of("qwen3_moe_plain", True, 3)
    pack = path + ".pack"
    tool("od-pack", path, pack, "--shadow", "nf4")
    check_experts(tensors, pack)
    assert core(texts(path, "--resident")) == core(texts(pack, "--resident")) == plain(("qwen3_moe_plain", True))
    assert "3 files together" in tool("od-pack", "info", path).stdout


@test
def an_interrupted_pack_goes_on():
    """The partial pack of a file is resumed, of a changed one it is begun anew."""
    path = shutil.copy(path_of(("qwen3_moe_plain", True)), os.path.join(TMP, "again.gguf"))
    pack = os.path.join(TMP, "again.pack")
    limited = "ulimit -f 64; exec %s %s %s --shadow none" % (os.path.join(BIN, "od-pack"), path, pack)
    p = subprocess.run(["bash", "-c", "trap '' XFSZ; " + limited], capture_output=True, text=True)
    assert p.returncode == 1 and "is kept in" in p.stderr, p.stderr
    assert "resuming:" in tool("od-pack", path, pack, "--shadow", "none").stderr
    assert tool("od-pack", "verify", pack, "--against", path).returncode == 0
    subprocess.run(["bash", "-c", "trap '' XFSZ; " + limited.replace(" --shadow", " --force --shadow")], capture_output=True)
    os.utime(path, (1, 1))
    assert "starting over" in tool("od-pack", path, pack, "--force", "--shadow", "none").stderr


def change_model_json(pack, change):
    path = os.path.join(pack, "model.json")
    with open(path, encoding="utf-8") as f:
        o = json.load(f)
    change(o)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(o, f)
    sums = []
    with open(os.path.join(pack, "SHA256SUMS"), encoding="utf-8") as f:
        for line in f:
            name = line.split()[1]
            with open(os.path.join(pack, name), "rb") as g:
                sums.append(hashlib.sha256(g.read()).hexdigest() + "  " + name + "\n")
    with open(os.path.join(pack, "SHA256SUMS"), "w", encoding="utf-8") as f:
        f.writelines(sums)


@test
def unknown_schemas_and_forms_are_refused():
    good = pack_of(("qwen3_next_plain", True))
    bad = os.path.join(TMP, "bad.pack")

    def a_log(o):
        return next(t for t in o["dense"]["tensors"] if t["role"] == "delta_a_log")

    for change, says in (
            (lambda o: o.update(schema_version=5), "\"schema_version\": expected 3 or 4, found 5"),
            (lambda o: o.update(schema_version=3), "\"negative_exp\" is not known for a delta_a_log with schema version 3"),
            (lambda o: a_log(o).update(form="logarithm"), "\"logarithm\" is not known for a delta_a_log with schema version 4"),
            (lambda o: o["dense"]["tensors"][0].update(form="negative_exp"), "\"negative_exp\" is not known for a embed")):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        change_model_json(bad, change)
        p = tool("od-pack", "info", bad, ok=False)
        assert says in p.stderr and "make it again" in p.stderr, p.stderr


# ---- verify, info, what else there is ----

def flip(path, at):
    """A changed byte, as a disk would change it: the file's time stays."""
    times = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(at)
        b = f.read(1)[0]
        f.seek(at)
        f.write(bytes([b ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@test
def verify_names_a_changed_byte():
    """One behind the bytes that the fingerprint covers."""
    checkpoint = os.path.join(TMP, "wide")
    cfg = dict(tc.CONFIG, hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, head_dim=16)
    tc.write_checkpoint(checkpoint, cfg, tc.tensors(cfg, seed=3))
    kv, tensors = gg.convert(checkpoint)
    path = os.path.join(TMP, "changed.gguf")
    gg.write_file(path, kv, tensors)
    first = tool("od-pack", "verify", path).stdout
    assert ": read; 0 of " in first and "are known from now on" in first, first
    n = int(first.split(": read; 0 of ")[1].split()[0])
    assert f": read; {n} of {n} checksums were known and hold\n" in tool("od-pack", "verify", path).stdout
    at, tried = os.path.getsize(path) - sum(len(raw) + -len(raw) % 32 for *_, raw in tensors), []
    for name, _, shape, raw in tensors:
        each = len(raw) // (shape[2] if len(shape) > 2 else 1)
        expert = name.endswith("_exps.weight")
        if each > 4096:
            where = at + (each if expert else 0) + each - 1
            flip(path, where)
            err = tool("od-pack", "verify", path, ok=False).stderr
            assert f"tensor {name}" in err and "checksum" in err and (not expert or ", expert 1" in err), (name, err)
            flip(path, where)
            tried.append(name)
        at += len(raw) + -len(raw) % 32
    assert len(tried) > 4 and any("_exps" in name for name in tried), tried
    assert f"{n} of {n} checksums were known" in tool("od-pack", "verify", path).stdout


@test
def verify_checks_shadows_of_files():
    path = shutil.copy(path_of(("qwen3_moe_plain", False)), os.path.join(TMP, "shadowed.gguf"))
    tool("od-pack", "shadow", path, "int8")
    folder = json.loads(tool("od-pack", "info", "--json", path).stdout)["gguf"]["folder"]
    shadow = os.path.join(folder, "shadow-int8.bin")
    tool("od-pack", "verify", path)
    flip(shadow, os.path.getsize(shadow) // 2)
    assert "shadow-int8.bin" in tool("od-pack", "verify", path, ok=False).stderr
    tool("od-pack", "shadow", "--force", path, "int8")
    tool("od-pack", "verify", path)


@test
def info_shows_what_is_in_a_file():
    path, tensors = file_of("gpt_oss_mxfp4", True)
    text = tool("od-pack", "info", path).stdout
    o = json.loads(tool("od-pack", "info", "--json", path).stdout)
    g = o["gguf"]
    assert g["architecture"] == "gpt-oss" and g["fingerprint_kind"] == "gguf1" and o["family"] == "gpt_oss", o
    assert g["files"] == [{"file": path, "bytes": os.path.getsize(path)}], g
    found = {}
    for kind, _, raw in tensors.values():
        n, size = found.get(kind, (0, 0))
        found[kind] = n + 1, size + len(raw)
    assert {t["type"]: (t["tensors"], t["bytes"]) for t in g["types"]} == found, (g["types"], found)
    assert o["fingerprint"] in text and "(gguf1" in text and "architecture gpt-oss" in text, text
    assert g["folder"].startswith(os.environ["CACHE_DIRECTORY"]) and os.path.exists(os.path.join(g["folder"], "config.json"))


@test
def other_commands_say_what_to_do():
    path = path_of(("qwen3_moe_plain", False))
    p = tool("od-pack", "verify", path, "--against", os.path.join(FAMILIES, "qwen3_moe_plain"), ok=False)
    assert "only packs are compared" in p.stderr, p.stderr


# ---- Shadows, drafts, caches ----

@test
def shadows_of_files_predict_and_change_nothing():
    least, sums = {"int8": 0.7, "fp16": 0.9, "nf4": 0.3, "bf16": 0.9}, {}
    for model in MODELS:
        path = path_of(model)
        said = tool("od-pack", "shadow", path, "int8,fp16,nf4").stdout
        assert "Now in " + os.environ["CACHE_DIRECTORY"] in said, said
        for precision in least:
            out = texts(path, "--local", 2, "--draft", "off", *shadow_args("--precision", precision))
            assert core(out) == plain(model), (model, precision)
            uses, recalled = sums.get(precision, (0, 0))
            sums[precision] = uses + sum(o["predicted_uses"] for o in out), recalled + sum(o["recalled_uses"] for o in out)
    for precision, (uses, recalled) in sums.items():
        assert uses > 0 and recalled / uses >= least[precision], (precision, uses, recalled)


@test
def a_file_needs_no_shadow_to_start_one():
    """The default is the file as it is, until an INT8 shadow that saves memory was made."""
    path = os.path.join(TMP, "fresh.gguf")
    kv, tensors = gg.convert(os.path.join(FAMILIES, "olmoe_plain"))
    kv.update(tokenizer_keys(os.path.join(FAMILIES, "olmoe_plain")))
    gg.write_file(path, kv, tensors)
    own = core(texts(path, "--resident"))
    assert core(texts(path, "--local", 2)) == own
    p = tool("od-main", "--pack", path, "--local", 2, *shadow_args("--precision=int8"), "--prompt", "a", ok=False)
    assert f"od-pack shadow {path} int8 makes it" in p.stderr, p.stderr
    tool("od-pack", "shadow", path, "int8")
    assert core(texts(path, "--local", 2)) == own


@test
def no_folder_no_shadow():
    """Where a cache cannot be written, a shadow would be lost."""
    if os.geteuid() == 0:
        os.chmod(TMP, 0o755)
        user = {"user": 65534, "group": 65534, "extra_groups": []}
    else:
        user = {}
    env = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    path = path_of(("qwen3_moe_plain", False))
    try:
        p = subprocess.run([os.path.abspath(os.path.join(BIN, "od-pack")), "shadow", path, "int8"], env=env, capture_output=True, text=True,
                           **user)
    except PermissionError as e:
        raise Skip("another user cannot run the program") from e
    if p.returncode == 0 and "/var/cache/od-moe" in p.stdout:
        raise Skip("everybody may write /var/cache/od-moe")
    assert p.returncode == 1 and "no folder for one can be written" in p.stderr, p.stderr


@test
def drafts_change_nothing():
    for model in MODELS[1:]:
        path = path_of(model)
        tool("od-pack", "shadow", path, "nf4")
        for how in (("--local", 2, *shadow_args("--precision=nf4"), "--draft", 4), ("--local", 2, "--draft", "auto"),
                    ("--resident", "--draft", "lookup")):
            assert core(texts(path, *how)) == plain(model), (model, how)


@test
def caches_change_nothing():
    """With few slots."""
    for model in (("qwen3_moe_plain", False), ("qwen3_moe_plain", True), ("gpt_oss_mxfp4", True)):
        for pack in path_of(model), pack_of(model):
            for form in ("auto",) if pack == path_of(model) else ("auto", "bf16"):
                form_args = worker_args("--resident-form=" + form) if form != "auto" else []
                out = texts(pack, "--local", 2, "--draft", "off", *worker_args("--slots=2", "--cache-mib=1"), *form_args)
                assert core(out) == plain(model), (model, pack, form)
                assert sum(o["cache_hits"] for o in out) > 0, (model, pack)


if __name__ == "__main__":
    run_tests()
