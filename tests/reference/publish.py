"""Weights of 8 and 4 bits as checkpoints are published in them, and beside them the values that they stand for, computed by nothing of
od-moe."""
import re

import numpy as np
import torch

MATRICES = re.compile(r"\.(\w+_proj|kv_a_proj_with_mqa|w1|w2|w3)\.weight$")
EXPERTS = re.compile(r"\.experts\.\d+\.\w+\.weight$")
MTP = re.compile(r"\.eh_proj\.weight$")


def compressed(form, kind, bits, strategy, group=None):
    """quantization_config as compressed-tensors writes it."""
    weights = dict(num_bits=bits, type=kind, strategy=strategy, group_size=group, symmetric=True, dynamic=False, observer="minmax")
    dynamic = dict(num_bits=8, type=kind, strategy="token", symmetric=True, dynamic=True) if bits == 8 else None
    return dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head", "re:.*gate$"],
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=dynamic)))


def spread(scale, rows, cols, shape):
    """Each scale over its block; blocks at the lower and right edge are cut."""
    return scale.repeat_interleave(rows, 0)[:shape[0]].repeat_interleave(cols, 1)[:, :shape[1]]


def largest(w, rows, cols):
    """Of each block."""
    h, v = -w.shape[0] % rows, -w.shape[1] % cols
    a = torch.nn.functional.pad(w.abs(), (0, v, 0, h))
    return a.view(a.shape[0] // rows, rows, -1, cols).amax((1, 3)).clamp(min=1e-8)


def fp8(w, rows, cols, scale_type, suffix):
    scale = (largest(w, rows, cols) / 448).to(scale_type)
    wide = spread(scale.float(), rows, cols, w.shape)
    code = (w / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"": code, suffix: scale}, code.float() * wide


def int8(w):
    scale = (largest(w, 1, w.shape[1]) / 127).to(torch.bfloat16)
    code = (w / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {"": code, "_scale": scale}, code.float() * scale.float()


def int4(w, group):
    """Words of eight weights plus 8, the first in the lowest bits."""
    scale = (largest(w, 1, group) / 7.5).to(torch.bfloat16)
    wide = spread(scale.float(), 1, group, w.shape)
    code = (w / wide).round().clamp(-8, 7)
    nibbles = (code + 8).to(torch.int64).view(w.shape[0], -1, 8)
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    words = torch.from_numpy(words.numpy().astype(np.uint32).view(np.int32))
    return {"_packed": words, "_scale": scale, "_shape": torch.tensor(w.shape, dtype=torch.int64)}, code * wide


def fp8_blocks(rng):
    """As DeepSeek-V3, Kimi-K2, Qwen3-FP8 and MiniMax-M2; their blocks have 128 x 128 weights."""
    size = rng.choice([16, 32, 64, 128])
    config = dict(quant_method="fp8", fmt=rng.choice(["e4m3", "float8_e4m3fn"]), activation_scheme="dynamic",
                  weight_block_size=[size, size])
    if rng.random() < 0.5:
        config["modules_to_not_convert"] = ["lm_head", "gate", "e_score_correction_bias"]
    return config, MATRICES, lambda w: fp8(w, size, size, torch.float32, "_scale_inv")


def fp8_rows(rng):
    """As GLM-4.5-FP8."""
    return compressed("float-quantized", "float", 8, "channel"), MATRICES, lambda w: fp8(w, 1, w.shape[1], torch.bfloat16, "_scale")


def int8_rows(rng):
    return compressed("int-quantized", "int", 8, "channel"), MATRICES, int8


def int4_groups(rng):
    """As Kimi-K2-Thinking: experts alone."""
    return compressed("pack-quantized", "int", 4, "group", 32), EXPERTS, lambda w: int4(w, 32)


HOW = {"FP8": fp8_blocks, "FP8 rows": fp8_rows, "INT8": int8_rows, "INT4": int4_groups}


def publish(tensors, how, rng):
    """What is published, the same weights plain, quantization_config. Matrices that the form has no place for stay as they are."""
    config, names, quantise = HOW[how](rng)
    published, plain = {}, {}
    for name, t in tensors.items():
        fits = names.search(name) and not MTP.search(name) and (how != "INT4" or t.shape[1] % 8 == 0)
        if not fits:
            published[name], plain[name] = t, t.float()
            continue
        parts, plain[name] = quantise(t.float())
        published |= {name + end: part.contiguous() for end, part in parts.items()}
    return published, plain, config
