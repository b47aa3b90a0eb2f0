from families import deepseek_v2
from families.deepseek_v2 import some_latent
from families.parts import latent_attention, sigmoid_moe, some, some_rope

BOS = True


def config(**fields):
    c = deepseek_v2.config(**dict(dict(
        n_group=4, topk_group=2, n_shared_experts=1, norm_topk_prob=True, num_nextn_predict_layers=0, routed_scaling_factor=2.5,
        scoring_func="sigmoid", topk_method="noaux_tc"), **fields))
    return c | dict(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"])


def layer(w, p, i):
    latent_attention(w, p + "self_attn.")
    sigmoid_moe(w, p, i)


def draw(rng):
    c = config(**some(rng), **some_rope(rng, deepseek=True), **some_latent(rng), **some_sigmoid(rng))
    return c | dict(first_k_dense_replace=rng.choice([0, 1, c["num_hidden_layers"] - 1]), rope_interleave=rng.random() < 0.7)


def some_sigmoid(rng):
    """The router and its experts; also layers behind the last one, that are left out."""
    groups, top = rng.choice([(1, 1), (2, 1), (4, 3), (3, 2)])
    return dict(n_group=groups, topk_group=top, n_routed_experts=12, num_experts_per_tok=rng.randint(1, 4),
                n_shared_experts=rng.randrange(3), norm_topk_prob=rng.random() < 0.7,
                routed_scaling_factor=rng.choice([1.0, 0.75, 2.5]), moe_intermediate_size=rng.choice([8, 20]),
                num_nextn_predict_layers=rng.randrange(2))
