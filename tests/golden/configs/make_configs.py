#!/usr/bin/env python3
"""Published configurations and how many parameters transformers gives them: writes configs.json beside this file.

    make reference-venv
    build/reference/bin/python tests/golden/configs/make_configs.py

Written down from the defaults of transformers' own configuration classes, from the papers and from published files, fields that change
nothing included. `parameters` is the sum over the model's parameters on the meta device, `buffers` over its other tensors that a
checkpoint has (routers' correction biases). Layers that predict further tokens (MTP) are no part of either."""
import copy
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "reference"))
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from families import FAMILIES

AS = {"kimi_k2": "deepseek_v3"}  # what transformers calls it


def base(kind, arch, **fields):
    return dict(model_type=kind, architectures=[arch + "ForCausalLM"], hidden_act="silu", tie_word_embeddings=False) | fields


def mixtral(**f):
    return base("mixtral", "Mixtral", num_experts_per_tok=2, num_local_experts=8, num_key_value_heads=8, rms_norm_eps=1e-5,
                rope_theta=1e6, vocab_size=32000, **f)


def qwen2(**f):
    return base("qwen2_moe", "Qwen2Moe", decoder_sparse_step=1, norm_topk_prob=False, rms_norm_eps=1e-6, rope_theta=1e6,
                use_sliding_window=False, vocab_size=151936, **f)


def qwen3(**f):
    return base("qwen3_moe", "Qwen3Moe", attention_bias=False, decoder_sparse_step=1, head_dim=128, mlp_only_layers=[],
                norm_topk_prob=True, num_experts_per_tok=8, rms_norm_eps=1e-6, rope_theta=1e6, use_sliding_window=False,
                vocab_size=151936, **f)


YARN = dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096)
LATENT = dict(attention_bias=False, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, moe_layer_freq=1,
              max_position_embeddings=163840, rms_norm_eps=1e-6, rope_theta=10000, rope_scaling=YARN)


def deepseek2(**f):
    return base("deepseek_v2", "DeepseekV2", n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=6, scoring_func="softmax",
                first_k_dense_replace=1, vocab_size=102400, **LATENT | f)


def deepseek3(kind="deepseek_v3", **f):
    return base(kind, "DeepseekV3", **LATENT | dict(
        n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=8, scoring_func="sigmoid", topk_method="noaux_tc",
        hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61, q_lora_rank=1536) | f)


def glm(**f):
    return base("glm4_moe", "Glm4Moe", attention_bias=True, head_dim=128, max_position_embeddings=131072, n_group=1,
                n_shared_experts=1, norm_topk_prob=True, num_attention_heads=96, num_experts_per_tok=8, num_key_value_heads=8,
                num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-5, rope_theta=1e6, topk_group=1,
                vocab_size=151552, **f)


V3 = dict(first_k_dense_replace=3, n_group=8, topk_group=4, n_routed_experts=256, num_attention_heads=128, num_key_value_heads=128,
          num_nextn_predict_layers=1, routed_scaling_factor=2.5, vocab_size=129280)
GLM45 = dict(first_k_dense_replace=3, hidden_size=5120, intermediate_size=12288, moe_intermediate_size=1536, n_routed_experts=160,
             num_hidden_layers=92, routed_scaling_factor=2.5, use_qk_norm=True)

CONFIGS = {
    "Mixtral 8x7B": mixtral(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                            max_position_embeddings=32768),
    "Mixtral 8x22B": mixtral(hidden_size=6144, intermediate_size=16384, num_hidden_layers=56, num_attention_heads=48,
                             max_position_embeddings=65536),
    "Qwen1.5-MoE-A2.7B": qwen2(hidden_size=2048, intermediate_size=5632, moe_intermediate_size=1408, num_attention_heads=16,
                               num_key_value_heads=16, num_hidden_layers=24, num_experts=60, num_experts_per_tok=4,
                               shared_expert_intermediate_size=5632, max_position_embeddings=8192),
    "Qwen2-57B-A14B": qwen2(hidden_size=3584, intermediate_size=18944, moe_intermediate_size=2560, num_attention_heads=28,
                            num_key_value_heads=4, num_hidden_layers=28, num_experts=64, num_experts_per_tok=8,
                            shared_expert_intermediate_size=20480, max_position_embeddings=131072),
    "Qwen3-30B-A3B": qwen3(hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_attention_heads=32,
                           num_key_value_heads=4, num_hidden_layers=48, num_experts=128, max_position_embeddings=40960),
    "Qwen3-235B-A22B": qwen3(hidden_size=4096, intermediate_size=12288, moe_intermediate_size=1536, num_attention_heads=64,
                             num_key_value_heads=4, num_hidden_layers=94, num_experts=128, max_position_embeddings=40960),
    "Qwen3-Coder-480B-A35B": qwen3(hidden_size=6144, intermediate_size=8192, moe_intermediate_size=2560, num_attention_heads=96,
                                   num_key_value_heads=8, num_hidden_layers=62, num_experts=160, max_position_embeddings=262144),
    "OLMoE-1B-7B": base("olmoe", "Olmoe", hidden_size=2048, intermediate_size=1024, max_position_embeddings=4096,
                        norm_topk_prob=False, num_attention_heads=16, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8,
                        num_hidden_layers=16, rms_norm_eps=1e-5, rope_theta=1e4, vocab_size=50304),
    "DeepSeek-V2": deepseek2(hidden_size=5120, intermediate_size=12288, moe_intermediate_size=1536, n_group=8, topk_group=3,
                             n_routed_experts=160, num_attention_heads=128, num_key_value_heads=128, num_hidden_layers=60,
                             q_lora_rank=1536, routed_scaling_factor=16.0, topk_method="group_limited_greedy"),
    "DeepSeek-V2-Lite": deepseek2(hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, n_group=1, topk_group=1,
                                  n_routed_experts=64, num_attention_heads=16, num_key_value_heads=16, num_hidden_layers=27,
                                  q_lora_rank=None, routed_scaling_factor=1.0, topk_method="greedy",
                                  rope_scaling=YARN | dict(mscale=0.707, mscale_all_dim=0.707)),
    "DeepSeek-V3": deepseek3(**V3),
    "DeepSeek-R1": deepseek3(**V3),
    "Moonlight-16B-A3B": deepseek3(hidden_size=2048, intermediate_size=11264, moe_intermediate_size=1408, num_hidden_layers=27,
                                   q_lora_rank=None, num_attention_heads=16, num_key_value_heads=16, n_routed_experts=64,
                                   n_shared_experts=2, num_experts_per_tok=6, n_group=1, topk_group=1, first_k_dense_replace=1,
                                   routed_scaling_factor=2.446, rope_theta=50000.0, rope_scaling=None, vocab_size=163840,
                                   max_position_embeddings=8192),
    "Kimi-K2": deepseek3("kimi_k2", first_k_dense_replace=1, n_group=1, topk_group=1, n_routed_experts=384, num_attention_heads=64,
                         num_key_value_heads=64, routed_scaling_factor=2.827, rope_theta=50000.0, vocab_size=163840,
                         max_position_embeddings=131072, rope_scaling=YARN | dict(factor=32.0, beta_fast=1.0)),
    "GLM-4.5": glm(**GLM45),
    "GLM-4.6": glm(**GLM45) | dict(max_position_embeddings=202752),
    "GLM-4.5-Air": glm(first_k_dense_replace=1, hidden_size=4096, intermediate_size=10944, moe_intermediate_size=1408,
                       n_routed_experts=128, num_hidden_layers=46, routed_scaling_factor=1.0, use_qk_norm=False),
    "GLM-4.7-Flash": base("glm4_moe_lite", "Glm4MoeLite", **LATENT | dict(
        hidden_size=2048, intermediate_size=10240, moe_intermediate_size=1536, n_group=1, topk_group=1, n_routed_experts=64,
        n_shared_experts=1, norm_topk_prob=True, num_attention_heads=20, num_key_value_heads=20, num_experts_per_tok=4,
        num_hidden_layers=47, num_nextn_predict_layers=1, q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, routed_scaling_factor=1.8, topk_method="noaux_tc", first_k_dense_replace=1,
        max_position_embeddings=202752, vocab_size=154880)),
    "MiniMax-M2": base("minimax_m2", "MiniMaxM2", head_dim=128, hidden_size=3072, intermediate_size=1536,
                       max_position_embeddings=196608, num_attention_heads=48, num_key_value_heads=8, num_experts_per_tok=8,
                       num_hidden_layers=62, num_local_experts=256, rms_norm_eps=1e-6, rope_theta=5000000, rotary_dim=64,
                       scoring_func="sigmoid", use_qk_norm=True, use_routing_bias=True, vocab_size=200064),
    "Phi-3.5-MoE": base("phimoe", "PhiMoE", attention_bias=True, hidden_size=4096, intermediate_size=6400, lm_head_bias=True,
                        max_position_embeddings=131072, num_attention_heads=32, num_key_value_heads=8, num_experts_per_tok=2,
                        num_hidden_layers=32, num_local_experts=16, original_max_position_embeddings=4096, rms_norm_eps=1e-5,
                        rope_theta=10000.0, router_jitter_noise=0.01, sliding_window=131072, vocab_size=32064,
                        rope_scaling=dict(type="longrope", long_factor=[1.0] * 64, short_factor=[1.0] * 64,
                                          long_mscale=1.243163121016122, short_mscale=1.243163121016122,
                                          original_max_position_embeddings=4096)),
}


def gpt_oss(layers, experts):
    return base("gpt_oss", "GptOss", attention_bias=True, head_dim=64, hidden_size=2880, intermediate_size=2880,
                layer_types=["sliding_attention", "full_attention"] * (layers // 2), max_position_embeddings=131072,
                num_attention_heads=64, num_key_value_heads=8, num_experts_per_tok=4, num_hidden_layers=layers,
                num_local_experts=experts, rms_norm_eps=1e-5, rope_theta=150000, sliding_window=128, swiglu_limit=7.0,
                vocab_size=201088, rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                     original_max_position_embeddings=4096))


def delta(kind, arch, **f):
    return base(kind, arch, **dict(dict(
        attention_bias=False, head_dim=256, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_num_key_heads=16, linear_num_value_heads=32, num_key_value_heads=2, rms_norm_eps=1e-6, full_attention_interval=4,
        max_position_embeddings=262144), **f))


def qwen35(layers, **f):
    return delta("qwen3_5_moe_text", "Qwen3_5Moe", num_hidden_layers=layers, vocab_size=248320,
                 layer_types=[("full" if i % 4 == 3 else "linear") + "_attention" for i in range(layers)],
                 rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25), **f)


CONFIGS |= {
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "Qwen3-Next-80B-A3B": delta("qwen3_next", "Qwen3Next", decoder_sparse_step=1, hidden_size=2048, intermediate_size=5120,
                                mlp_only_layers=[], moe_intermediate_size=512, norm_topk_prob=True, num_attention_heads=16,
                                num_experts=512, num_experts_per_tok=10, num_hidden_layers=48, partial_rotary_factor=0.25,
                                rope_theta=10000000, shared_expert_intermediate_size=512, vocab_size=151936),
    "Qwen3.5-35B-A3B": qwen35(40, hidden_size=2048, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=256,
                              num_experts_per_tok=8, num_attention_heads=16),
    "Qwen3.5-397B-A17B": qwen35(60, hidden_size=4096, moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
                                num_experts=512, num_experts_per_tok=10, num_attention_heads=32, linear_num_value_heads=64),
    "Gemma-4-26B-A4B": base("gemma4_text", "Gemma4", **dict(
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", attention_k_eq_v=True,
        attention_bias=False, enable_moe_block=True, final_logit_softcapping=30.0, global_head_dim=512, head_dim=256,
        hidden_size=2816, hidden_size_per_layer_input=0, intermediate_size=2112,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5, max_position_embeddings=262144,
        moe_intermediate_size=704, num_attention_heads=16, num_experts=128, num_global_key_value_heads=2, num_hidden_layers=30,
        num_key_value_heads=8, num_kv_shared_layers=0, rms_norm_eps=1e-6, sliding_window=1024, top_k_experts=8,
        use_double_wide_mlp=False, vocab_size=262144, vocab_size_per_layer_input=262144,
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                             full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25)))),
}


# What published files have besides: for training, for generation, for other programs, or for parts that are left out. None of it changes
# a shape or a number.
ANY = dict(attention_dropout=0.0, bos_token_id=1, eos_token_id=2, initializer_range=0.02, torch_dtype="bfloat16",
           transformers_version="4.51.0", use_cache=True)
MOE = dict(output_router_logits=False, router_aux_loss_coef=0.001)
CODE = dict(auto_map=dict(AutoConfig="configuration.Config", AutoModelForCausalLM="modeling.ForCausalLM"))
DEEPSEEK = CODE | dict(aux_loss_alpha=0.001, ep_size=1, pretraining_tp=1, seq_aux=True)
FP8 = dict(quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128]))
VISION = dict(image_token_id=248056, video_token_id=248057, vision_start_token_id=248053, vision_end_token_id=248054)
FAMILY_MORE = {
    "mixtral": MOE | dict(sliding_window=None, router_jitter_noise=0.0),
    "qwen2_moe": MOE | dict(max_window_layers=21, sliding_window=32768),
    "qwen3_moe": MOE | dict(max_window_layers=48, rope_scaling=None, sliding_window=None),
    "olmoe": MOE | dict(attention_bias=False, clip_qkv=None, eos_token_id=50279, pad_token_id=1, rope_scaling=None),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "glm4_moe": dict(eos_token_id=[151329, 151336, 151338], pad_token_id=151329, rope_scaling=None),
    "glm4_moe_lite": dict(eos_token_id=[154820, 154827, 154829], pad_token_id=154820, partial_rotary_factor=1.0),
    "minimax_m2": CODE | FP8 | dict(
        attn_type_list=[1] * 62, bos_token_id=None, eos_token_id=None, layernorm_full_attention_beta=1.0,
        layernorm_linear_attention_beta=1.0, layernorm_mlp_beta=1.0, mlp_intermediate_size=8192, mtp_transformer_layers=1,
        num_mtp_modules=3, output_router_logits=False, qk_norm_type="per_layer", router_jitter_noise=0.0, shared_intermediate_size=0,
        shared_moe_mode="sigmoid", sliding_window=None, use_mtp=True),
    "phimoe": MOE | CODE | dict(eos_token_id=32000, hidden_dropout=0.0, input_jitter_noise=0.01),
    "gpt_oss": dict(eos_token_id=200002, experts_per_token=4, initial_context_length=4096, output_router_logits=False,
                    pad_token_id=199999, router_aux_loss_coef=0.9, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])),
    "qwen3_next": MOE | dict(rope_scaling=None, use_sliding_window=False),
    "qwen3_5_moe_text": VISION | dict(attn_output_gate=True, mamba_ssm_dtype="float32", mlp_only_layers=[], mtp_num_hidden_layers=1,
                                      mtp_use_dedicated_embeddings=False, router_aux_loss_coef=0.001),
}
MORE = {
    "Qwen3-Coder-480B-A35B": dict(qkv_bias=False, shared_expert_intermediate_size=0, use_qk_norm=True),
    "DeepSeek-V3": FP8,
    "DeepSeek-R1": dict(quantization_config=FP8["quantization_config"] | dict(scale_fmt="ue8m0")),
    "Kimi-K2": dict(num_nextn_predict_layers=0, quantization_config=dict(
        quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed", kv_cache_scheme=None,
        ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, output_activations=None, weights=dict(
            actorder=None, block_structure=None, dynamic=False, group_size=32, num_bits=4, observer="minmax", observer_kwargs={},
            strategy="group", symmetric=True, type="int"))))),
}


def published(name, config):
    return ANY | FAMILY_MORE.get(config["model_type"], FAMILY_MORE.get(of(config), {})) | MORE.get(name, {}) | config


def of(config):
    """The name of its file in families/."""
    return AS.get(config["model_type"], config["model_type"])


def count(config):
    c = copy.deepcopy(config) | dict(model_type=AS.get(config["model_type"], config["model_type"]))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**c))
    parameters = dict(model.named_parameters())  # a tied head once
    buffers = {k: v for k, v in model.state_dict(keep_vars=True).items()
               if k not in parameters and not isinstance(v, torch.nn.Parameter)}
    return sum(p.numel() for p in parameters.values()), sum(b.numel() for b in buffers.values())


def main():
    transformers.logging.set_verbosity_error()
    out = []
    for name, config in CONFIGS.items():
        if of(config) not in FAMILIES:
            print(f"{name}: no family {of(config)} yet")
            continue
        parameters, buffers = count(config)
        print(f"{name}: {parameters} parameters, {buffers} beside them")
        out.append(dict(name=name, parameters=parameters, buffers=buffers, config=published(name, config)))
    with open(os.path.join(HERE, "configs.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")


if __name__ == "__main__":
    main()
