from families import deepseek_v3
from families.deepseek_v2 import some_latent
from families.parts import latent_attention, sigmoid_moe, some, some_rope


def config(**fields):
    c = deepseek_v3.config(**dict(dict(n_group=1, topk_group=1, q_lora_rank=20, routed_scaling_factor=1.8, rms_norm_eps=1e-5,
                                       first_k_dense_replace=1), **fields))
    return c | dict(model_type="glm4_moe_lite", architectures=["Glm4MoeLiteForCausalLM"])


def layer(w, p, i):
    latent_attention(w, p + "self_attn.")
    types = w.cfg.get("mlp_layer_types") or ["dense"] + ["sparse"] * w.cfg["num_hidden_layers"]
    sigmoid_moe(w, p, i, types[i] == "dense")


def draw(rng):
    c = config(**some(rng), **some_rope(rng, deepseek=True), **some_latent(rng), **deepseek_v3.some_sigmoid(rng))
    c |= dict(rope_interleave=rng.random() < 0.7)
    if rng.random() < 0.5:
        types = [rng.choice(["dense", "sparse"]) for _ in range(c["num_hidden_layers"])]
        types[rng.randrange(len(types))] = "sparse"
        c |= dict(mlp_layer_types=types, first_k_dense_replace=None, num_nextn_predict_layers=0)
    return c
