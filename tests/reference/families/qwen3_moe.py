from families.parts import config as base, head_dim, qwen_moe, some, some_experts, some_heads, some_rope, some_window


def config(**fields):
    return base("qwen3_moe", "Qwen3MoeForCausalLM", **dict(dict(
        attention_bias=False, decoder_sparse_step=1, head_dim=12, intermediate_size=40, max_window_layers=3,
        mlp_only_layers=[], moe_intermediate_size=16, norm_topk_prob=True, num_attention_heads=4, num_experts=8,
        num_experts_per_tok=2, num_key_value_heads=2, output_router_logits=False, router_aux_loss_coef=0.001,
        sliding_window=None, use_sliding_window=False), **fields))


def layer(w, p, i):
    w.qkvo(p + "self_attn.", w.cfg["attention_bias"], w.cfg["attention_bias"])
    w.norm(p + "self_attn.q_norm", head_dim(w.cfg), 1.3)
    w.norm(p + "self_attn.k_norm", head_dim(w.cfg), 1.3)
    qwen_moe(w, p, i)


def draw(rng):
    return config(**some(rng), **some_heads(rng), **some_experts(rng), **some_rope(rng), **some_dense(rng),
                  moe_intermediate_size=rng.choice([8, 20, 33]), intermediate_size=rng.choice([40, 51]),
                  norm_topk_prob=rng.random() < 0.7, attention_bias=rng.random() < 0.3,
                  use_sliding_window=rng.random() < 0.4, sliding_window=some_window(rng))


def some_dense(rng):
    """Layers without experts, by a list or at intervals."""
    return rng.choice([{}, {}, dict(mlp_only_layers=[1]), dict(decoder_sparse_step=2)])
