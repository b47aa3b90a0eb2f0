"""Recordings of routes (od-bench cache --record) of the demo checkpoint. Standard library."""
from cluster_util import CHECKPOINT, pack
import json
import os
import struct

with open(os.path.join(CHECKPOINT, "config.json")) as f:
    CONFIG = json.load(f)
LAYERS, EXPERTS, TOP_K = (CONFIG[k] for k in ("num_hidden_layers", "num_local_experts", "num_experts_per_tok"))


def read_routes(path):
    """[(step, is a prompt's, [(sequence, position)], [layer][row][rank])] after the description in route_file.h."""
    with open(path, "rb") as f:
        data = f.read()
    magic, version, layers, experts, top_k, fingerprint = struct.unpack_from("<8s4I32s", data)
    assert (magic, version, layers, experts, top_k) == (b"od-route", 1, LAYERS, EXPERTS, TOP_K)
    with open(os.path.join(pack(), "model.json")) as f:
        assert fingerprint.hex() == json.load(f)["fingerprint"]
    at, steps = 56, []
    while data[at:at + 1] != b"E":
        if data[at:at + 1] == b"S":
            prompt, n, step = struct.unpack_from("<BIQ", data, at + 1)
            rows = [struct.unpack_from("<QI", data, at + 14 + 12 * i) for i in range(n)]
            steps.append((step, prompt, rows, []))
            at += 14 + 12 * n
        else:
            assert data[at:at + 1] == b"L", at
            n = len(steps[-1][2])
            steps[-1][3].append([tuple(data[at + 1 + top_k * i:at + 1 + top_k * (i + 1)]) for i in range(n)])
            at += 1 + top_k * n
    assert struct.unpack_from("<Q", data, at + 1) == (len(steps),) and at + 9 == len(data)
    return steps
