from families.parts import config as base, qwen_moe, some, some_experts, some_heads, some_rope, some_window
from families.qwen3_moe import some_dense


def config(**fields):
    return base("qwen2_moe", "Qwen2MoeForCausalLM", **dict(dict(
        decoder_sparse_step=1, intermediate_size=40, max_window_layers=21, mlp_only_layers=[], moe_intermediate_size=16,
        norm_topk_prob=False, num_attention_heads=4, num_experts=7, num_experts_per_tok=3, num_key_value_heads=4,
        output_router_logits=False, router_aux_loss_coef=0.001, shared_expert_intermediate_size=40, sliding_window=8,
        use_sliding_window=False), **fields))


def layer(w, p, i):
    w.qkvo(p + "self_attn.", w.cfg.get("qkv_bias", True))
    qwen_moe(w, p, i)


def draw(rng):
    windows = rng.choice([{}, dict(use_sliding_window=True, sliding_window=some_window(rng), max_window_layers=rng.choice([1, 28]))])
    return config(**some(rng), **some_heads(rng), **some_experts(rng), **some_rope(rng), **some_dense(rng), **windows,
                  moe_intermediate_size=rng.choice([8, 20, 33]), shared_expert_intermediate_size=rng.choice([16, 45]),
                  norm_topk_prob=rng.random() < 0.4, qkv_bias=rng.random() < 0.7)
