"""Qwen3-Next: layers with a gated delta rule, others with gated attention; norms are stored minus 1."""
import re

import numpy as np

from families.parts import config as base, head_dim, qwen_moe, some, some_experts, some_heads, some_rope
from families.qwen3_moe import some_dense


def config(**fields):
    return base("qwen3_next", "Qwen3NextForCausalLM", **dict(dict(
        attention_bias=False, decoder_sparse_step=1, full_attention_interval=3, head_dim=16, intermediate_size=40,
        linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_value_head_dim=12, mlp_only_layers=[], moe_intermediate_size=16, norm_topk_prob=True, num_attention_heads=4,
        num_experts=8, num_experts_per_tok=3, num_key_value_heads=2, output_router_logits=False, partial_rotary_factor=0.5,
        router_aux_loss_coef=0.001, shared_expert_intermediate_size=20, use_sliding_window=False), **fields))


def types(c):
    n, interval = c["num_hidden_layers"], c.get("full_attention_interval")
    return c.get("layer_types") or [("linear" if (i + 1) % interval else "full") + "_attention" for i in range(n)]


def channels(c):
    """Of the convolution: keys of all heads, values."""
    return c["linear_num_key_heads"] * c["linear_key_head_dim"], c["linear_num_value_heads"] * c["linear_value_head_dim"]


def norm(w, name, n, center=0.0):
    w.norm(name, n, center)


def gated_attention(w, a):
    c, d, h, bias = w.cfg, head_dim(w.cfg), w.cfg["hidden_size"], w.cfg["attention_bias"]
    w.linear(a + "q_proj", 2 * c["num_attention_heads"] * d, h, 1.5, bias)
    w.linear(a + "k_proj", c["num_key_value_heads"] * d, h, 1.5, bias)
    w.linear(a + "v_proj", c["num_key_value_heads"] * d, h, 1.2, bias)
    w.linear(a + "o_proj", h, c["num_attention_heads"] * d, 1.2, bias)
    norm(w, a + "q_norm", d, 0.3)
    norm(w, a + "k_norm", d, 0.3)


def alike(rows, mine, other, n, keys):
    """The first positions give nearly a multiple of q.k, whose size the norm takes away; where that is near 0 rounding decides.
    So queries (rows from mine on) are like their keys (from other on)."""
    rows[..., mine:mine + n, :] = keys * rows[..., mine:mine + n, :] + 0.85 * rows[..., other:other + n, :]


def delta_rest(w, a):
    """All but the projections of the row."""
    c, n, (k, v) = w.cfg, w.cfg["linear_num_value_heads"], channels(w.cfg)
    conv = w.normal(2 * k + v, c["linear_conv_kernel_dim"]) * np.float32(0.6)
    alike(conv, 0, k, k, 0.3)
    w.put(a + "conv1d.weight", conv[:, None])
    w.put(a + "dt_bias", w.rng.uniform(-2, 1, n))
    w.put(a + "A_log", np.log(w.rng.uniform(0.05, 4, n)))
    w.norm(a + "norm", c["linear_value_head_dim"])
    w.linear(a + "out_proj", c["hidden_size"], v, 1.2)


def delta(w, a):
    c, h, (k, v), n = w.cfg, w.cfg["hidden_size"], channels(w.cfg), w.cfg["linear_num_key_heads"]
    qkvz = w.normal(n, (2 * k + 2 * v) // n, h) * np.float32(1.3 / np.sqrt(h))  # key head after key head
    alike(qkvz, 0, k // n, k // n, 0.5)
    w.put(a + "in_proj_qkvz.weight", qkvz.reshape(-1, h))
    w.linear(a + "in_proj_ba", 2 * c["linear_num_value_heads"], h, 1.3)
    delta_rest(w, a)


def layer(w, p, i):
    if types(w.cfg)[i] == "full_attention":
        gated_attention(w, p + "self_attn.")
    else:
        delta(w, p + "linear_attn.")
    qwen_moe(w, p, i)


def norms(w, p):
    norm(w, p + "input_layernorm", w.cfg["hidden_size"])
    norm(w, p + "post_attention_layernorm", w.cfg["hidden_size"])


NORM = 0.0
MATRICES = re.compile(r"model\..*(\.(q_proj|k_proj|v_proj|o_proj|in_proj_qkvz|in_proj_qkv|in_proj_z|out_proj|gate_proj|up_proj|down_proj)"
                      r"\.weight|\.experts\.(gate_up_proj|down_proj))$")


def rest(w):
    """A layer that predicts further tokens, or what is enough of one here."""
    w.linear("mtp.fc", w.cfg["hidden_size"], 2 * w.cfg["hidden_size"])
    norm(w, "mtp.norm", w.cfg["hidden_size"])


def some_mixers(rng, n_layers):
    """Of each kind there may be few layers, but one has attention."""
    full = [rng.random() < 0.4 for _ in range(n_layers)]
    full[rng.randrange(n_layers)] = True
    keys = rng.choice([1, 2, 3])
    return dict(layer_types=[("full" if f else "linear") + "_attention" for f in full], attention_bias=rng.random() < 0.2,
                head_dim=rng.choice([8, 16, 24]), linear_conv_kernel_dim=rng.choice([2, 3, 4, 4, 6]),
                linear_key_head_dim=rng.choice([5, 8, 16, 24]), linear_num_key_heads=keys,
                linear_num_value_heads=keys * rng.choice([1, 2, 3]), linear_value_head_dim=rng.choice([6, 8, 16, 33]))


def draw(rng):
    some_, mix = some(rng), {}
    n = some_["num_hidden_layers"]
    mix = some_mixers(rng, n)
    if rng.random() < 0.4:
        mix |= dict(layer_types=None, full_attention_interval=rng.randint(1, n))
    c = config(**some_, **some_heads(rng) | mix, **some_experts(rng), **some_rope(rng), **some_dense(rng),
               moe_intermediate_size=rng.choice([8, 20, 33]), shared_expert_intermediate_size=rng.choice([16, 45]),
               intermediate_size=rng.choice([40, 51]), norm_topk_prob=rng.random() < 0.7)
    part = rng.choice([0.25, 0.5, 1.0])
    if "rope_parameters" in c:
        c["rope_parameters"]["partial_rotary_factor"] = part
        part = None
    return c | dict(partial_rotary_factor=part)
