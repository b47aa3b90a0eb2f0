"""Qwen3.5 and 3.6 without pictures: as Qwen3-Next, with projections of their own for what that has in one; experts stacked, or
one by one as transformers reads them too."""
import numpy as np

from families import qwen3_next
from families.parts import some, some_experts, some_heads, some_yarn
from families.qwen3_next import MATRICES, NORM, alike, channels, delta_rest, gated_attention, norms, rest, some_mixers, types

NOT = ("decoder_sparse_step", "intermediate_size", "mlp_only_layers", "norm_topk_prob", "partial_rotary_factor", "rope_scaling",
       "rope_theta", "use_sliding_window")


def rope(dims, **fields):
    return dict(mrope_interleaved=True, mrope_section=[dims // 2, 0, 0], rope_type="default", rope_theta=10000.0) | fields


def config(**fields):
    c = {k: v for k, v in qwen3_next.config().items() if k not in NOT} | dict(
        architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text", attn_output_gate=True,
        mamba_ssm_dtype="float32", mtp_num_hidden_layers=1, rope_parameters=rope(8, partial_rotary_factor=0.5))
    return c | fields


def delta(w, a):
    h, (k, v) = w.cfg["hidden_size"], channels(w.cfg)
    qkv = w.normal(2 * k + v, h) * np.float32(1.3 / np.sqrt(h))
    alike(qkv, 0, k, k, 0.5)
    w.put(a + "in_proj_qkv.weight", qkv)
    w.linear(a + "in_proj_z", v, h, 1.3)
    w.linear(a + "in_proj_b", w.cfg["linear_num_value_heads"], h, 1.3)
    w.linear(a + "in_proj_a", w.cfg["linear_num_value_heads"], h, 1.3)
    delta_rest(w, a)


def experts(w, p):
    c, h, n, inner = w.cfg, w.cfg["hidden_size"], w.cfg["num_experts"], w.cfg["moe_intermediate_size"]
    w.linear(p + "gate", n, h, 2.0)
    w.put(p + "experts.gate_up_proj", w.normal(n, 2 * inner, h) * np.float32(1.3 / np.sqrt(h)))
    w.put(p + "experts.down_proj", w.normal(n, h, inner) * np.float32(1.3 / np.sqrt(inner)))
    w.swiglu(p + "shared_expert.", c["shared_expert_intermediate_size"])
    w.linear(p + "shared_expert_gate", 1, h, 1.5)


def layer(w, p, i):
    if types(w.cfg)[i] == "full_attention":
        gated_attention(w, p + "self_attn.")
    else:
        delta(w, p + "linear_attn.")
    experts(w, p + "mlp.")


def one_by_one(tensors):
    """The same checkpoint with a tensor for each matrix of an expert."""
    out = {}
    for name, t in tensors.items():
        p, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj"):
            out[name] = t
            continue
        for e in range(len(t)):
            halves = dict(down_proj=t[e]) if last == "down_proj" else dict(zip(("gate_proj", "up_proj"), t[e].chunk(2)))
            out |= {f"{p}.{e}.{mat}.weight": half.clone() for mat, half in halves.items()}
    return out


def draw(rng):
    some_ = some(rng)
    mix = some_mixers(rng, some_["num_hidden_layers"])
    part = rng.choice([0.25, 0.5, 1.0])
    r = rope(int(mix["head_dim"] * part), rope_theta=rng.choice([100.0, 10000.0, 1000000.0]), partial_rotary_factor=part)
    if rng.random() < 0.4:
        r |= some_yarn(rng)
    if part == 0.25 and rng.random() < 0.5:
        del r["partial_rotary_factor"]
    return config(**some_, **some_heads(rng) | mix, **some_experts(rng), rope_parameters=r,
                  moe_intermediate_size=rng.choice([8, 20, 33]), shared_expert_intermediate_size=rng.choice([16, 45]))
