from families.deepseek_v3 import some_sigmoid
from families.parts import config as base, head_dim, sigmoid_moe, some, some_heads, some_rope


def config(**fields):
    return base("glm4_moe", "Glm4MoeForCausalLM", **dict(dict(
        attention_bias=True, first_k_dense_replace=1, head_dim=12, intermediate_size=48, moe_intermediate_size=12, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=3,
        num_key_value_heads=2, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
        routed_scaling_factor=1.0, topk_group=1, use_qk_norm=False), **fields))


def layer(w, p, i):
    c, a = w.cfg, p + "self_attn."
    w.qkvo(a, c["attention_bias"])
    if c["use_qk_norm"]:
        w.norm(a + "q_norm", head_dim(c), 1.3)
        w.norm(a + "k_norm", head_dim(c), 1.3)
    sigmoid_moe(w, p, i)


def draw(rng):
    c = config(**some(rng), **some_heads(rng), **some_sigmoid(rng), **some_rope(rng), attention_bias=rng.random() < 0.5,
               use_qk_norm=rng.random() < 0.5)
    c |= dict(head_dim=rng.choice([8, 12, 24]), first_k_dense_replace=rng.choice([0, 1, c["num_hidden_layers"] - 1]))
    part = rng.choice([0.5, 1.0])  # an even number of each head's values
    if "rope_parameters" in c:
        c["rope_parameters"]["partial_rotary_factor"] = part
        part = None
    return c | dict(partial_rotary_factor=part)
