#!/usr/bin/env python3
"""Writes tests/golden/gguf: headers of GGUF files as llama.cpp's converter makes them, and the config.json of the checkpoints that it read.
tests/unit/test_gguf_config.c reads them.

    tests/golden/gguf/make_gguf.py CONVERTED [FOLDER]

CONVERTED has a folder for each family: config.json and FAMILY-BF16.gguf, which convert_hf_to_gguf.py made of that checkpoint. NAME.gguf here
has its metadata without the tokenizer's lists, and its tensors, but bytes only of the tensors of RoPE: the test makes the file as long as its
tensors say. Needs the package gguf (pip install gguf)."""
import json
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

FAMILIES = ("mixtral qwen2_moe qwen3_moe qwen3_next qwen3_5_moe olmoe deepseek_v2 deepseek_v2-lite deepseek_v3 glm4_moe minimax_m2 gpt_oss "
            "gemma4 phimoe").split()
LISTS = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.chat_template"}


class Model:
    """Metadata {key: (value, kind, kind of elements)} and tensors [(name, shape with the row's length first, type, bytes or None)]."""

    def __init__(self, path):
        r = GGUFReader(path)
        self.meta, self.tensors = {}, []
        for key, field in r.fields.items():
            if not key.startswith("GGUF.") and key not in LISTS:
                kinds = field.types
                self.meta[key] = (field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)
        for t in r.tensors:
            data = np.array(t.data).tobytes() if t.name.startswith("rope_") else None
            self.tensors.append((t.name, [int(n) for n in t.shape], t.tensor_type, data))
        self.arch = self.meta["general.architecture"][0]

    def set(self, key, value, kind=GGUFValueType.UINT32, of=None):
        self.meta[f"{self.arch}.{key}"] = (value, kind, of)

    def drop(self, *keys):
        for key in keys:
            del self.meta[f"{self.arch}.{key}"]

    def write(self, path):
        w = GGUFWriter(path, self.arch)
        for key, (value, kind, of) in self.meta.items():
            if key != "general.architecture":
                w.add_key_value(key, value, kind, sub_type=of)
        tensors = sorted(self.tensors, key=lambda t: t[3] is None)
        for name, shape, kind, _ in tensors:
            row, size = 1, 2
            if kind == GGMLQuantizationType.F32:
                size = 4
            elif kind == GGMLQuantizationType.MXFP4:
                row, size = 32, 17
            n = int(np.prod(shape))
            # The writer takes shapes of numpy's order; of quantised ones, in bytes of a row.
            of_bytes = list(reversed(shape))
            if row > 1:
                of_bytes[-1] = of_bytes[-1] // row * size
            w.add_tensor_info(name, of_bytes, np.dtype(np.uint8 if row > 1 else np.float32), n // row * size, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        w.close()
        with open(path, "ab") as f:
            f.write(b"\0" * (-f.tell() % 32))
            for _, _, _, data in tensors:
                if data is not None:
                    f.write(data + b"\0" * (-len(data) % 32))


def save(folder, name, model, config):
    model.write(f"{folder}/{name}.gguf")
    with open(f"{folder}/{name}.json", "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def flash(base, config):
    """GLM-4.7-Flash: 47 layers of DeepSeek-V3's form, one more that predicts tokens, no groups, no YaRN; the converter does not write
    head_count_kv otherwise than for DeepSeek."""
    m = base
    dense = [t for t in m.tensors if t[0].startswith("blk.0.")]
    sparse = [t for t in m.tensors if t[0].startswith("blk.1.")]
    m.tensors = [t for t in m.tensors if not t[0].startswith("blk.")] + dense
    for layer in range(1, 48):
        m.tensors += [(n.replace("blk.1.", f"blk.{layer}."), s, k, d) for n, s, k, d in sparse]
    m.tensors = [(n, [s[0], 154880] if n == "token_embd.weight" else s, k, d) for n, s, k, d in m.tensors]
    m.set("block_count", 48)
    m.set("nextn_predict_layers", 1)
    m.set("vocab_size", 154880)
    m.set("expert_group_count", 1)
    m.set("expert_group_used_count", 1)
    m.set("expert_weights_scale", 1.8, GGUFValueType.FLOAT32)
    m.drop("expert_gating_func", *[k[len(m.arch) + 1:] for k in m.meta if ".rope.scaling." in k])
    c = dict(config, architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", num_hidden_layers=47, vocab_size=154880, n_group=1,
             topk_group=1, routed_scaling_factor=1.8, num_nextn_predict_layers=1, rope_scaling=None)
    return m, c


def older(base):
    """DeepSeek-V2 as it was before llama.cpp absorbed the latents: kv_b whole, and no keys for heads' widths or the gating function."""
    m = base
    heads, k, v = m.meta["deepseek2.attention.head_count"][0], m.meta["deepseek2.attention.key_length_mla"][0], 32
    m.set("attention.head_count_kv", heads)
    m.set("attention.key_length", k)
    m.set("attention.value_length", v)
    m.drop("attention.key_length_mla", "attention.value_length_mla", "expert_gating_func", "expert_group_count", "expert_group_used_count")
    rank, nope = m.meta["deepseek2.attention.kv_lora_rank"][0], k - m.meta["deepseek2.rope.dimension_count"][0]
    m.tensors = [(n.replace("attn_k_b", "attn_kv_b"), [rank, heads * (nope + v)] if "attn_k_b" in n else s, t, d)
                 for n, s, t, d in m.tensors if "attn_v_b" not in n]
    return m


def lists(base):
    """Numbers for each layer, as llama.cpp's converter writes them where config.json has lists."""
    m = base
    for key in "attention.head_count attention.head_count_kv feed_forward_length expert_feed_forward_length".split():
        m.set(key, [m.meta[f"{m.arch}.{key}"][0]] * 2, GGUFValueType.ARRAY, GGUFValueType.INT32)
    return m


def with_mtp(base):
    """A layer behind the model's that predicts further tokens, with attention, as the converter writes Qwen3.5's."""
    m = base
    last = [t for t in m.tensors if t[0].startswith("blk.1.")]
    m.tensors += [(n.replace("blk.1.", "blk.2."), s, t, d) for n, s, t, d in last]
    f32 = GGMLQuantizationType.F32
    m.tensors += [("blk.2.nextn.eh_proj.weight", [512, 256], GGMLQuantizationType.BF16, None)]
    m.tensors += [(f"blk.2.nextn.{n}.weight", [256], f32, None) for n in ("enorm", "hnorm", "shared_head_norm")]
    m.set("block_count", 3)
    m.set("nextn_predict_layers", 1)
    m.set("attention.recurrent_layers", [True, False, False], GGUFValueType.ARRAY, GGUFValueType.BOOL)
    return m


def one_by_one(base):
    """A tensor for each expert, as before April 2024."""
    m = base
    m.tensors = [(n.replace("_exps", f".{e}"), s[:2], t, d) for n, s, t, d in m.tensors for e in range(s[2] if "_exps" in n else 1)]
    return m


def main():
    converted, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "tests/golden/gguf"
    os.makedirs(folder, exist_ok=True)

    def load(family):
        with open(f"{converted}/{family}/config.json") as f:
            return Model(f"{converted}/{family}/{family}-BF16.gguf"), json.load(f)

    for family in FAMILIES:
        save(folder, family, *load(family))
    save(folder, "glm4_moe_lite", *flash(*load("deepseek_v3")))
    m, c = load("deepseek_v2")
    save(folder, "deepseek_v2_older", older(m), c)
    m, c = load("qwen3_moe")
    save(folder, "qwen3_moe_lists", lists(m), c)
    m, c = load("gpt_oss")
    m.set("attention.sliding_window_pattern", [False, True], GGUFValueType.ARRAY, GGUFValueType.BOOL)
    save(folder, "gpt_oss_pattern", m, dict(c, layer_types=["full_attention", "sliding_attention"]))
    m, c = load("qwen3_5_moe")
    save(folder, "qwen3_5_moe_mtp", with_mtp(m), dict(c, num_nextn_predict_layers=1))
    m, c = load("mixtral")
    save(folder, "mixtral_one_by_one", one_by_one(m), c)
    m = load("mixtral")[0]
    m.arch = "clip"
    m.meta = {"general.architecture": ("clip", GGUFValueType.STRING, None), "general.type": ("mmproj", GGUFValueType.STRING, None)}
    m.tensors = [("v.patch_embd.weight", [8, 4], GGMLQuantizationType.F32, None)]
    m.write(f"{folder}/mmproj.gguf")


main()
