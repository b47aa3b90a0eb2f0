import torch

from families import parts
from families.parts import CTX, config as base, head_dim, some, some_heads, some_window


def long_rope(pairs, original, **fields):
    """As published: factors grow with the pair, those of long texts more."""
    grow = lambda most: [round(most ** (i / max(pairs - 1, 1)), 3) for i in range(pairs)]
    return dict(type="longrope", original_max_position_embeddings=original, short_factor=grow(2.8), long_factor=grow(25.0),
                short_mscale=1.1, long_mscale=1.243163121016122) | fields


def config(**fields):
    """original_max_position_embeddings stands beside rope_scaling, too, as published."""
    c = base("phimoe", "PhiMoEForCausalLM", **dict(dict(
        attention_bias=True, hidden_dropout=0.0, input_jitter_noise=0.01, intermediate_size=24, lm_head_bias=True,
        num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=2, num_local_experts=6, output_router_logits=False,
        rms_norm_eps=1e-5, router_aux_loss_coef=0.0, router_jitter_noise=0.01, sliding_window=128), **fields))
    if c["rope_scaling"]:
        c["original_max_position_embeddings"] = c["rope_scaling"]["original_max_position_embeddings"]
    return c


def layer(w, p, i):
    c = w.cfg
    w.qkvo(p + "self_attn.", c["attention_bias"], c["attention_bias"])
    w.linear(p + "block_sparse_moe.gate", c["num_local_experts"], c["hidden_size"], 1.0)
    for e in range(c["num_local_experts"]):
        w.swiglu(f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))


def norm_bias(w, name):
    w.put(name + ".bias", w.normal(w.cfg["hidden_size"]) * 0.2)


def norms(w, p):
    parts.norms(w, p)
    norm_bias(w, p + "input_layernorm")
    norm_bias(w, p + "post_attention_layernorm")


def rest(w):
    norm_bias(w, "model.norm")


def scores(cfg, logits, bias, router):
    """Logits. They decide twice, and who counts in each softmax depends on a threshold: the gap is the least of these distances."""
    s, gap = logits.float(), torch.ones(len(logits))
    left = s.clone()
    for _ in range(2):
        two = left.topk(2, -1)
        gap = torch.minimum(gap, two.values[:, 0] - two.values[:, 1])
        most = two.values[:, :1]
        away = ((most - s) / s.abs().clamp(min=most) - 2 * cfg["router_jitter_noise"]).abs()
        chosen = two.indices[:, :1]
        away = away.masked_fill(left == -torch.inf, 1.0).scatter(1, chosen, 1.0)
        gap = torch.minimum(gap, away.min(-1).values)
        left = left.scatter(1, chosen, -torch.inf)
    return s, gap


def prepare():
    """transformers 5 does not tell the length to the function that chooses the factors, so that it never uses those of long
    texts; 4.57 and the published code do."""
    from transformers.models.phimoe import modeling_phimoe

    def forward(self, x, position_ids=None):
        n, rope = int(position_ids.max()) + 1, self.config.rope_parameters
        inv_freq, scale = self.rope_init_fn(self.config) if rope["rope_type"] == "default" else \
            self.rope_init_fn(self.config, x.device, seq_len=n)
        if rope["rope_type"] != "default":
            scale = rope["long_mscale" if n > rope["original_max_position_embeddings"] else "short_mscale"]
        angles = position_ids[..., None].float() * inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)

    modeling_phimoe.PhimoeRotaryEmbedding.forward = forward


def some_long_rope(rng, pairs):
    factors = lambda most: [round(rng.uniform(1.0, most), 4) for _ in range(pairs)]
    return dict(type="longrope", original_max_position_embeddings=rng.choice([32, 64, 128, 320]), short_factor=factors(3),
                long_factor=factors(rng.choice([5, 60])), short_mscale=rng.choice([1.0, 1.1, 1.243163121016122]),
                long_mscale=rng.choice([1.0, 1.3, 1.243163121016122]))


def draw(rng):
    c = config(**some(rng), **some_heads(rng), num_local_experts=rng.randint(3, 16), intermediate_size=rng.choice([8, 20, 33]),
               attention_bias=rng.random() < 0.7, lm_head_bias=rng.random() < 0.7, rope_theta=rng.choice([100.0, 10000.0]),
               router_jitter_noise=rng.choice([0.0, 0.01, 0.1, 0.4]), sliding_window=rng.choice([None, CTX, some_window(rng)]))
    kind = rng.randrange(5)
    if kind == 0:
        return c
    rope = some_long_rope(rng, head_dim(c) // 2)
    if kind == 1:  # as transformers 5 writes it
        del rope["type"]
        return c | dict(rope_theta=None, rope_parameters=rope | dict(rope_theta=c["rope_theta"], rope_type="longrope"))
    return c | dict(rope_scaling=rope, original_max_position_embeddings=rope["original_max_position_embeddings"])
