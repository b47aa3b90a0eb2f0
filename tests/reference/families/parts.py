"""What several families share: fields of config.json, parts of layers, random settings."""

VOCAB = 296  # more than the tokenizer has, as published
CTX = 512  # of random checkpoints: their longest prompts have 300 tokens


# ---- config.json ----

def config(kind, arch, **fields):
    base = dict(architectures=[arch], model_type=kind, attention_dropout=0.0, hidden_act="silu", hidden_size=32,
                initializer_range=0.02, max_position_embeddings=128, num_hidden_layers=3, rms_norm_eps=1e-6,
                rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False, transformers_version="4.51.0",
                use_cache=True, vocab_size=VOCAB)
    return base | fields


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


# ---- layers ----

def norms(w, p):
    """Before attention and before the network: what a layer ends with, unless its family has norms(w, p) of its own."""
    w.norm(p + "input_layernorm", w.cfg["hidden_size"])
    w.norm(p + "post_attention_layernorm", w.cfg["hidden_size"])


def qwen_is_sparse(c, i):
    return i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0


def qwen_moe(w, p, i):
    c = w.cfg
    if not qwen_is_sparse(c, i):
        return w.swiglu(p + "mlp.", c["intermediate_size"])
    w.linear(p + "mlp.gate", c["num_experts"], c["hidden_size"], 2.0)
    for e in range(c["num_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        w.swiglu(p + "mlp.shared_expert.", c["shared_expert_intermediate_size"])
        w.linear(p + "mlp.shared_expert_gate", 1, c["hidden_size"], 1.5)


def latent_attention(w, a):
    c = w.cfg
    h, n, r = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    q = n * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    if c["q_lora_rank"] is None:
        w.linear(a + "q_proj", q, h, 1.5)
    else:
        w.linear(a + "q_a_proj", c["q_lora_rank"], h)
        w.norm(a + "q_a_layernorm", c["q_lora_rank"])
        w.linear(a + "q_b_proj", q, c["q_lora_rank"], 1.5)
    w.linear(a + "kv_a_proj_with_mqa", r + c["qk_rope_head_dim"], h, 1.3)
    w.norm(a + "kv_a_layernorm", r)
    w.linear(a + "kv_b_proj", n * (c["qk_nope_head_dim"] + c["v_head_dim"]), r, 1.3)
    w.linear(a + "o_proj", h, n * c["v_head_dim"])


def sigmoid_moe(w, p, i, dense=None):
    """As DeepSeek-V3 has it, and who took it over; the layers behind the last one predict further tokens."""
    c, h = w.cfg, w.cfg["hidden_size"]
    if dense or dense is None and i < c["first_k_dense_replace"]:
        return w.swiglu(p + "mlp.", c["intermediate_size"])
    w.linear(p + "mlp.gate", c["n_routed_experts"], h, 2.0)
    w.bias(p + "mlp.gate.e_score_correction_bias", c["n_routed_experts"])
    for e in range(c["n_routed_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    if c["n_shared_experts"]:
        w.swiglu(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
    if i >= c["num_hidden_layers"]:
        w.linear(p + "eh_proj", h, 2 * h)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            w.norm(p + name, h)


# ---- random settings: each a part of a family's draw(rng) ----

def some(rng):
    """Of every family."""
    return dict(hidden_size=rng.choice([24, 30, 44, 64, 100, 160]), max_position_embeddings=CTX, num_hidden_layers=rng.choice([2, 3, 4]),
                rms_norm_eps=rng.choice([1e-6, 1e-5]), tie_word_embeddings=rng.random() < 0.25)


def some_heads(rng):
    """Grouped-query attention; heads need not fill the hidden size."""
    kv = rng.choice([1, 2, 3])
    return dict(num_key_value_heads=kv, num_attention_heads=kv * rng.choice([1, 2, 3, 5]), head_dim=rng.choice([6, 8, 12, 14, 24]))


def some_experts(rng, n="num_experts", most=13):
    """Of each token some, rarely all."""
    count = rng.randint(4, most)
    return {n: count, "num_experts_per_tok": count if rng.random() < 0.1 else rng.randint(1, min(count - 1, 4))}


def yarn(**fields):
    return dict(type="yarn", factor=8, original_max_position_embeddings=16, beta_fast=32, beta_slow=1) | fields


def some_yarn(rng, deepseek=False):
    """All its fields; the original context is exceeded by the longest prompt."""
    y = dict(rope_type="yarn", factor=rng.choice([4.0, 8.0, 16.0]), original_max_position_embeddings=rng.choice([32, 64, 128]))
    if rng.random() < 0.5:
        y |= dict(beta_fast=rng.choice([16.0, 32.0, 4.0]), beta_slow=rng.choice([1.0, 2.0, 0.25]))
    if rng.random() < 0.3:
        y["truncate"] = False
    if deepseek or rng.random() < 0.4:
        y |= dict(mscale=rng.choice([0.707, 1.0]), mscale_all_dim=rng.choice([0.5, 0.707, 1.0]))
    elif rng.random() < 0.3:
        y["attention_factor"] = rng.choice([1.0, 1.3])
    return y


def some_rope(rng, deepseek=False):
    """Plain as published before transformers 5, plain as it writes it, or YaRN."""
    theta, kind = rng.choice([100.0, 10000.0, 1000000.0]), rng.randrange(3)
    if kind == 0:
        return dict(rope_theta=theta)
    if kind == 1:
        return dict(rope_theta=None, rope_parameters=dict(rope_theta=theta, rope_type="default"))
    return dict(rope_theta=theta, rope_scaling=some_yarn(rng, deepseek))


def some_window(rng):
    """In every prompt of 300 tokens it is exceeded; short ones may fit in."""
    return rng.choice([5, 24, 100])
