import re

import numpy as np
import torch

from families.parts import config as base, some, some_experts, some_heads, some_window, some_yarn

MXFP4 = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                           "model.embed_tokens", "lm_head"])
VALUES = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


TURNED = re.compile(r"\.experts\.(gate_up|down)_proj$")
MATRICES = re.compile(r"\.(q_proj|k_proj|v_proj|o_proj)\.weight$|" + TURNED.pattern)


def config(**fields):
    c = base("gpt_oss", "GptOssForCausalLM", **dict(dict(
        attention_bias=True, experts_per_token=2, head_dim=12, initial_context_length=16, intermediate_size=32,
        num_attention_heads=4, num_experts_per_tok=2, num_key_value_heads=2, num_local_experts=6, output_router_logits=False,
        rms_norm_eps=1e-5, router_aux_loss_coef=0.9, sliding_window=8, swiglu_limit=7.0, rope_scaling=dict(
            rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)),
        **fields))
    kinds = ["sliding_attention", "full_attention"] * c["num_hidden_layers"]
    return c | dict(layer_types=fields.get("layer_types", kinds[:c["num_hidden_layers"]]))


def blocks(w, name, n, n_out, n_in, gain):
    """MXFP4: for 32 weights of a row 16 bytes, the lower half of each first, and a power of two."""
    x = w.normal(n, n_out, n_in // 32, 32) * np.float32(gain / np.sqrt(n_in))
    x *= 2.0 ** w.rng.integers(-3, 2, (n, n_out, n_in // 32, 1)).astype(np.float32)
    scale = np.floor(np.log2(np.abs(x).max(-1))) - 2
    code = np.abs((np.abs(x) / 2.0 ** scale[..., None])[..., None] - VALUES).argmin(-1).astype(np.uint8)
    code |= (x < 0).astype(np.uint8) << 3
    least = w.rng.random((n, n_out, n_in // 32)) < 0.05  # blocks of zeros, some negative, under the least scale
    code[least] &= 8
    scale[least] = -127
    w.t[name + "_blocks"] = torch.from_numpy(np.ascontiguousarray(code[..., 0::2] | code[..., 1::2] << 4))
    w.t[name + "_scales"] = torch.from_numpy((scale + 127).astype(np.uint8))


def matrices(w, name, n, n_out, n_in, gain):
    """Of all experts; not quantised they are [in][out]."""
    if w.cfg.get("quantization_config"):
        return blocks(w, name, n, n_out, n_in, gain)
    w.put(name, w.normal(n, n_in, n_out) * np.float32(gain / np.sqrt(n_in)))


def dequantised(tensors):
    """The checkpoint without MXFP4, in float32."""
    out = {}
    for name, t in tensors.items():
        if name.endswith("_blocks"):
            scale = np.exp2(tensors[name.replace("_blocks", "_scales")].numpy().astype(np.float32) - 127)
            code = np.stack([t.numpy() & 15, t.numpy() >> 4], -1)
            x = VALUES[code & 7] * np.where(code & 8, np.float32(-1), np.float32(1)) * scale[..., None, None]
            out[name.removesuffix("_blocks")] = torch.from_numpy(x.reshape(*x.shape[:2], -1)).mT.contiguous()
        elif not name.endswith("_scales"):
            out[name] = t
    return out


def layer(w, p, i):
    c, m = w.cfg, p + "mlp.experts."
    h, n, inner = c["hidden_size"], c["num_local_experts"], c["intermediate_size"]
    w.qkvo(p + "self_attn.", c["attention_bias"], c["attention_bias"])
    w.put(p + "self_attn.sinks", w.normal(c["num_attention_heads"]) * np.float32(1.2))
    w.linear(p + "mlp.router", n, h, 2.0, True)
    matrices(w, m + "gate_up_proj", n, 2 * inner, h, 3.0)
    matrices(w, m + "down_proj", n, h, inner, 1.0)
    w.put(m + "gate_up_proj_bias", w.normal(n, 2 * inner) * np.float32(0.3))
    w.put(m + "down_proj_bias", w.normal(n, h) * np.float32(0.2))


def scores(cfg, logits, bias, router):
    return logits.float(), torch.ones(len(logits))


def load_options():
    """Of a quantised checkpoint; else the class would want a GPU."""
    from transformers import Mxfp4Config
    return dict(quantization_config=Mxfp4Config(dequantize=True))


def draw(rng):
    c = config(**some(rng), **some_heads(rng), **some_experts(rng, "num_local_experts"), intermediate_size=rng.choice([8, 20, 33]),
               sliding_window=some_window(rng), swiglu_limit=rng.choice([0.5, 2.0, 7.0]), attention_bias=rng.random() < 0.8)
    rope = dict(rope_theta=rng.choice([100.0, 150000.0]))
    c |= rng.choice([dict(rope, rope_scaling=some_yarn(rng)), dict(rope_theta=None, rope_scaling=None, rope_parameters=dict(some_yarn(rng), **rope))])
    types = rng.choice([["sliding_attention", "full_attention"], ["full_attention", "sliding_attention"], ["sliding_attention"]])
    c |= dict(experts_per_token=c["num_experts_per_tok"], layer_types=(types * 4)[:c["num_hidden_layers"]])
    if rng.random() < 0.5:
        c |= dict(hidden_size=rng.choice([32, 64, 96]), intermediate_size=rng.choice([32, 64]), quantization_config=MXFP4)
    return c
