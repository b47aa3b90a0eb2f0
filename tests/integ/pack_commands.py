"""What the tests of od-pack share: running it, small packs, TAP. Standard library."""
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import tap_tests
import tiny_checkpoint as tc
from pack_reader import SMALL, quantise, xxh3
from tap_tests import Skip  # noqa: F401 (tests import it from here)

OD_PACK = os.path.join(os.getcwd(), os.environ.get("B", "build"), "bin", "od-pack")
TMP = tempfile.mkdtemp(prefix="od-pack-test-")
for sanitizer in ("ASAN", "UBSAN", "TSAN"):  # so that what they find is not taken for a refusal
    os.environ[sanitizer + "_OPTIONS"] = os.environ.get(sanitizer + "_OPTIONS", "") + ":exitcode=99"
BIG_FILES = ["dense.bin", "experts.bin", "shadow-int8.bin"]
# Groups and pieces that a row does not fill, more than one group of scales to a matrix.
QUANT = dict(tc.CONFIG, hidden_size=136, num_attention_heads=4, num_key_value_heads=2, intermediate_size=200,
             num_hidden_layers=1, num_local_experts=2, vocab_size=8)


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


def limit(nbytes):
    """A file size limit stands for a full disk: write(2) fails in the middle of a file."""
    def preexec():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    return preexec


def same_bits(pack, tens):
    assert set(pack.tensors) == set(tens)
    for name, (dtype, shape, raw) in tens.items():
        flat = [math.prod(shape)] if name.endswith("conv1d.weight") else shape  # a vector in packs
        assert pack.tensors[name] == (dtype, flat, raw), name
        assert len(set(raw)) > min(8, len(raw) // 4), name + " is constant"


def check_record(record, precision, rows):
    """Bit for bit what the definition gives."""
    scales = []
    for r, row in enumerate(rows):
        codes, s = quantise(precision, row)
        if precision == "fp16":
            assert record.rows[r] == codes, r
            continue
        assert record.codes(r) == codes, (r, row[:4])
        scales += s
    form = "<%df" % len(scales)
    assert struct.pack(form, *sum(record.scales, [])) == struct.pack(form, *scales)


def make_det():
    """det and det.pack: a small model, and what od-pack makes of it."""
    tc.write_checkpoint(at("det"), tc.CONFIG, tc.tensors(tc.CONFIG, seed=5))
    good(at("det"), at("det.pack"), "--threads", "1")


def make_partial(name):
    """det.pack as a partial that has everything but the last expert's end."""
    size = len(read(at("det.pack"), "experts.bin"))
    refused(at("det"), at(name), preexec=limit(size - 4096))
    assert os.path.isdir(at(name + ".partial"))


def resum(pack):
    """SHA256SUMS again, as somebody who forges a pack would."""
    lines = [hashlib.sha256(read(pack, n)).hexdigest() + "  " + n + "\n" for n in SMALL
             if os.path.exists(os.path.join(pack, n))]
    write("".join(lines).encode(), pack, "SHA256SUMS")


def forge_header(change, base="det.pack", of_model=lambda model: None):
    """Expert 1's header changed, or model.json, with every checksum made to fit again."""
    shutil.rmtree(at("forged.pack"), ignore_errors=True)
    shutil.copytree(at(base), at("forged.pack"))
    model = json.loads(read(at("forged.pack"), "model.json"))
    data, t = bytearray(read(at("forged.pack"), "experts.bin")), model["experts"]["table"][1]
    head = bytearray(data[t["offset"]:t["offset"] + 4096])
    change(head, data)
    head[8:16] = struct.pack("<Q", xxh3(head[16:]))
    data[t["offset"]:t["offset"] + 4096] = head
    t["header_xxh3"] = "%016x" % xxh3(head)
    of_model(model)
    write(data, at("forged.pack"), "experts.bin")
    write(json.dumps(model).encode(), at("forged.pack"), "model.json")
    resum(at("forged.pack"))


def run_tests(names):
    """Those whose names begin with test_, in order; ends the program."""
    failed = tap_tests.run([f for n, f in names.items() if n.startswith("test_")])
    shutil.rmtree(TMP)
    sys.exit(failed > 0)
