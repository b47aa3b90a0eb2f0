from families.parts import config as base, some, some_experts, some_heads, some_rope, some_window

BOS = True


def config(**fields):
    return base("mixtral", "MixtralForCausalLM", **dict(dict(
        intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=3,
        output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0, rms_norm_eps=1e-5), **fields))


def layer(w, p, i):
    c = w.cfg
    w.qkvo(p + "self_attn.")
    w.linear(p + "block_sparse_moe.gate", c["num_local_experts"], c["hidden_size"], 2.0)
    for e in range(c["num_local_experts"]):
        w.swiglu(f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))


def draw(rng):
    return config(**some(rng), **some_heads(rng), **some_experts(rng, "num_local_experts"), **some_rope(rng),
                  intermediate_size=rng.choice([8, 20, 33]), sliding_window=rng.choice([None, some_window(rng)]))
