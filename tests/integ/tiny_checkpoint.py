"""Tiny checkpoints with random bits, for tests. Standard library only."""
import bisect
import json
import math
import os
import random
import struct

from model_config import Model
from pack_reader import F8, WIDTH

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e6, "hidden_act": "silu", "sliding_window": None, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}
TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
# Patterns of the upper 16 bits that arithmetic would not keep: zeros, subnormals, infinities, NaN payloads.
HARD = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FFF, 0xFF81]


def nearest_f8(dtype, values):
    finite = sorted((v, b) for b, v in enumerate(F8[dtype]) if math.isfinite(v))
    middles = [(a[0] + b[0]) / 2 for a, b in zip(finite, finite[1:])]
    return bytes(finite[bisect.bisect(middles, v)][1] for v in values)


def finite_bits(rng, dtype, n):
    """Weights as a network has them: Gaussian, so that exponents are few."""
    if dtype in F8:
        return nearest_f8(dtype, [rng.gauss(0, 0.3) for _ in range(n)])
    values = [rng.gauss(0, 0.02) for _ in range(n)]
    if dtype == "F16":
        return struct.pack("<%de" % n, *values)
    raw = struct.pack("<%df" % n, *values)
    return raw if dtype == "F32" else b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def any_bits(rng, dtype, n):
    raw = bytearray(rng.randbytes(n * WIDTH[dtype]))
    w = WIDTH[dtype]
    if w == 1:
        raw[:256] = bytes(range(256))[:n]
        return bytes(raw)
    for i, bits in enumerate(HARD[:n]):
        raw[i * w + w - 2:i * w + w] = struct.pack("<H", bits)
    return bytes(raw)


def tensors(cfg, seed=1, dtype=lambda name: "BF16", bits=finite_bits):
    """name -> (dtype, shape, bytes)"""
    rng, out = random.Random(seed), {}
    for name, shape in Model(cfg).tensors():
        n = math.prod(shape)
        out[name] = (dtype(name), shape, bits(rng, dtype(name), n))
    return out


def multimodal(cfg, tens, model_type, architecture):
    """The model as the text part of one that takes pictures too: config.json, and tensors by their names there."""
    outer = {"architectures": [architecture], "model_type": model_type, "text_config": cfg, "image_token_id": 7,
             "vision_config": {"model_type": model_type + "_vision", "hidden_size": 8}}
    return outer, {n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: t for n, t in tens.items()}


def header_of(tens):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, raw) in tens.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    return head


def write_safetensors(path, tens, head=None):
    text = json.dumps(header_of(tens) if head is None else head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tens.values():
            f.write(raw)


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    with open(path, "rb") as f:
        raw = f.read()
    (n,) = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in head.items()}


def write_small(path, cfg, tokenizer=True):
    os.makedirs(path, exist_ok=True)
    files = {"config.json": cfg, "generation_config.json": {"do_sample": False, "eos_token_id": 2}}
    if tokenizer:
        files["tokenizer.json"] = TOKENIZER
    for name, value in files.items():
        with open(os.path.join(path, name), "w") as f:
            json.dump(value, f)


def write_checkpoint(path, cfg, tens, shards=1, index=True, tokenizer=True):
    write_small(path, cfg, tokenizer)
    if shards == 1:
        write_safetensors(os.path.join(path, "model.safetensors"), tens)
        return
    where = {}
    for i in range(shards):
        name = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
        part = dict(list(tens.items())[i::shards])
        write_safetensors(os.path.join(path, name), part)
        where.update({t: name for t in part})
    if index:
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": where}, f)
