from families.parts import config as base, head_dim, some, some_experts, some_heads, some_yarn


def config(**fields):
    return base("minimax_m2", "MiniMaxM2ForCausalLM", **dict(dict(
        attn_type_list=[1, 1], head_dim=12, intermediate_size=16, num_attention_heads=4, num_experts_per_tok=3,
        num_hidden_layers=2, num_key_value_heads=2, num_local_experts=9, num_mtp_modules=3, output_router_logits=False,
        qk_norm_type="per_layer", rotary_dim=8, router_aux_loss_coef=0.001, router_jitter_noise=0.0, scoring_func="sigmoid",
        shared_intermediate_size=0, sliding_window=None, use_mtp=True, use_qk_norm=True, use_routing_bias=True), **fields))


def layer(w, p, i):
    c, d, m = w.cfg, head_dim(w.cfg), p + "block_sparse_moe."
    w.qkvo(p + "self_attn.")
    w.norm(p + "self_attn.q_norm", c["num_attention_heads"] * d, 1.2)
    w.norm(p + "self_attn.k_norm", c["num_key_value_heads"] * d, 1.2)
    w.linear(m + "gate", c["num_local_experts"], c["hidden_size"], 2.0)
    w.bias(m + "e_score_correction_bias", c["num_local_experts"])
    for e in range(c["num_local_experts"]):
        w.swiglu(f"{m}experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))


def draw(rng):
    c = config(**some(rng), **some_heads(rng), **some_experts(rng, "num_local_experts"), intermediate_size=rng.choice([8, 20, 33]))
    c |= dict(head_dim=rng.choice([8, 12, 24]), attn_type_list=[1] * c["num_hidden_layers"])
    turns, theta = rng.choice([0.5, 1.0]), rng.choice([100.0, 10000.0])
    if rng.random() < 0.5:
        return c | dict(rotary_dim=int(c["head_dim"] * turns), rope_theta=theta)
    rope = some_yarn(rng) if rng.random() < 0.6 else dict(rope_type="default")
    return c | dict(rotary_dim=None, rope_theta=None, rope_parameters=rope | dict(rope_theta=theta, partial_rotary_factor=turns))
