"""Checkpoints as GGUF files, as llama.cpp's converter makes them: tensors' names and forms, and the metadata, of each architecture.
What stands where is docs/GGUF.md's; this is written from it, and from files that the converter made. Standard library only."""
import glob
import json
import math
import os
import struct

import tiny_checkpoint as tc

U32, I32, F32, BOOL, STRING, ARRAY, U64, U16 = 4, 5, 6, 7, 8, 9, 10, 2
FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", U16: "<H"}
# ggml's number of a type, weights and bytes of a block.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
         "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50),
         "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56),
         "BF16": (30, 1, 2), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36)}
ALIGNMENT = 32


# ---- The file ----

def text_of(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def value_of(kind, v):
    if kind == STRING:
        return text_of(v)
    if kind == ARRAY:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(value_of(of, i) for i in items)
    return struct.pack(FORMATS[kind], v)


def header_of(kv, tensors, version=3):
    """tensors: [(name, type, shape as ggml has it, bytes)]"""
    out, at = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(kv)), 0
    for key, (kind, v) in kv.items():
        out += text_of(key) + struct.pack("<I", kind) + value_of(kind, v)
    for name, kind, shape, raw in tensors:
        out += text_of(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, TYPES[kind][0] if kind in TYPES else kind, at)
        at += len(raw) + -len(raw) % ALIGNMENT
    return out


def write_file(path, kv, tensors):
    out = header_of(kv, tensors)
    with open(path, "wb") as f:
        f.write(out + b"\0" * (-len(out) % ALIGNMENT))
        for _, _, _, raw in tensors:
            f.write(raw + b"\0" * (-len(raw) % ALIGNMENT))


def write_split(path, kv, tensors, n):
    """path: NAME.gguf; the files are NAME-00001-of-0000n.gguf and so on, the first without tensors. Returns their paths."""
    paths = []
    for i in range(n):
        part = {} if i else dict(kv)
        part.update({"split.no": (U16, i), "split.count": (U16, n), "split.tensors.count": (I32, len(tensors))})
        paths.append("%s-%05d-of-%05d.gguf" % (path.removesuffix(".gguf"), i + 1, n))
        write_file(paths[-1], part, tensors[i - 1::n - 1] if i else [])
    return paths


# ---- Numbers ----

def floats(dtype, raw):
    if dtype == "F32":
        return list(struct.unpack("<%df" % (len(raw) // 4), raw))
    if dtype == "F16":
        return list(struct.unpack("<%de" % (len(raw) // 2), raw))
    assert dtype == "BF16", dtype
    return list(struct.unpack("<%df" % (len(raw) // 2), b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))))


def as_f32(values):
    return struct.pack("<%df" % len(values), *values)


class Matrix:
    """Rows of a tensor as bytes: they change places, never values."""

    def __init__(self, dtype, rows):
        self.dtype, self.rows = dtype, rows

    @classmethod
    def of(cls, tensor):
        dtype, shape, raw = tensor
        n = math.prod(shape[:-1])
        each = len(raw) // n
        return cls(dtype, [raw[i * each:(i + 1) * each] for i in range(n)])

    def order(self, places):
        return Matrix(self.dtype, [self.rows[i] for i in places])

    def turned(self):
        size = 4 if self.dtype == "F32" else 2
        n = len(self.rows[0]) // size
        return Matrix(self.dtype, [b"".join(r[i * size:(i + 1) * size] for r in self.rows) for i in range(n)])

    def columns(self, places):
        size = 4 if self.dtype == "F32" else 2
        return Matrix(self.dtype, [b"".join(r[i * size:(i + 1) * size] for i in places) for r in self.rows])

    def n_in(self):
        _, weights, each = TYPES[self.dtype]
        return len(self.rows[0]) // each * weights


# ---- Names and forms ----

ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "olmoe": "olmoe", "deepseek_v2": "deepseek2",
                 "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "glm4_moe": "glm4moe", "minimax_m2": "minimax-m2",
                 "qwen3_next": "qwen3next", "qwen3_5_moe_text": "qwen35moe", "gpt_oss": "gpt-oss", "gemma4_text": "gemma4", "phimoe": "phimoe"}
ROTATED = {"qwen3next": 0.25, "qwen35moe": 0.25, "glm4moe": 0.5}  # the part of a head that turns, where nothing says it
AFTER_ATTENTION = "glm4moe", "gpt-oss", "qwen3next", "qwen35moe"  # how the second norm is called there
PLAIN = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "router.proj": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "pre_feedforward_layernorm": "ffn_norm", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "post_feedforward_layernorm": "post_ffw_norm", "layer_scalar": "layer_output_scale.weight", "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.norm": "ssm_norm", "linear_attn.dt_bias": "ssm_dt.bias", "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm", "shared_head.norm": "nextn.shared_head_norm", "shared_head.head": "nextn.shared_head_head",
    "embed_tokens": "nextn.embed_tokens",
}
for part in "gate", "up", "down":
    for shared in "mlp.shared_expert.", "mlp.shared_experts.":
        PLAIN[shared + part + "_proj"] = "ffn_%s_shexp" % part
GLOBAL = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "norm.bias": "output_norm.bias",
          "lm_head.weight": "output.weight", "lm_head.bias": "output.bias", "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
          "per_layer_model_projection.weight": "per_layer_model_proj.weight", "per_layer_projection_norm.weight": "per_layer_proj_norm.weight"}
EXPERT_PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


class Converter:
    def __init__(self, cfg, tensors):
        self.cfg, self.tensors, self.out, self.experts = cfg, tensors, {}, {}
        self.arch = ARCHITECTURES[cfg["model_type"]]
        for name, tensor in tensors.items():
            self.add(name.removeprefix("model.").replace("language_model.", ""), tensor)
        for (layer, part, kind), mats in sorted(self.experts.items()):
            rows = [r for e in range(len(mats)) for r in mats[e].rows]
            self.put("blk.%s.ffn_%s_exps.%s" % (layer, part, kind), Matrix(mats[0].dtype, rows), len(mats))

    def put(self, name, m, n_experts=0):
        """A vector becomes F32, a matrix stays."""
        vector = name.endswith((".bias", "norm.weight", "ssm_a", ".scale", "sinks.weight", "norm_1.weight", "norm_2.weight"))
        if vector or m.dtype == "F32" or "ffn_gate_inp" in name or "conv1d" in name:
            m = Matrix("F32", [as_f32(floats(m.dtype, r)) for r in m.rows])
        n_in, n_out = m.n_in(), len(m.rows)
        shape = [n_in, n_out // n_experts, n_experts] if n_experts else [n_in, n_out] if n_out > 1 or not vector else [n_in]
        if name.endswith("_exps.bias"):
            shape = [n_in * n_out // n_experts, n_experts]
        self.out[name] = (m.dtype, shape, b"".join(m.rows))

    def add(self, name, tensor):
        dtype, shape, raw = tensor
        if name in GLOBAL:
            m = Matrix.of(tensor)
            if name == "norm.weight":
                m = self.norm(m)
            return self.put(GLOBAL[name], m)
        _, layer, rest = name.split(".", 2)
        if ".experts." in "." + rest:
            return self.expert(layer, rest.split("experts.", 1)[1], tensor)
        own, kind = rest.rsplit(".", 1) if rest.endswith((".weight", ".bias")) else (rest, "")
        return self.layer(layer, own, kind, Matrix.of(tensor) if shape else Matrix(dtype, [raw]))

    def norm(self, m):
        around_one = self.arch in ("qwen3next", "qwen35moe")
        return Matrix("F32", [as_f32([v + around_one for v in floats(m.dtype, r)]) for r in m.rows])

    def expert(self, layer, rest, tensor):
        dtype, shape, raw = tensor
        if rest.split(".")[0].isdigit():
            e, part, kind = rest.split(".")
            self.experts.setdefault((layer, EXPERT_PARTS[part], kind), {})[int(e)] = Matrix.of(tensor)
            return
        n, each = shape[0], len(raw) // shape[0]
        kind = "bias" if rest.endswith("_bias") else "weight"
        if rest.endswith("_scales"):
            return
        if rest.endswith("_blocks"):
            raw = self.mxfp4(raw, self.tensors["model.layers.%s.mlp.experts.%s" % (layer, rest.replace("blocks", "scales"))][2])
            dtype, shape, each = "MXFP4", [n, shape[1], shape[2] * 17], len(raw) // n
        for e in range(n):
            piece = raw[e * each:(e + 1) * each]
            self.experts_of(layer, rest, e, kind, dtype, shape[1:], piece)

    @staticmethod
    def mxfp4(blocks, scales):
        """From two neighbours a byte and scales elsewhere to ggml's blocks: a scale, weights 0 to 15 in low halves, 16 to 31 in high ones."""
        out = b""
        for i, scale in enumerate(scales):
            codes = [b >> s & 15 for b in blocks[16 * i:16 * i + 16] for s in (0, 4)]
            out += bytes([scale] + [codes[k] | codes[k + 16] << 4 for k in range(16)])
        return out

    def experts_of(self, layer, rest, e, kind, dtype, shape, raw):
        """An expert of a stacked tensor: gpt-oss has rows of gate and up in turn, and matrices turned."""
        m = Matrix.of((dtype, shape, raw)) if kind == "weight" else Matrix.of((dtype, [shape[-1], 1], raw))
        oss = self.arch == "gpt-oss"
        if oss and kind == "weight" and dtype != "MXFP4":
            m = m.turned()
        parts = {"down": range(len(m.rows))}
        if rest.startswith("gate_up"):
            n = len(m.rows)
            parts = {"gate": range(0, n, 2), "up": range(1, n, 2)} if oss else {"gate": range(n // 2), "up": range(n // 2, n)}
        for part, places in parts.items():
            one = m.order(places)
            if kind == "bias":
                one = Matrix(one.dtype, [b"".join(one.rows)])
            self.experts.setdefault((layer, part, kind), {})[e] = one

    def layer(self, layer, own, kind, m):
        c, blk = self.cfg, "blk.%s." % layer
        heads, kv_heads = c.get("num_attention_heads"), c.get("num_key_value_heads")
        if own == "post_attention_layernorm":
            name = "post_attention_norm" if self.arch in AFTER_ATTENTION + ("gemma4",) else "ffn_norm"
            return self.put(blk + name + "." + kind, self.norm(m) if kind == "weight" else m)
        if own in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm") and kind == "weight":
            m = self.norm(m)
        if self.arch == "llama" and own in ("self_attn.q_proj", "self_attn.k_proj"):
            n = len(m.rows) // (heads if own.endswith("q_proj") else kv_heads)
            m = m.order([r // n * n + r % n // 2 + r % 2 * (n // 2) for r in range(len(m.rows))])
        if own == "self_attn.kv_b_proj":
            return self.latents(blk, m)
        if own == "linear_attn.conv1d":
            return self.put(blk + "ssm_conv1d.weight", self.tiled(m, "conv"))
        if own == "linear_attn.A_log":
            m = Matrix("F32", [as_f32([-math.exp(v) for v in floats(m.dtype, r)]) for r in self.tiled_vector(m).rows])
            return self.put(blk + "ssm_a", m)
        if own == "linear_attn.in_proj_qkvz":
            return self.apart(blk, m)
        if own == "linear_attn.in_proj_qkv":
            return self.put(blk + "attn_qkv.weight", self.tiled(m, "conv"))
        if own == "linear_attn.out_proj":
            return self.put(blk + "ssm_out.weight", self.tiled_columns(m))
        if own in ("linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.in_proj_b"):
            m = self.tiled(m, "values")
        if own == "linear_attn.dt_bias":
            m = self.tiled_vector(m)
        new = PLAIN[own]
        return self.put(blk + (new if new.endswith((".weight", ".bias", ".scale")) else new + "." + kind), m)

    # Gated delta rule: which value heads stand where.

    def head_places(self):
        nk, nv = self.cfg["linear_num_key_heads"], self.cfg["linear_num_value_heads"]
        return [j % nk * (nv // nk) + j // nk for j in range(nv)] if self.arch == "qwen35moe" else list(range(nv))

    def value_places(self, n):
        return [h * n + i for h in self.head_places() for i in range(n)]

    def tiled(self, m, what):
        before = 2 * self.cfg["linear_num_key_heads"] * self.cfg["linear_key_head_dim"] if what == "conv" else 0
        n = (len(m.rows) - before) // self.cfg["linear_num_value_heads"]
        return m.order(list(range(before)) + [before + i for i in self.value_places(n)])

    def tiled_vector(self, m):
        return m.columns(self.head_places())

    def tiled_columns(self, m):
        return m.columns(self.value_places(self.cfg["linear_value_head_dim"]))

    def apart(self, blk, m):
        c = self.cfg
        nk, k, v = c["linear_num_key_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
        n = c["linear_num_value_heads"] // nk * v
        each = 2 * k + 2 * n
        def of(first, count):
            return [h * each + first + i for h in range(nk) for i in range(count)]
        self.put(blk + "attn_qkv.weight", m.order(of(0, k) + of(k, k) + of(2 * k, n)))
        self.put(blk + "attn_gate.weight", m.order(of(2 * k + n, n)))

    def latents(self, blk, m):
        c = self.cfg
        n, v, heads = c["qk_nope_head_dim"], c["v_head_dim"], c["num_attention_heads"]
        keys, values = [], []
        for h in range(heads):
            at = h * (n + v)
            keys += m.order(range(at, at + n)).turned().rows
            values += m.rows[at + n:at + n + v]
        self.put(blk + "attn_k_b.weight", Matrix(m.dtype, keys), heads)
        self.put(blk + "attn_v_b.weight", Matrix(m.dtype, values), heads)


# ---- Metadata ----

class Keys:
    """The model's metadata as the converter writes it, but for the tokeniser."""

    def __init__(self, cfg, names):
        self.c, self.arch, self.names = cfg, ARCHITECTURES[cfg["model_type"]], names
        self.kv = {"general.architecture": (STRING, self.arch), "general.type": (STRING, "model"), "general.name": (STRING, "test")}
        self.n_mtp = 0
        self.common()
        self.rope()
        for family in "experts_of_deepseek", "delta", "gemma", "phi":
            getattr(self, family)()

    def put(self, key, kind, v):
        if v is not None:
            self.kv[self.arch + "." + key] = (kind, v)

    def get(self, *keys):
        return next((self.c[k] for k in keys if self.c.get(k) is not None), None)

    def common(self):
        c, mla = self.c, "kv_lora_rank" in self.c
        layers = c["num_hidden_layers"]
        if any(".%d." % layers in n for n in self.names):
            self.n_mtp = c.get("num_nextn_predict_layers", 0)
        self.put("block_count", U32, layers + self.n_mtp)
        self.put("nextn_predict_layers", U32, self.n_mtp or None)
        self.put("context_length", U32, c["max_position_embeddings"])
        self.put("embedding_length", U32, c["hidden_size"])
        self.put("feed_forward_length", U32, c.get("intermediate_size"))
        self.put("attention.head_count", U32, c["num_attention_heads"])
        self.put("attention.head_count_kv", U32, 1 if mla else c.get("num_key_value_heads"))
        self.put("attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"])
        self.put("expert_count", U32, self.get("num_local_experts", "num_experts", "n_routed_experts"))
        self.put("expert_used_count", U32, self.get("num_experts_per_tok", "top_k_experts"))
        self.put("vocab_size", U32, c["vocab_size"])
        self.put("expert_feed_forward_length", U32, self.get("moe_intermediate_size") or
                 (c["intermediate_size"] if self.arch in ("gpt-oss", "minimax-m2") else None))
        self.put("expert_shared_feed_forward_length", U32, c.get("shared_expert_intermediate_size"))
        if self.arch == "minimax-m2":
            self.put("expert_gating_func", U32, 2)
        if self.arch == "olmoe":  # the key is another architecture's; here it is read, too
            self.put("attention.clamp_kqv", F32, c.get("clip_qkv"))
        if self.arch in ("gpt-oss", "phimoe", "gemma4"):
            self.put("attention.sliding_window", U32, c.get("sliding_window"))
        if not mla and self.arch not in ("qwen2moe", "olmoe", "phimoe"):
            head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
            for key in "attention.key_length", "attention.value_length":
                self.put(key, U32, head)

    def rope(self):
        c = self.c
        r = dict(c.get("rope_parameters") or {}, **(c.get("rope_scaling") or {}))
        if self.arch in ("gemma4", "phimoe"):
            return
        self.put("rope.freq_base", F32, c.get("rope_theta", r.get("rope_theta")))
        part = c.get("partial_rotary_factor")
        part = part if part is not None else r.get("partial_rotary_factor", ROTATED.get(self.arch))
        head = c.get("qk_rope_head_dim") or c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        if part is not None or "qk_rope_head_dim" in c or self.arch == "llama":
            self.put("rope.dimension_count", U32, int(head * (part or 1)))
        self.put("rope.dimension_count", U32, c.get("rotary_dim"))
        if r.get("rope_type", r.get("type")) != "yarn":
            return
        self.put("rope.scaling.type", STRING, "yarn")
        self.put("rope.scaling.factor", F32, r["factor"])
        self.put("rope.scaling.original_context_length", U32, r["original_max_position_embeddings"])
        for key, name in ("beta_fast", "beta_fast"), ("beta_slow", "beta_slow"), ("attention_factor", "attn_factor"):
            self.put("rope.scaling.yarn_" + name, F32, r.get(key))
        if r.get("mscale_all_dim"):
            self.put("rope.scaling.yarn_log_multiplier", F32, 0.1 * r["mscale_all_dim"])

    def experts_of_deepseek(self):
        c = self.c
        if self.arch not in ("deepseek2", "glm4moe"):
            return
        sigmoid = c["model_type"] != "deepseek_v2"
        self.put("expert_gating_func", U32, 2 if sigmoid else 1)
        self.put("expert_group_count", U32, c.get("n_group"))
        self.put("expert_group_used_count", U32, c.get("topk_group"))
        self.put("expert_shared_count", U32, c.get("n_shared_experts"))
        self.put("expert_weights_scale", F32, c.get("routed_scaling_factor", 1.0))
        self.put("expert_weights_norm", BOOL, c.get("norm_topk_prob"))
        dense = c.get("first_k_dense_replace")
        if dense is None:
            dense = (c["mlp_layer_types"] + ["sparse"]).index("sparse")
        self.put("leading_dense_block_count", U32, dense)
        if self.arch != "deepseek2":
            return
        k, rope = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["qk_rope_head_dim"]
        self.put("attention.q_lora_rank", U32, c.get("q_lora_rank"))
        self.put("attention.kv_lora_rank", U32, c["kv_lora_rank"])
        self.put("attention.key_length", U32, c["kv_lora_rank"] + rope)
        self.put("attention.value_length", U32, c["kv_lora_rank"])
        self.put("attention.key_length_mla", U32, k)
        self.put("attention.value_length_mla", U32, c["v_head_dim"])

    def delta(self):
        c = self.c
        if "linear_num_key_heads" not in c:
            return
        self.put("ssm.conv_kernel", U32, c["linear_conv_kernel_dim"])
        self.put("ssm.state_size", U32, c["linear_key_head_dim"])
        self.put("ssm.group_count", U32, c["linear_num_key_heads"])
        self.put("ssm.time_step_rank", U32, c["linear_num_value_heads"])
        self.put("ssm.inner_size", U32, c["linear_num_value_heads"] * c["linear_value_head_dim"])
        if c.get("layer_types"):
            self.put("attention.recurrent_layers", ARRAY, (BOOL, [t == "linear_attention" for t in c["layer_types"]]))
        self.put("full_attention_interval", U32, c.get("full_attention_interval", 4))

    def gemma(self):
        c = self.c
        if self.arch != "gemma4":
            return
        r, sliding = c["rope_parameters"], [t == "sliding_attention" for t in c["layer_types"]]
        full_kv = c.get("num_global_key_value_heads") or c["num_key_value_heads"]
        self.put("attention.head_count_kv", ARRAY, (I32, [c["num_key_value_heads"] if s else full_kv for s in sliding]))
        self.put("attention.sliding_window_pattern", ARRAY, (BOOL, sliding))
        self.put("attention.shared_kv_layers", U32, c.get("num_kv_shared_layers", 0))
        self.put("embedding_length_per_layer_input", U32, c.get("hidden_size_per_layer_input", 0))
        self.put("final_logit_softcapping", F32, c.get("final_logit_softcapping"))
        for key in "key", "value":
            self.put("attention.%s_length" % key, U32, c["global_head_dim"])
            self.put("attention.%s_length_swa" % key, U32, c["head_dim"])
        self.put("rope.freq_base", F32, r["full_attention"]["rope_theta"])
        self.put("rope.freq_base_swa", F32, r["sliding_attention"]["rope_theta"])
        self.put("rope.dimension_count", U32, c["global_head_dim"])
        self.put("rope.dimension_count_swa", U32, c["head_dim"])

    def phi(self):
        c = self.c
        if self.arch != "phimoe":
            return
        r = c.get("rope_scaling") or c.get("rope_parameters") or {}
        head = c["hidden_size"] // c["num_attention_heads"]
        self.put("rope.dimension_count", U32, head)
        self.put("rope.freq_base", F32, c.get("rope_theta", r.get("rope_theta")))
        self.put("rope.scaling.original_context_length", U32, r.get("original_max_position_embeddings"))
        self.put("rope.scaling.attn_factor", F32, r.get("long_mscale"))


def load(path):
    """A checkpoint's configuration and tensors."""
    with open(os.path.join(path, "config.json")) as f:
        cfg = json.load(f)
    tensors = {}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        tensors.update(tc.read_safetensors(file))
    return cfg, tensors


def rope_tensors(cfg):
    """Numbers of RoPE that are tensors."""
    arch, c = ARCHITECTURES[cfg["model_type"]], cfg
    r = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if arch == "phimoe" and r.get("long_factor"):
        return {"rope_factors_%s.weight" % k: ("F32", [len(r[k + "_factor"])], as_f32(r[k + "_factor"])) for k in ("long", "short")}
    if arch == "gemma4":
        half, full = c["global_head_dim"] // 2, r["full_attention"]
        turned = int(half * full.get("partial_rotary_factor", 1))
        return {"rope_freqs.weight": ("F32", [half], as_f32([full.get("factor", 1.0)] * turned + [1e30] * (half - turned)))}
    return {}


def convert(path, drop=lambda name: False):
    """(metadata, tensors) of a checkpoint's folder, for write_file; drop: names of the checkpoint to leave out."""
    cfg, tensors = load(path)
    return convert_tensors(cfg, {n: t for n, t in tensors.items() if not n.startswith("mtp.") and not drop(n)})


def convert_tensors(cfg, tensors):
    """tensors: {name: (type, shape, bytes)}, of any type of TYPES."""
    text = dict(cfg.get("text_config", cfg))
    converter = Converter(text, tensors)
    converter.out.update(rope_tensors(text))
    return Keys(text, tensors).kv, [(n, kind, shape, raw) for n, (kind, shape, raw) in converter.out.items()]
