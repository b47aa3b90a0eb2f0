#!/usr/bin/env python3
"""A pack whose shadow has other weights, for tests and benchmarks of a shadow that is often wrong.

    wrong_shadow.py PACK OUT [--layers N]

OUT gets PACK's files by link, but in shadow-int8.bin the rows of the matrices of the last N layers (default: all) are rotated: the
matrices are as large and their sums stay plausible, and what they compute is wrong. Checksums are right."""
import argparse
import ctypes
import ctypes.util
import os
import struct

HEADER, RECORD = struct.Struct("<8sQIIIIQQ"), struct.Struct("<QQQQQ")
N_HEADER = 128


def xxh3(data):
    lib = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    lib.XXH3_64bits.restype = ctypes.c_uint64
    lib.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return lib.XXH3_64bits(bytes(data), len(data))


def dense_layers(records, config):
    """How many dense matrices a layer has: they come first, layer by layer, then three of each expert."""
    experts = config.get("num_local_experts") or config["num_experts"]
    n = config["num_hidden_layers"]
    dense = len(records) - 3 * n * experts
    assert dense % n == 0
    return dense // n, 3 * experts


def make(pack, out, layers=None):
    import json

    os.makedirs(out)
    for name in os.listdir(pack):
        if name != "shadow-int8.bin":
            os.link(os.path.join(pack, name), os.path.join(out, name))
    with open(os.path.join(pack, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(pack, "shadow-int8.bin"), "rb") as f:
        data = bytearray(f.read())
    magic, _, schema, precision, n, zero, header_bytes, file_bytes = HEADER.unpack_from(data)
    records = [RECORD.unpack_from(data, N_HEADER + i * RECORD.size) for i in range(n)]
    n_dense, n_expert = dense_layers(records, config)
    first = 0 if layers is None else config["num_hidden_layers"] - layers
    for i, (n_out, n_in, offset, size, _) in enumerate(records):
        of_dense = i < n_dense * config["num_hidden_layers"]
        layer = i // n_dense if of_dense else (i - n_dense * config["num_hidden_layers"]) // n_expert
        if layer < first:
            continue
        turned = data[offset + n_in:offset + n_out * n_in] + data[offset:offset + n_in]
        data[offset:offset + n_out * n_in] = turned
        RECORD.pack_into(data, N_HEADER + i * RECORD.size, n_out, n_in, offset, size, xxh3(data[offset:offset + size]))
    HEADER.pack_into(data, 0, magic, xxh3(data[16:header_bytes]), schema, precision, n, zero, header_bytes, file_bytes)
    with open(os.path.join(out, "shadow-int8.bin"), "wb") as f:
        f.write(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    make(args.pack, args.out, args.layers)
