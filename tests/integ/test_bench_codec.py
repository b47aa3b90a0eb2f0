#!/usr/bin/env python3
"""od-bench codec: sizes against the entropy, and which figures there are; never how fast."""
from cluster_util import FAR, pack, run_tests, test, tool
import json
import math
import os
from unittest import mock

CODECS = ["zstd-3", "raw", "zstd", "lz4", "planes"]
SM_BITS = {"BF16": 8, "F16": 8, "F32": 24, "I8": 0}


def bench(*args):
    return json.loads(tool("od-bench", "codec", "--rounds", 3, "--json", *args).stdout)


def gaussian_entropy():
    """Of the exponent of a Gaussian of sigma 0.02: the chance of each power of two."""
    edge = [math.erf(2.0 ** i / 0.02 / math.sqrt(2)) for i in range(-60, 3)]
    return -sum((b - a) * math.log2(b - a) for a, b in zip(edge, edge[1:]) if b > a)


def check(r, dtypes, cpus):
    entropy = {d["dtype"]: d["entropy_bits"] for d in r["references"]}
    assert list(entropy) == dtypes, entropy
    rows = {(c["dtype"], c["codec"], c["cpu"]): c for c in r["codecs"]}
    for dtype in dtypes:
        planes = cpus if dtype in ("BF16", "F32") else [None]
        assert [k[1:] for k in rows if k[0] == dtype] == [(c, None) for c in CODECS[:-1]] + [("planes", c) for c in planes]
        bits = {c["codec"]: c["bits_per_weight"] for k, c in rows.items() if k[0] == dtype}
        assert bits["raw"] == SM_BITS[dtype] + 8
        for codec in CODECS[1:]:
            assert entropy[dtype] - 0.01 < bits[codec] <= bits["raw"], (dtype, codec, bits)
        assert bits["zstd"] < entropy[dtype] + 0.1 and bits["planes"] < entropy[dtype] + 0.2, (dtype, bits)
    for c in r["codecs"]:
        for key in ("decode_gbps", "decode_vs_read", "decode_vs_zstd3", "fused_cache_gbps", "fused_cache_vs_memcpy",
                    "fused_memory_gbps", "fused_memory_vs_memcpy"):
            assert c[key] > 0, (c, key)
        assert c["codec"] != "zstd-3" or c["decode_vs_zstd3"] == 1
    return {d["dtype"]: d for d in r["references"]}, rows


@test
def gaussian_weights_of_every_type():
    """About 2.55 bits of exponent; F16's top byte has three bits of mantissa besides."""
    refs, rows = check(bench("--weights", 1, "--cpu", "scalar"), ["BF16", "F16", "F32", "I8"], ["scalar"])
    floor = gaussian_entropy()
    assert 2.5 < floor < 2.6
    for dtype, bits in (("BF16", 8 + floor), ("F32", 24 + floor), ("F16", 8 + floor + 3)):
        assert abs(refs[dtype]["entropy_bits"] - bits) < (0.02 if dtype != "F16" else 0.12), (dtype, bits, refs)
    assert refs["BF16"]["weights"] == 524288
    assert rows["BF16", "planes", "scalar"]["bits_per_weight"] <= 10.72
    assert rows["BF16", "zstd", None]["bits_per_weight"] <= 10.65


@test
def experts_of_a_pack():
    """Chunks of a pack are what od-pack made of them."""
    r = bench("--pack", pack(), "--cpu", "scalar", "--weights", 10 ** 9)
    refs, rows = check(r, ["BF16"], ["scalar"])
    info = json.loads(tool("od-pack", "info", "--json", pack()).stdout)
    assert refs["BF16"]["weights"] == info["expert_weights"]
    assert math.isclose(rows["BF16", info["codec"], "scalar"]["bits_per_weight"], info["bits_per_weight"])


@test
def the_device_of_the_environment_plays_no_part():
    """Codecs are the CPU's; on the far device, as on a GPU, weights could not be read."""
    with mock.patch.dict(os.environ, FAR):
        check(bench("--pack", pack(), "--cpu", "scalar", "--weights", 1), ["BF16"], ["scalar"])


@test
def what_is_not_there_is_refused():
    for words, *args in (("--codec", "--codec", "gzip"), ("--dtype", "--dtype", "bf17"), ("--cpu", "--cpu", "mmx")):
        assert words in tool("od-bench", "codec", *args, ok=False).stderr
    p = tool("od-bench", "codec", "--rounds", 1, "--pack", pack(), "--dtype", "bf16,f16", ok=False)
    assert p.returncode == 2 and "F16" in p.stderr and not p.stdout, p


run_tests()
