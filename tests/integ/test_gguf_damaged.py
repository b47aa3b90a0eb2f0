#!/usr/bin/env python3
"""What is said of a GGUF file that is damaged, incomplete, of another kind or not supported: what happened, where (file, and key or
tensor), what was expected and found, what to do. Each file is made here from a golden, with one thing wrong. Standard library only."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request

import gguf_checkpoint as gg
from tap_tests import Skip, run

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = os.path.join(HERE, "..", "golden", "families")
OD_MAIN = os.path.join(HERE, "..", "..", os.environ.get("B", "build"), "bin", "od-main")
OD_PACK = os.path.join(os.path.dirname(OD_MAIN), "od-pack")
HANG_S = 60
TMP = tempfile.TemporaryDirectory(prefix="od-gguf-damaged-")
GOOD = {}  # name of a golden -> (keys, tensors)
NORMAL, CONTROL = 1, 3
Q4_K, Q1_0, Q2_0, Q4_2 = 12, 41, 42, 4  # ggml's numbers
MARKS = ["<s>", "</s>", "<|user|>"]


# ---- A good model with a tokeniser ----

def alphabet():
    """A character for each byte, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def with_tokeniser(kv, n, model="gpt2"):
    """n: rows of the embedding."""
    tokens = MARKS + alphabet() if model == "gpt2" else ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tokens += ["<pad%d>" % i for i in range(n - len(tokens))]
    kv["tokenizer.ggml.model"] = (gg.STRING, model)
    kv["tokenizer.ggml.tokens"] = (gg.ARRAY, (gg.STRING, tokens))
    if model == "gpt2":
        kv["tokenizer.ggml.pre"] = (gg.STRING, "qwen2")
        kv["tokenizer.ggml.merges"] = (gg.ARRAY, (gg.STRING, []))
        kinds = [CONTROL if t in MARKS or t.startswith("<pad") else NORMAL for t in tokens]
    else:
        kinds = [2, CONTROL, CONTROL] + [6] * 256 + [CONTROL] * (n - 259)
        kv["tokenizer.ggml.scores"] = (gg.ARRAY, (gg.F32, [-float(i) for i in range(n)]))
    kv["tokenizer.ggml.token_type"] = (gg.ARRAY, (gg.I32, kinds))
    kv["tokenizer.ggml.bos_token_id"] = (gg.U32, 0 if model == "gpt2" else 1)
    kv["tokenizer.ggml.eos_token_id"] = (gg.U32, 1 if model == "gpt2" else 2)
    kv["tokenizer.chat_template"] = (gg.STRING, "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}")


def good(name="qwen3_moe_plain", model="gpt2"):
    if name not in GOOD:
        GOOD[name] = gg.convert(os.path.join(FAMILIES, name))
    kv, tensors = GOOD[name]
    kv = dict(kv)
    with_tokeniser(kv, next(t[2][1] for t in tensors if t[0] == "token_embd.weight"), model)
    return kv, list(tensors)


def data_of(tensors):
    return b"".join(raw + b"\0" * (-len(raw) % gg.ALIGNMENT) for _, _, _, raw in tensors)


def whole(kv, tensors, version=3, more=b""):
    """more: bytes of another key."""
    head = gg.header_of(kv, tensors, version)
    if more:
        at = len(gg.header_of(kv, [], version))
        head = head[:16] + struct.pack("<Q", len(kv) + 1) + head[24:at] + more + head[at:]
    return head + b"\0" * (-len(head) % gg.ALIGNMENT) + data_of(tensors)


def place(tensors, name):
    return next(i for i, t in enumerate(tensors) if t[0] == name)


# ---- Trying it ----

def write(name, content):
    path = os.path.join(TMP.name, name)
    with open(path, "wb") as f:
        f.write(content)
    return path


def environment():
    return dict(os.environ, CACHE_DIRECTORY=os.path.join(TMP.name, "cache"))


def said(path):
    p = subprocess.run([OD_MAIN, "--resident", "--pack", path, "--prompt", "x", "--max-tokens", "1", "--seed", "1"], capture_output=True,
                       timeout=HANG_S, stdin=subprocess.DEVNULL, env=environment())
    return p.returncode, p.stdout, p.stderr


def refused(path, *says):
    status, out, err = said(path)
    text = err.decode()  # whatever is in the file, a message is UTF-8
    assert status == 1 and out == b"", (path, status, out, text)
    assert text.count("error: ") == 1 and text.splitlines()[-1].startswith("od-main: error: "), (path, text)
    assert not any(ord(c) < 32 and c != "\n" for c in text), (path, text)
    for s in says:
        assert s in text, (path, s, text)
    assert os.path.basename(path).split(".gguf")[0].split("-0000")[0] in text, (path, text)
    os.remove(path)


AGAIN, AGAIN_OR_CONVERT, OTHER = "Get the file again", "get it again, or convert the model again", "; take another file of the model"


def bad_bytes(name, content, *says):
    refused(write(name + ".gguf", content), *says)


def bad(name, change, *says, golden="qwen3_moe_plain", model="gpt2"):
    """change(keys, tensors) breaks a good model's; it may return other ones."""
    kv, tensors = good(golden, model)
    kv, tensors = change(kv, tensors) or (kv, tensors)
    bad_bytes(name, whole(kv, tensors), *says)


def keys(**values):
    """Changes of keys: ARCH__ is qwen3moe, __ a point; None removes."""
    def change(kv, tensors):
        for key, v in values.items():
            key = key.replace("__", ".").replace("ARCH", kv["general.architecture"][1])
            if v is None:
                del kv[key]
            else:
                kv[key] = v
    return change


def tensor(name, kind=None, shape=None, raw=None, new=None):
    def change(kv, tensors):
        i = place(tensors, name)
        n, k, s, r = tensors[i]
        tensors[i] = (new or n, k if kind is None else kind, s if shape is None else shape, r if raw is None else raw)
    return change


def test_a_good_file_runs():
    """Twice: the second time, what is read must have the checksums of the first."""
    for golden, model in ("qwen3_moe_plain", "gpt2"), ("mixtral_top3", "llama"), ("qwen3_next_plain", "gpt2"), ("deepseek_v2_groups", "gpt2"):
        path = write("good.gguf", whole(*good(golden, model)))
        for _ in range(2):
            status, _, err = said(path)
            assert status == 0, err
        os.remove(path)


def test_the_beginning():
    content = whole(*good())
    bad_bytes("magic", b"GGML" + content[4:], "does not begin with \"GGUF\"", "get the file again")
    bad_bytes("empty", b"", "is damaged or empty")
    bad_bytes("three-bytes", b"GGU", "does not begin with \"GGUF\"")
    bad_bytes("version1", whole(*good(), version=1), "GGUF version 1: expected 2 or 3", "convert the model again with a newer llama.cpp")
    bad_bytes("version4", whole(*good(), version=4), "GGUF version 4: expected 2 or 3", "newer od-moe")
    bad_bytes("big-endian", b"GGUF" + struct.pack(">I", 3) + content[8:], "big-endian", "little-endian", "convert")
    bad_bytes("tensors", content[:8] + struct.pack("<Q", 1 << 63) + content[16:], "9223372036854775808 tensors: expected at most", "get it again")
    bad_bytes("keys", content[:16] + struct.pack("<Q", 1 << 40) + content[24:], "1099511627776 keys: expected at most", "get it again")
    bad_bytes("more-keys", content[:16] + struct.pack("<Q", len(good()[0]) + 1) + content[24:], "offset")
    bad_bytes("no-tensors", whole(good()[0], []), "expected tensors, found none", "a vocabulary alone", "name the file of the model")


def test_cut_short():
    kv, tensors = good()
    content = whole(kv, tensors)
    header = len(gg.header_of(kv, tensors))
    for n in (4, 7, 15, 23, 1500, header // 2, header - 1):
        bad_bytes("cut%d" % n, content[:n], "cut short in its header", "offset", "the file has %d" % n, AGAIN)
    data = header + -header % gg.ALIGNMENT
    for n in (header, data, data + 1, data + 1000, (data + len(content)) // 2, len(content) - gg.ALIGNMENT):
        bad_bytes("cut%d" % n, content[:n], "cut short: ", "%d of %d bytes are missing" % (len(content) - n, len(content)), AGAIN)


def test_headers():
    """Keys and values that no file has."""
    def one_more(name, key, kind, value, *says):
        bad_bytes(name, whole(*good(), more=gg.text_of(key) + struct.pack("<I", kind) + value), *says)

    one_more("key-twice", "qwen3moe.block_count", gg.U32, b"\2\0\0\0", "key qwen3moe.block_count is there twice", AGAIN_OR_CONVERT)
    one_more("kind13", "odd", 13, b"\0" * 8, "the kind of key odd at offset", "expected 0 to 12, found 13", AGAIN_OR_CONVERT)
    one_more("nested", "odd", gg.ARRAY, struct.pack("<IQIQ", gg.ARRAY, 1, gg.U32, 0), "the kind of key odd at offset", "no array in an array, found 9")
    one_more("key-nul", "od\0d", gg.U32, b"\0" * 4, "a key at offset", "found the byte 0x00", AGAIN_OR_CONVERT)
    one_more("key-utf8", "od\u00fc", gg.U32, b"\0" * 4, "a key at offset", "found the byte 0xc3")
    one_more("key-escape", "\x1b[2J", gg.U32, b"\0" * 4, "a key at offset", "found the byte 0x1b")
    one_more("key-empty", "", gg.U32, b"\0" * 4, "a key at offset", "expected a text, found none")
    one_more("long-string", "odd", gg.STRING, struct.pack("<Q", 1 << 63), "a string of key odd at offset", "at most 1073741824 bytes, found 9223372036854775808")
    one_more("long-array", "odd", gg.ARRAY, struct.pack("<IQ", gg.U32, 1 << 62), "cut short in its header: expected an array of key odd")
    for name, v, found in ("0", (gg.U32, 0), "uint32 0"), ("3", (gg.U32, 3), "uint32 3"), ("huge", (gg.U32, 1 << 31), "uint32 2147483648"), ("text", (gg.STRING, "32"), "string"):
        bad("alignment-" + name, keys(general__alignment=v), "general.alignment: expected a uint32, a power of two from 8 to 65536, found " + found)


def test_tensors():
    q = "blk.0.attn_q.weight"
    bad("tensor-twice", tensor("blk.1.attn_q.weight", new=q), "tensor %s is there twice, at offsets" % q, AGAIN_OR_CONVERT)
    bad("type250", tensor(q, kind=250), "tensor %s is of type 250, which is unknown: expected one of ggml's types up to" % q)
    for kind, name in (Q1_0, "Q1_0"), (Q2_0, "Q2_0"), (Q4_2, "Q4_2"):
        bad("type-" + name, tensor(q, kind=kind), "tensor %s is of type %s, which is not supported" % (q, name), "another quantisation")
    bad("integers", tensor(q, kind=25), "tensor %s: expected type F32, F16, BF16 or a quantised one, found I16" % q)
    bad("part-of-a-block", tensor(q, kind=Q4_K), "tensor %s: rows of" % q, "of type Q4_K: expected a multiple of 256", AGAIN_OR_CONVERT)
    bad("no-dimensions", tensor(q, shape=()), "tensor %s: expected 1 to 4 dimensions, found 0" % q)
    bad("five", tensor(q, shape=(1,) * 5), "tensor %s: expected 1 to 4 dimensions, found 5" % q)
    bad("zero", tensor(q, shape=(0, 64)), "tensor %s: found dimensions 0 x 64 x 1 x 1: expected each to be at least 1" % q)
    bad("2-64", tensor(q, shape=(1 << 40, 1 << 40)), "tensor %s: found dimensions 1099511627776 x 1099511627776" % q, "fewer than 2^64 weights")
    bad("name-nul", tensor(q, new="blk\0"), "the name of a tensor at offset", "found the byte 0x00")
    bad("name-utf8", tensor(q, new=b"blk.\xff"), "the name of a tensor at offset", "found the byte 0xff")
    bad("name-long", tensor(q, new="b" * 256), "a tensor's name at offset", "expected at most 255 bytes, found 256")


def with_offset(name, change):
    """A good file in which one offset is another."""
    kv, tensors = good()
    i, at = place(tensors, name), 0
    for _, _, _, raw in tensors[:i]:
        at += len(raw) + -len(raw) % gg.ALIGNMENT
    content = whole(kv, tensors)
    where = content.index(gg.text_of(name)) + len(gg.text_of(name)) + 4 + 8 * len(tensors[i][2]) + 4
    assert struct.unpack_from("<Q", content, where) == (at,)
    return content[:where] + struct.pack("<Q", change(at)) + content[where + 8:], at


def test_offsets():
    q = "blk.0.attn_q.weight"
    content, at = with_offset(q, lambda at: at + 4)
    bad_bytes("misaligned", content, "tensor %s begins at %d of the data: expected a multiple of 32" % (q, at + 4), AGAIN_OR_CONVERT)
    content, at = with_offset(q, lambda at: at + 32)
    bad_bytes("overlap", content, "overlap at offset", q, AGAIN_OR_CONVERT)
    content, at = with_offset(q, lambda at: 1 << 40)
    bad_bytes("beyond", content, "tensor %s begins at offset 10995" % q, "bytes within the file, which has %d" % len(content), AGAIN_OR_CONVERT)
    content, at = with_offset(q, lambda at: (1 << 64) - 32)
    bad_bytes("beyond64", content, "tensor %s begins at offset 18446744073709551615" % q, "within the file", AGAIN_OR_CONVERT)


def test_what_the_model_needs():
    q, e = "blk.0.attn_q.weight", "blk.1.ffn_up_exps.weight"
    bad("no-tensor", lambda kv, t: (kv, [x for x in t if x[0] != q]), "tensor %s is missing" % q, OTHER)
    bad("no-experts", lambda kv, t: (kv, [x for x in t if x[0] != e]), "tensor %s is missing" % e, OTHER)
    bad("no-embedding", lambda kv, t: (kv, [x for x in t if x[0] != "token_embd.weight"]), "tensor token_embd.weight is missing", OTHER)
    bad("more", lambda kv, t: (kv, t + [("blk.0.attn_q.lora_a", "F32", [8, 4], b"\0" * 128)]), "tensor blk.0.attn_q.lora_a is not one of a",
        "might change results", OTHER)
    bad("shape", tensor(q, shape=(16, 32, 4)[:2], raw=b"\0" * 1024), "tensor %s: expected shape [" % q, "by the metadata, found [16, 32]", OTHER)


def test_numbers():
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count", "expert_used_count"):
        bad("no-" + key, keys(**{"ARCH." + key: None}), "key qwen3moe.%s is missing: expected an integer" % key, OTHER)
    bad("no-architecture", lambda kv, t: kv.pop("general.architecture") and None,
        "key general.architecture is missing")
    bad("no-eps", keys(ARCH__attention__layer_norm_rms_epsilon=None), "qwen3moe.attention.layer_norm_rms_epsilon")
    bad("float-layers", keys(ARCH__block_count=(gg.F32, 2.0)), "key qwen3moe.block_count: expected an integer, found float32")
    bad("text-heads", keys(ARCH__attention__head_count=(gg.STRING, "4")), "key qwen3moe.attention.head_count: expected an integer, found string")
    bad("minus", keys(ARCH__block_count=(gg.I32, -1)), "key qwen3moe.block_count: expected 0 to 2147483647, found -1")
    bad("0-layers", keys(ARCH__block_count=(gg.U32, 0)), "key qwen3moe.block_count: expected 1 to 2048 layers", "found 0")
    bad("9-layers", keys(ARCH__block_count=(gg.U32, 9)), "tensor blk.", "is missing")
    bad("2-20-layers", keys(ARCH__block_count=(gg.U32, 1 << 20)), "key qwen3moe.block_count: expected 1 to 2048 layers", "found 1048576")
    bad("0-heads", keys(ARCH__attention__head_count=(gg.U32, 0)), "key qwen3moe.attention.head_count: expected 1 to 2147483647, found 0", OTHER)
    bad("2-40-experts", keys(ARCH__expert_count=(gg.U64, 1 << 40)), "key qwen3moe.expert_count: expected 0 to 2147483647, found 1099511627776", OTHER)
    bad("65535-experts", keys(ARCH__expert_count=(gg.U32, 65535)), "65535")
    bad("used", keys(ARCH__expert_used_count=(gg.U32, 12)), "num_experts_per_tok")
    bad("nan-base", keys(ARCH__rope__freq_base=(gg.F32, float("nan"))), "key qwen3moe.rope.freq_base: expected a finite number, found nan")
    bad("0-base", keys(ARCH__rope__freq_base=(gg.F32, 0.0)), "rope_theta")
    bad("inf-eps", keys(ARCH__attention__layer_norm_rms_epsilon=(gg.F32, float("inf"))), "expected a finite number, found inf")
    bad("0-context", keys(ARCH__context_length=(gg.U32, 0)), "key qwen3moe.context_length: expected 1 to 2147483647, found 0")
    bad("linear", keys(ARCH__rope__scaling__type=(gg.STRING, "lin\x1bear")), "key qwen3moe.rope.scaling.type", "expected \"yarn\", \"none\" or \"linear\" with a factor of 1, found \"lin?ear\"")
    bad("dense-first", keys(ARCH__leading_dense_block_count=(gg.U32, 3)), "key deepseek2.leading_dense_block_count", golden="deepseek_v2_groups")


def test_other_models():
    known = ["llama", "qwen2moe", "qwen3moe", "qwen3next", "qwen35moe", "olmoe", "deepseek2", "glm4moe", "minimax-m2", "gpt-oss", "gemma4", "phimoe"]
    for arch in "mamba2", "qwen3", "gemma3":
        bad("arch-" + arch, keys(general__architecture=(gg.STRING, arch)), "general.architecture \"%s\" is not supported" % arch, ", ".join(known))
    bad("arch-bytes", keys(general__architecture=(gg.STRING, b"\xff\x1b\n" + b"a" * 200)), "general.architecture \"???aaa", ", ".join(known))
    bad("dense", keys(ARCH__expert_count=None), "a dense model (general.architecture \"llama\" without experts)", ", ".join(known), "llama.cpp",
        golden="mixtral_top3", model="llama")
    bad("dense0", keys(ARCH__expert_count=(gg.U32, 0)), "a dense model", golden="mixtral_top3", model="llama")
    bad("mmproj", lambda kv, t: ({"general.architecture": (gg.STRING, "clip"), "general.type": (gg.STRING, "mmproj")}, t), "mmproj", "the model's own file")
    bad("clip", lambda kv, t: ({"general.architecture": (gg.STRING, "clip")}, t), "is no language model", "the model's own file")
    bad("lora", lambda kv, t: ({"general.architecture": (gg.STRING, "llama"), "general.type": (gg.STRING, "adapter")}, t), "adapter", "LoRA", "a model's own file")
    bad("imatrix", lambda kv, t: ({"general.type": (gg.STRING, "imatrix")}, t), "is no language model", "imatrix")
    bad("vocab-only", lambda kv, t: (kv, [t[place(t, "token_embd.weight")]]),
        "none of 3 layers has a tensor blk.N.ffn_down_exps.weight: expected experts", OTHER)


def test_tokenisers():
    g = "tokenizer.ggml."
    def cut(key, n):
        def change(kv, tensors):
            kind, (of, items) = kv[key]
            kv[key] = kind, (of, items[:n] if n > 0 else items + items[:-n])
        return change
    bad("none", lambda kv, t: [kv.pop(k) for k in list(kv) if k.startswith("tokenizer")] and None, "has no tokenizer, so it cannot read prompts")
    bad("no-tokens", keys(**{g + "tokens": None}), "key tokenizer.ggml.tokens is missing: expected an array of string")
    bad("few-tokens", cut(g + "tokens", 250), "key tokenizer.ggml.token_type: expected a type for each of the 250 tokens, found 296", "get the file again, or convert")
    bad("same-tokens", lambda kv, t: kv[g + "tokens"][1][1].__setitem__(100, kv[g + "tokens"][1][1][99]),
        "key tokenizer.ggml.tokens: expected different tokens, found ", "as token 99 and 100")
    bad("many-tokens", lambda kv, t: kv[g + "tokens"][1][1].append("unlike all others") or cut(g + "token_type", -1)(kv, t),
        "key tokenizer.ggml.tokens: expected at most 296 tokens", "found 297")
    bad("few-types", cut(g + "token_type", 17), "key tokenizer.ggml.token_type: expected a type for each of the 296 tokens, found 17")
    bad("many-types", cut(g + "token_type", -17), "key tokenizer.ggml.token_type: expected a type for each of the 296 tokens, found 313")
    bad("few-scores", cut(g + "scores", 1), "key tokenizer.ggml.scores: expected a score for each of the 296 tokens, found 1", golden="mixtral_top3", model="llama")
    bad("no-scores", keys(**{g + "scores": None}), "key tokenizer.ggml.scores is missing", golden="mixtral_top3", model="llama")
    bad("no-merges", keys(**{g + "merges": None}), "key tokenizer.ggml.merges is missing")
    for name, merge, found in ("one", "ab", "\"ab\""), ("three", "a b c", "\"a b c\""), ("unknown", "a <s>", "a <s>"):
        bad("merge-" + name, keys(**{g + "merges": (gg.ARRAY, (gg.STRING, [merge]))}), "key tokenizer.ggml.merges: merge 0", found)
    bad("merge-numbers", keys(**{g + "merges": (gg.ARRAY, (gg.U32, [1]))}), "key tokenizer.ggml.merges: expected an array of string, found an array of uint32")
    bad("kind", keys(**{g + "model": (gg.STRING, "t5")}), "key tokenizer.ggml.model", "\"t5\" is not known; known: gpt2, llama, gemma4")
    bad("pre", keys(**{g + "pre": (gg.STRING, "viking")}), "key tokenizer.ggml.pre", "\"viking\" is not known; known: default, ", "qwen2")
    bad("utf8", lambda kv, t: kv[g + "tokens"][1][1].__setitem__(7, b"\xff\xfe"), "key tokenizer.ggml.tokens: token 7: expected UTF-8")
    bad("nul", lambda kv, t: kv[g + "tokens"][1][1].__setitem__(7, "a\0b"), "key tokenizer.ggml.tokens: token 7", "NUL")
    bad("eos", keys(**{g + "eos_token_id": (gg.U32, 296)}), "key tokenizer.ggml.eos_token_id: expected an id below 296, found 296")
    bad("bos", keys(**{g + "bos_token_id": (gg.STRING, "<s>")}), "key tokenizer.ggml.bos_token_id: expected an integer, found string")
    bad("template-nul", keys(tokenizer__chat_template=(gg.STRING, "a\0b")), "key tokenizer.chat_template: expected a text without a NUL")
    bad("template-gone", keys(tokenizer__chat_templates=(gg.ARRAY, (gg.STRING, ["tools"]))), "key tokenizer.chat_template.tools is missing")


def parts(n=3, name="part.gguf", change=None):
    kv, tensors = good()
    return gg.write_split(os.path.join(TMP.name, name), kv, change(tensors) if change else tensors, n)


def refused_parts(change, given, *says):
    """change(paths) breaks a good split model, whose part `given` is then named."""
    paths = parts()
    path = change(paths) or paths[given]
    refused(path, *says)
    for p in paths:
        if os.path.exists(p):
            os.remove(p)


def test_parts():
    def swap(paths):
        os.rename(paths[1], paths[1] + "x")
        os.rename(paths[2], paths[1])
        os.rename(paths[1] + "x", paths[2])

    def of_another_model(paths):
        other = parts(name="other.gguf", change=lambda t: t[:-1])
        os.replace(other[1], paths[1])

    def renamed(paths):
        path = os.path.join(TMP.name, "renamed.gguf")
        os.rename(paths[1], path)
        return path

    for p in parts():
        assert said(p)[0] == 0, p
    for given in 0, 2:
        refused_parts(lambda paths: os.remove(paths[1]), given, "part-00002-of-00003.gguf is missing: file 2 of 3 of the model", "get all files")
    refused_parts(swap, 0, "part-00002-of-00003.gguf: it says that it is file 3 of 3", "expected 2 of 3", "get all files")
    refused_parts(of_another_model, 0, "part-00002-of-00003.gguf: it says that it is file 2 of 3", "get all files")
    refused_parts(renamed, 0, "is file 2 of 3 of a split model: expected its name to end with -00002-of-00003.gguf")
    refused_parts(lambda paths: os.truncate(paths[2], os.path.getsize(paths[2]) - 64), 0, "part-00003-of-00003.gguf: cut short: 64 of",
                  "bytes are missing")


def test_bytes_that_change():
    """Behind those that the fingerprint covers, in the last file of a split model."""
    paths = parts()
    assert said(paths[0])[0] == 0
    raw = next(raw for name, _, _, raw in good()[1] if name == "token_embd.weight")
    with open(paths[2], "rb") as f:
        content = bytearray(f.read())
    at, st = content.index(raw), os.stat(paths[2])
    content[at + len(raw) - 100] ^= 1
    with open(paths[2], "r+b") as f:
        f.write(content)
    os.utime(paths[2], ns=(st.st_atime_ns, st.st_mtime_ns))
    refused(paths[2], "part-00003-of-00003.gguf: tensor embed of layer 0 at offset %d: checksum" % at, "when it was read first", "to begin anew, remove ")


def test_a_damaged_cache():
    """Its files are made again; what else is there stays. A file that is refused leaves none."""
    cache = os.path.join(TMP.name, "cache", "gguf")
    shutil.rmtree(cache, ignore_errors=True)
    bad("more", lambda kv, t: (kv, t + [("blk.0.attn_q.lora_a", "F32", [8, 4], b"\0" * 128)]), "tensor blk.0.attn_q.lora_a is not one of a")
    assert os.listdir(cache) == []
    path = write("good.gguf", whole(*good()))
    assert said(path)[0] == 0
    folder = os.path.join(cache, *os.listdir(cache))

    def files():
        return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}

    before = files()
    def change(name, content):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(content)
    for damage in (lambda: os.remove(os.path.join(folder, "tokenizer.json")),
                   lambda: os.remove(os.path.join(folder, "SHA256SUMS")),
                   lambda: change("tokenizer.json", before["tokenizer.json"][:-9]),
                   lambda: change("generation_config.json", before["generation_config.json"].replace(b"1", b"2")),
                   lambda: change("chat_template.jinja", b"of another model")):
        damage()
        change("shadow-int8.bin", b"kept")
        status, _, err = said(path)
        assert status == 0 and files() == dict(before, **{"shadow-int8.bin": b"kept"}), (err, sorted(files()))
        assert os.listdir(cache) == [os.path.basename(folder)]


def cache_told(path, env):
    """The folder that od-pack info names, of a user who owns none of them."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    try:
        p = subprocess.run([OD_PACK, "info", "--json", path], capture_output=True, timeout=HANG_S, stdin=subprocess.DEVNULL, env=env, **nobody)
    except PermissionError as e:
        raise Skip("another user cannot run the programs here") from e
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["gguf"]["folder"]


def test_a_cache_of_another_user():
    """It is read where none can be written; without one the folder is temporary, and nothing stays."""
    place = os.path.join(TMP.name, "theirs")
    cache, tmp = os.path.join(place, "gguf"), os.path.join(TMP.name, "tmp")
    for folder, mode in (TMP.name, 0o755), (place, 0o755), (cache, 0o555), (tmp, 0o777):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)
    path = write("good.gguf", whole(*good()))
    env = dict(os.environ, CACHE_DIRECTORY=place, XDG_CACHE_HOME="/proc/none", HOME="/proc/none", TMPDIR=tmp)
    assert cache_told(path, env).startswith(tmp + "/")
    assert os.listdir(cache) == [] and os.listdir(tmp) == []
    os.chmod(cache, 0o755)
    assert subprocess.run([OD_PACK, "info", path], stdout=subprocess.DEVNULL, timeout=HANG_S, env=env).returncode == 0
    os.chmod(cache, 0o555)
    made = os.path.join(cache, *os.listdir(cache))
    assert cache_told(path, env) == made
    os.chmod(made, 0o755)
    os.remove(os.path.join(made, "tokenizer.json"))
    os.chmod(made, 0o555)
    assert cache_told(path, env).startswith(tmp + "/")  # it cannot be made good
    assert "tokenizer.json" not in os.listdir(made) and os.listdir(tmp) == []
    os.chmod(made, 0o755)
    os.chmod(cache, 0o755)


def test_a_link_keeps_its_name():
    """As in Hugging Face's cache: names are links to files that are called by their checksums."""
    blob, link = write("0a1b2c", whole(*good())), os.path.join(TMP.name, "Tiny-Q4_K_M.gguf")
    os.symlink(blob, link)
    p = subprocess.Popen([OD_MAIN, "serve", "--resident", "--pack", link, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE,
                         stdin=subprocess.DEVNULL, env=environment())
    try:
        port = next(m[1] for line in p.stderr if (m := re.search(rb"page and API at http://127.0.0.1:(\d+)", line)))
        next(line for line in p.stderr if b"ready" in line)
        with urllib.request.urlopen("http://127.0.0.1:%s/v1/models" % port.decode(), timeout=HANG_S) as r:
            assert [m["id"] for m in json.load(r)["data"]] == ["Tiny-Q4_K_M"]
    finally:
        p.kill()
        p.wait()
        p.stderr.close()


def test_a_template_that_does_not_parse():
    """Texts can be completed, so the server serves: it says what it will refuse."""
    kv, tensors = good()
    kv["tokenizer.chat_template"] = (gg.STRING, "{% for m in messages %}{{ m }")
    path = write("template.gguf", whole(kv, tensors))
    p = subprocess.Popen([OD_MAIN, "serve", "--resident", "--pack", path, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE,
                         stdin=subprocess.DEVNULL, env=environment())
    line = next(line for line in p.stderr if b"chat endpoints will refuse" in line)
    p.kill()
    p.wait()
    p.stderr.close()
    assert b"tokenizer_config.json, line 1: unexpected '}'" in line, line


if __name__ == "__main__":
    sys.exit(run([f for name, f in list(globals().items()) if name.startswith("test_")]) != 0)
