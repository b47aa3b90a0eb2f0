"""What a config.json says of a model: which tensors it has, their shapes, and its text for the fingerprint. Written from
docs/PACK-FORMAT.md and from what transformers means by the fields; nothing here is taken from od-pack. Standard library."""
import math
import struct

# Where a family has the number of its routed experts, and their inner size.
SIZES = {
    "mixtral": ("num_local_experts", "intermediate_size"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
    "qwen2_moe": ("num_experts", "moe_intermediate_size"),
    "olmoe": ("num_experts", "intermediate_size"),
    "deepseek_v2": ("n_routed_experts", "moe_intermediate_size"),
    "deepseek_v3": ("n_routed_experts", "moe_intermediate_size"),
    "glm4_moe": ("n_routed_experts", "moe_intermediate_size"),
    "glm4_moe_lite": ("n_routed_experts", "moe_intermediate_size"),
    "minimax_m2": ("num_local_experts", "intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"),
    "phimoe": ("num_local_experts", "intermediate_size"),
    "qwen3_next": ("num_experts", "moe_intermediate_size"),
    "qwen3_5_moe": ("num_experts", "moe_intermediate_size"),
    "gemma4": ("num_experts", "moe_intermediate_size"),
}
# What else config.json may call a family.
MODEL_TYPES = {"kimi_k2": "deepseek_v3", "qwen3_5_moe_text": "qwen3_5_moe", "gemma4_text": "gemma4"}
ARCHITECTURES = {"MixtralForCausalLM": "mixtral", "PhiMoEForCausalLM": "phimoe", "PhimoeForCausalLM": "phimoe",
                 "Qwen3MoeForCausalLM": "qwen3_moe", "Qwen2MoeForCausalLM": "qwen2_moe",
                 "OlmoeForCausalLM": "olmoe", "DeepseekV2ForCausalLM": "deepseek_v2",
                 "DeepseekV3ForCausalLM": "deepseek_v3", "Glm4MoeForCausalLM": "glm4_moe",
                 "Glm4MoeLiteForCausalLM": "glm4_moe_lite", "MiniMaxM2ForCausalLM": "minimax_m2",
                 "GptOssForCausalLM": "gpt_oss", "Qwen3NextForCausalLM": "qwen3_next", "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
                 "Gemma4ForCausalLM": "gemma4"}
MATS = ["gate", "up", "down"]
BIASES = [mat + "_bias" for mat in MATS]
WHOLE = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight", "final_norm": "model.norm.weight",
         "final_norm_bias": "model.norm.bias", "head_bias": "lm_head.bias", "layer_embed": "model.embed_tokens_per_layer.weight",
         "layer_project": "model.per_layer_model_projection.weight", "layer_project_norm": "model.per_layer_projection_norm.weight"}
# Roles that layers have, in order; names in most families; whether shadows have them.
ROLES = [
    ("attn_norm", "input_layernorm.weight", False), ("attn_q", "self_attn.q_proj.weight", True),
    ("attn_k", "self_attn.k_proj.weight", True), ("attn_v", "self_attn.v_proj.weight", True),
    ("attn_o", "self_attn.o_proj.weight", True), ("ffn_norm", "post_attention_layernorm.weight", False),
    ("router", "mlp.gate.weight", False), ("attn_q_bias", "self_attn.q_proj.bias", False),
    ("attn_k_bias", "self_attn.k_proj.bias", False), ("attn_v_bias", "self_attn.v_proj.bias", False),
    ("attn_o_bias", "self_attn.o_proj.bias", False), ("attn_q_norm", "self_attn.q_norm.weight", False),
    ("attn_k_norm", "self_attn.k_norm.weight", False), ("attn_q_a", "self_attn.q_a_proj.weight", True),
    ("attn_q_a_norm", "self_attn.q_a_layernorm.weight", False), ("attn_q_b", "self_attn.q_b_proj.weight", True),
    ("attn_kv_a", "self_attn.kv_a_proj_with_mqa.weight", True), ("attn_kv_a_norm", "self_attn.kv_a_layernorm.weight", False),
    ("attn_kv_b", "self_attn.kv_b_proj.weight", False), ("ffn_gate", "mlp.gate_proj.weight", True),
    ("ffn_up", "mlp.up_proj.weight", True), ("ffn_down", "mlp.down_proj.weight", True),
    ("shared_gate", "mlp.shared_experts.gate_proj.weight", True), ("shared_up", "mlp.shared_experts.up_proj.weight", True),
    ("shared_down", "mlp.shared_experts.down_proj.weight", True), ("shared_score", "mlp.shared_expert_gate.weight", False),
    ("router_bias", "mlp.gate.e_score_correction_bias", False), ("attn_sinks", "self_attn.sinks", False),
    ("router_logit_bias", "mlp.router.bias", False), ("attn_norm_bias", "input_layernorm.bias", False),
    ("ffn_norm_bias", "post_attention_layernorm.bias", False), ("delta_qkvz", "linear_attn.in_proj_qkvz.weight", True),
    ("delta_ba", "linear_attn.in_proj_ba.weight", False), ("delta_qkv", "linear_attn.in_proj_qkv.weight", True),
    ("delta_z", "linear_attn.in_proj_z.weight", True), ("delta_b", "linear_attn.in_proj_b.weight", False),
    ("delta_a", "linear_attn.in_proj_a.weight", False), ("delta_conv", "linear_attn.conv1d.weight", False),
    ("delta_a_log", "linear_attn.A_log", False), ("delta_dt_bias", "linear_attn.dt_bias", False),
    ("delta_norm", "linear_attn.norm.weight", False), ("delta_out", "linear_attn.out_proj.weight", True),
    ("router_norm", "router.scale", False), ("router_factors", "router.per_expert_scale", False),
    ("attn_post_norm", "post_attention_layernorm.weight", False), ("shared_norm", "pre_feedforward_layernorm.weight", False),
    ("shared_post_norm", "post_feedforward_layernorm_1.weight", False),
    ("experts_post_norm", "post_feedforward_layernorm_2.weight", False),
    ("ffn_post_norm", "post_feedforward_layernorm.weight", False), ("layer_scale", "layer_scalar", False),
    ("input_gate", "per_layer_input_gate.weight", False), ("input_project", "per_layer_projection.weight", False),
    ("input_post_norm", "post_per_layer_input_norm.weight", False),
]


# What transformers takes where num_key_value_heads and rope_theta are missing.
KV_HEADS = dict(mixtral=8, qwen3_moe=4, qwen2_moe=16, glm4_moe=8, minimax_m2=8, gpt_oss=8, phimoe=8, qwen3_next=2, qwen3_5_moe=2)
THETA = dict(mixtral=1e6, minimax_m2=5e6, gpt_oss=150000, phimoe=1e6)


def f32_bits(x):
    return "%08x" % struct.unpack("<I", struct.pack("<f", x))[0]


def f64_bits(x):
    return "%016x" % struct.unpack("<Q", struct.pack("<d", x))[0]


def text(fields):
    return " ".join("%s=%s" % (k, int(v) if isinstance(v, bool) else v) for k, v in fields.items())


class Model:
    """dense: (role, layer or None, shape) in order. parts: of an expert, name -> shape. layer_of: of each MoE layer."""

    def __init__(self, cfg):
        self.prefix = "model." if cfg.get("text_config") is None else "model.language_model."  # of names in the checkpoint
        outer, cfg = cfg, cfg.get("text_config") or cfg
        self.cfg, self.family = cfg, cfg.get("model_type") or ARCHITECTURES[cfg["architectures"][0]]
        self.family = MODEL_TYPES.get(self.family, self.family)
        if self.family == "olmoe":
            self.cfg = cfg = {"rms_norm_eps": 1e-5, **cfg}
        self.latent = self.family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
        self.v3 = self.family in ("deepseek_v3", "glm4_moe", "glm4_moe_lite")  # its routers
        self.gated = self.family in ("qwen3_next", "qwen3_5_moe")
        self.stacks = self.family in ("gpt_oss", "qwen3_5_moe", "gemma4")  # published with all experts of a layer in one tensor
        self.sigmoid = self.v3 or self.family == "minimax_m2"
        self.gemma = self.family == "gemma4"
        n_key, inner_key = SIZES[self.family]
        self.hidden, self.n_layers = cfg["hidden_size"], cfg["num_hidden_layers"]
        n_key = n_key if cfg.get(n_key) is not None else "num_local_experts"
        self.n_experts, self.inner, self.heads = cfg[n_key], cfg[inner_key], cfg["num_attention_heads"]
        self.parts = dict(zip(MATS, [[self.inner, self.hidden], [self.inner, self.hidden], [self.hidden, self.inner]]))
        if self.family == "gpt_oss":
            self.parts |= {name: shape[:1] for name, shape in zip(BIASES, list(self.parts.values()))}
        self.layer_of = [i for i in range(self.n_layers) if self.is_moe(i)]
        self.n_moe = len(self.layer_of)
        self.top_k = cfg["top_k_experts" if self.gemma else "num_experts_per_tok"]
        tied = outer.get("tie_word_embeddings")
        self.tied = self.get("tie_word_embeddings", self.gemma) if tied is None else tied
        self.dense = [(role, None, shape) for role, shape in self._whole()]
        for layer in range(self.n_layers):
            has = {**self._attention_shapes(layer), **self._ffn_shapes(layer)}
            self.dense += [(role, layer, has[role]) for role, _, _ in ROLES if role in has]

    def get(self, key, default=None):
        value = self.cfg.get(key)
        return default if value is None else value

    def is_moe(self, layer):
        if self.family == "glm4_moe_lite" and self.get("mlp_layer_types"):
            return self.cfg["mlp_layer_types"][layer] == "sparse"
        if self.latent or self.v3:
            default = {"deepseek_v3": 3, "glm4_moe": 1, "glm4_moe_lite": 1}.get(self.family, 0)
            return layer >= self.get("first_k_dense_replace", default)
        if self.family.startswith("qwen") and self.family != "qwen3_5_moe":
            return (layer + 1) % self.get("decoder_sparse_step", 1) == 0 and layer not in self.get("mlp_only_layers", [])
        return True

    # ---- shapes ----

    def _whole(self):
        table = [self.cfg["vocab_size"], self.hidden]
        out = [("embed", table)] + [("head", table)] * (not self.tied) + [("final_norm", [self.hidden])]
        if self.family == "phimoe":
            out += [("final_norm_bias", [self.hidden])] + [("head_bias", table[:1])] * self.get("lm_head_bias", False)
        if self.inputs():
            n = self.n_layers * self.inputs()
            out += [("layer_embed", [self.cfg["vocab_size"], n]), ("layer_project", [n, self.hidden]), ("layer_project_norm", [self.inputs()])]
        return out

    def inputs(self):
        """Of Gemma 4: the width of each layer's own embedding of a token."""
        return self.get("hidden_size_per_layer_input", 256) if self.gemma else 0

    def kv_of(self, layer):
        """Of Gemma 4: the earlier layer whose keys and values this one uses; None: its own."""
        n_own = self.n_layers - self.get("num_kv_shared_layers", 0) if self.gemma else self.n_layers
        return None if layer < n_own else max(i for i in range(n_own) if self.full(i) == self.full(layer))

    def heads_of(self, layer=0):
        """Key-value heads, and the size of a head."""
        if self.gemma:
            return self._gemma_heads(layer)
        kv = self.cfg.get("num_key_value_heads", KV_HEADS.get(self.family))
        return self.heads if kv is None else kv, self.get("head_dim", self.hidden // self.heads)

    def _gemma_heads(self, layer):
        kv, d, full = self.get("num_key_value_heads"), self.get("head_dim", 256), self.full(layer)
        if self.get("per_layer_config"):
            o = self.cfg["per_layer_config"].get("%02d" % layer) or self.cfg["per_layer_config"].get("%d" % layer) or {}
            return o.get("num_key_value_heads", kv), o.get("head_dim", d)
        return (self.get("num_global_key_value_heads", kv) if self.v_is_k(layer) else kv,
                self.get("global_head_dim", 512) if full else d)

    def full(self, layer):
        """Of Gemma 4: has the layer no window?"""
        types = self.get("layer_types")
        return layer == self.n_layers - 1 or (types[layer] == "full_attention" if types else layer % 6 == 5)

    def v_is_k(self, layer):
        return self.gemma and self.get("attention_k_eq_v", False) and self.full(layer)

    def _biases(self):
        """Of q, k and v; of o."""
        if self.family == "qwen2_moe":
            return self.get("qkv_bias", True), False
        has = self.family not in ("mixtral", "minimax_m2", "gemma4") and self.get("attention_bias", self.family == "gpt_oss")
        return has, has and self.family != "glm4_moe"

    def _qk_norm(self):
        """0: none; 1: of each head; 2: of all together."""
        if self.family == "glm4_moe":
            return int(self.get("use_qk_norm", False))
        return {"qwen3_moe": 1, "gemma4": 1, "olmoe": 2, "minimax_m2": 2}.get(self.family, int(self.gated))

    def _latent(self):
        c = self.cfg
        return (c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], self.get("q_lora_rank", 0), c["kv_lora_rank"])

    def is_delta(self, layer):
        """Has the layer a gated delta rule instead of attention?"""
        types = self.get("layer_types")
        return self.gated and (types[layer] == "linear_attention" if types else
                               (layer + 1) % self.get("full_attention_interval", 4) != 0)

    def _delta(self):
        """Heads of values and of keys, their sizes, taps."""
        return [self.cfg["linear_" + k] for k in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim",
                                                  "conv_kernel_dim")]

    def _delta_shapes(self):
        (n, n_keys, k, v, taps), h = self._delta(), self.hidden
        keys, values = n_keys * k, n * v
        out = dict(delta_conv=[2 * keys + values, 1, taps], delta_a_log=[n], delta_dt_bias=[n], delta_norm=[v], delta_out=[h, values])
        if self.family == "qwen3_next":
            return dict(out, delta_qkvz=[2 * keys + 2 * values, h], delta_ba=[2 * n, h])
        return dict(out, delta_qkv=[2 * keys + values, h], delta_z=[values, h], delta_b=[n, h], delta_a=[n, h])

    def _attention_shapes(self, layer):
        if self.latent:
            return self._latent_shapes()
        if self.is_delta(layer):
            return self._delta_shapes()
        (kv, d), h, (qkv_bias, o_bias) = self.heads_of(layer), self.hidden, self._biases()
        q, k = self.heads * d, kv * d
        wide = 2 * q if self.gated else q  # gates
        out = {"attn_q": [wide, h], "attn_k": [k, h], "attn_v": [k, h], "attn_o": [h, q]}
        if self.v_is_k(layer):
            del out["attn_v"]
        if qkv_bias:
            out.update(attn_q_bias=[wide], attn_k_bias=[k], attn_v_bias=[k])
        if o_bias:
            out.update(attn_o_bias=[h])
        if self._qk_norm() == 1:
            out.update(attn_q_norm=[d], attn_k_norm=[d])
        if self._qk_norm() == 2:
            out.update(attn_q_norm=[q], attn_k_norm=[k])
        if self.family == "gpt_oss":
            out.update(attn_sinks=[self.heads])
        if self.kv_of(layer) is not None:
            return {k: v for k, v in out.items() if k not in ("attn_k", "attn_v", "attn_k_norm")}
        return out

    def _latent_shapes(self):
        (nope, turning, v, q_rank, rank), h, n = self._latent(), self.hidden, self.heads
        out = {"attn_o": [h, n * v], "attn_kv_a": [rank + turning, h], "attn_kv_a_norm": [rank],
               "attn_kv_b": [n * (nope + v), rank]}
        if q_rank == 0:
            return dict(out, attn_q=[n * (nope + turning), h])
        return dict(out, attn_q_a=[q_rank, h], attn_q_a_norm=[q_rank], attn_q_b=[n * (nope + turning), q_rank])

    def shared(self, layer=0):
        if self.latent or self.v3:
            return self.get("n_shared_experts", int(self.v3)) * self.inner
        if self.gemma:
            double = self.get("use_double_wide_mlp", False) and self.kv_of(layer) is not None
            return self.cfg["intermediate_size"] * (2 if double else 1)
        return self.cfg["shared_expert_intermediate_size"] if self.shared_gate() else 0

    def shared_gate(self):
        return self.family == "qwen2_moe" or self.gated

    def _ffn_shapes(self, layer):
        h, out = self.hidden, {"attn_norm": [self.hidden], "ffn_norm": [self.hidden]}
        if self.family == "phimoe":
            out.update(attn_norm_bias=[h], ffn_norm_bias=[h])
        part, inner = ("shared", self.shared(layer)) if self.is_moe(layer) else ("ffn", self.cfg["intermediate_size"])
        if inner:
            out.update({part + "_gate": [inner, h], part + "_up": [inner, h], part + "_down": [h, inner]})
        if self.is_moe(layer):
            out.update(router=[self.n_experts, h])
            if self.shared_gate():
                out.update(shared_score=[1, h])
            if self.sigmoid:
                out.update(router_bias=[self.n_experts])
            if self.family == "gpt_oss":
                out.update(router_logit_bias=[self.n_experts])
        if self.gemma:
            norms = "router_norm", "attn_post_norm", "shared_norm", "shared_post_norm", "experts_post_norm", "ffn_post_norm"
            out.update(dict.fromkeys(norms, [h]), router_factors=[self.n_experts], layer_scale=[1])
        if self.inputs():
            out.update(input_gate=[self.inputs(), h], input_project=[h, self.inputs()], input_post_norm=[h])
        return out

    # ---- names ----

    def dense_name(self, role, layer):
        if layer is None:
            return WHOLE[role]
        (name,) = [n for r, n, _ in ROLES if r == role]
        if self.family in ("mixtral", "minimax_m2", "phimoe") and role == "router":
            name = "block_sparse_moe.gate.weight"
        if self.family == "minimax_m2" and role == "router_bias":
            name = "block_sparse_moe.e_score_correction_bias"
        if self.family == "gpt_oss" and role == "router":
            name = "mlp.router.weight"
        if self.shared_gate():
            name = name.replace("shared_experts", "shared_expert")
        if self.gemma:
            own = dict(router="router.proj.weight", ffn_norm="pre_feedforward_layernorm_2.weight")
            name = own.get(role, name.replace("shared_experts.", ""))
        return "model.layers.%d.%s" % (layer, name)

    def expert_name(self, m, expert, part):
        mat, suffix = part.split("_")[0], "bias" if part in BIASES else "weight"
        name = "mlp.experts.%d.%s_proj" % (expert, mat)
        if self.family in ("mixtral", "minimax_m2", "phimoe"):
            name = "block_sparse_moe.experts.%d.%s" % (expert, dict(gate="w1", up="w3", down="w2")[mat])
        if self.gemma:
            name = name[len("mlp."):]
        return "model.layers.%d.%s.%s" % (self.layer_of[m], name, suffix)

    def experts(self):
        """(name, shape) of each part in order."""
        return [(self.expert_name(m, e, part), shape) for m in range(self.n_moe) for e in range(self.n_experts)
                for part, shape in self.parts.items()]

    def stacked_name(self, m, part):
        """The tensor that has this part of all experts, unless it is MXFP4."""
        both = "down" if part.startswith("down") else "gate_up"
        return "model.layers.%d.%sexperts.%s_proj%s" % (self.layer_of[m], "" if self.gemma else "mlp.", both, "_bias" * (part in BIASES))

    def stacked_source(self, m, expert, part, blocks):
        """What model.json says of a part that is in such a tensor. blocks: of MXFP4."""
        n_out, n_in = (*self.parts[part], 1)[:2]
        both = not part.startswith("down")  # gate and up
        if self.family != "gpt_oss":
            first = expert * (1 + both) + part.startswith("up")
            return dict(tensor=self.stacked_name(m, part), transposed=False, first_element=first * n_out * n_in)
        rows, first = (2 * n_out, int(part.startswith("up"))) if both else (n_out, 0)
        turned = not blocks and part in MATS
        out = dict(tensor=self.stacked_name(m, part) + "_blocks" * blocks, transposed=turned,
                   first_element=expert * rows * n_in + first * (1 if turned else n_in))
        return dict(out, row_step=2) if both else out

    def tensors(self):
        """(name, shape) of all."""
        return [(self.dense_name(role, layer), shape) for role, layer, shape in self.dense] + self.experts()

    def shadow_names(self):
        small = {role for role, _, quantised in ROLES if not quantised} | set(WHOLE)
        return [self.dense_name(r, layer) for r, layer, _ in self.dense if r not in small] + [
            self.expert_name(m, e, mat) for m in range(self.n_moe) for e in range(self.n_experts) for mat in MATS]

    # ---- the text ----

    def _rope_object(self):
        return self.get("rope_scaling") or self.get("rope_parameters") or {}

    def _yarn(self):
        """The object where it is YaRN's."""
        o = self._rope_object()
        return o if "yarn" in (o.get("rope_type"), o.get("type")) else None

    def _factor(self):
        o = self._yarn()
        return o.get("factor") or self.cfg["max_position_embeddings"] / o["original_max_position_embeddings"]

    def _m(self, s):
        return 1.0 if self._factor() <= 1 else 0.1 * s * math.log(self._factor()) + 1

    def _rotated(self):
        """How many elements of a head RoPE turns."""
        head, part = self.heads_of()[1], self._rope_object().get("partial_rotary_factor")
        if self.family not in ("glm4_moe", "minimax_m2") and not self.gated:
            return head
        if part is None and self.get("rotary_dim") is not None:
            return self.cfg["rotary_dim"]
        default = 0.5 if self.family == "glm4_moe" else 0.25 if self.gated else 1
        outer = self.cfg.get("partial_rotary_factor", default)
        return int(head * (part if part is not None else 1 if outer is None else outer))

    def rope_texts(self):
        return [self._gemma_rope(full) for full in (False, True)] if self.gemma else [self.rope_text()]

    def _gemma_rope(self, full):
        standard = dict(rope_theta=1e6, rope_type="proportional", partial_rotary_factor=0.25) if full else dict(rope_theta=1e4)
        o = self._rope_object().get("full_attention" if full else "sliding_attention", standard)
        of_kind = [i for i in range(self.n_layers) if self.full(i) == full]
        dims = self.heads_of(of_kind[0])[1] if of_kind else self.get("head_dim", 256)
        out = dict(dims=dims, neighbours=0, theta=f64_bits(o["rope_theta"]), magnitude=f32_bits(1))
        if o.get("rope_type") != "proportional":
            return text(out)
        pairs, factor = int(o.get("partial_rotary_factor", 1) * dims // 2), o.get("factor", 1)
        out.update(dict(pairs=pairs) if pairs < dims // 2 else {})
        return text(out | (dict(divisor=f64_bits(factor)) if factor != 1 else {}))

    def _long(self):
        """What long RoPE adds."""
        o = self._rope_object()
        if "longrope" not in (o.get("rope_type"), o.get("type")):
            return {}
        short, long = (",".join(map(f32_bits, o[k + "_factor"])) for k in ("short", "long"))
        return dict(magnitude=f32_bits(o["short_mscale"]), short_ctx=o["original_max_position_embeddings"],
                    long_magnitude=f32_bits(o["long_mscale"]), short_factors=short, long_factors=long)

    def rope_text(self):
        latent, o = self.latent, self._yarn()
        theta = self._rope_object().get("rope_theta") or self.get("rope_theta", THETA.get(self.family, 1e4))
        dims = self._latent()[1] if latent else self._rotated()
        out = dict(dims=dims, neighbours=latent and bool(self.cfg.get("rope_interleave", True)), theta=f64_bits(theta), magnitude=f32_bits(1))
        if o is None:
            return text(out | self._long())
        magnitude, m, m_all = o.get("attention_factor"), o.get("mscale"), o.get("mscale_all_dim")
        if magnitude is None:
            magnitude = self._m(m) / self._m(m_all) if m and m_all else self._m(1)
        return text(dict(out, magnitude=f32_bits(magnitude), factor=f64_bits(self._factor()),
                         beta_fast=f64_bits(o.get("beta_fast") or 32), beta_slow=f64_bits(o.get("beta_slow") or 1),
                         original_ctx=o.get("original_max_position_embeddings") or self.cfg["max_position_embeddings"],
                         **({} if o.get("truncate", True) else dict(between=1))))

    def window(self, layer):
        if self.family == "mixtral":
            return self.get("sliding_window", 0)
        if self.gemma:
            return 0 if self.full(layer) else self.get("sliding_window", 512)
        if self.family == "phimoe":
            size = self.get("sliding_window", 0)
            return size if size < self.cfg["max_position_embeddings"] else 0
        if self.family == "gpt_oss":
            types = self.get("layer_types")
            return self.cfg["sliding_window"] * (types[layer] == "sliding_attention" if types else layer % 2 == 0)
        if not self.family.startswith("qwen") or not self.get("use_sliding_window", False):
            return 0
        size = self.cfg.get("sliding_window", 4096) or 0
        if self.family == "qwen3_moe":
            return size
        types = self.get("layer_types")
        slides = types[layer] == "sliding_attention" if types else layer % 2 == 0 and layer < self.get("max_window_layers", 28)
        return size if slides else 0

    def _attention_text(self, layer):
        if self.latent:
            nope, turning, v, q_rank, rank = self._latent()
            by = (self._yarn() or {}).get("mscale_all_dim")
            scale = (self._m(by) * self._m(by) if by else 1) / math.sqrt(nope + turning)
            return dict(mixer="mla", heads=self.heads, kv_heads=1, k_dim=nope + turning, v_dim=v, window=0,
                        scale=f32_bits(scale), rope=0, qkv_bias=0, o_bias=0, qk_norm=0, norm_eps=f32_bits(1e-6),
                        clip=f32_bits(0), nope=nope, q_rank=q_rank, kv_rank=rank)
        if self.is_delta(layer):
            n, n_keys, k, v, taps = self._delta()
            return dict(mixer="delta", heads=n, kv_heads=n_keys, k_dim=k, v_dim=v, window=0, scale=f32_bits(0), rope=0, qkv_bias=0,
                        o_bias=0, qk_norm=0, norm_eps=f32_bits(self.cfg["rms_norm_eps"]), clip=f32_bits(0), nope=0, q_rank=0,
                        kv_rank=0, conv=taps, by_key_head=self.family == "qwen3_next")
        (kv, d), (qkv_bias, o_bias) = self.heads_of(layer), self._biases()
        clip = self.get("clip_qkv", 0) if self.family == "olmoe" else 0
        out = dict(mixer="gqa", heads=self.heads, kv_heads=kv, k_dim=d, v_dim=d, window=self.window(layer),
                   scale=f32_bits(1 if self.gemma else 1 / math.sqrt(d)), rope=self.gemma and self.full(layer), qkv_bias=qkv_bias, o_bias=o_bias,
                   qk_norm=self._qk_norm(), norm_eps=f32_bits(self.cfg["rms_norm_eps"]),
                   clip=f32_bits(clip), nope=0, q_rank=0, kv_rank=0)
        if self.gemma:
            of = self.kv_of(layer)
            out.update(dict(v_norm=1, v_is_k=self.v_is_k(layer)) | ({} if of is None else dict(kv_of=of)) | dict(sandwich=1, scaled=1))
        return dict(out, **({"gpt_oss": dict(sinks=1)} | dict.fromkeys(("qwen3_next", "qwen3_5_moe"), dict(gated=1))).get(
            self.family, {}))

    def _ffn_text(self, layer):
        if not self.is_moe(layer):
            return dict(dense=self.cfg["intermediate_size"])
        grouped = self.v3 or self.family == "deepseek_v2" and self.get("topk_method") == "group_limited_greedy"
        fixed = {"mixtral": True, "minimax_m2": True, "deepseek_v2": False, "gpt_oss": False, "phimoe": False,
                 "qwen3_5_moe": True, "gemma4": True}
        normed = fixed.get(self.family, bool(self.cfg.get("norm_topk_prob", True)) if self.v3 else self.get("norm_topk_prob", self.gated))
        default = {"deepseek_v3": 2.5, "glm4_moe_lite": 1.8}.get(self.family, 1)
        scale = self.get("routed_scaling_factor", default) if self.latent or self.v3 else 1
        out = dict(groups=self.cfg["n_group"] if grouped else 0, top_groups=self.cfg["topk_group"] if grouped else 0,
                   renormalise=normed, weight=f32_bits(scale), shared=self.shared(layer), shared_gate=self.shared_gate())
        if self.sigmoid:
            out.update(score="sigmoid", router_bias=1, group_two=self.v3, sum_eps=f32_bits(1e-20 if self.v3 else 0))
        if self.family == "gpt_oss":
            out.update(score="logit", router_bias=0, group_two=0, sum_eps=f32_bits(0), logit_bias=1)
        if self.family == "phimoe":
            band = 2 * self.get("router_jitter_noise", 0.01)
            out.update(score="mixer", router_bias=0, group_two=0, sum_eps=f32_bits(0), **({"band": f32_bits(band)} if band else {}))
        if self.gemma:
            out.update(router_norm=1, factors=1, logit_scale=f32_bits(1 / math.sqrt(self.hidden)))
        return out

    def layer_texts(self):
        return [text(self._attention_text(i) | self._ffn_text(i)) for i in range(self.n_layers)]

    def text(self):
        c, layers = self.cfg, self.layer_texts()
        kinds = list(dict.fromkeys(layers))
        model = dict(family=self.family, hidden=self.hidden, vocab=c["vocab_size"], experts=self.n_experts,
                     top_k=self.top_k, intermediate=self.inner, rms_eps=f32_bits(c["rms_norm_eps"]),
                     tied_head=self.tied)
        if self.gemma:
            model.update(act="gelu", embed_scale=f32_bits(math.sqrt(self.hidden)),
                         logit_cap=f32_bits(self.get("final_logit_softcapping", 0)), **(dict(layer_input=self.inputs()) if self.inputs() else {}))
        if self.gated:
            model |= dict(norms_around_one=1)
        if self.family == "phimoe":
            model |= dict(norm="layer", head_bias=self.get("lm_head_bias", False))
        if self.family == "gpt_oss":
            model |= dict(expert_bias=1, act="clamped", limit=f32_bits(self.get("swiglu_limit", 7)))
        return "; ".join([text(model), *["rope %d: %s" % r for r in enumerate(self.rope_texts())], *["kind %d: %s" % k for k in enumerate(kinds)],
                          "layers " + " ".join(str(kinds.index(t)) for t in layers)])


def mixtral_bytes(c):
    """Of a Mixtral model in BF16: what a decoded token reads beside its experts (the embedding: one row), and an expert."""
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or h // heads
    attention = h * heads * d * 2 + h * kv * d * 2
    layer = attention + 2 * h + c["num_local_experts"] * h
    rest = c["vocab_size"] * h + h + h  # the head, tied or not; a row of the embedding; the last norm
    return 2 * (c["num_hidden_layers"] * layer + rest), 2 * 3 * h * c["intermediate_size"]
