#!/usr/bin/env python3
"""Makes tiny checkpoints of model families, each with a setting that changes numbers, and what transformers computes.

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
    /tmp/venv/bin/python tests/golden/families/make_families.py [--out DIR] [NAME ...]

Without names all of SPECS, without --out beside this file: NAME/ has config.json, generation_config.json, weights and
tokenizer.json as a published checkpoint has them, and golden.json with its files as ../talebook/README.md describes.
The PyPI wheel of torch takes about 6 GB with what it pulls in; nothing here uses a GPU.

Weights are random, float32 arithmetic, eager attention, one thread, greedy. Every router margin is at least 3e-5, between
neighbours among the chosen experts too, and every logit margin at least 2e-3: prompts are searched for that. Before
anything is written it is checked that decoding with a cache agrees with one pass over everything, and that
each setting a checkpoint is there for (`matters`) moves a logit by more than a hundredth of the largest when it is
changed: a golden that cannot fail is of no use. Weights and prompts are the same on every machine, outputs up to the
order of summation, so committed folders change in their last digits when they are made again elsewhere."""
import argparse
import copy
import json
import os
import random
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MIN_ROUTE, MIN_LOGIT, TOLERANCE, MATTERS = 3e-5, 2e-3, 1e-4, 1e-2
TOKENS = 12
LENGTHS = (("one", 1), ("ten", 10), ("long", 56))  # past every window and every original context below
TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

TEXT = """The ferry left the harbour before the fog had lifted, and nobody on the pier could say who was steering it.
Two lamps burned in the wheelhouse; one of them went out when the bell rang. "Keep to the left of the buoy," said the
old woman, who had crossed this water more often than the captain. The captain did not answer: he was counting.
Seven, eight, nine gulls sat on the rail, and the tenth flew on ahead as if it knew the way. By noon the sun stood above
the island, the fog was gone, and the passengers argued about the price of apples, rope and second-hand clocks.
A boy asked why the sea was salt. Because it has no friends, said one; because it has too many, said another.
Later they all agreed that it had been a quiet crossing, though the ferry had lost its anchor, its flag and one oar.
"""


def tokenizer(bos):
    """Bytes, some merges, three added tokens; a BOS if the family puts one in front."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT.split("\n"), trainers.BpeTrainer(
        vocab_size=286, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in ("<|begin|>", "<|end|>", "<|turn|>")])
    if bos:
        t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|>:1 $B:1",
                                                         special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])
    return t


VOCAB = 296  # more than the tokenizer has, as published


# ---- weights ----

class Weights:
    def __init__(self, cfg, seed, dtype):
        self.cfg, self.rng, self.dtype, self.t = cfg, np.random.Generator(np.random.PCG64(seed)), dtype, {}

    def put(self, name, a):
        assert name not in self.t, name
        self.t[name] = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32)).to(self.dtype)

    def normal(self, *shape):
        return self.rng.standard_normal(shape, dtype=np.float32)

    def linear(self, name, n_out, n_in, gain=1.0, bias=False):
        self.put(name + ".weight", self.normal(n_out, n_in) * np.float32(gain / np.sqrt(n_in)))
        if bias:
            self.put(name + ".bias", self.normal(n_out) * np.float32(0.3))

    def norm(self, name, n, center=1.0):
        self.put(name + ".weight", center + 0.35 * self.rng.uniform(-1, 1, n))

    def bias(self, name, n):
        """Of scores, in float32 as published: as large as the differences between scores."""
        self.t[name] = torch.from_numpy(self.rng.uniform(-0.3, 0.3, n).astype(np.float32))

    def swiglu(self, p, inner, gain=1.3, names=("gate_proj", "up_proj", "down_proj")):
        h = self.cfg["hidden_size"]
        self.linear(p + names[0], inner, h, 1.3)
        self.linear(p + names[1], inner, h, 1.3)
        self.linear(p + names[2], h, inner, gain)

    def qkvo(self, p, bias=False):
        c, d = self.cfg, head_dim(self.cfg)
        self.linear(p + "q_proj", c["num_attention_heads"] * d, c["hidden_size"], 1.5, bias)
        self.linear(p + "k_proj", c["num_key_value_heads"] * d, c["hidden_size"], 1.5, bias)
        self.linear(p + "v_proj", c["num_key_value_heads"] * d, c["hidden_size"], 1.2, bias)
        self.linear(p + "o_proj", c["hidden_size"], c["num_attention_heads"] * d)

    def ends(self, n_text):
        """Embedding, last norm, head. What is no text has small rows in the head, so that it is never chosen."""
        c, h, v = self.cfg, self.cfg["hidden_size"], self.cfg["vocab_size"]
        low = np.where(np.arange(v) < n_text, 1.0, 0.05).astype(np.float32)[:, None]
        head = self.normal(v, h) * np.float32(1.6 / np.sqrt(h)) * low
        self.norm("model.norm", h)
        if c["tie_word_embeddings"]:
            self.put("model.embed_tokens.weight", head)
        else:
            self.put("model.embed_tokens.weight", self.normal(v, h) * np.float32(0.7))
            self.put("lm_head.weight", head)


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


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


def qwen3_moe(w, p, i):
    w.qkvo(p + "self_attn.")
    w.norm(p + "self_attn.q_norm", head_dim(w.cfg), 1.3)
    w.norm(p + "self_attn.k_norm", head_dim(w.cfg), 1.3)
    qwen_moe(w, p, i)


def qwen2_moe(w, p, i):
    a = p + "self_attn."
    w.qkvo(a, w.cfg.get("qkv_bias", True))
    w.t.pop(a + "o_proj.bias", None)
    qwen_moe(w, p, i)


def olmoe(w, p, i):
    c, d = w.cfg, head_dim(w.cfg)
    w.qkvo(p + "self_attn.")
    w.norm(p + "self_attn.q_norm", c["num_attention_heads"] * d, 1.2)
    w.norm(p + "self_attn.k_norm", c["num_key_value_heads"] * d, 1.2)
    w.linear(p + "mlp.gate", c["num_experts"], c["hidden_size"], 2.0)
    for e in range(c["num_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["intermediate_size"])


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


def deepseek_v2(w, p, i):
    c, h = w.cfg, w.cfg["hidden_size"]
    latent_attention(w, p + "self_attn.")
    if i < c["first_k_dense_replace"]:
        return w.swiglu(p + "mlp.", c["intermediate_size"])
    w.linear(p + "mlp.gate", c["n_routed_experts"], h, 2.0)
    for e in range(c["n_routed_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    w.swiglu(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])


def sigmoid_moe(w, p, i, dense=None):
    """As DeepSeek-V3 has it, and who took it over; the layers behind the last one predict further tokens."""
    c, h = w.cfg, w.cfg["hidden_size"]
    if dense or dense is None and i < c["first_k_dense_replace"]:
        return w.swiglu(p + "mlp.", c["intermediate_size"])
    w.linear(p + "mlp.gate", c["n_routed_experts"], h, 2.0)
    w.bias(p + "mlp.gate.e_score_correction_bias", c["n_routed_experts"])
    for e in range(c["n_routed_experts"]):
        w.swiglu(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    w.swiglu(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
    if i >= c["num_hidden_layers"]:
        w.linear(p + "eh_proj", h, 2 * h)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            w.norm(p + name, h)


def deepseek_v3(w, p, i):
    latent_attention(w, p + "self_attn.")
    sigmoid_moe(w, p, i)


def glm4_moe(w, p, i):
    c, a = w.cfg, p + "self_attn."
    w.qkvo(a, c["attention_bias"])
    w.t.pop(a + "o_proj.bias", None)
    if c["use_qk_norm"]:
        w.norm(a + "q_norm", head_dim(c), 1.3)
        w.norm(a + "k_norm", head_dim(c), 1.3)
    sigmoid_moe(w, p, i)


def glm4_moe_lite(w, p, i):
    latent_attention(w, p + "self_attn.")
    types = w.cfg.get("mlp_layer_types") or ["dense"] + ["sparse"] * w.cfg["num_hidden_layers"]
    sigmoid_moe(w, p, i, types[i] == "dense")


def minimax_m2(w, p, i):
    c, d, m = w.cfg, head_dim(w.cfg), p + "block_sparse_moe."
    w.qkvo(p + "self_attn.")
    w.norm(p + "self_attn.q_norm", c["num_attention_heads"] * d, 1.2)
    w.norm(p + "self_attn.k_norm", c["num_key_value_heads"] * d, 1.2)
    w.linear(m + "gate", c["num_local_experts"], c["hidden_size"], 2.0)
    w.bias(m + "e_score_correction_bias", c["num_local_experts"])
    for e in range(c["num_local_experts"]):
        w.swiglu(f"{m}experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))


def mixtral(w, p, i):
    c = w.cfg
    w.qkvo(p + "self_attn.")
    w.linear(p + "block_sparse_moe.gate", c["num_local_experts"], c["hidden_size"], 2.0)
    for e in range(c["num_local_experts"]):
        w.swiglu(f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))


LAYER = {f.__name__: f for f in (qwen3_moe, qwen2_moe, olmoe, deepseek_v2, mixtral, deepseek_v3, glm4_moe, glm4_moe_lite, minimax_m2)}


# ---- checkpoints ----

def config(kind, arch, **fields):
    base = dict(architectures=[arch], model_type=kind, attention_dropout=0.0, hidden_act="silu", hidden_size=32,
                initializer_range=0.02, max_position_embeddings=128, num_hidden_layers=3, rms_norm_eps=1e-6,
                rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False, transformers_version="4.51.0",
                use_cache=True, vocab_size=VOCAB)
    return base | fields


def qwen3(**fields):
    return config("qwen3_moe", "Qwen3MoeForCausalLM", **dict(dict(
        attention_bias=False, decoder_sparse_step=1, head_dim=12, intermediate_size=40, max_window_layers=3,
        mlp_only_layers=[], moe_intermediate_size=16, norm_topk_prob=True, num_attention_heads=4, num_experts=8,
        num_experts_per_tok=2, num_key_value_heads=2, output_router_logits=False, router_aux_loss_coef=0.001,
        sliding_window=None, use_sliding_window=False), **fields))


def qwen2(**fields):
    return config("qwen2_moe", "Qwen2MoeForCausalLM", **dict(dict(
        decoder_sparse_step=1, intermediate_size=40, max_window_layers=21, mlp_only_layers=[], moe_intermediate_size=16,
        norm_topk_prob=False, num_attention_heads=4, num_experts=7, num_experts_per_tok=3, num_key_value_heads=4,
        output_router_logits=False, router_aux_loss_coef=0.001, shared_expert_intermediate_size=40, sliding_window=8,
        use_sliding_window=False), **fields))


def olmo(**fields):
    return config("olmoe", "OlmoeForCausalLM", **dict(dict(
        attention_bias=False, clip_qkv=None, intermediate_size=16, norm_topk_prob=False, num_attention_heads=4,
        num_experts=8, num_experts_per_tok=3, num_key_value_heads=4, output_router_logits=False, rms_norm_eps=1e-5,
        router_aux_loss_coef=0.01), **fields))


def deepseek(**fields):
    return config("deepseek_v2", "DeepseekV2ForCausalLM", **dict(dict(
        attention_bias=False, aux_loss_alpha=0.001, first_k_dense_replace=1, intermediate_size=48, kv_lora_rank=16,
        moe_intermediate_size=12, moe_layer_freq=1, n_group=1, n_routed_experts=8, n_shared_experts=2,
        norm_topk_prob=False, num_attention_heads=4, num_experts_per_tok=3, num_key_value_heads=4, pretraining_tp=1,
        q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, routed_scaling_factor=1.0, scoring_func="softmax",
        seq_aux=True, topk_group=1, topk_method="greedy", v_head_dim=8), **fields))


def deepseek3(**fields):
    c = deepseek(**dict(dict(n_group=4, topk_group=2, n_shared_experts=1, norm_topk_prob=True, num_nextn_predict_layers=0,
                             routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc"), **fields))
    return c | dict(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"])


def glm4_lite(**fields):
    c = deepseek3(**dict(dict(n_group=1, topk_group=1, q_lora_rank=20, routed_scaling_factor=1.8, rms_norm_eps=1e-5,
                              first_k_dense_replace=1), **fields))
    return c | dict(model_type="glm4_moe_lite", architectures=["Glm4MoeLiteForCausalLM"])


def glm4(**fields):
    return config("glm4_moe", "Glm4MoeForCausalLM", **dict(dict(
        attention_bias=True, first_k_dense_replace=1, head_dim=12, intermediate_size=48, moe_intermediate_size=12, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=3,
        num_key_value_heads=2, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
        routed_scaling_factor=1.0, topk_group=1, use_qk_norm=False), **fields))


def minimax(**fields):
    return config("minimax_m2", "MiniMaxM2ForCausalLM", **dict(dict(
        attn_type_list=[1, 1], head_dim=12, intermediate_size=16, num_attention_heads=4, num_experts_per_tok=3,
        num_hidden_layers=2, num_key_value_heads=2, num_local_experts=9, num_mtp_modules=3, output_router_logits=False,
        qk_norm_type="per_layer", rotary_dim=8, router_aux_loss_coef=0.001, router_jitter_noise=0.0, scoring_func="sigmoid",
        shared_intermediate_size=0, sliding_window=None, use_mtp=True, use_qk_norm=True, use_routing_bias=True), **fields))


def yarn(**fields):
    return dict(type="yarn", factor=8, original_max_position_embeddings=16, beta_fast=32, beta_slow=1) | fields


WINDOW = dict(use_sliding_window=True, sliding_window=8)
# name -> config, dtype, seed, n_shards, and what must matter: other values of fields that change the logits
SPECS = {
    "qwen3_moe_plain": dict(seed=11, shards=2, cfg=qwen3(hidden_size=40, head_dim=16, rope_theta=1000000.0),
                            matters=[dict(norm_topk_prob=False), dict(rope_theta=10000.0)]),
    "qwen3_moe_step": dict(seed=12, dtype="F16", cfg=qwen3(num_hidden_layers=4, decoder_sparse_step=2, norm_topk_prob=False,
                                                         tie_word_embeddings=True, num_experts_per_tok=3),
                         matters=[dict(norm_topk_prob=True)]),
    "qwen3_moe_mlp_only": dict(seed=13, cfg=qwen3(
        num_hidden_layers=4, mlp_only_layers=[0, 2], num_key_value_heads=1, rope_scaling=dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=16)), matters=[dict(rope_scaling=None)]),
    "qwen3_moe_between": dict(seed=15, cfg=qwen3(
        num_hidden_layers=2, num_experts=5, head_dim=24, rope_theta=100.0, rope_scaling=dict(
            rope_type="yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25, truncate=False, original_max_position_embeddings=16)),
        matters=[dict(rope_scaling=None), dict(rope_scaling=dict(
            rope_type="yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25, original_max_position_embeddings=16))]),
    "qwen3_moe_window": dict(seed=14, dtype="F32", cfg=qwen3(num_experts=5, num_hidden_layers=2, **WINDOW),
                             matters=[dict(use_sliding_window=False), dict(sliding_window=9)]),
    "qwen2_moe_plain": dict(seed=21, cfg=qwen2(), matters=[dict(norm_topk_prob=True)]),
    "qwen2_moe_norm": dict(seed=22, dtype="F32", cfg=qwen2(
        norm_topk_prob=True, num_key_value_heads=2, tie_word_embeddings=True, mlp_only_layers=[1], num_experts=5),
        matters=[dict(norm_topk_prob=False)]),
    "qwen2_moe_no_bias": dict(seed=23, dtype="F16", cfg=qwen2(
        qkv_bias=False, num_hidden_layers=4, decoder_sparse_step=2, rope_theta=None,
        rope_parameters=dict(rope_theta=500.0, rope_type="default")),  # the form that transformers 5 writes
        matters=[dict(rope_parameters=dict(rope_theta=10000.0, rope_type="default"))]),
    "olmoe_plain": dict(seed=31, cfg=olmo(), matters=[dict(norm_topk_prob=True)]),
    "olmoe_clip": dict(seed=32, dtype="F32", cfg=olmo(clip_qkv=0.9, norm_topk_prob=True, num_key_value_heads=2, num_experts=6,
                                                    num_hidden_layers=2),
                       matters=[dict(norm_topk_prob=False), dict(clip_qkv=None), dict(clip_qkv=1.0)]),
    "deepseek_v2_lite": dict(seed=41, shards=2, cfg=deepseek(rope_scaling=yarn(mscale=0.707, mscale_all_dim=0.707)),
                             matters=[dict(rope_scaling=None), dict(rope_scaling=yarn(mscale=0.707, mscale_all_dim=1.0))]),
    "deepseek_v2_groups": dict(seed=42, dtype="F32", cfg=deepseek(
        first_k_dense_replace=2, q_lora_rank=20, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        n_shared_experts=1, routed_scaling_factor=4.0, v_head_dim=12, rope_scaling=yarn(mscale=1.0, mscale_all_dim=0.5)),
        matters=[dict(topk_method="greedy"), dict(topk_group=3), dict(routed_scaling_factor=1.0),
                 dict(rope_scaling=yarn(mscale=1.0, mscale_all_dim=1.0)), dict(rope_scaling=yarn(mscale=0.5, mscale_all_dim=0.5))]),
    "deepseek_v2_no_dense": dict(seed=43, dtype="F16", cfg=deepseek(
        first_k_dense_replace=0, num_hidden_layers=2, routed_scaling_factor=0.5, kv_lora_rank=20, qk_rope_head_dim=4,
        num_experts_per_tok=2), matters=[dict(routed_scaling_factor=1.0), dict(rope_theta=1000.0)]),
    "mixtral_top3": dict(seed=51, dtype="F16", cfg=config(
        "mixtral", "MixtralForCausalLM", intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=6, num_experts_per_tok=3, sliding_window=12, num_hidden_layers=2, output_router_logits=False,
        router_aux_loss_coef=0.02, router_jitter_noise=0.0, rms_norm_eps=1e-5),
        matters=[dict(sliding_window=None), dict(sliding_window=13)]),
    "deepseek_v3_groups": dict(seed=61, cfg=deepseek3(
        n_routed_experts=12, q_lora_rank=20, num_nextn_predict_layers=1, rope_scaling=yarn(mscale=1.0, mscale_all_dim=1.0)),
        matters=[dict(topk_group=4), dict(topk_group=3), dict(n_group=2, topk_group=1), dict(norm_topk_prob=False),
                 dict(routed_scaling_factor=1.0), dict(rope_scaling=None)]),
    "deepseek_v3_one_group": dict(seed=162, dtype="F32", cfg=deepseek3(  # as Kimi-K2
        first_k_dense_replace=0, num_hidden_layers=2, n_group=1, topk_group=1, norm_topk_prob=False, tie_word_embeddings=True,
        n_routed_experts=7, routed_scaling_factor=0.75),
        matters=[dict(norm_topk_prob=True), dict(routed_scaling_factor=1.0)]),
    "glm4_moe_air": dict(seed=71, shards=2, cfg=glm4(),
                         matters=[dict(partial_rotary_factor=1.0), dict(norm_topk_prob=False)]),
    "glm4_moe_norms": dict(seed=72, dtype="F16", cfg=glm4(
        attention_bias=False, use_qk_norm=True, n_group=4, topk_group=3, norm_topk_prob=False, routed_scaling_factor=1.5,
        first_k_dense_replace=2, n_shared_experts=2, num_nextn_predict_layers=0, partial_rotary_factor=None, rope_theta=None,
        rope_parameters=dict(rope_theta=500.0, rope_type="default", partial_rotary_factor=1 / 3)),  # as transformers 5 writes it
        matters=[dict(topk_group=4), dict(norm_topk_prob=True), dict(n_group=2, topk_group=2), dict(rope_parameters=dict(
            rope_theta=500.0, rope_type="default", partial_rotary_factor=0.5))]),
    "glm4_moe_lite_types": dict(seed=75, cfg=glm4_lite(
        mlp_layer_types=["sparse", "dense", "sparse"], first_k_dense_replace=None, v_head_dim=12, num_nextn_predict_layers=0),
        matters=[dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0)]),
    "minimax_m2_plain": dict(seed=81, cfg=minimax(), matters=[dict(rotary_dim=12), dict(rope_theta=1000.0)]),
    "minimax_m2_yarn": dict(seed=82, dtype="F32", cfg=minimax(
        num_key_value_heads=1, rotary_dim=None, rope_theta=None, rope_parameters=dict(
            rope_theta=10000.0, rope_type="yarn", partial_rotary_factor=0.5, factor=4.0, original_max_position_embeddings=16)),
        matters=[dict(rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.5))]),
}


LEFT_OUT = "first_k_dense_replace", "rope_theta", "rotary_dim", "partial_rotary_factor"  # where they are None


def dump(path, data, **options):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=True, **options)
        f.write("\n")


def write_shards(tensors, out, n):
    for old in os.listdir(out):
        if ".safetensors" in old:
            os.unlink(os.path.join(out, old))
    if n == 1:
        return save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    names, where = list(tensors), {}
    for k in range(n):
        part = names[len(names) * k // n:len(names) * (k + 1) // n]
        file = f"model-{k + 1:05d}-of-{n:05d}.safetensors"
        save_file({name: tensors[name] for name in part}, os.path.join(out, file), metadata={"format": "pt"})
        where |= {name: file for name in part}
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    dump(os.path.join(out, "model.safetensors.index.json"), dict(metadata=dict(total_size=size), weight_map=where))


def write_checkpoint(spec, out):
    kind, dtype = spec["cfg"]["model_type"], spec.get("dtype", "BF16")
    t = tokenizer(bos=kind in ("deepseek_v2", "deepseek_v3", "mixtral"))
    begin, end, turn = (t.token_to_id(x) for x in ("<|begin|>", "<|end|>", "<|turn|>"))
    assert t.get_vocab_size() <= VOCAB - 4
    cfg = {k: v for k, v in spec["cfg"].items() if v is not None or k not in LEFT_OUT}
    cfg |= dict(bos_token_id=begin, eos_token_id=end, torch_dtype=str(TYPES[dtype]).removeprefix("torch."))
    w = Weights(cfg, spec["seed"], TYPES[dtype])
    w.ends(begin)
    for i in range(cfg["num_hidden_layers"] + cfg.get("num_nextn_predict_layers", 0)):
        p = f"model.layers.{i}."
        LAYER[kind](w, p, i)
        w.norm(p + "input_layernorm", cfg["hidden_size"])
        w.norm(p + "post_attention_layernorm", cfg["hidden_size"])
    os.makedirs(out, exist_ok=True)
    t.save(os.path.join(out, "tokenizer.json"), pretty=False)
    dump(os.path.join(out, "config.json"), dict(sorted(cfg.items())), indent=1)
    dump(os.path.join(out, "generation_config.json"), dict(do_sample=False, bos_token_id=begin, eos_token_id=[end, turn]))
    write_shards(w.t, out, spec.get("shards", 1))
    return t, {end, turn}


# ---- the reference ----

def options():
    return dict(attn_implementation="eager", experts_implementation="eager")


def load(path):
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **options())
    behind = f"model.layers.{model.config.num_hidden_layers}."  # of layers that predict further tokens: not used
    info["unexpected_keys"] = [k for k in info["unexpected_keys"] if not k.startswith(behind)]
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def with_other(path, model, fields):
    """The same weights under another configuration."""
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    other = AutoConfig.for_model(**copy.deepcopy(cfg | fields))
    other.torch_dtype = torch.float32
    changed = AutoModelForCausalLM.from_config(other, dtype=torch.float32, **options())
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def deciding(cfg, logits, bias):
    """What routers choose by, and per row the gap between the groups kept and the next (1: no groups). bias: of routers by
    sigmoids."""
    s, gap = logits.float().softmax(-1) if bias is None else logits.float().sigmoid() + bias, torch.ones(len(logits))
    if cfg.get("topk_method") == "group_limited_greedy" or bias is not None and cfg.get("n_group", 1) > 1:
        groups = s.view(len(s), cfg["n_group"], -1)
        ranked = groups.topk(1 if bias is None else 2).values.sum(-1).sort(dim=-1, descending=True)
        k = cfg["topk_group"]
        gap = ranked.values[:, k - 1] - ranked.values[:, k]
        keep = torch.zeros(groups.shape[:2]).scatter(1, ranked.indices[:, :k], 1.0).bool()
        s = torch.where(keep[:, :, None], groups, 0.0 if bias is None else -torch.inf).reshape(len(s), -1)
    return s, gap


def bias_of(router, args):
    """Of a router by sigmoids; in MiniMax-M2 it gets it with each call."""
    return args[1] if len(args) > 1 else getattr(router, "e_score_correction_bias", None)


class Routes:
    """Hooks on the routers: what the last pass chose, by layer."""

    def __init__(self, model, cfg):
        self.cfg, self.last, self.floor = cfg, {}, 1.0
        for name, module in model.named_modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                layer = int(name.split("layers.")[1].split(".")[0])
                module.register_forward_hook(lambda mod, args, out, layer=layer: self.call(layer, out, bias_of(mod, args)))

    def call(self, layer, out, bias):
        logits, weights, experts = out
        s, gap = deciding(self.cfg, logits, bias)
        k = experts.shape[1]
        ranked = s.sort(dim=-1, descending=True, stable=True)
        order = s.gather(1, experts).argsort(dim=-1, descending=True, stable=True)
        experts, weights = experts.gather(1, order), weights.gather(1, order)
        assert (experts == ranked.indices[:, :k]).all() or (ranked.values[:, :k] - ranked.values[:, 1:k + 1]).min() < 1e-6
        margin = torch.minimum(ranked.values[:, k - 1] - ranked.values[:, k], gap).clamp(max=1.0)
        self.floor = min(self.floor, margin.min().item(), (ranked.values[:, :k] - ranked.values[:, 1:k + 1]).min().item())
        self.last[layer] = experts.tolist(), [[number(x, 7) for x in row] for row in weights.tolist()], \
            [number(x) for x in margin.tolist()]

    def rows(self, n_layers):
        """[layer] (experts, weights, margins) of each row; a dense layer has none, and margin 1."""
        n = len(next(iter(self.last.values()))[0])
        dense = [[] for _ in range(n)], [[] for _ in range(n)], [1.0] * n
        return [self.last.get(i, dense) for i in range(n_layers)]


def number(x, digits=6):
    return float(f"{min(x, 1e30):.{digits}g}")


@torch.no_grad()
def generate(model, routes, ids):
    """Greedy with a cache: the golden entry, the least margins, prompt logits, decode logits, hidden states."""
    n = model.config.num_hidden_layers
    routes.floor = 1.0
    out = model(torch.tensor([ids]), use_cache=True, output_hidden_states=True)
    prompt = routes.rows(n)
    e = dict(prompt_ids=ids, greedy_ids=[], margins=[])
    for k, field in enumerate(("routes", "route_weight", "route_margin")):
        e[field + "_prefill"], e[field + "_decode"] = [layer[k] for layer in prompt], []
    logits, hidden, row, rows = out.logits[0], torch.stack(out.hidden_states)[:, 0], out.logits[0, -1], []
    for i in range(TOKENS):
        two = row.topk(2)
        rows.append(row)
        e["greedy_ids"].append(two.indices[0].item())
        e["margins"].append(number((two.values[0] - two.values[1]).item()))
        if i + 1 < TOKENS:
            out = model(torch.tensor([e["greedy_ids"][-1:]]), past_key_values=out.past_key_values, use_cache=True)
            row, step = out.logits[0, -1], routes.rows(n)
            for k, field in enumerate(("routes", "route_weight", "route_margin")):
                e[field + "_decode"].append([layer[k][0] for layer in step])
    return e, (routes.floor, min(e["margins"])), logits.numpy(), torch.stack(rows).numpy(), hidden.numpy()


@torch.no_grad()
def whole(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def find_prompt(t, model, routes, ends, length, rng):
    """A piece of the text whose every decision is clear, and whose continuation is not the same token again and again."""
    for _ in range(400):
        at = rng.randrange(len(TEXT) - 4 * length - 8)
        text = TEXT[at:at + 4 * length + 8].replace("\n", " ").strip()
        body = t.encode(text, add_special_tokens=False).ids[:length - len(t.encode("").ids)]
        text = t.decode(body)
        ids = t.encode(text).ids
        if len(ids) != length:
            continue
        found = generate(model, routes, ids)
        e, (route, logit) = found[0], found[1]
        if route >= MIN_ROUTE and logit >= MIN_LOGIT and not ends & set(e["greedy_ids"]) and \
                len(set(e["greedy_ids"])) >= 5 and max(e["greedy_ids"]) < t.get_vocab_size():
            return text, found
    raise SystemExit(f"no prompt of {length} tokens without a near tie: try another seed")


def check_cache(model, e, logits, rows):
    """One pass over everything is the other way to compute it."""
    n, ids = len(e["prompt_ids"]), e["prompt_ids"] + e["greedy_ids"][:-1]
    all_rows = whole(model, ids)
    error = max(np.abs(all_rows[:n] - logits).max(), np.abs(all_rows[n - 1:] - rows).max()) / np.abs(logits).max()
    assert error < TOLERANCE / 4 and all_rows[n - 1:].argmax(-1).tolist() == e["greedy_ids"], error
    return error


def check_matters(path, model, spec, e):
    """Each setting shows in the longest prompt's logits, and so does the order of everything else that is random."""
    ids = e["prompt_ids"] + e["greedy_ids"][:-1]
    base, least = whole(model, ids), 1e30
    for fields in spec["matters"]:
        moved = np.abs(whole(with_other(path, model, fields), ids) - base).max() / np.abs(base).max()
        assert moved > MATTERS, (fields, moved)
        least = min(least, moved)
    same = with_other(path, model, {})
    assert np.abs(whole(same, ids) - base).max() == 0
    biases = [b for name, b in same.named_buffers() if name.endswith("e_score_correction_bias")]
    for b in biases:
        b.zero_()
    assert not biases or np.abs(whole(same, ids) - base).max() / np.abs(base).max() > MATTERS
    return least


def write_golden(spec, path, t, ends):
    model, rng = load(path), random.Random(spec["seed"])
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        routes = Routes(model, json.load(f))
    entries, errors, floors = [], [], []
    for name, length in LENGTHS:
        text, (e, floor, logits, rows, hidden) = find_prompt(t, model, routes, ends, length, rng)
        errors.append(check_cache(model, e, logits, rows))
        floors.append(floor)
        entry = dict(name=name, prompt_text=text, logit_tolerance=TOLERANCE, **e,
                     greedy_text=t.decode(e["greedy_ids"], skip_special_tokens=False))
        files = dict(one=dict(logits=logits), ten=dict(logits=logits, decode_logits=rows, hidden=hidden),
                     long=dict(decode_logits=rows))
        for field, a in files[name].items():
            file = f"{field}_{name}.f32"
            a.astype("<f4").tofile(os.path.join(path, file))
            entry |= {field + "_file": file, field + "_shape": list(a.shape)}
        entries.append(entry)
    least = check_matters(path, model, spec, entries[-1])
    dump(os.path.join(path, "golden.json"), entries, separators=(",", ":"))
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{os.path.basename(path)}: {size / 1e3:.0f} kB, least router gap {min(f[0] for f in floors):.1e}, least logit "
          f"margin {min(f[1] for f in floors):.1e}, cache against whole {max(errors):.1e}, settings move {least:.2g}", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--out", default=HERE)
    a.add_argument("name", nargs="*")
    a = a.parse_args()
    if set(a.name) - set(SPECS):
        sys.exit(f"no such checkpoint: {sorted(set(a.name) - set(SPECS))}; there are {list(SPECS)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in a.name or SPECS:
        path = os.path.join(a.out, name)
        t, ends = write_checkpoint(SPECS[name], path)
        write_golden(SPECS[name], path, t, ends)


if __name__ == "__main__":
    main()
