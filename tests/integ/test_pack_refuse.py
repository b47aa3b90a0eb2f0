#!/usr/bin/env python3
"""What od-pack must refuse: checkpoints and packs that are damaged, incomplete or forged. Standard library only."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pack_reader as pr
import tiny_checkpoint as tc
from model_config import Model
from pack_commands import (BIG_FILES, OD_PACK, QUANT, at, contents, forge_header, good, make_det, make_partial, read, refused, resum,
                           run_tests, write)

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "pack", "bad_headers.json")
SPEC = Model(tc.CONFIG)


# ---- checkpoints ----

def bad_checkpoint(name, says, damage, cfg=tc.CONFIG, shards=1, args=()):
    """damage(folder) breaks a good checkpoint."""
    path = at("bad-" + name)
    tc.write_checkpoint(path, cfg, tc.tensors(cfg, seed=5), shards=shards)
    damage(path)
    p = refused(path, path + ".pack", *args, says=["error", *says])
    assert not os.path.exists(path + ".pack"), name
    assert not os.path.exists(path + ".pack.partial"), name  # refused is not interrupted: nothing to go on with
    assert "kept in" not in p.stderr, p.stderr
    shutil.rmtree(path)


def with_tensors(change):
    """Rewrites model.safetensors with changed tensors."""
    def damage(path):
        tens = tc.tensors(tc.CONFIG, seed=5)
        change(tens)
        tc.write_safetensors(os.path.join(path, "model.safetensors"), tens)
    return damage


def test_bad_headers():
    """Golden: headers of a file with 64 bytes of data, and what is said about them."""
    with open(GOLDEN) as f:
        cases = json.load(f)
    for c in cases:
        def damage(path):
            text = c["header"].encode()
            data = struct.pack("<Q", c.get("length", len(text))) + text + bytes(c.get("data_bytes", 64))
            write(data[:c.get("cut", len(data))], path, "model.safetensors")
        bad_checkpoint("header", c["says"] if c.get("whole") else ["model.safetensors", *c["says"]], damage)


def test_bad_files():
    st = "model.safetensors"
    part2 = "model-00002-of-00003.safetensors"
    index = "model.safetensors.index.json"
    remove = lambda name: lambda p: os.remove(os.path.join(p, name))
    cut = lambda name, n: lambda p: os.truncate(os.path.join(p, name), n)

    def edit_index(change):
        def damage(p):
            d = json.loads(read(p, index))
            change(d)
            write(json.dumps(d).encode(), p, index)
        return damage

    def twice(p):
        shutil.copy(os.path.join(p, part2), os.path.join(p, "model-copy.safetensors"))
        os.remove(os.path.join(p, index))

    def not_there(p):
        shutil.rmtree(p)
        os.makedirs(p)

    a = SPEC.dense_name("attn_q", 0)
    bad_checkpoint("gone", ["config.json"], not_there)
    bad_checkpoint("none", ["no model.safetensors"], remove(st))
    bad_checkpoint("empty", [st, "0 bytes"], cut(st, 0))
    bad_checkpoint("cut", [st, "outside the data"], lambda p: os.truncate(os.path.join(p, st), os.path.getsize(os.path.join(p, st)) - 1))
    bad_checkpoint("cut-header", [st, "cut short"], cut(st, 500))
    bad_checkpoint("config", ["config.json", "JSON"], lambda p: write(b"{", p, "config.json"))
    bad_checkpoint("family", ["known", "mixtral"], lambda p: write(json.dumps(dict(tc.CONFIG, architectures=["Foo"], model_type="foo")).encode(), p, "config.json"))
    bad_checkpoint("shard", [part2 + " is missing", index + " lists 3 files, of which 1 is not there", "hf download"], remove(part2),
                   shards=3)
    bad_checkpoint("shards", [part2 + " is missing", "of which 2 are not there"],
                   lambda p: [os.remove(os.path.join(p, f"model-0000{i}-of-00003.safetensors")) for i in (2, 3)], shards=3)
    bad_checkpoint("shard-no-index", ["model-00003-of-00003.safetensors is missing", "hf download"],
                   lambda p: [os.remove(os.path.join(p, n)) for n in (index, "model-00003-of-00003.safetensors")], shards=3)
    bad_checkpoint("twice", ["twice", part2, "model-copy"], twice, shards=3)
    bad_checkpoint("index-json", [index, "JSON"], lambda p: write(b"[", p, index), shards=3)
    bad_checkpoint("index-map", [index, "weight_map"], edit_index(lambda d: d.pop("weight_map")), shards=3)
    bad_checkpoint("index-gone", ["nowhere.safetensors"], edit_index(lambda d: d["weight_map"].update({a: "nowhere.safetensors"})), shards=3)
    bad_checkpoint("index-path", [index, "file name"], edit_index(lambda d: d["weight_map"].update({a: "../x.safetensors"})), shards=3)
    bad_checkpoint("index-nul", [index, "file name"],
                   edit_index(lambda d: d["weight_map"].update({a: d["weight_map"][a] + "\0/x"})), shards=3)
    bad_checkpoint("index-type", [index, "file name"], edit_index(lambda d: d["weight_map"].update({a: 7})), shards=3)
    bad_checkpoint("index-less", [f"tensor {a} is missing"], edit_index(lambda d: d["weight_map"].pop(a)), shards=3)
    other = lambda file: part2 if file != part2 else "model-00001-of-00003.safetensors"
    bad_checkpoint("index-other", [f"tensor {a} is missing"],
                   edit_index(lambda d: d["weight_map"].update({a: other(d["weight_map"][a])})), shards=3)
    bad_checkpoint("fifo", [st, "regular"], lambda p: (os.remove(os.path.join(p, st)), os.mkfifo(os.path.join(p, st))))
    refused(at("nowhere"), at("x.pack"), says=["no checkpoint folder", "nowhere"])


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665cb9d11f6\nsize 5368709120\n"


def folder(name, **files):
    """A folder of other files; in names stands __ for a dot and ___ for a slash."""
    path = at("given-" + name)
    for file, data in files.items():
        file = os.path.join(path, file.replace("___", "/").replace("__", "."))
        os.makedirs(os.path.dirname(file), exist_ok=True)
        write(data, file)
    os.makedirs(path, exist_ok=True)
    return path


def test_other_things_than_checkpoints():
    """What users name instead: it is said what it is and what to do."""
    config = json.dumps(tc.CONFIG).encode()
    gguf = ["GGUF", "name the file itself"]
    good_one = at("given-good")
    tc.write_checkpoint(good_one, tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    pack = at("given-good.pack")
    good(good_one, pack, "--shadow", "none")
    for path, says in (
            ("Qwen/Qwen3-30B-A3B", ["no checkpoint folder Qwen/Qwen3-30B-A3B here", "od-pack hf://Qwen/Qwen3-30B-A3B"]),
            (folder("gguf-file", m__gguf=b"GGUF\3\0\0\0") + "/m.gguf", ["m.gguf"]),
            (folder("renamed", m__model=b"GGUF\3\0\0\0") + "/m.model", ["m.model"]),
            (folder("gguf-safetensors", model__safetensors=b"GGUF\3\0\0\0", config__json=config), ["model.safetensors", *gguf]),
            (folder("gguf", m__gguf=b"GGUF", README__md=b"#"), ["m.gguf", *gguf]),
            (folder("gguf-config", m__gguf=b"GGUF", config__json=config), ["m.gguf", *gguf]),
            (os.path.join(good_one, "model.safetensors"), ["one file of a checkpoint", "its folder is " + good_one]),
            (os.path.join(good_one, "config.json"), ["one file of a checkpoint", "its folder is " + good_one]),
            (folder("archive", m__tar__gz=b"x") + "/m.tar.gz", ["an archive", "unpack it"]),
            (os.path.join(pack, "experts.bin"), ["experts.bin"]),
            (os.path.join(pack, "model.json"), ["is a file of a pack", pack]),
            (folder("any", notes__txt=b"x") + "/notes.txt", ["is a file", "expected a checkpoint folder"]),
            (folder("any"), ["no checkpoint folder", "config.json"]),
            (folder("empty"), ["is empty", "config.json"]),
            (folder("config", config__json=config), ["no model.safetensors", "hf download"]),
            (folder("unfinished", config__json=config, a__safetensors__incomplete=b"x"), ["unfinished download", "a.safetensors.incomplete"]),
            (folder("pickles", config__json=config, pytorch_model__bin=b"PK"), ["pytorch_model.bin", "PyTorch's pickles", "save_pretrained"]),
            (folder("pickles-pth", consolidated__00__pth=b"PK", params__json=b"{}"), ["params.json", "own form"]),
            (folder("pth", model__pth=b"PK"), ["model.pth", "PyTorch's pickles"]),
            (folder("mistral", params__json=b"{}", consolidated__safetensors=b"x", tekken__json=b"{}"), ["params.json", "own form"]),
            (folder("mistral-config", params__json=b"{}", consolidated__safetensors=b"x", config__json=config), ["consolidated", "own form"]),
            (folder("onnx", config__json=config, model__onnx=b"x"), ["model.onnx", "ONNX"]),
            (folder("mlx", weights__npz=b"PK", config__json=config), ["weights.npz", "MLX"]),
            (folder("tf", tf_model__h5=b"x", config__json=config), ["tf_model.h5", "TensorFlow"]),
            (folder("adapter", adapter_config__json=b"{}", adapter_model__safetensors=b"x"), ["adapter (LoRA)", "merge"]),
            (folder("adapter-config", adapter_config__json=b"{}", adapter_model__safetensors=b"x", config__json=config), ["adapter (LoRA)"]),
            (folder("weights", model__safetensors=b"x"), ["config.json is missing", "hf download"]),
            (folder("below", sub___config__json=config, sub___model__safetensors=b"x"), ["a checkpoint is below it", at("given-below", "sub")]),
            (folder("cache", refs___main=b"abc", blobs___1=b"x", snapshots___abc___config__json=config),
             ["a checkpoint is below it", at("given-cache", "snapshots", "abc")]),
            (pack, ["is a pack already", "od-pack info " + pack])):
        refused(path, at("given.pack"), says=["error", *says])
        assert not os.path.exists(at("given.pack")) and not os.path.exists(at("given.pack.partial")), path
        if path != at("given-good"):
            refused("verify", pack, "--against", path, says=["error"])
    p = refused(at("given-pth", "model.pth"), status=2, says=["PyTorch's pickles", "expected CHECKPOINT and PACK"])
    assert p.stderr.count("--help") == 1, p.stderr
    refused(good_one, status=2, says=["expected CHECKPOINT and PACK"])
    # The two exchanged, the pack there or not.
    for first in (at("given-nothing.pack"), pack, at("given-empty")):
        refused(first, good_one, says=["the checkpoint comes first", f"od-pack {good_one} {first}"])
    refused(good_one, good_one, says=["exists and is not a pack", "another name"])
    refused(good_one, good_one, "--force", says=["exists and is not a pack", "another name"])
    os.symlink("nowhere", at("given-link"))
    refused(at("given-link"), at("given.pack"), says=["given-link is a symbolic link to something that does not exist"])


def test_pointers():
    """A clone without git lfs; a web page that was saved under the file's name."""
    for name in "model.safetensors", "tokenizer.json", "config.json", "generation_config.json":
        for data, says in ((POINTER, ["git LFS pointer", "git lfs pull"]), (b"<!DOCTYPE html>\n<html>", ["web page"])):
            bad_checkpoint("pointer", [name + " is", *says, "hf download"], lambda p: write(data, p, name))
    every = ["model-0000%d-of-00003.safetensors" % i for i in (1, 2, 3)]
    bad_checkpoint("pointers", ["(and others) is a git LFS pointer"], lambda p: [write(POINTER, p, n) for n in every], shards=3)


def test_other_things_than_packs():
    for path, says in (
            (folder("gguf-file", m__gguf=b"GGUF\3\0\0\0") + "/m.gguf", ["cut short in its header", "the file has 8"]),
            ("Qwen/Qwen3-30B-A3B", ["no pack Qwen/Qwen3-30B-A3B", "od-pack hf://Qwen/Qwen3-30B-A3B", "--pack Qwen3-30B-A3B"]),
            ("https://huggingface.co/Qwen/Qwen3-30B-A3B/tree/main", ["od-pack hf://Qwen/Qwen3-30B-A3B"]),
            ("https://example.org/model", ["an address", "od-pack https://.../NAME.gguf"]),
            (at("given-good"), ["is a checkpoint, not a pack", "od-pack " + at("given-good")]),
            (at("given-good.pack", "model.json"), ["is a file of a pack", at("given-good.pack")]),
            (at("given-empty"), ["is no pack", "model.json", "od-pack CHECKPOINT PACK"]),
            (at("given-nothing"), ["no pack at", "od-pack CHECKPOINT"])):
        for command in ("info", "verify"):
            refused(command, path, says=["error", *says])
        for program in ("od-worker", "od-shadow", "od-main"):
            more = ["--resident", "--prompt", "x"] if program == "od-main" else []
            p = subprocess.run([os.path.join(os.path.dirname(OD_PACK), program), "--pack", path, *more], capture_output=True, text=True)
            assert p.returncode == 1 and all(s in p.stderr for s in says), (program, path, p.stderr)
    make_partial("unfinished")
    refused("info", at("unfinished.partial"), says=["is an unfinished pack", "again"])
    refused(at("unfinished.partial"), at("given.pack"), says=["is an unfinished pack"])


def test_words_of_python():
    """json.dumps(float("inf")): such a model is refused for what it is."""
    inf = float("inf")
    write_config = lambda **f: lambda p: write(json.dumps(dict(tc.CONFIG, **f)).encode(), p, "config.json")
    bad_checkpoint("inf-family", ["nemotron_h", "Mamba layers"],
                   write_config(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", time_step_limit=[0.0, inf]))
    for value, found in ((inf, "Infinity"), (-inf, "-Infinity"), (float("nan"), "NaN")):
        bad_checkpoint("inf-field", ["rms_norm_eps", "found " + found], write_config(rms_norm_eps=value))
    tc.write_checkpoint(at("inf"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    write_config(time_step_limit=[0.0, inf])(at("inf"))  # nothing here reads it
    good(at("inf"), at("inf.pack"), "--shadow", "none")
    good("verify", at("inf.pack"), "--against", at("inf"))


def test_links_to_nothing():
    """A download that was cut short: the file is meant to be there."""
    def dangle(name):
        def damage(p):
            if os.path.exists(os.path.join(p, name)):
                os.remove(os.path.join(p, name))
            os.symlink("../blobs/0123", os.path.join(p, name))
        return damage

    for name in "generation_config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors":
        says = at("bad-dangling-" + name, name) + " is a symbolic link to a file that does not exist"
        bad_checkpoint("dangling-" + name, [says], dangle(name))
    index = "model.safetensors.index.json"
    bad_checkpoint("dangling-index", [index + " is a symbolic link"], dangle(index), shards=3)
    shutil.copytree(at("det.pack"), at("dangling.pack"))
    dangle("shadow-int8.bin")(at("dangling.pack"))
    refused("verify", at("dangling.pack"), says=["shadow-int8.bin is a symbolic link to a file that does not exist"])
    good("shadow", at("dangling.pack"), "int8")
    good("verify", at("dangling.pack"))


def test_bad_tokenizer():
    def damage(**change):
        return lambda p: write(json.dumps(dict(tc.TOKENIZER, **change)).encode(), p, "tokenizer.json")

    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    for name, says, d in (
            ("junk", ["JSON"], lambda p: write(b"{", p, "tokenizer.json")),
            ("piece", ["WordPiece"], damage(model={"type": "WordPiece", "vocab": {"a": 0}})),
            ("unigram", ["Unigram"], damage(model={"type": "Unigram", "vocab": [["a", 0.0]]})),
            ("pre", ["pre_tokenizer", "Sorcery"], damage(pre_tokenizer={"type": "Sorcery"})),
            ("regex", [], damage(pre_tokenizer=dict(split, pattern={"Regex": "(a"}))),
            ("version", ["version", "2.0"], damage(version="2.0"))):
        bad_checkpoint("tok-" + name, [at("bad-tok-" + name, "tokenizer.json"), *says], d)


def test_bad_generation_config():
    here = lambda name: at("bad-gen-" + name, "generation_config.json")
    for name, text, says in (("list", b"[1]", ["object"]), ("junk", b"{", ["JSON"]), ("nothing", b"", ["JSON"]),
                             ("sample", b'{"do_sample": 1}', ["do_sample"]),
                             ("t", b'{"temperature": "hot"}', ["temperature"]), ("k", b'{"top_k": [50]}', ["top_k"]),
                             ("eos", b'{"eos_token_id": "x"}', ["eos_token_id"]),
                             ("eos-list", b'{"eos_token_id": [2, 99999999]}', ["eos_token_id", "99999999"]),
                             ("p", b'{"top_p": true}', ["top_p"]), ("rp", b'{"repetition_penalty": {}}', ["repetition_penalty"])):
        bad_checkpoint("gen-" + name, [here(name), *says], lambda p: write(text, p, "generation_config.json"))
    tc.write_checkpoint(at("gen"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    write(b'{"do_sample": null, "temperature": 0.5, "top_p": 1, "top_k": null, "repetition_penalty": 1.1}', at("gen"),
          "generation_config.json")
    good(at("gen"), at("gen.pack"))


def test_refused_after_interruption():
    """What an interrupted run left goes too when its checkpoint is refused; what is not od-pack's stays."""
    make_partial("again")
    write(b"mine", at("again.partial"), "notes.txt")
    write(b"{", at("again.partial"), "config.json.tmp")
    tc.write_checkpoint(at("again"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    write(b"", at("again"), "tokenizer_config.json")
    os.truncate(at("again", "tokenizer_config.json"), 65 << 20)
    p = refused(at("again"), at("again") + "-pack/", says=["tokenizer_config.json"])
    assert not os.path.exists(at("again-pack.partial")) and "kept" not in p.stderr
    shutil.move(at("again.partial"), at("again-pack.partial"))
    refused(at("again"), at("again-pack"), says=["tokenizer_config.json"])
    assert contents(at("again-pack.partial")) == {"notes.txt": b"mine"}


def test_bad_tensors():
    q, x = SPEC.dense_name("attn_q", 1), SPEC.expert_name(1, 2, "down")

    def replace(name, dtype=None, shape=None, raw=None):
        def change(t):
            d, s, r = t[name]
            t[name] = (dtype or d, shape or s, r if raw is None else raw)
        return with_tensors(change)

    def swap(r, bits, i):
        return r[:2 * i] + struct.pack("<H", bits) + r[2 * i + 2:]

    def poison(name, bits):
        def change(t):
            d, s, r = t[name]
            t[name] = (d, s, swap(r, bits, 70))
        return with_tensors(change)

    bad_checkpoint("missing", [q, "missing"], with_tensors(lambda t: t.pop(q)))
    bad_checkpoint("missing-x", [x, "missing"], with_tensors(lambda t: t.pop(x)))
    bad_checkpoint("shape", [q, "expected shape [32, 32]", "[16, 64]"], replace(q, shape=[16, 64]))
    bad_checkpoint("shape-x", [x, "expected shape [32, 48]", "[48, 32]"], replace(x, shape=[48, 32]))
    bad_checkpoint("dims", [x, "[32, 48]", "[1536]"], replace(x, shape=[1536]))
    bad_checkpoint("dtype", [x, "BF16, F16, F32", "I16"], replace(x, dtype="I16"))
    for name, shape in (("model.embed_tokens.weight", [96, 32]), ("model.norm.weight", [32])):
        for dtype in pr.F8:
            bad_checkpoint("embed8", [name, "BF16, F16 or F32", dtype], replace(name, dtype=dtype, raw=bytes(math.prod(shape))))
    bad_checkpoint("unknown", ["model.layers.0.extra", "is not one of a mixtral model"],
                   with_tensors(lambda t: t.update({"model.layers.0.extra": ("BF16", [4], bytes(8))})))
    tied = dict(tc.CONFIG, tie_word_embeddings=True)

    def other_head(path):
        tens = tc.tensors(tied, seed=5)
        dtype, shape, raw = tens["model.embed_tokens.weight"]
        tens["lm_head.weight"] = (dtype, shape, swap(raw, 0x3F80, len(raw) // 2 - 1))
        tc.write_safetensors(os.path.join(path, "model.safetensors"), tens)
    bad_checkpoint("tied", ["lm_head.weight", "a copy of model.embed_tokens.weight", "tie_word_embeddings"], other_head, cfg=tied)
    for name in (q, x):
        for bits in (0x7F80, 0xFFC1):
            tc.write_checkpoint(at("nan"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
            poison(name, bits)(at("nan"))
            for precision in pr.PRECISIONS:  # no shadow can have it, the pack does
                p = refused(at("nan"), at("nan.pack"), "--shadow", precision,
                            says=[name, "row 2" if name == q else "row 1", "infinity or NaN", "--precision bf16", "is complete"])
                assert "kept in" not in p.stderr
                assert not [n for n in os.listdir(at("nan.pack")) if n.startswith("shadow")]
                good("verify", at("nan.pack"), "--against", at("nan"))
                shutil.rmtree(at("nan.pack"))


# ---- packs ----

def flip_places():
    """Where to flip a bit: in every kind of region of every file, and at random."""
    rng = random.Random(11)
    pack = at("det.pack")
    model = json.loads(read(pack, "model.json"))
    places = []
    for name in [*pr.SMALL, "SHA256SUMS"]:
        if os.path.exists(os.path.join(pack, name)):
            size = os.path.getsize(os.path.join(pack, name))
            places += [(name, i) for i in sorted({0, size - 1, *(rng.randrange(size) for _ in range(25))})]
    for t in model["dense"]["tensors"][::4]:
        end = t["offset"] + t["bytes"]
        places += [("dense.bin", i) for i in (t["offset"], end - 1, end, end + 63, pr.round_up(end + 64, 4096) - 1)]
    for e in model["experts"]["table"][::2]:
        head = read(pack, "experts.bin")[e["offset"]:]
        sm_off, e_off = struct.unpack_from("<QQ", head, 48)
        for i in (0, 9, 17, 64, 68, 70, 71, 80, 170, 192, 201, 203, 250, 383, 384, 4095, sm_off, e_off - 65, e_off - 64, e_off - 1,
                  e_off, e_off + 700, e["bytes"] - 64, e["bytes"] - 1):
            places.append(("experts.bin", e["offset"] + i))
    places += [("shadow-int8.bin", i) for i in (0, 9, 16, 21, 24, 30, 35, 42, 50, 79, 90, 127, 128, 136, 145, 153, 161, 4095)]
    for i in range(0, 26, 5):
        offset, size = struct.unpack_from("<QQ", read(pack, "shadow-int8.bin"), 128 + 40 * i + 16)
        places += [("shadow-int8.bin", offset + i) for i in (0, 1000, size - 1, size - 200)]
    for name in BIG_FILES:
        size = os.path.getsize(os.path.join(pack, name))
        places += [(name, rng.randrange(size)) for _ in range(40)] + [(name, size - 1)]
    return [(name, i, 1 << rng.randrange(8)) for name, i in places]


def test_one_flipped_bit():
    shutil.copytree(at("det.pack"), at("flip.pack"))
    good("verify", at("flip.pack"))
    places = flip_places()
    for name, i, bit in places:
        path = at("flip.pack", name)
        with open(path, "r+b") as f:
            f.seek(i)
            old = f.read(1)[0]
            f.seek(i)
            f.write(bytes([old ^ bit]))
            f.flush()
            p = refused("verify", at("flip.pack"))
            assert name in p.stderr or name == "SHA256SUMS", (name, i, bit, p.stderr)
            if name not in BIG_FILES:
                refused("info", at("flip.pack"))
            f.seek(i)
            f.write(bytes([old]))
    good("verify", at("flip.pack"))
    assert len(places) > 250
    shutil.rmtree(at("flip.pack"))


def test_padding_of_a_share():
    """Only a pack has it: a worker takes no notice of it, so neither does verify, for nothing could make it good."""
    good("--share", "1/1", at("det.pack"), at("padded"))
    shutil.copytree(at("det.pack"), at("padded.pack"))
    t = json.loads(read(at("padded"), "model.json"))["experts"]["table"][1]
    for path, says in (at("padded"), None), (at("padded.pack"), "padding at offset"):
        with open(os.path.join(path, "experts.bin"), "r+b") as f:
            f.seek(t["offset"] + t["bytes"] - 1)
            f.write(b"\1")
        refused("verify", path, says=[says]) if says else good("verify", path)
    with open(os.path.join(at("padded"), "experts.bin"), "r+b") as f:
        f.seek(t["offset"] + 4096)  # the first chunk, behind the header
        byte = f.read(1)[0]
        f.seek(t["offset"] + 4096)
        f.write(bytes([byte ^ 1]))
    refused("verify", at("padded"), says=["checksum"])


def test_cut_short_or_missing():
    for name, data in contents(at("det.pack")).items():
        for size in (None, 0, 1, len(data) // 2, len(data) - 1, len(data) + 1):
            if size is None and name.startswith("shadow"):
                continue  # may be missing
            shutil.copytree(at("det.pack"), at("cut.pack"))
            if size is None:
                os.remove(at("cut.pack", name))
            else:
                write((data + b"\0")[:size], at("cut.pack"), name)
            for cmd in ("info", "verify"):
                p = refused(cmd, at("cut.pack"))
                assert name in p.stderr or "SHA256SUMS" in p.stderr, (name, size, p.stderr)
                if size is None and name in ("generation_config.json", "tokenizer.json"):
                    assert at("cut.pack", name) + " is missing" in p.stderr, p.stderr
            shutil.rmtree(at("cut.pack"))


def test_small_files_that_are_huge():
    """Refused before they are hashed: a sparse one of 1 TiB would take hours."""
    for name in contents(at("det.pack")):
        if name.endswith(".bin") or name == "SHA256SUMS":
            continue
        shutil.copytree(at("det.pack"), at("huge.pack"))
        os.truncate(at("huge.pack", name), 300 << 20)
        for cmd in ("info", "verify"):
            refused(cmd, at("huge.pack"), says=[at("huge.pack", name) + f" has {300 << 20} bytes, more than the "])
        shutil.rmtree(at("huge.pack"))


def test_sums_file():
    lines = read(at("det.pack"), "SHA256SUMS").decode().splitlines(True)
    good_text = "".join(lines)
    for text in ("", good_text[:-1], good_text + "x", good_text + lines[0], "".join(lines[1:]), "".join(reversed(lines)),
                 good_text.upper(), good_text.replace("  ", " *"), good_text + "0" * 64 + "  dense.bin\n", "x" * 5000):
        shutil.copytree(at("det.pack"), at("sums.pack"))
        write(text.encode(), at("sums.pack"), "SHA256SUMS")
        refused("info", at("sums.pack"), says=["SHA256SUMS"])
        shutil.rmtree(at("sums.pack"))
    shutil.copytree(at("det.pack"), at("sums.pack"))
    write(b"{}", at("sums.pack"), "tokenizer_config.json")  # there, but not in the list
    refused("info", at("sums.pack"), says=["SHA256SUMS", "tokenizer_config.json"])
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=at("det.pack"), check=True)


def forged(change, says):
    """A pack whose model.json was changed by somebody who can compute SHA-256."""
    shutil.rmtree(at("forged.pack"), ignore_errors=True)
    shutil.copytree(at("det.pack"), at("forged.pack"))
    model = json.loads(read(at("forged.pack"), "model.json"))
    change(model)
    write(json.dumps(model).encode(), at("forged.pack"), "model.json")
    resum(at("forged.pack"))
    refused("verify", at("forged.pack"), says=says)
    shutil.rmtree(at("forged.pack"))


def test_schema_version():
    for v in (0, 2, 5, 1 << 40):
        forged(lambda m: m.update(schema_version=v), ["model.json", "schema_version", "expected 3 or 4, found %d" % v,
                                                      "make it again: od-pack --force CHECKPOINT PACK"])
    for v in ("lzma", "", 3, None):
        forged(lambda m: m.update(codec=v), ["model.json", "codec"])
    forged(lambda m: m.pop("codec"), ["model.json", "codec"])


def test_forged_tables():
    model = json.loads(read(at("det.pack"), "model.json"))

    def reach(m, path):
        for key in path:
            m = m[key]
        return m

    def setter(path, value):
        return lambda m: reach(m, path[:-1]).__setitem__(path[-1], value)

    odd = [-1, 1 << 62, (1 << 63) - 1, 4097, 0, "x", None, 1.5, [], {}]
    paths = [["dense", "tensors", 3, k] for k in ("offset", "bytes", "xxh3", "sha256", "dtype", "role", "layer", "shape")]
    paths += [["dense", "bytes"], ["dense", "tensors"], ["dense"], ["experts"], ["experts", "bytes"], ["experts", "table"]]
    paths += [["experts", "table", 2, k] for k in ("m", "expert", "offset", "bytes", "header_xxh3")]
    paths += [["schema_version"], ["fingerprint"], ["family"]]
    n = 0
    for path in paths:
        for value in odd:
            if reach(model, path) == value:
                continue
            forged(setter(path, value), ["model.json"])
            n += 1
    forged(lambda m: m.update(fingerprint="0" * 64), ["fingerprint"])
    forged(lambda m: m["experts"]["table"].pop(), ["expected 6 entries, found 5"])
    forged(lambda m: m["dense"]["tensors"].reverse(), ["dense tensor 0", "role"])
    forged(lambda m: m["dense"]["tensors"][0].update(xxh3="0" * 16), ["dense.bin", "embed"])
    assert n > 200


def test_forged_headers():
    fields = [(16, "I"), (20, "I"), (24, "I"), (28, "I"), (32, "Q"), (40, "Q"), (48, "Q"), (56, "Q"), (64, "B"), (67, "B"),
              (70, "B"), (71, "B"), (168, "Q")]
    for s in (192, 256, 320):
        fields += [(s, "I"), (s + 4, "I"), (s + 8, "B"), (s + 9, "B"), (s + 10, "B"), (s + 11, "B"), (s + 12, "I"),
                   (s + 16, "Q"), (s + 24, "Q"), (s + 32, "I"), (s + 36, "I"), (s + 40, "I"), (s + 44, "I")]
    fields += [(384, "I"), (4092, "I")]
    for where, kind in fields:
        top = {"B": 255, "I": 2 ** 32 - 1, "Q": 2 ** 64 - 1}[kind]
        for value in (1, 2, 7, top // 2, top):
            value = min(value, top)

            def change(head, data):
                if struct.unpack_from("<" + kind, head, where)[0] == value:
                    head[0] ^= 1
                struct.pack_into("<" + kind, head, where, value)

            forge_header(change)
            # F16 has the same layout as BF16, but gives another fingerprint.
            f16 = where == 64 and value == 2
            refused("verify", at("forged.pack"), says=["fingerprint" if f16 else "experts.bin"])
            codec = where in (202, 266, 330) and value < len(pr.CODECS)  # only decoding tells
            if not f16 and not codec and where != 320 + 32:  # a shorter last chunk may end in the same page, likewise
                refused("info", at("forged.pack"), says=["experts.bin"])
            shutil.rmtree(at("forged.pack"))


def test_forged_chunks():
    """Chunks with right checksums and wrong content: nothing of their codec, or of another length."""
    messes = [lambda c: bytes(len(c)), lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda c: os.urandom(len(c)),
              lambda c: b"\x28\xb5\x2f\xfd\x20\x05" + c[6:], lambda c: c[:12] + b"\xff" * 8 + c[20:]]
    for codec in (1, 2, 3):
        base = pr.CODECS[codec] + ".pack"
        good(at("det"), at(base), "--codec", pr.CODECS[codec])
        for mess in messes:
            def change(head, data):
                offset, = struct.unpack_from("<Q", head, 192 + 24)
                stored, = struct.unpack_from("<I", head, 192 + 32)
                assert head[202] == codec, head[202]
                first = json.loads(read(at(base), "model.json"))["experts"]["table"][1]["offset"] + offset
                data[first:first + stored] = mess(bytes(data[first:first + stored]))
                head[192 + 56:192 + 64] = struct.pack("<Q", pr.xxh3(data[first:first + stored]))
            forge_header(change, base)
            good("info", at("forged.pack"))
            refused("verify", at("forged.pack"), says=["experts.bin", "expert (0, 1)"])
            shutil.rmtree(at("forged.pack"))


def test_forged_shadows():
    """Headers with a right checksum and wrong content."""
    good(at("det"), at("forged.pack"), "--shadow", "nf4")
    name, whole = "shadow-nf4.bin", read(at("forged.pack"), "shadow-nf4.bin")

    def forged_file(data, says, loads=False):
        assert data != whole
        head = bytearray(data)
        head[8:16] = struct.pack("<Q", pr.xxh3(head[16:4096]))
        write(head, at("forged.pack"), name)
        refused("verify", at("forged.pack"), says=[name, *says])
        if not loads:
            refused("info", at("forged.pack"), says=[name, *says])
        # What is not this pack's shadow is made again without being told twice.
        assert ("making it again" in good("shadow", at("forged.pack"), "nf4").stderr) == (not loads)
        good("shadow", "--force", at("forged.pack"), "nf4")
        assert read(at("forged.pack"), name) == whole

    fields = [(16, "I", "schema"), (20, "I", "precision"), (24, "I", "n_tensors"), (28, "I", "zero"), (32, "Q", ""),
              (40, "Q", "file_bytes"), (48, "Q", "another model"), (72, "Q", "another model"), (80, "Q", "zero"),
              (120, "Q", "zero"), (4088, "Q", "expected 0")]
    for i in (0, 1, 25):
        fields += [(128 + 40 * i + k, "Q", "tensor %d" % i) for k in (0, 8, 16, 24)]
    for where, kind, says in fields:
        top = {"I": 2 ** 32 - 1, "Q": 2 ** 64 - 1}[kind]
        for value in (0, 1, 4096, top // 2, top):
            data = bytearray(whole)
            if struct.unpack_from("<" + kind, data, where)[0] == value:
                continue
            struct.pack_into("<" + kind, data, where, value)
            forged_file(data, [says])
    for i in (0, 25):  # a record's checksum: only reading it shows
        data = bytearray(whole)
        data[128 + 40 * i + 32] ^= 1
        forged_file(data, ["checksum", "q_proj" if i == 0 else "experts.2.w2"], loads=True)
    data = bytearray(whole)  # a weight changed, and its checksum with it
    offset, size = struct.unpack_from("<QQ", data, 128 + 16)
    data[offset + 3] ^= 0x10
    struct.pack_into("<Q", data, 128 + 32, pr.xxh3(data[offset:offset + size]))
    forged_file(data, ["q_proj", "offset %d" % (offset + 3)], loads=True)
    for size in (0, 1, 127, 4095, 4096, len(whole) - 1, len(whole) + 1):
        write((whole + b"\0")[:size], at("forged.pack"), name)
        for cmd in ("info", "verify"):
            refused(cmd, at("forged.pack"), says=[name])
    good("shadow", at("forged.pack"), "nf4")

    # Renamed; of another model, with the same shapes and with others; from before there were headers.
    good("shadow", at("forged.pack"), "fp16")
    shutil.copy(at("forged.pack", "shadow-fp16.bin"), at("forged.pack", name))
    refused("verify", at("forged.pack"), says=[name, "expected 5 (nf4)", "found 3 (fp16)"])
    for cfg, seed in ((tc.CONFIG, 99), (QUANT, 4)):
        tc.write_checkpoint(at("alien"), cfg, tc.tensors(cfg, seed=seed))
        good(at("alien"), at("alien.pack"), "--shadow", "nf4", "--force")
        shutil.copy(at("alien.pack", name), at("forged.pack", name))
        for cmd in ("info", "verify"):
            refused(cmd, at("forged.pack"), says=[name, "another model", pr.Pack(at("alien.pack")).model["fingerprint"]])
    write(whole[4096:], at("forged.pack"), name)
    refused("info", at("forged.pack"), says=[name, "before shadows had headers"])
    good("shadow", at("forged.pack"), "nf4")
    good("verify", at("forged.pack"))
    shutil.rmtree(at("forged.pack"))


def test_usage():
    for args in ([], ["a"], ["verify"], ["info"], ["a", "b", "c"], ["verify", "a", "b", "c", "d"], ["--bogus"],
                 ["a", "b", "--shadow", "int4"], ["a", "b", "--threads", "0"], ["a", "b", "--against", "c"],
                 ["a", "b", "--json"], ["verify", "a", "--force"], ["a", "b", "--shadow", "bf16"],
                 ["a", "b", "--shadow", "int8,"], ["a", "b", "--shadow", ""], ["a", "b", "--shadow", "none,int8"],
                 ["a", "b", "--shadow", "nf4;int8"], ["a", "b", "--shadow", "int"], ["shadow"], ["shadow", "a"],
                 ["shadow", "a", "none"],
                 ["shadow", "a", "b"], ["shadow", "a", "nf4", "x"], ["shadow", "a", "nf4", "--shadow", "nf4"],
                 ["verify", "a", "--shadow", "int8"], ["shadow", "a", "nf4", "--json"]):
        p = refused(*args, status=2, says=["od-pack: "])
        assert p.stderr.count("--help") == 1, p.stderr
    assert "CHECKPOINT" in good("--help").stdout
    assert good("--version").stdout.split()[0] == "od-pack"
    refused("info", at("nowhere"), says=["no pack at", "nowhere"])
    refused("verify", at("nowhere"), says=["no pack at", "nowhere"])


make_det()
run_tests(globals())
