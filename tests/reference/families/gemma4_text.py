"""Gemma 4 without pictures. Layers differ in how they attend: over a window or over all."""
import re

import torch

from families.parts import config as base, some, some_experts, some_window

MATRICES = re.compile(r"(\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)\.weight|experts\.(gate_up_proj|down_proj))$")


def ropes(full=None, sliding=None):
    return dict(full_attention=full or dict(partial_rotary_factor=0.25, rope_theta=1000000.0, rope_type="proportional"),
                sliding_attention=sliding or dict(rope_theta=10000.0, rope_type="default"))


def config(**fields):
    c = base("gemma4_text", "Gemma4ForCausalLM", **dict(dict(
        attention_bias=False, attention_k_eq_v=True, enable_moe_block=True, final_logit_softcapping=30.0, global_head_dim=16,
        head_dim=12, hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=0, intermediate_size=20,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], moe_intermediate_size=12,
        num_attention_heads=4, num_experts=8, num_global_key_value_heads=1, num_key_value_heads=2, num_kv_shared_layers=0,
        rope_parameters=ropes(), sliding_window=8, tie_word_embeddings=True, top_k_experts=3,
        use_bidirectional_attention="vision", use_double_wide_mlp=False, vocab_size_per_layer_input=0), **fields))
    return {k: v for k, v in c.items() if k not in ("hidden_act", "rope_theta", "rope_scaling")}


def layer(w, p, i):
    c, a, h = w.cfg, p + "self_attn.", w.cfg["hidden_size"]
    full, n, e = c["layer_types"][i] == "full_attention", c["num_attention_heads"], c["num_experts"]
    d, p_in = c["global_head_dim"] if full else c["head_dim"], c["hidden_size_per_layer_input"]
    shared = i >= c["num_hidden_layers"] - c["num_kv_shared_layers"]
    same = full and c["attention_k_eq_v"]
    kv = c["num_global_key_value_heads"] if same else c["num_key_value_heads"]
    w.linear(a + "q_proj", n * d, h, 1.5)
    if not shared:
        w.linear(a + "k_proj", kv * d, h, 1.5)
    if not shared and not same:
        w.linear(a + "v_proj", kv * d, h, 1.2)
    w.linear(a + "o_proj", h, n * d)
    w.norm(a + "q_norm", d, 0.8)
    if not shared:
        w.norm(a + "k_norm", d, 0.8)
    w.swiglu(p + "mlp.", c["intermediate_size"] * (2 if shared and c["use_double_wide_mlp"] else 1))
    w.linear(p + "router.proj", e, h, 2.0 * h ** 0.5)
    w.put(p + "router.scale", w.rng.uniform(0.65, 1.35, h))
    w.put(p + "router.per_expert_scale", w.rng.uniform(0.4, 1.8, e))
    w.put(p + "experts.gate_up_proj", w.normal(e, 2 * c["moe_intermediate_size"], h) * (1.3 / h ** 0.5))
    w.put(p + "experts.down_proj", w.normal(e, h, c["moe_intermediate_size"]) * (1.3 / c["moe_intermediate_size"] ** 0.5))
    w.put(p + "layer_scalar", w.rng.uniform(0.4, 1.3, 1))
    if p_in:
        w.linear(p + "per_layer_input_gate", p_in, h, 0.4)  # more, and GELU leaves of a row little but rounding errors
        w.linear(p + "per_layer_projection", h, p_in)
        w.norm(p + "post_per_layer_input_norm", h)


def rest(w):
    """Where the inputs of layers come from."""
    c, n = w.cfg, w.cfg["hidden_size_per_layer_input"]
    if n:
        w.put("model.embed_tokens_per_layer.weight", w.normal(c["vocab_size"], c["num_hidden_layers"] * n) * (1 / n ** 0.5))
        w.linear("model.per_layer_model_projection", c["num_hidden_layers"] * n, c["hidden_size"])
        w.norm("model.per_layer_projection_norm", n)


def norms(w, p):
    """Those of outputs are large, so that a tied head does not always choose the token itself."""
    h = w.cfg["hidden_size"]
    for name in ("input", "pre_feedforward"):
        w.norm(f"{p}{name}_layernorm", h)
    for name in ("post_attention", "post_feedforward"):
        w.norm(f"{p}{name}_layernorm", h, 2.0)
    for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
        w.norm(p + name, h)


def scores(_, probabilities, __, ___):
    """This router gives out probabilities."""
    return probabilities.float(), torch.ones(len(probabilities))


def some_rope(rng):
    theta = rng.choice([100.0, 10000.0, 1000000.0])
    if rng.random() < 0.3:
        return dict(rope_theta=theta, rope_type="default")
    return dict(rope_theta=theta, rope_type="proportional", partial_rotary_factor=rng.choice([0.25, 0.3, 0.5, 1.0])) | \
        rng.choice([{}, {}, dict(factor=4.0)])


def some_sharing(rng, types):
    """Each kind of layer needs one with keys and values of its own."""
    most = next(n for n in range(len(types), -1, -1) if n < len(types) and set(types[:len(types) - n]) == set(types))
    n = rng.randint(0, most)
    return dict(num_kv_shared_layers=n, use_double_wide_mlp=n > 0 and rng.random() < 0.5)


def draw(rng):
    kv = rng.choice([1, 2, 3])
    e = some_experts(rng)
    c = config(**some(rng), sliding_window=some_window(rng), num_key_value_heads=kv, num_experts=e["num_experts"],
               num_attention_heads=kv * rng.choice([1, 2, 4]), top_k_experts=e["num_experts_per_tok"],
               attention_k_eq_v=rng.random() < 0.6, head_dim=rng.choice([8, 12, 14]), global_head_dim=rng.choice([8, 16, 24]),
               final_logit_softcapping=rng.choice([None, 2.0, 30.0]), intermediate_size=rng.choice([16, 40, 51]),
               moe_intermediate_size=rng.choice([8, 20, 33]), rope_parameters=ropes(some_rope(rng), some_rope(rng)))
    kinds = [rng.choice(["sliding_attention", "sliding_attention", "full_attention"]) for _ in range(c["num_hidden_layers"] - 1)]
    c |= dict(layer_types=kinds + ["full_attention"], num_global_key_value_heads=rng.choice([1, kv]))
    n = rng.choice([0, 0, 8, 14, 20])
    if n == 0:  # transformers cannot share keys and values without inputs of layers
        return c
    return c | some_sharing(rng, c["layer_types"]) | dict(hidden_size_per_layer_input=n, vocab_size_per_layer_input=c["vocab_size"])
