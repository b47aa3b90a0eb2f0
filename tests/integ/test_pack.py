#!/usr/bin/env python3
"""od-pack against a reader that was written from docs/PACK-FORMAT.md alone: bits, paddings, fingerprint, quantisation,
resuming, and everything that must be refused. Standard library only."""
import fcntl
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pack_reader as pr
import tiny_checkpoint as tc

HERE = os.path.dirname(os.path.abspath(__file__))
TALEBOOK = os.path.join(HERE, "..", "..", "deploy", "models", "talebook")
GOLDEN = os.path.join(HERE, "..", "golden", "pack", "bad_headers.json")
OD_PACK = os.path.join(os.environ.get("B", "build"), "bin", "od-pack")
TMP = tempfile.mkdtemp(prefix="od-pack-test-")
for sanitizer in ("ASAN", "UBSAN", "TSAN"):  # so that what they find is not taken for a refusal
    os.environ[sanitizer + "_OPTIONS"] = "exitcode=99"
BIG_FILES = ["dense.bin", "experts.bin", "shadow-int8.bin"]


def at(*names):
    return os.path.join(TMP, *names)


def run(*args, preexec=None):
    return subprocess.run([OD_PACK, *args], capture_output=True, text=True, preexec_fn=preexec)


def good(*args):
    p = run(*args)
    assert p.returncode == 0, (args, p.returncode, p.stderr)
    return p


def refused(*args, says=(), status=1, preexec=None):
    """Must fail in good order: this status, a message with these words. A crash has a negative status."""
    p = run(*args, preexec=preexec)
    assert p.returncode == status, (args, "status", p.returncode, p.stderr)
    for word in says:
        assert word in p.stderr, (args, "says", word, p.stderr)
    return p


def read(*names):
    with open(os.path.join(*names), "rb") as f:
        return f.read()


def write(data, *names):
    with open(os.path.join(*names), "wb") as f:
        f.write(data)


def contents(path):
    return {name: read(path, name) for name in sorted(os.listdir(path))}


def same_bits(pack, tens):
    assert set(pack.tensors) == set(tens)
    for name, (dtype, shape, raw) in tens.items():
        assert pack.tensors[name] == (dtype, shape, raw), name
        assert len(set(raw)) > min(8, len(raw) // 4), name + " is constant"


def resum(pack):
    """SHA256SUMS again, as somebody who forges a pack would."""
    lines = [hashlib.sha256(read(pack, n)).hexdigest() + "  " + n + "\n" for n in pr.SMALL
             if os.path.exists(os.path.join(pack, n))]
    write("".join(lines).encode(), pack, "SHA256SUMS")


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
        good(at(name), at(name + ".pack"))
        pack = pr.Pack(at(name + ".pack"))
        same_bits(pack, tens)
        pack.int8()
        good("verify", at(name + ".pack"), "--against", at(name))
        (n,) = struct.unpack_from("<I", pack.experts[0, 0].header, 28)
        assert n == shards, n
        shutil.rmtree(at(name + ".pack"))


def test_int8():
    pick = lambda name: ["BF16", "F16", "F32"][sum(name.encode()) % 3]
    tens = tc.tensors(tc.CONFIG, seed=4, dtype=pick)
    name = pr.mixtral_expert_name(0, 0, "gate")  # a row of zeros, one that underflows, one of halves, one with -0
    rows = [bytes(64), struct.pack("<32H", *[1, 0x8001] * 16), struct.pack("<32H", 0x42FE, *[0x3F00, 0x3FC0, 0xBF00] * 10, 0x4020),
            struct.pack("<32H", *[0x8000] * 31, 0x3F80)]
    tens[name] = ("BF16", [48, 32], b"".join(rows) + tc.finite_bits(random.Random(9), "BF16", 44 * 32))
    tc.write_checkpoint(at("int8"), tc.CONFIG, tens)
    good(at("int8"), at("int8.pack"))
    pack = pr.Pack(at("int8.pack"))
    same_bits(pack, {n: t for n, t in tens.items()})
    for n, (q, scale) in pack.int8().items():
        dtype, (n_out, n_in), raw = tens[n]
        w = pr.decode(dtype, raw)
        for r in range(n_out):
            want_q, want_scale = pr.quantise(w[r * n_in:(r + 1) * n_in])
            assert (q[r * n_in:(r + 1) * n_in], scale[r]) == (want_q, want_scale), (n, r)
    assert pack.int8()[name][1][0] == 0 and 0 < len(set(pack.int8()[name][0][64:96])) < 8


def test_fingerprint():
    pack = pr.Pack(at("int8.pack"))
    assert pack.model["fingerprint"] == pack.fingerprint()
    good(at("int8"), at("int8.none"), "--shadow", "none")
    assert pr.Pack(at("int8.none")).model["fingerprint"] == pack.fingerprint()
    seen = {pack.fingerprint()}
    changed = tc.tensors(tc.CONFIG, seed=4)
    for name, cfg, tokenizer in (("eps", dict(tc.CONFIG, rms_norm_eps=2e-5), True), ("tok", tc.CONFIG, False),
                                 ("bits", tc.CONFIG, True)):
        tens = pr.Pack(at("int8.pack")).tensors if name != "bits" else changed
        tc.write_checkpoint(at("fp-" + name), cfg, tens, tokenizer=tokenizer)
        p = good(at("fp-" + name), at("fp-" + name + ".pack"), "--shadow", "none")
        assert ("no tokenizer.json" in p.stderr) == (not tokenizer)
        other = pr.Pack(at("fp-" + name + ".pack"))
        assert other.model["fingerprint"] == other.fingerprint()
        seen.add(other.fingerprint())
    assert len(seen) == 4


def test_same_bytes_every_time():
    tens = tc.tensors(tc.CONFIG, seed=5)
    tc.write_checkpoint(at("det"), tc.CONFIG, tens)
    tc.write_checkpoint(at("det3"), tc.CONFIG, tens, shards=3)
    tc.write_checkpoint(at("det4"), tc.CONFIG, tens, shards=4, index=False)
    good(at("det"), at("det.pack"), "--threads", "1")
    want = contents(at("det.pack"))
    assert sorted(want) == sorted(["SHA256SUMS", "config.json", "generation_config.json", "model.json", "tokenizer.json",
                                   *BIG_FILES])
    for source, threads in (("det", "4"), ("det3", "2"), ("det4", "3")):
        good(at(source), at("det.again"), "--threads", threads)
        assert contents(at("det.again")) == want, source
        shutil.rmtree(at("det.again"))
    good(at("det"), at("det.none"), "--shadow", "none")
    assert set(contents(at("det.none"))) == set(want) - {"shadow-int8.bin"}


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
    """The demonstration model: experts at no more than 67 % of BF16."""
    good(TALEBOOK, at("talebook.pack"))
    info = json.loads(good("info", "--json", at("talebook.pack")).stdout)
    pack = pr.Pack(at("talebook.pack"))
    stored = sum(e.stored for e in pack.experts.values())
    weights = sum(len(m) // 2 for e in pack.experts.values() for m in e.mats)
    assert info["expert_stored_bytes"] == stored and info["expert_weights"] == weights == 18874368
    assert stored <= 0.67 * 2 * weights, stored / (2 * weights)
    assert abs(info["bits_per_weight"] - 8 * stored / weights) < 1e-9
    assert info["fingerprint"] == pack.fingerprint() and info["shadow_precisions"] == ["bf16", "int8"]
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

def limit(nbytes):
    """A file size limit stands for a full disk: write(2) fails in the middle of a file."""
    def preexec():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    return preexec


def test_resume_after_full_disk():
    want = contents(at("det.pack"))
    sizes = {n: len(want[n]) for n in BIG_FILES}
    seen = set()
    for nbytes in (1000, sizes["dense.bin"] - 100, sizes["dense.bin"] + 4096, sizes["experts.bin"] // 2,
                   sizes["experts.bin"] - 4096, sizes["shadow-int8.bin"] - 4096):
        p = refused(at("det"), at("full"), says=["error", "full.partial", "File too large"], preexec=limit(nbytes))
        assert not os.path.exists(at("full"))
        assert nbytes == 1000 or "kept in " + at("full.partial") + ";" in p.stderr, p.stderr
        p = good(at("det"), at("full"))
        seen.add(p.stderr.split("resuming: ")[1].split(" of ")[0] if "resuming" in p.stderr else None)
        assert contents(at("full")) == want, nbytes
        assert not os.path.exists(at("full.partial"))
        shutil.rmtree(at("full"))
    assert {"0", "6"} < seen and len(seen) > 2, seen


def test_killed_at_any_moment():
    tens = tc.tensors(dict(tc.CONFIG, num_hidden_layers=8), seed=7)
    cfg = dict(tc.CONFIG, num_hidden_layers=8)
    tc.write_checkpoint(at("kill"), cfg, tens)
    good(at("kill"), at("kill.whole"))
    want, kills = contents(at("kill.whole")), 0
    for step in range(12):
        stop = len(want["experts.bin"]) * step // 10
        p = subprocess.Popen([OD_PACK, at("kill"), at("kill.pack")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        watched = at("kill.pack.partial", "experts.bin")
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
            good(at("kill"), at("kill.pack"))
        assert contents(at("kill.pack")) == want, step
        shutil.rmtree(at("kill.pack"))
        shutil.rmtree(at("kill.pack.partial"), ignore_errors=True)


def make_partial(name):
    """det.pack as a partial that has everything but the shadow's end."""
    size = len(read(at("det.pack"), "shadow-int8.bin"))
    refused(at("det"), at(name), preexec=limit(size - 4096))
    assert os.path.isdir(at(name + ".partial"))


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
    """A partial made with a shadow, finished without one."""
    make_partial("less")
    good(at("det"), at("less"), "--shadow", "none")
    assert contents(at("less")) == contents(at("det.none"))


def test_memory():
    """Far below 512 MiB, although the model is larger than what is allowed here."""
    cfg = dict(tc.CONFIG, hidden_size=1024, intermediate_size=16384, num_hidden_layers=1, num_local_experts=2)
    tens, at_ = {}, 0
    head = {}
    dense, mats = pr.shapes(cfg)
    names = [(pr.mixtral_name(r, l), s) for r, l, s in dense]
    names += [(pr.mixtral_expert_name(0, e, m), s) for e in range(2) for m, s in zip(pr.MATS, mats)]
    for name, shape in names:
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at_, at_ + size]}
        at_ += size
    tc.write_small(at("large"), cfg)
    tc.write_safetensors(at("large", "model.safetensors"), {}, head)
    os.truncate(at("large", "model.safetensors"), os.path.getsize(at("large", "model.safetensors")) + at_)
    assert at_ > 380 << 20
    script = ("import resource, subprocess, sys; rc = subprocess.call(sys.argv[1:]); "
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(rc)")
    for args in ([at("large"), at("large.pack")], ["verify", at("large.pack")]):
        p = subprocess.run([sys.executable, "-c", script, OD_PACK, *args, "--threads", "4"], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        kib = int(p.stdout.split()[-1])
        # Sanitizers keep freed memory and shadow it; the ceiling is measured without them.
        assert kib < 256 << 10 or "-" in os.path.basename(os.environ.get("B", "build")), kib
    shutil.rmtree(at("large"))
    shutil.rmtree(at("large.pack"))


# ---- what must be refused: checkpoints ----

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

    a = pr.mixtral_name("attn_q", 0)
    bad_checkpoint("gone", ["config.json"], not_there)
    bad_checkpoint("none", ["no model.safetensors"], remove(st))
    bad_checkpoint("empty", [st, "0 bytes"], cut(st, 0))
    bad_checkpoint("cut", [st, "outside the data"], lambda p: os.truncate(os.path.join(p, st), os.path.getsize(os.path.join(p, st)) - 1))
    bad_checkpoint("cut-header", [st, "cut short"], cut(st, 500))
    bad_checkpoint("config", ["config.json", "JSON"], lambda p: write(b"{", p, "config.json"))
    bad_checkpoint("family", ["known", "mixtral"], lambda p: write(json.dumps(dict(tc.CONFIG, architectures=["Foo"], model_type="foo")).encode(), p, "config.json"))
    bad_checkpoint("shard", [part2], remove(part2), shards=3)
    bad_checkpoint("twice", ["twice", part2, "model-copy"], twice, shards=3)
    bad_checkpoint("index-json", [index, "JSON"], lambda p: write(b"[", p, index), shards=3)
    bad_checkpoint("index-map", [index, "weight_map"], edit_index(lambda d: d.pop("weight_map")), shards=3)
    bad_checkpoint("index-gone", ["nowhere.safetensors"], edit_index(lambda d: d["weight_map"].update({a: "nowhere.safetensors"})), shards=3)
    bad_checkpoint("index-path", [index, "file name"], edit_index(lambda d: d["weight_map"].update({a: "../x.safetensors"})), shards=3)
    bad_checkpoint("index-type", [index, "file name"], edit_index(lambda d: d["weight_map"].update({a: 7})), shards=3)
    bad_checkpoint("index-less", [index, a], edit_index(lambda d: d["weight_map"].pop(a)), shards=3)
    bad_checkpoint("index-more", [index, "ghost", "nowhere"], edit_index(lambda d: d["weight_map"].update(ghost=part2)), shards=3)
    bad_checkpoint("fifo", [st, "regular"], lambda p: (os.remove(os.path.join(p, st)), os.mkfifo(os.path.join(p, st))))
    refused(at("nowhere"), at("x.pack"), says=["no checkpoint folder", "nowhere"])


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
    t = tc.tensors(tc.CONFIG, seed=5)
    name = pr.mixtral_name("attn_o", 0)
    t[name] = (t[name][0], t[name][1], struct.pack("<H", 0x7FC0) + t[name][2][2:])
    tc.write_checkpoint(at("again"), tc.CONFIG, t)
    p = refused(at("again"), at("again") + "-pack/", says=["o_proj"])
    assert not os.path.exists(at("again-pack.partial")) and "kept" not in p.stderr
    shutil.move(at("again.partial"), at("again-pack.partial"))
    refused(at("again"), at("again-pack"), says=["o_proj"])
    assert contents(at("again-pack.partial")) == {"notes.txt": b"mine"}


def test_bad_tensors():
    q, x = pr.mixtral_name("attn_q", 1), pr.mixtral_expert_name(1, 2, "down")

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
    bad_checkpoint("dtype", [x, "BF16, F16 or F32", "I16"], replace(x, dtype="I16"))
    bad_checkpoint("unknown", ["model.layers.0.extra", "is not one of a mixtral model"],
                   with_tensors(lambda t: t.update({"model.layers.0.extra": ("BF16", [4], bytes(8))})))
    for name in (q, x):
        for bits in (0x7F80, 0xFFC1):
            bad_checkpoint("nan", [name, "row 2" if name == q else "row 1", "--shadow none"], poison(name, bits))
    tc.write_checkpoint(at("nan"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    poison(x, 0x7F80)(at("nan"))
    refused(at("nan"), at("nan.pack"))
    good(at("nan"), at("nan.pack"), "--shadow", "none")
    good("verify", at("nan.pack"), "--against", at("nan"))


# ---- what must be refused: packs ----

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
        for i in (0, 9, 17, 64, 68, 80, 170, 192, 201, 203, 250, 383, 384, 4095, sm_off, e_off - 65, e_off - 64, e_off - 1,
                  e_off, e_off + 700, e["bytes"] - 64, e["bytes"] - 1):
            places.append(("experts.bin", e["offset"] + i))
    for t in model["shadow"]["int8"]["tensors"][::5]:
        places += [("shadow-int8.bin", t["offset"] + i) for i in (0, 1000, t["bytes"] - 1, t["bytes"] - 200)]
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


def test_cut_short_or_missing():
    for name, data in contents(at("det.pack")).items():
        for size in (None, 0, 1, len(data) // 2, len(data) - 1, len(data) + 1):
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
    for v in (0, 2, 1 << 40):
        forged(lambda m: m.update(schema_version=v), ["model.json", "schema_version", "expected 1", "found %d" % v])


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
    paths += [["shadow", "int8", "tensors", 5, k] for k in ("offset", "bytes", "xxh3")]
    paths += [["shadow"], ["shadow", "int8", "tensors"], ["shadow", "int8", "bytes"], ["schema_version"], ["fingerprint"], ["family"]]
    n = 0
    for path in paths:
        for value in odd:
            if reach(model, path) == value or (path == ["shadow"] and value == {}):  # as it was; no shadow, which is fine
                continue
            forged(setter(path, value), ["model.json"])
            n += 1
    forged(lambda m: m.update(fingerprint="0" * 64), ["fingerprint"])
    forged(lambda m: m["experts"]["table"].pop(), ["expected 6 entries, found 5"])
    forged(lambda m: m["dense"]["tensors"].reverse(), ["dense tensor 0", "role"])
    forged(lambda m: m["dense"]["tensors"][0].update(xxh3="0" * 16), ["dense.bin", "embed"])
    forged(lambda m: m["shadow"]["int8"]["tensors"][0].update(xxh3="0" * 16), ["shadow-int8.bin", "q_proj"])
    assert n > 200


def forge_header(change):
    """Expert 1's header changed, with every checksum made to fit again."""
    shutil.rmtree(at("forged.pack"), ignore_errors=True)
    shutil.copytree(at("det.pack"), at("forged.pack"))
    model = json.loads(read(at("forged.pack"), "model.json"))
    data, t = bytearray(read(at("forged.pack"), "experts.bin")), model["experts"]["table"][1]
    head = bytearray(data[t["offset"]:t["offset"] + 4096])
    change(head, data)
    head[8:16] = struct.pack("<Q", pr.xxh3(head[16:]))
    data[t["offset"]:t["offset"] + 4096] = head
    t["header_xxh3"] = "%016x" % pr.xxh3(head)
    write(data, at("forged.pack"), "experts.bin")
    write(json.dumps(model).encode(), at("forged.pack"), "model.json")
    resum(at("forged.pack"))


def test_forged_headers():
    fields = [(16, "I"), (20, "I"), (24, "I"), (28, "I"), (32, "Q"), (40, "Q"), (48, "Q"), (56, "Q"), (64, "B"), (67, "B"),
              (168, "Q")]
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
            if not f16 and where != 320 + 32:  # a shorter last chunk may end in the same page: only its checksum tells
                refused("info", at("forged.pack"), says=["experts.bin"])
            shutil.rmtree(at("forged.pack"))


def test_forged_chunks():
    """Chunks with right checksums and wrong content: not a zstd frame, one of another length."""
    for mess in (lambda c: bytes(len(c)), lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda c: os.urandom(len(c)),
                 lambda c: b"\x28\xb5\x2f\xfd\x20\x05" + c[6:]):
        def change(head, data):
            offset, = struct.unpack_from("<Q", head, 192 + 24)
            stored, = struct.unpack_from("<I", head, 192 + 32)
            assert head[202] == 1  # zstd
            base = json.loads(read(at("det.pack"), "model.json"))["experts"]["table"][1]["offset"]
            data[base + offset:base + offset + stored] = mess(bytes(data[base + offset:base + offset + stored]))
            head[192 + 56:192 + 64] = struct.pack("<Q", pr.xxh3(data[base + offset:base + offset + stored]))
        forge_header(change)
        good("info", at("forged.pack"))
        refused("verify", at("forged.pack"), says=["experts.bin", "expert (0, 1)"])
        shutil.rmtree(at("forged.pack"))


def test_usage():
    for args in ([], ["a"], ["verify"], ["info"], ["a", "b", "c"], ["verify", "a", "b", "c", "d"], ["--bogus"],
                 ["a", "b", "--shadow", "int4"], ["a", "b", "--threads", "0"], ["a", "b", "--against", "c"],
                 ["a", "b", "--json"], ["verify", "a", "--force"]):
        p = refused(*args, status=2, says=["od-pack: "])
        assert p.stderr.count("--help") == 1, p.stderr
    assert "CHECKPOINT" in good("--help").stdout
    assert good("--version").stdout.split()[0] == "od-pack"
    refused("info", at("nowhere"), says=["no pack at", "nowhere"])
    refused("verify", at("nowhere"), says=["no pack at", "nowhere"])


def main():
    tests = [(n[5:].replace("_", " "), f) for n, f in globals().items() if n.startswith("test_")]
    print("1..%d" % len(tests))
    failed = 0
    for i, (name, f) in enumerate(tests, 1):
        try:
            f()
            print("ok %d - %s" % (i, name), flush=True)
        except Exception:
            failed += 1
            print("# " + traceback.format_exc().replace("\n", "\n# "))
            print("not ok %d - %s" % (i, name), flush=True)
    shutil.rmtree(TMP)
    sys.exit(failed > 0)


main()
