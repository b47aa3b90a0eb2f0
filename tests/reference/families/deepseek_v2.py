from families.parts import config as base, latent_attention, some, some_rope

BOS = True


def config(**fields):
    return base("deepseek_v2", "DeepseekV2ForCausalLM", **dict(dict(
        attention_bias=False, aux_loss_alpha=0.001, first_k_dense_replace=1, intermediate_size=48, kv_lora_rank=16,
        moe_intermediate_size=12, moe_layer_freq=1, n_group=1, n_routed_experts=8, n_shared_experts=2,
        norm_topk_prob=False, num_attention_heads=4, num_experts_per_tok=3, num_key_value_heads=4, pretraining_tp=1,
        q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, routed_scaling_factor=1.0, scoring_func="softmax",
        seq_aux=True, topk_group=1, topk_method="greedy", v_head_dim=8), **fields))


def layer(w, p, i):
    c, h = w.cfg, w.cfg["hidden_size"]
    latent_attention(w, p + "self_attn.")
    if i < c["first_k_dense_replace"]:
        return w.swiglu(p + "mlp.", c["intermediate_size"])
    w.linear(p + "mlp.gate", c["n_routed_experts"], h, 2.0)
    for e in range(c["n_routed_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    if c["n_shared_experts"]:
        w.swiglu(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])


def draw(rng):
    groups, k = rng.choice([(1, 1), (2, 1), (4, 3), (3, 2)]), rng.randint(1, 4)
    c = config(**some(rng), **some_rope(rng, deepseek=True), **some_latent(rng), n_group=groups[0], topk_group=groups[1],
               n_routed_experts=12, num_experts_per_tok=k, n_shared_experts=rng.randrange(3),
               topk_method="greedy" if groups[0] == 1 else "group_limited_greedy",
               routed_scaling_factor=rng.choice([1.0, 0.5, 4.0]), moe_intermediate_size=rng.choice([8, 20]))
    c["hidden_size"] += -c["hidden_size"] % c["num_attention_heads"]  # its class refuses others
    c["kv_lora_rank"] += c["kv_lora_rank"] % 2  # its rotation views the latent's tail as complex numbers
    return c | dict(first_k_dense_replace=rng.choice([0, 1, c["num_hidden_layers"] - 1]))


def some_latent(rng):
    heads = rng.choice([1, 3, 4, 7])
    return dict(num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=rng.choice([None, 10, 20]),
                kv_lora_rank=rng.choice([9, 16, 20]), qk_nope_head_dim=rng.choice([4, 8, 10]),
                qk_rope_head_dim=rng.choice([4, 8, 10]), v_head_dim=rng.choice([6, 8, 14]))
