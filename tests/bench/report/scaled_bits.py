#!/usr/bin/env python3
"""Bits a weight of experts published in 8 and 4 bits: as published, the entropy of their codes and scales, and in a pack.
Gaussian weights (tests/integ/tiny_checkpoint.py), matrices of 1024 x 1024; standard library only.

    tests/bench/report/scaled_bits.py [BUILD]        BUILD: default build; minutes, for Python quantises
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "integ"))
import pack_reader as pr  # noqa: E402
import scaled_checkpoint as sc  # noqa: E402
import tiny_checkpoint as tc  # noqa: E402

WAYS = ["fp8-blocks", "fp8-rows", "e5m2-rows", "mxfp8", "int8-rows", "w4-128", "w4-32", "nvfp4", "mxfp4"]
CONFIG = dict(tc.CONFIG, hidden_size=1024, intermediate_size=1024, num_hidden_layers=1, num_local_experts=2)


def entropy(symbols):
    """In bits, of all of them, each coded for itself."""
    n = len(symbols)
    return sum(-count * math.log2(count / n) for count in Counter(symbols).values())


def codes_of(m):
    return [c for b in m.codes for c in (b & 15, b >> 4)] if m.dtype in pr.FOUR_BITS else m.codes


def packed(build, pub):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint")
        sc.write(path, pub)
        tool = os.path.join(build, "bin", "od-pack")
        subprocess.run([tool, path, path + ".pack", "--shadow", "none"], check=True, capture_output=True)
        return json.loads(subprocess.run([tool, "info", "--json", path + ".pack"], check=True, capture_output=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", nargs="?", default=os.path.join(ROOT, "build"))
    build = p.parse_args().build
    tens = tc.tensors(CONFIG, seed=3)
    print("| way | type | published | entropy: codes | scales | packed |\n|---|---|---|---|---|---|")
    for way in WAYS:
        name, (dtype, shape, raw) = next((n, t) for n, t in tens.items() if sc.is_expert(n))
        m = sc.scale(sc.KINDS[way], pr.decode(dtype, raw), shape, random.Random(1), "near")
        pub = sc.Publication(dict(CONFIG, quantization_config=sc.KINDS[way].config), {}, {}, {})
        for name, tensor in tens.items():  # the same matrix everywhere, for Python is slow
            pub.tensors.update(sc.as_published(sc.KINDS[way], name, m) if sc.is_expert(name) else {name: tensor})
        said, n, width = packed(build, pub), shape[0] * shape[1], pr.WIDTH[m.scale_dtype]
        print("| %s | %s | %.2f | %.2f | %.2f | %.2f |" % (
            way, said["expert_dtype"], 8 * (len(m.codes) + len(m.scales)) / n, entropy(codes_of(m)) / n,
            sum(entropy(m.scales[k::width]) for k in range(width)) / n, said["bits_per_weight"]))


if __name__ == "__main__":
    main()
