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
EVERY = ",".join(pr.PRECISIONS)
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
        good(at(name), at(name + ".pack"), "--shadow", EVERY)
        pack = pr.Pack(at(name + ".pack"))
        same_bits(pack, tens)
        for precision in pr.PRECISIONS:
            pack.shadow(precision)
        good("verify", at(name + ".pack"), "--against", at(name))
        (n,) = struct.unpack_from("<I", pack.experts[0, 0].header, 28)
        assert n == shards, n
        shutil.rmtree(at(name + ".pack"))


# ---- shadows ----

# Groups and pieces that a row does not fill, more than one group of scales to a matrix.
QUANT = dict(tc.CONFIG, hidden_size=136, num_attention_heads=4, num_key_value_heads=2, intermediate_size=200,
             num_hidden_layers=1, num_local_experts=2, vocab_size=8)
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
    for name, n in ((pr.mixtral_expert_name(0, 0, "gate"), 136), (pr.mixtral_expert_name(0, 1, "down"), 200),
                    (pr.mixtral_name("attn_o", 0), 136)):
        shape, rows = tens[name][1], hard_rows(n, huge)
        raw = f32s(*[w for row in rows for w in row]) + tc.finite_bits(random.Random(9), "F32", n * (shape[0] - len(rows)))
        tens[name] = ("F32", shape, raw)
    name = pr.mixtral_expert_name(0, 1, "gate")  # the hard ones once more, cut to 16 bits
    hard = tens[pr.mixtral_expert_name(0, 0, "gate")][2]
    tens[name] = ("BF16", [200, 136], b"".join(hard[i + 2:i + 4] for i in range(0, len(hard), 4)))
    # Scales so unequal that one of them, half a step up or down, would turn its sign.
    name = pr.mixtral_expert_name(0, 1, "up")
    rng = random.Random(13)
    tens[name] = ("F32", [200, 136], f32s(*[rng.gauss(0, 1e-4) * (3000 if r == 7 else 1) for r in range(200) for _ in range(136)]))
    return tens


def check_record(record, precision, rows):
    """Bit for bit what the definition gives."""
    scales = []
    for r, row in enumerate(rows):
        codes, s = pr.quantise(precision, row)
        if precision == "fp16":
            assert record.rows[r] == codes, r
            continue
        assert record.codes(r) == codes, (r, row[:4])
        scales += s
    if precision == "nf4-dq":
        codes, floats = pr.quantise_scales(scales)
        assert record.parts["codes"] == codes and f32s(*record.parts["floats"]) == f32s(*floats)
        assert all(s >= 0 for row in record.scales for s in row)
    elif precision != "fp16":
        assert f32s(*record.parts["floats"]) == f32s(*scales)


def check_error(record, precision, rows):
    """However it is done: no weight is further off than half of the widest step, of FP16's last bit, allow."""
    for r, row in enumerate(rows):
        size = len(row) if precision == "int8" else 64
        got = record.weights(r)
        for at in range(0, len(row), size):
            most = max(map(abs, row[at:at + size]))
            allowed = {"int8": most / 253, "int8-g64": most / 253, "fp16": most / 2048}.get(precision, most * 0.153)
            for w, g in zip(row[at:at + size], got[at:at + size]):
                assert abs(w - g) <= allowed + 2.0 ** -25 * (precision == "fp16") + 2.0 ** -142, (r, w, g)


def test_shadow_bits():
    """Each precision against its definition; FP16 on weights that it can express."""
    for kind, huge in (("huge", True), ("quant", False)):
        tens = quant_tensors(huge)
        tc.write_checkpoint(at(kind), QUANT, tens)
    p = refused(at("huge"), at("huge.pack"), "--shadow", EVERY, says=["fp16", "row 18", "65504", "int8-g64, nf4", "is complete",
                                                                   "without these shadows: fp16;", "od-pack shadow " + at("huge.pack") + " fp16"])
    assert sum(n in p.stderr for n in tens) == 1, p.stderr
    good(at("quant"), at("quant.pack"), "--shadow", "fp16,nf4-dq")
    bumped = 0
    for kind, precisions in (("huge", ["int8", "int8-g64", "nf4", "nf4-dq"]), ("quant", ["fp16", "nf4-dq"])):
        pack = pr.Pack(at(kind + ".pack"))
        for precision in precisions:
            for name, record in pack.shadow(precision).items():
                dtype, (n_out, n_in), raw = pack.tensors[name]
                w = pr.decode(dtype, raw)
                rows = [w[r * n_in:(r + 1) * n_in] for r in range(n_out)]
                check_record(record, precision, rows)
                if precision != "nf4-dq":  # its scales have errors of their own
                    check_error(record, precision, rows)
                else:
                    floats, codes = record.parts["floats"], record.parts["codes"]
                    bumped += sum(floats[-1] + (c - 1) * floats[i // 256] < 0 < c * floats[i // 256] + floats[-1]
                                  for i, c in enumerate(codes))
        good("verify", at(kind + ".pack"), "--against", at(kind))
    assert bumped > 0


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


def make_partial(name):
    """det.pack as a partial that has everything but the last expert's end."""
    size = len(read(at("det.pack"), "experts.bin"))
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
    p = good("shadow", at("add.pack"), "nf4,int8-g64")
    after = inodes(at("add.pack"))
    assert {n: i for n, i in after.items() if n in before} == before
    assert set(after) - set(before) == {"shadow-nf4.bin", "shadow-int8-g64.bin"}
    good("shadow", at("add.pack"), EVERY, "--threads", "1")
    assert {n: i for n, i in inodes(at("add.pack")).items() if n in after} == after  # those stay
    assert contents(at("add.pack")) == whole
    p = good("shadow", at("add.pack"), "nf4,int8")
    assert p.stderr.count("is there already") == 2 and "has the shadows int8,nf4." in p.stdout
    good("shadow", "--force", at("add.pack"), "nf4")
    again = inodes(at("add.pack"))
    assert again["shadow-nf4.bin"] != after["shadow-nf4.bin"] and again["shadow-int8-g64.bin"] == after["shadow-int8-g64.bin"]
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
    assert "shadow        none" in good("info", at("det.none")).stdout


def test_add_interrupted():
    """Killed: the pack is as before, and the next run needs no help. Full disk: the pack is as before, and nothing is left."""
    want = contents(at("kill.whole"))
    bare = {n: d for n, d in want.items() if not n.startswith("shadow")}
    shutil.copytree(at("kill.whole"), at("stop.pack"))
    for name in set(want) - set(bare):
        os.remove(at("stop.pack", name))
    left = kills = 0
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
        left += any(n.endswith(".tmp") for n in now)
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
    refused("shadow", at("quant.none"), "fp16,nf4-dq", preexec=limit(fp16 - 1), says=["without these shadows: fp16;"])
    assert read(at("quant.none"), "shadow-nf4-dq.bin") == read(at("quant.pack"), "shadow-nf4-dq.bin")
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
    for args in ([at("large"), at("large.pack")], ["shadow", at("large.pack"), "nf4-dq,fp16"], ["verify", at("large.pack")]):
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
    tc.write_checkpoint(at("again"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    write(b"", at("again"), "tokenizer_config.json")
    os.truncate(at("again", "tokenizer_config.json"), 65 << 20)
    p = refused(at("again"), at("again") + "-pack/", says=["tokenizer_config.json"])
    assert not os.path.exists(at("again-pack.partial")) and "kept" not in p.stderr
    shutil.move(at("again.partial"), at("again-pack.partial"))
    refused(at("again"), at("again-pack"), says=["tokenizer_config.json"])
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
            tc.write_checkpoint(at("nan"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
            poison(name, bits)(at("nan"))
            for precision in pr.PRECISIONS:  # no shadow can have it, the pack does
                p = refused(at("nan"), at("nan.pack"), "--shadow", precision,
                            says=[name, "row 2" if name == q else "row 1", "infinity or NaN", "--precision bf16", "is complete"])
                assert "kept in" not in p.stderr
                assert not [n for n in os.listdir(at("nan.pack")) if n.startswith("shadow")]
                good("verify", at("nan.pack"), "--against", at("nan"))
                shutil.rmtree(at("nan.pack"))


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
    good("shadow", at("forged.pack"), "int8-g64")
    shutil.copy(at("forged.pack", "shadow-int8-g64.bin"), at("forged.pack", name))
    refused("verify", at("forged.pack"), says=[name, "expected 5 (nf4)", "found 4 (int8-g64)"])
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
