#!/usr/bin/env python3
"""Other forms of GGUF files than llama.cpp's converter writes by itself: of older versions and of its options, and settings that are refused.
Each is made of a golden's file by moving tensors and keys (docs/GGUF.md). Standard library only."""
import json
import os
import shutil

import gguf_checkpoint as gg
from cluster_util import TMP, run_tests, test, tool
from float64_model import conform

os.environ["CACHE_DIRECTORY"] = os.path.join(TMP, "cache")
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")


class File:
    """A golden's metadata and tensors, to be changed."""

    def __init__(self, name):
        self.folder = os.path.join(FAMILIES, name)
        self.kv, tensors = gg.convert(self.folder)
        self.arch = self.kv["general.architecture"][1]
        self.tensors = {n: (kind, shape, raw) for n, kind, shape, raw in tensors}
        self.path = os.path.join(TMP, "%s.gguf" % name)

    def set(self, key, kind, v):
        self.kv[self.arch + "." + key] = (kind, v)

    def drop(self, *keys):
        for key in keys:
            del self.kv[self.arch + "." + key]

    def take(self, name):
        return self.tensors.pop(name)

    def matrix(self, name):
        kind, shape, raw = self.take(name)
        return gg.Matrix.of((kind, shape[::-1], raw))

    def put(self, name, m, n=0):
        shape = [m.n_in(), len(m.rows) // n, n] if n else [m.n_in(), len(m.rows)]
        self.tensors[name] = (m.dtype, shape, b"".join(m.rows))

    def layers(self, name):
        return [i for i in range(self.kv[self.arch + ".block_count"][1]) if "blk.%d.%s" % (i, name) in self.tensors]

    def write(self):
        gg.write_file(self.path, self.kv, [(n, *t) for n, t in self.tensors.items()])
        return self.path

    def conforms(self, *args):
        """Twice: the second time with the checksums that the first one kept."""
        path = self.write()
        for _ in range(2):
            conform(self.folder, path, *(args or ("--resident",)))

    def refused(self, *words):
        said = tool("od-bench", "conform", "--golden", self.folder, "--pack", self.write(), "--resident", ok=False).stderr
        assert all(w in said for w in words) and self.path in said, (words, said)


# ---- Tensors ----

@test
def a_tensor_for_each_expert():
    """As files of before April 2024 have them."""
    f = File("qwen3_moe_plain")
    for i in f.layers("ffn_down_exps.weight"):
        for part in "gate", "up", "down":
            m = f.matrix("blk.%d.ffn_%s_exps.weight" % (i, part))
            n = f.kv["qwen3moe.expert_count"][1]
            each = len(m.rows) // n
            for e in range(n):
                f.put("blk.%d.ffn_%s.%d.weight" % (i, part, e), gg.Matrix(m.dtype, m.rows[e * each:(e + 1) * each]))
    f.conforms()
    f.conforms("--local", 2, "--threads", 1, "--predictor", "next-gate")
    kind, shape, raw = f.tensors["blk.0.ffn_up.3.weight"]
    f.tensors["blk.0.ffn_up.3.weight"] = ("F32", shape, gg.as_f32(gg.floats(kind, raw)))
    f.refused("blk.0.ffn_up.3.weight", "expected type BF16, found F32")
    f.take("blk.0.ffn_up.3.weight")
    f.refused("blk.0.ffn_up.3.weight is missing")


@test
def gate_and_up_in_one_tensor():
    f = File("qwen3_moe_plain")
    for i in f.layers("ffn_down_exps.weight"):
        gate, up = (f.matrix("blk.%d.ffn_%s_exps.weight" % (i, part)).rows for part in ("gate", "up"))
        n = f.kv["qwen3moe.expert_count"][1]
        each = len(gate) // n
        rows = [r for e in range(n) for r in gate[e * each:(e + 1) * each] + up[e * each:(e + 1) * each]]
        f.put("blk.%d.ffn_gate_up_exps.weight" % i, gg.Matrix("BF16", rows), n)
    f.conforms()


@test
def q_k_and_v_in_one_tensor():
    for name in "qwen2_moe_plain", "gpt_oss_mxfp4", "qwen3_next_plain", "glm4_moe_norms":
        f = File(name)
        for i in f.layers("attn_q.weight"):
            for kind in "weight", "bias":
                names = ["blk.%d.attn_%s.%s" % (i, part, kind) for part in "qkv"]
                if names[0] not in f.tensors:
                    continue
                kinds, shapes, raws = zip(*(f.take(n) for n in names))
                assert len(set(kinds)) == 1
                shape = [sum(s[0] for s in shapes)] if kind == "bias" else [shapes[0][0], sum(s[1] for s in shapes)]
                f.tensors["blk.%d.attn_qkv.%s" % (i, kind)] = (kinds[0], shape, b"".join(raws))
        f.conforms()


@test
def latents_whole_or_in_both_forms():
    """The matrix that makes keys and values of a latent: files of before May 2025 have it as published, some have both."""
    for both in False, True:
        f = File("deepseek_v2_lite")
        cfg, tensors = gg.load(f.folder)
        for i in f.layers("attn_k_b.weight"):
            kind, shape, raw = tensors["model.layers.%d.self_attn.kv_b_proj.weight" % i]
            f.tensors["blk.%d.attn_kv_b.weight" % i] = (kind, shape[::-1], raw)
            if not both:
                f.take("blk.%d.attn_k_b.weight" % i)
                f.take("blk.%d.attn_v_b.weight" % i)
        if not both:
            f.drop("attention.key_length_mla", "attention.value_length_mla")
            f.set("attention.key_length", gg.U32, cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"])
            f.set("attention.value_length", gg.U32, cfg["v_head_dim"])
            f.set("attention.head_count_kv", gg.U32, cfg["num_attention_heads"])
        f.conforms()


@test
def delta_projections_as_published():
    """The first files of Qwen3-Next have queries, keys, values and gates of a key head side by side."""
    f = File("qwen3_next_plain")
    tensors = gg.load(f.folder)[1]
    for i in f.layers("ssm_out.weight"):
        f.take("blk.%d.attn_qkv.weight" % i)
        f.take("blk.%d.attn_gate.weight" % i)
        kind, shape, raw = tensors["model.layers.%d.linear_attn.in_proj_qkvz.weight" % i]
        f.tensors["blk.%d.ssm_in.weight" % i] = (kind, shape[::-1], raw)
    f.conforms()


@test
def a_bias_of_the_router_without_an_ending():
    f = File("glm4_moe_air")
    for i in f.layers("exp_probs_b.bias"):
        f.tensors["blk.%d.exp_probs_b" % i] = f.take("blk.%d.exp_probs_b.bias" % i)
    f.conforms()


@test
def tensors_of_other_parts_are_left_out():
    """Layers that predict further tokens are counted in block_count; Ollama's files may have a vision tower."""
    for name in "qwen3_next_plain", "qwen3_5_moe_stacked":
        f = File(name)
        n = f.kv[f.arch + ".block_count"][1]
        f.set("block_count", gg.U32, n + 1)
        f.set("nextn_predict_layers", gg.U32, 1)
        for other in "blk.%d.nextn.eh_proj.weight" % n, "blk.%d.attn_norm.weight" % n, "v.blk.0.attn_q.weight", "mm.0.weight":
            f.tensors[other] = ("F32", [4, 2], bytes(32))
        f.conforms()
        f.tensors["blk.%d.attn_norm.weight" % (n + 1)] = ("F32", [4, 2], bytes(32))
        f.refused("blk.%d.attn_norm.weight is not one of" % (n + 1))
    f = File("qwen3_next_plain")
    f.set("nextn_predict_layers", gg.U32, 1)
    f.take("blk.0.attn_norm.weight")
    f.refused("the layers alone that predict further tokens", "the file of the whole model")


# ---- Settings ----

@test
def settings_that_are_not_written_or_written_otherwise():
    f = File("deepseek_v3_one_group")  # its norm_topk_prob is false, so the key is missing in newer files
    f.drop("expert_weights_norm", "expert_gating_func", "expert_group_count", "expert_group_used_count")
    f.conforms()
    f = File("deepseek_v2_lite")  # its factor is 1
    f.drop("expert_weights_scale", "expert_gating_func")
    f.conforms()
    f = File("qwen3_moe_plain")
    n = f.kv["qwen3moe.block_count"][1]
    for key in "attention.head_count", "attention.head_count_kv", "feed_forward_length":
        f.set(key, gg.ARRAY, (gg.I32, [f.kv["qwen3moe." + key][1]] * n))
    f.set("rope.scaling.type", gg.STRING, "linear")
    f.set("rope.scaling.factor", gg.F32, 1.0)
    f.set("rope.scaling.attn_factor", gg.F32, 1.0)
    f.conforms()
    f = File("qwen3_next_plain")  # layers of the delta rule have no heads of keys in some files
    full = [i in f.layers("attn_k.weight") for i in range(f.kv["qwen3next.block_count"][1])]
    f.set("attention.head_count_kv", gg.ARRAY, (gg.U32, [f.kv["qwen3next.attention.head_count_kv"][1] * b for b in full]))
    f.conforms()


@test
def which_layers_of_gpt_oss_see_a_window():
    for kind, v in (gg.U32, 2), (gg.ARRAY, (gg.BOOL, [True, False])):
        f = File("gpt_oss_mxfp4")
        f.set("attention.sliding_window_pattern", kind, v)
        f.conforms()
    f.set("attention.sliding_window_pattern", gg.ARRAY, (gg.BOOL, [True]))
    f.refused("attention.sliding_window_pattern", "2 booleans, one for each layer, found 1")


def differences(folder, pack):
    p = tool("od-bench", "conform", "--golden", folder, "--pack", pack, "--resident", "--json", ok=None)
    return json.loads(p.stdout)["prompts"]


@test
def gemmas_divisors_of_frequencies():
    """Those of a checkpoint whose full layers turn more slowly, and of fewer pairs."""
    f = File("gemma4_k_is_v")
    changed = os.path.join(TMP, "slower")
    shutil.copytree(f.folder, changed)
    with open(os.path.join(changed, "config.json")) as file:
        cfg = json.load(file)
    full = cfg.get("text_config", cfg)["rope_parameters"]["full_attention"]
    for factor, part in (4.0, 0.5), (1.0, 0.25), (2.5, 1.0):
        full.update(rope_type="proportional", factor=factor, partial_rotary_factor=part)
        with open(os.path.join(changed, "config.json"), "w") as file:
            json.dump(cfg, file)
        tool("od-pack", "--force", changed, changed + ".pack")
        gg.write_file(f.path, *gg.convert(changed))
        want = differences(f.folder, changed + ".pack")
        assert want == differences(f.folder, f.path), (factor, want)
        assert any(e["max_weight_error"] > 1e-2 for e in want) == (factor != 1), want


@test
def settings_that_would_change_results_are_refused():
    cases = [
        ("qwen3_moe_plain", "rope.scaling.factor", gg.F32, 2.0, "rope.scaling.factor: expected 1, found 2"),
        ("qwen3_moe_plain", "rope.scale_linear", gg.F32, 4.0, "rope.scale_linear: expected 1, found 4"),
        ("qwen3_moe_plain", "rope.scaling.type", gg.STRING, "longrope", 'found "longrope"'),
        ("qwen3_moe_plain", "rope.scaling.attn_factor", gg.F32, 1.5, "rope.scaling.attn_factor: expected 1, found 1.5"),
        ("qwen3_moe_mlp_only", "rope.scaling.yarn_ext_factor", gg.F32, 0.0, "yarn_ext_factor: expected 1, found 0"),
        ("qwen3_moe_plain", "rope.dimension_count", gg.U32, 8, "rope.dimension_count: expected the size of a head"),
        ("gemma4_k_is_v", "rope.dimension_count_swa", gg.U32, 2, "rope.dimension_count_swa: expected the size of a head"),
        ("qwen3_moe_plain", "expert_gating_func", gg.U32, 2, "expert_gating_func: expected 1 (softmax), found 2"),
        ("glm4_moe_air", "expert_gating_func", gg.U32, 1, "expert_gating_func: expected 2 (sigmoid), found 1"),
        ("deepseek_v2_lite", "expert_gating_func", gg.U32, 2, "expert_gating_func: expected 1 (softmax), found 2"),
        ("deepseek_v3_groups", "expert_gating_func", gg.U32, 3, "expert_gating_func: expected 2 (sigmoid), found 3"),
        ("deepseek_v2_lite", "attention.temperature_scale", gg.F32, 0.1, "attention.temperature_scale: expected none, 0 or 1"),
        ("olmoe_plain", "attention.causal", gg.BOOL, False, "attention.causal: expected true"),
        ("qwen3_moe_plain", "attention.head_count", gg.ARRAY, (gg.U32, [4, 2, 4]), "for all layers, found 2 for layer 1 after 4"),
    ]
    for name, key, kind, v, said in cases:
        f = File(name)
        f.set(key, kind, v)
        f.refused(said)
    f = File("gemma4_k_is_v")
    kind, shape, raw = f.tensors["rope_freqs.weight"]
    f.tensors["rope_freqs.weight"] = (kind, shape, gg.as_f32([1.0, 2.0] + gg.floats(kind, raw)[2:]))
    f.refused("rope_freqs.weight: expected one divisor", "found 2 for pair 1")
    f = File("mixtral_top3")
    f.tensors["rope_freqs.weight"] = ("F32", [2], gg.as_f32([1.0, 8.0]))
    f.refused("rope_freqs.weight: expected 1 for every pair", "found 8 for pair 1", "Llama 3.1")
    f.kv["general.architecture"] = (gg.STRING, "gptoss")
    f.refused("gptoss", "Ollama", "a file that llama.cpp made")


run_tests()
