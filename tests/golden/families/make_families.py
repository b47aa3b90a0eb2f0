#!/usr/bin/env python3
"""Makes tiny checkpoints of model families, each with a setting that changes numbers, and what transformers computes.

    make reference-venv
    build/reference/bin/python tests/golden/families/make_families.py [--out DIR] [NAME ...]

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
import os
import random
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "reference"))
from checkpoint import TEXT, dump, write_checkpoint
from families import FAMILIES
from families.gemma4_text import ropes
from families.parts import VOCAB, yarn
from families.phimoe import long_rope
from families.qwen3_5_moe_text import rope
from reference_model import Routes, generate, load, read_config, whole, with_other, write_entry

MIN_ROUTE, MIN_LOGIT, TOLERANCE, MATTERS = 3e-5, 2e-3, 1e-4, 1e-2
TOKENS = 12
LENGTHS = (("one", 1), ("ten", 10), ("long", 56))  # past every window and every original context below, with its tokens
FILES = dict(one=("logits",), ten=("logits", "decode_logits", "hidden"), long=("decode_logits",))  # of each prompt

qwen3, qwen2, olmo, deepseek, deepseek3, glm4, glm4_lite, minimax, mixtral = (FAMILIES[name].config for name in (
    "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "mixtral"))
next_, qwen35 = FAMILIES["qwen3_next"].config, FAMILIES["qwen3_5_moe_text"].config
gpt_oss, MXFP4 = FAMILIES["gpt_oss"].config, FAMILIES["gpt_oss"].MXFP4
gemma4 = FAMILIES["gemma4_text"].config
phi = FAMILIES["phimoe"].config

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
    "mixtral_top3": dict(seed=51, dtype="F16", cfg=mixtral(sliding_window=12, num_hidden_layers=2),
                         matters=[dict(sliding_window=None), dict(sliding_window=13)]),
    "deepseek_v3_groups": dict(seed=61, cfg=deepseek3(
        n_routed_experts=12, q_lora_rank=20, num_nextn_predict_layers=1, rope_scaling=yarn(mscale=1.0, mscale_all_dim=1.0)),
        matters=[dict(topk_group=4), dict(topk_group=3), dict(n_group=2, topk_group=1), dict(norm_topk_prob=False),
                 dict(routed_scaling_factor=1.0), dict(rope_scaling=None)]),
    "deepseek_v3_one_group": dict(seed=162, dtype="F32", cfg=deepseek3(  # as Kimi-K2
        first_k_dense_replace=0, num_hidden_layers=2, n_group=1, topk_group=1, norm_topk_prob=False, tie_word_embeddings=True,
        n_routed_experts=7, routed_scaling_factor=0.75),
        matters=[dict(norm_topk_prob=True), dict(routed_scaling_factor=1.0)]),
    "deepseek_v3_halves": dict(seed=63, cfg=deepseek3(
        hidden_size=24, num_hidden_layers=2, first_k_dense_replace=0, n_group=1, topk_group=1, n_routed_experts=5, num_experts_per_tok=4,
        n_shared_experts=0, rope_interleave=False), matters=[dict(rope_interleave=True)]),
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
    "gpt_oss_mxfp4": dict(
        seed=91, shards=2, cfg=gpt_oss(
            num_hidden_layers=2, hidden_size=64, head_dim=24, num_experts_per_tok=3, experts_per_token=3, quantization_config=MXFP4,
            rope_theta=100.0, rope_scaling=yarn(rope_type="yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25, truncate=False)),
        matters=[dict(swiglu_limit=3.0), dict(sliding_window=9), dict(layer_types=["full_attention"] * 2),
                 dict(num_experts_per_tok=2), dict(rope_scaling=yarn(rope_type="yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25))]),
    "gpt_oss_bf16": dict(
        seed=92, cfg=gpt_oss(
            num_hidden_layers=2, hidden_size=40, intermediate_size=20, num_local_experts=5, experts_per_token=None, swiglu_limit=1.0,
            sliding_window=5, layer_types=["full_attention", "sliding_attention"], rope_theta=None, rope_scaling=None,
            rope_parameters=yarn(rope_type="yarn", factor=4.0, rope_theta=150000.0, truncate=False)),
        matters=[dict(swiglu_limit=1.2), dict(sliding_window=6), dict(layer_types=["sliding_attention"] * 2)]),
    "gpt_oss_f32": dict(
        seed=93, dtype="F32", cfg=gpt_oss(
            num_hidden_layers=2, attention_bias=False, num_key_value_heads=1, intermediate_size=24, tie_word_embeddings=True,
            layer_types=None, num_local_experts=4, rope_theta=500.0, rope_scaling=None, rope_parameters=dict(
                rope_theta=500.0, rope_type="default")),
        matters=[dict(sliding_window=9), dict(swiglu_limit=2.0)]),
    "qwen3_next_plain": dict(seed=101, shards=2, cfg=next_(), matters=[
        dict(norm_topk_prob=False), dict(partial_rotary_factor=0.25), dict(rope_theta=1000.0)]),
    "qwen3_next_types": dict(seed=102, dtype="F16", cfg=next_(
        layer_types=["full_attention", "linear_attention", "linear_attention"], full_attention_interval=None, attention_bias=True,
        mlp_only_layers=[1], norm_topk_prob=False, num_experts_per_tok=2, num_experts=5, tie_word_embeddings=True,
        linear_num_key_heads=1, linear_num_value_heads=3, linear_conv_kernel_dim=2, num_key_value_heads=1, head_dim=8,
        partial_rotary_factor=None), matters=[dict(norm_topk_prob=True), dict(partial_rotary_factor=0.5)]),
    "qwen3_5_moe_stacked": dict(seed=105, shards=2, cfg=qwen35(), matters=[
        dict(rope_parameters=rope(8, partial_rotary_factor=0.25)), dict(rope_parameters=rope(8, partial_rotary_factor=0.5,
                                                                                            rope_theta=1000.0))]),
    "qwen3_5_moe_yarn": dict(seed=104, dtype="F16", one_by_one=True, cfg=qwen35(
        layer_types=["linear_attention", "full_attention"], full_attention_interval=None, num_hidden_layers=2, num_experts=6,
        linear_conv_kernel_dim=3, linear_num_value_heads=2, linear_value_head_dim=20, num_attention_heads=6, num_key_value_heads=3,
        rope_parameters=rope(4, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
        matters=[dict(rope_parameters=rope(4))]),
    "gemma4_k_is_v": dict(seed=91, shards=2, cfg=gemma4(final_logit_softcapping=3.0), matters=[
        dict(final_logit_softcapping=None), dict(sliding_window=9), dict(rope_parameters=ropes(sliding=dict(
            rope_theta=1000.0, rope_type="default"))), dict(rope_parameters=ropes(dict(
                partial_rotary_factor=0.5, rope_theta=1000000.0, rope_type="proportional"))),
        dict(rope_parameters=ropes(dict(rope_theta=1000000.0, rope_type="default")))]),
    "gemma4_own_v": dict(seed=92, dtype="F16", cfg=gemma4(
        attention_k_eq_v=False, final_logit_softcapping=None, tie_word_embeddings=False, num_key_value_heads=1, num_experts=5,
        layer_types=["full_attention", "sliding_attention", "full_attention"], top_k_experts=2, rope_parameters=ropes(
            dict(rope_theta=100.0, rope_type="default"),
            dict(rope_theta=100.0, rope_type="proportional", partial_rotary_factor=0.7, factor=4.0))),
        matters=[dict(final_logit_softcapping=3.0), dict(sliding_window=7), dict(rope_parameters=ropes(
            dict(rope_theta=100.0, rope_type="default"),
            dict(rope_theta=100.0, rope_type="proportional", partial_rotary_factor=0.7)))]),
    "gemma4_layer_inputs": dict(seed=94, cfg=gemma4(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=VOCAB, num_experts=5, top_k_experts=2, final_logit_softcapping=None), matters=[dict(sliding_window=9)]),
    "gemma4_shared_kv": dict(seed=95, dtype="F16", cfg=gemma4(
        num_hidden_layers=5, layer_types=["full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB,
        attention_k_eq_v=False, num_experts=5, top_k_experts=2, tie_word_embeddings=False),
        matters=[dict(sliding_window=9), dict(final_logit_softcapping=3.0)]),
    "phimoe_crossing": dict(seed=91, cfg=phi(rope_scaling=long_rope(4, 14)),  # ten tokens become more than 14
                            matters=[dict(rope_scaling=long_rope(4, 14, long_mscale=1.1)), dict(router_jitter_noise=0.2),
                                     dict(rope_scaling=long_rope(4, 14, long_factor=[1.0] * 4)),
                                     dict(rope_scaling=long_rope(4, 200), original_max_position_embeddings=200)]),
    "phimoe_no_bias": dict(seed=92, dtype="F16", cfg=phi(
        attention_bias=False, lm_head_bias=False, head_dim=12, num_hidden_layers=2, router_jitter_noise=0.2, sliding_window=12,
        tie_word_embeddings=True, rope_theta=None, rope_parameters={  # as transformers 5 writes it
            "rope_theta": 500.0, "rope_type": "longrope", **{k: v for k, v in long_rope(6, 60).items() if k != "type"}}),
        matters=[dict(router_jitter_noise=0.01), dict(sliding_window=13), dict(sliding_window=None)]),
}


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
        found = generate(model, routes, ids, TOKENS)
        e, (route, logit) = found[0], found[1]
        if route >= MIN_ROUTE and logit >= MIN_LOGIT and not ends & set(e["greedy_ids"]) and \
                len(set(e["greedy_ids"])) >= 5 and max(e["greedy_ids"]) < t.get_vocab_size():
            return text, found
    raise SystemExit(f"no prompt of {length} tokens without a near tie: try another seed")


def check_cache(model, e, logits, rows):
    """One pass over everything is the other way to compute it."""
    n, ids = len(e["prompt_ids"]), e["prompt_ids"] + e["greedy_ids"][:-1]
    all_rows = whole(model, ids, n)
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
    routes = Routes(model, read_config(path))
    entries, errors, floors = [], [], []
    for name, length in LENGTHS:
        text, found = find_prompt(t, model, routes, ends, length, rng)
        e, floor, logits, rows, _ = found
        errors.append(check_cache(model, e, logits, rows))
        floors.append(floor)
        entries.append(write_entry(path, name, text, TOLERANCE, found, FILES[name], t))
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
    for name in a.name or SPECS:
        path = os.path.join(a.out, name)
        t, ends = write_checkpoint(SPECS[name], path)
        write_golden(SPECS[name], path, t, ends)


if __name__ == "__main__":
    main()
