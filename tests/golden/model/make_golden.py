#!/usr/bin/python3
"""Writes forward.json beside this file: tiny Mixtral models, prompts, and what an independent float64 forward pass
makes of them (Debian: apt install python3-numpy). tests/unit/test_forward.c reads it.

  make_golden.py                        writes the file
  make_golden.py --check-transformers   also compares with Hugging Face transformers where that can run the case

Weights are not stored: both sides draw them from the same integer generator (see draw), and every value is exact
in the case's number format. Nothing here shares code with the product.
"""
import json, math, os, sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1
LIMIT = {"BF16": 255, "F16": 2047, "F32": 65535, "I8": 127}  # integers that the format holds exactly
ROLES = ["embed", "head", "final_norm", "attn_norm", "attn_q", "attn_k", "attn_v", "attn_o", "ffn_norm", "router"]
AMPLITUDE = {"embed": 1.0, "attn_q": 0.5, "attn_k": 0.5, "router": 1.0}  # of a uniform draw; others 0.25


def draw(seed, tensor, count, limit):
    """count integers in [-limit, limit]: splitmix64 of seed, tensor number and index."""
    with np.errstate(over="ignore"):
        base = (seed * 0x9E3779B97F4A7C15 + tensor * 0xD1B54A32D192ED03) & MASK
        z = np.uint64(base) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(33)).astype(np.int64) % (2 * limit + 1) - limit


def matrix(case, tensor, n_out, n_in, amplitude, dtype):
    limit = LIMIT[dtype]
    w = draw(case["seed"], tensor, n_out * n_in, limit).reshape(n_out, n_in) * (amplitude / (limit + 1))
    if dtype == "I8":  # rows have scales of their own
        w = w * (1 + 0.25 * (np.arange(n_out) % 4))[:, None]
    return w


def norm_weight(case, tensor, n):
    return 1 + 0.5 * draw(case["seed"], tensor, n, 65535) / 65536.0


class Model:
    def __init__(self, case):
        self.case, c = case, case["config"]
        self.hidden, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads", self.heads)
        self.head_dim = c.get("head_dim") or self.hidden // self.heads
        self.layers, self.experts = c["num_hidden_layers"], c["num_local_experts"]
        self.inter, self.vocab = c["intermediate_size"], c["vocab_size"]
        self.window = c.get("sliding_window")
        q_dim, kv_dim = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.w = {"embed": self.dense("embed", 0, self.vocab, self.hidden),
                  "final_norm": norm_weight(case, 2 * 4096, self.hidden)}
        self.w["head"] = self.w["embed"] if c.get("tie_word_embeddings") else self.dense("head", 0, self.vocab, self.hidden)
        for layer in range(self.layers):
            for role, out, inn in [("attn_q", q_dim, self.hidden), ("attn_k", kv_dim, self.hidden),
                                   ("attn_v", kv_dim, self.hidden), ("attn_o", self.hidden, q_dim),
                                   ("router", self.experts, self.hidden)]:
                self.w[role, layer] = self.dense(role, layer, out, inn)
            for role in ["attn_norm", "ffn_norm"]:
                self.w[role, layer] = norm_weight(case, ROLES.index(role) * 4096 + layer, self.hidden)
            for e in range(self.experts):
                for mat, out, inn in [(0, self.inter, self.hidden), (1, self.inter, self.hidden),
                                      (2, self.hidden, self.inter)]:
                    tensor = 1000000 + (layer * 4096 + e) * 3 + mat
                    self.w["expert", layer, e, mat] = matrix(case, tensor, out, inn, 0.25, case["expert_dtype"])

    def dense(self, role, layer, out, inn):
        dtype = self.case["attention_dtype"] if role.startswith("attn_") else self.case["dense_dtype"]
        return matrix(self.case, ROLES.index(role) * 4096 + layer, out, inn, AMPLITUDE.get(role, 0.25), dtype)


def to_bf16(x):
    u = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    u = (u + 0x7FFF + ((u >> 16) & 1)) >> 16 << 16
    return u.astype(np.uint32).view(np.float32).astype(np.float64)


def rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, theta):  # [n][heads][d], positions 0..n-1; angles in float32 as published models were trained
    n, _, d = x.shape
    inv = np.float32(1) / (theta ** (np.arange(0, d, 2).astype(np.float32) / np.float32(d))).astype(np.float32)
    angle = (np.arange(n).astype(np.float32)[:, None] * inv[None]).astype(np.float64)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(m, layer, h, stored):
    n, d, group = h.shape[0], m.head_dim, m.heads // m.kv_heads
    theta = m.case["config"]["rope_theta"]
    q = rope((h @ m.w["attn_q", layer].T).reshape(n, m.heads, d), theta)
    k = stored(rope((h @ m.w["attn_k", layer].T).reshape(n, m.kv_heads, d), theta))
    v = stored((h @ m.w["attn_v", layer].T).reshape(n, m.kv_heads, d))
    out = np.zeros((n, m.heads, d))
    for i in range(n):
        first = max(0, i + 1 - m.window) if m.window else 0
        for head in range(m.heads):
            p = softmax(k[first:i + 1, head // group] @ q[i, head] / math.sqrt(d))
            out[i, head] = p @ v[first:i + 1, head // group]
    return out.reshape(n, -1) @ m.w["attn_o", layer].T


def moe(m, layer, h, wire):
    k = m.case["config"]["num_experts_per_tok"]
    prob = softmax(h @ m.w["router", layer].T)
    order = np.argsort(-prob, axis=-1, kind="stable")
    out, margins = np.zeros_like(h), []
    for i in range(h.shape[0]):
        chosen = order[i, :k]
        weight = prob[i, chosen] / prob[i, chosen].sum()
        margins.append(prob[i, order[i, k - 1]] - prob[i, order[i, k]] if k < m.experts else 1.0)
        x = wire(h[i])
        for e, w in zip(chosen, weight):
            gate, up, down = (m.w["expert", layer, e, mat] for mat in range(3))
            out[i] += w * wire(down @ (silu(gate @ x) * (up @ x)))
    return out, order[:, :k].tolist(), margins


def forward(m, ids):
    rounded = to_bf16 if m.case["profile"] == "bf16" else lambda x: x
    eps = m.case["config"]["rms_norm_eps"]
    x, routes, margins = m.w["embed"][ids], [], []
    for layer in range(m.layers):
        x = x + attention(m, layer, rmsnorm(x, m.w["attn_norm", layer], eps), rounded)
        y, chosen, margin = moe(m, layer, rmsnorm(x, m.w["ffn_norm", layer], eps), rounded)
        x = x + y
        routes.append(chosen)
        margins.append(margin)
    return rmsnorm(x, m.w["final_norm"], eps) @ m.w["head"].T, routes, margins


def check_transformers(m, ids, logits):
    import torch, transformers
    from transformers import MixtralConfig, MixtralForCausalLM
    c = m.case["config"]
    if m.case["profile"] != "f32" or m.head_dim * m.heads != m.hidden:
        return "not comparable"
    extra = 1 if transformers.__version__.startswith("4.40.") else 0  # its eager attention sees window + 1 positions
    window = m.window - extra if m.window else None
    hf = MixtralForCausalLM(MixtralConfig(**{**c, "num_key_value_heads": m.kv_heads, "sliding_window": window,
                                             "attn_implementation": "eager"}))
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "router": "block_sparse_moe.gate",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_o": "self_attn.o_proj"}
    state = {"model.embed_tokens.weight": m.w["embed"], "lm_head.weight": m.w["head"],
             "model.norm.weight": m.w["final_norm"]}
    for key, w in m.w.items():
        if key[0] == "expert":
            part = ["w1", "w3", "w2"][key[3]]
            state[f"model.layers.{key[1]}.block_sparse_moe.experts.{key[2]}.{part}.weight"] = w
        elif isinstance(key, tuple):
            state[f"model.layers.{key[1]}.{names[key[0]]}.weight"] = w
    hf.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)).float() for k, v in state.items()}, strict=True)
    with torch.no_grad():
        theirs = hf.eval()(torch.tensor([ids])).logits[0].double().numpy()
    return f"largest difference {np.abs(theirs - logits).max():.2e} of {np.abs(logits).max():.2f}"


def config(**changes):
    c = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 40,
         "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_local_experts": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "vocab_size": 48, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}
    c.update(changes)
    return {k: v for k, v in c.items() if v is not None or k == "num_key_value_heads"}  # null: as many as heads


def case(name, tokens, dense="BF16", attention="", expert="", profile="f32", logits_at=None, margin=2e-4, **changes):
    return {"name": name, "config": config(**changes), "dense_dtype": dense, "attention_dtype": attention or dense,
            "expert_dtype": expert or dense, "profile": profile, "tokens": tokens,
            "logits_at": logits_at or list(range(tokens)), "margin": margin}


CASES = [
    case("grouped_queries", 20),
    case("wide_heads_window_tied", 24, dense="F16", num_experts_per_tok=1, head_dim=12, num_key_value_heads=1,
         sliding_window=5, tie_word_embeddings=True, rope_theta=1e6),
    case("all_experts", 12, dense="F32", num_local_experts=3, num_experts_per_tok=3, num_key_value_heads=None,
         hidden_size=24, intermediate_size=20, vocab_size=33),
    case("top3_mixed_formats", 16, dense="F32", attention="BF16", expert="F16", num_experts_per_tok=3,
         num_local_experts=8),
    # Attention folds blocks of 256 positions: cross one, with a window that begins inside the first.
    case("long_window", 300, logits_at=[0, 1, 200, 254, 255, 256, 257, 269, 270, 271, 299], num_hidden_layers=2,
         sliding_window=270, hidden_size=16, intermediate_size=20, num_local_experts=4, margin=5e-5),
    case("long_full", 280, logits_at=[255, 256, 279], num_hidden_layers=1, hidden_size=16, intermediate_size=20,
         num_local_experts=4, margin=5e-5),
    case("quantised", 16, attention="I8", expert="I8"),
    case("profile_bf16", 10, profile="bf16", margin=5e-3, num_hidden_layers=2),
]


def main():
    out = []
    for c in CASES:
        tokens, margin = c.pop("tokens"), c.pop("margin")
        for seed in range(1, 400):  # one whose routes are beyond doubt in float32
            c["seed"] = seed
            m = Model(c)
            ids = (draw(seed, 4242, tokens, 1 << 20) % m.vocab).tolist()
            logits, routes, margins = forward(m, ids)
            if np.min(margins) > margin:
                break
        else:
            sys.exit(f"{c['name']}: no seed without near ties")
        print(f"{c['name']}: seed {seed}, least margin {np.min(margins):.1e}, logits up to {np.abs(logits).max():.2f}")
        if "--check-transformers" in sys.argv:
            print("  transformers:", check_transformers(m, ids, logits))
        c["prompt"], c["routes"] = ids, routes
        c["margins"] = [[float(f"{x:.6g}") for x in row] for row in margins]
        c["logits"] = [[float(f"{x:.8g}") for x in logits[i]] for i in c["logits_at"]]
        out.append(c)
    with open(os.path.join(HERE, "forward.json"), "w") as f:
        f.write("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in out) + "]\n")


if __name__ == "__main__":
    main()
