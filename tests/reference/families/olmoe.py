from families.parts import config as base, head_dim, some, some_experts, some_heads, some_rope


def config(**fields):
    return base("olmoe", "OlmoeForCausalLM", **dict(dict(
        attention_bias=False, clip_qkv=None, intermediate_size=16, norm_topk_prob=False, num_attention_heads=4,
        num_experts=8, num_experts_per_tok=3, num_key_value_heads=4, output_router_logits=False, rms_norm_eps=1e-5,
        router_aux_loss_coef=0.01), **fields))


def layer(w, p, i):
    c, d = w.cfg, head_dim(w.cfg)
    w.qkvo(p + "self_attn.", c["attention_bias"], c["attention_bias"])
    w.norm(p + "self_attn.q_norm", c["num_attention_heads"] * d, 1.2)
    w.norm(p + "self_attn.k_norm", c["num_key_value_heads"] * d, 1.2)
    w.linear(p + "mlp.gate", c["num_experts"], c["hidden_size"], 2.0)
    for e in range(c["num_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["intermediate_size"])


def draw(rng):
    c, heads = some(rng), some_heads(rng)
    c |= dict(hidden_size=heads["num_attention_heads"] * heads.pop("head_dim"))  # its norms are over the hidden size
    return config(**c, **heads, **some_experts(rng), **some_rope(rng),
                  intermediate_size=rng.choice([8, 20, 33]), norm_topk_prob=rng.random() < 0.4,
                  clip_qkv=rng.choice([None, 0.9, 2.0]), attention_bias=rng.random() < 0.3)
