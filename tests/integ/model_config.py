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
}
# What else config.json may call a family.
MODEL_TYPES = {"kimi_k2": "deepseek_v3"}
ARCHITECTURES = {"MixtralForCausalLM": "mixtral", "Qwen3MoeForCausalLM": "qwen3_moe", "Qwen2MoeForCausalLM": "qwen2_moe",
                 "OlmoeForCausalLM": "olmoe", "DeepseekV2ForCausalLM": "deepseek_v2",
                 "DeepseekV3ForCausalLM": "deepseek_v3", "Glm4MoeForCausalLM": "glm4_moe",
                 "Glm4MoeLiteForCausalLM": "glm4_moe_lite", "MiniMaxM2ForCausalLM": "minimax_m2"}
MATS = ["gate", "up", "down"]
WHOLE = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight", "final_norm": "model.norm.weight"}
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
    ("router_bias", "mlp.gate.e_score_correction_bias", False),
]


def f32_bits(x):
    return "%08x" % struct.unpack("<I", struct.pack("<f", x))[0]


def f64_bits(x):
    return "%016x" % struct.unpack("<Q", struct.pack("<d", x))[0]


def text(fields):
    return " ".join("%s=%s" % (k, int(v) if isinstance(v, bool) else v) for k, v in fields.items())


class Model:
    """dense: (role, layer or None, shape) in order. mats: shapes of an expert's matrices. layer_of: of each MoE layer."""

    def __init__(self, cfg):
        self.cfg, self.family = cfg, cfg.get("model_type") or ARCHITECTURES[cfg["architectures"][0]]
        self.family = MODEL_TYPES.get(self.family, self.family)
        self.latent = self.family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
        self.v3 = self.family in ("deepseek_v3", "glm4_moe", "glm4_moe_lite")  # its routers
        self.sigmoid = self.v3 or self.family == "minimax_m2"
        n_key, inner_key = SIZES[self.family]
        self.hidden, self.n_layers = cfg["hidden_size"], cfg["num_hidden_layers"]
        n_key = n_key if cfg.get(n_key) is not None else "num_local_experts"
        self.n_experts, self.inner, self.heads = cfg[n_key], cfg[inner_key], cfg["num_attention_heads"]
        self.mats = [[self.inner, self.hidden], [self.inner, self.hidden], [self.hidden, self.inner]]
        self.layer_of = [i for i in range(self.n_layers) if self.is_moe(i)]
        self.n_moe = len(self.layer_of)
        self.tied = self.get("tie_word_embeddings", False)
        self.dense = [(role, None, shape) for role, shape in self._whole()]
        for layer in range(self.n_layers):
            has = {**self._attention_shapes(), **self._ffn_shapes(layer)}
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
        if self.family.startswith("qwen"):
            return (layer + 1) % self.get("decoder_sparse_step", 1) == 0 and layer not in self.get("mlp_only_layers", [])
        return True

    # ---- shapes ----

    def _whole(self):
        table = [self.cfg["vocab_size"], self.hidden]
        return [("embed", table)] + [("head", table)] * (not self.tied) + [("final_norm", [self.hidden])]

    def _heads(self):
        """Key-value heads, and the size of a head."""
        return self.get("num_key_value_heads", self.heads), self.get("head_dim", self.hidden // self.heads)

    def _biases(self):
        """Of q, k and v; of o."""
        if self.family == "qwen2_moe":
            return self.get("qkv_bias", True), False
        has = self.family not in ("mixtral", "minimax_m2") and self.get("attention_bias", False)
        return has, has and self.family != "glm4_moe"

    def _qk_norm(self):
        """0: none; 1: of each head; 2: of all together."""
        if self.family == "glm4_moe":
            return int(self.get("use_qk_norm", False))
        return {"qwen3_moe": 1, "olmoe": 2, "minimax_m2": 2}.get(self.family, 0)

    def _latent(self):
        c = self.cfg
        return (c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], self.get("q_lora_rank", 0), c["kv_lora_rank"])

    def _attention_shapes(self):
        if self.latent:
            return self._latent_shapes()
        (kv, d), h, (qkv_bias, o_bias) = self._heads(), self.hidden, self._biases()
        q, k = self.heads * d, kv * d
        out = {"attn_q": [q, h], "attn_k": [k, h], "attn_v": [k, h], "attn_o": [h, q]}
        if qkv_bias:
            out.update(attn_q_bias=[q], attn_k_bias=[k], attn_v_bias=[k])
        if o_bias:
            out.update(attn_o_bias=[h])
        if self._qk_norm() == 1:
            out.update(attn_q_norm=[d], attn_k_norm=[d])
        if self._qk_norm() == 2:
            out.update(attn_q_norm=[q], attn_k_norm=[k])
        return out

    def _latent_shapes(self):
        (nope, turning, v, q_rank, rank), h, n = self._latent(), self.hidden, self.heads
        out = {"attn_o": [h, n * v], "attn_kv_a": [rank + turning, h], "attn_kv_a_norm": [rank],
               "attn_kv_b": [n * (nope + v), rank]}
        if q_rank == 0:
            return dict(out, attn_q=[n * (nope + turning), h])
        return dict(out, attn_q_a=[q_rank, h], attn_q_a_norm=[q_rank], attn_q_b=[n * (nope + turning), q_rank])

    def shared(self):
        if self.latent or self.v3:
            return self.get("n_shared_experts", int(self.v3)) * self.inner
        return self.cfg["shared_expert_intermediate_size"] if self.family == "qwen2_moe" else 0

    def _ffn_shapes(self, layer):
        h, out = self.hidden, {"attn_norm": [self.hidden], "ffn_norm": [self.hidden]}
        part, inner = ("shared", self.shared()) if self.is_moe(layer) else ("ffn", self.cfg["intermediate_size"])
        if inner:
            out.update({part + "_gate": [inner, h], part + "_up": [inner, h], part + "_down": [h, inner]})
        if self.is_moe(layer):
            out.update(router=[self.n_experts, h])
            if self.family == "qwen2_moe":
                out.update(shared_score=[1, h])
            if self.sigmoid:
                out.update(router_bias=[self.n_experts])
        return out

    # ---- names ----

    def dense_name(self, role, layer):
        if layer is None:
            return WHOLE[role]
        (name,) = [n for r, n, _ in ROLES if r == role]
        if self.family in ("mixtral", "minimax_m2") and role == "router":
            name = "block_sparse_moe.gate.weight"
        if self.family == "minimax_m2" and role == "router_bias":
            name = "block_sparse_moe.e_score_correction_bias"
        if self.family == "qwen2_moe":
            name = name.replace("shared_experts", "shared_expert")
        return "model.layers.%d.%s" % (layer, name)

    def expert_name(self, m, expert, mat):
        part = "mlp.experts.%d.%s_proj" % (expert, mat)
        if self.family in ("mixtral", "minimax_m2"):
            part = "block_sparse_moe.experts.%d.%s" % (expert, dict(gate="w1", up="w3", down="w2")[mat])
        return "model.layers.%d.%s.weight" % (self.layer_of[m], part)

    def experts(self):
        """(name, shape) of each matrix in order."""
        return [(self.expert_name(m, e, mat), shape) for m in range(self.n_moe) for e in range(self.n_experts)
                for mat, shape in zip(MATS, self.mats)]

    def tensors(self):
        """(name, shape) of all."""
        return [(self.dense_name(role, layer), shape) for role, layer, shape in self.dense] + self.experts()

    def shadow_names(self):
        small = {role for role, _, quantised in ROLES if not quantised} | set(WHOLE)
        return [self.dense_name(r, layer) for r, layer, _ in self.dense if r not in small] + [n for n, _ in self.experts()]

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
        head, part = self._heads()[1], self._rope_object().get("partial_rotary_factor")
        if self.family not in ("glm4_moe", "minimax_m2"):
            return head
        if part is None and self.get("rotary_dim") is not None:
            return self.cfg["rotary_dim"]
        default = 0.5 if self.family == "glm4_moe" else 1
        return int(head * (self.get("partial_rotary_factor", default) if part is None else part))

    def rope_text(self):
        latent, o = self.latent, self._yarn()
        theta = self._rope_object().get("rope_theta") or self.cfg["rope_theta"]
        dims = self._latent()[1] if latent else self._rotated()
        out = dict(dims=dims, neighbours=latent, theta=f64_bits(theta), magnitude=f32_bits(1))
        if o is None:
            return text(out)
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
        (kv, d), (qkv_bias, o_bias) = self._heads(), self._biases()
        clip = self.get("clip_qkv", 0) if self.family == "olmoe" else 0
        return dict(mixer="gqa", heads=self.heads, kv_heads=kv, k_dim=d, v_dim=d, window=self.window(layer),
                    scale=f32_bits(1 / math.sqrt(d)), rope=0, qkv_bias=qkv_bias, o_bias=o_bias,
                    qk_norm=self._qk_norm(), norm_eps=f32_bits(self.cfg["rms_norm_eps"]),
                    clip=f32_bits(clip), nope=0, q_rank=0, kv_rank=0)

    def _ffn_text(self, layer):
        if not self.is_moe(layer):
            return dict(dense=self.cfg["intermediate_size"])
        grouped = self.v3 or self.family == "deepseek_v2" and self.get("topk_method") == "group_limited_greedy"
        fixed = {"mixtral": True, "minimax_m2": True, "deepseek_v2": False}
        normed = fixed.get(self.family, self.get("norm_topk_prob", self.v3))
        default = {"deepseek_v3": 2.5, "glm4_moe_lite": 1.8}.get(self.family, 1)
        scale = self.get("routed_scaling_factor", default) if self.latent or self.v3 else 1
        out = dict(groups=self.cfg["n_group"] if grouped else 0, top_groups=self.cfg["topk_group"] if grouped else 0,
                   renormalise=normed, weight=f32_bits(scale), shared=self.shared(), shared_gate=self.family == "qwen2_moe")
        if self.sigmoid:
            out.update(score="sigmoid", router_bias=1, group_two=self.v3, sum_eps=f32_bits(1e-20 if self.v3 else 0))
        return out

    def layer_texts(self):
        return [text(self._attention_text(i) | self._ffn_text(i)) for i in range(self.n_layers)]

    def text(self):
        c, layers = self.cfg, self.layer_texts()
        kinds = list(dict.fromkeys(layers))
        model = dict(family=self.family, hidden=self.hidden, vocab=c["vocab_size"], experts=self.n_experts,
                     top_k=c["num_experts_per_tok"], intermediate=self.inner, rms_eps=f32_bits(c["rms_norm_eps"]),
                     tied_head=self.tied)
        return "; ".join([text(model), "rope 0: " + self.rope_text(), *["kind %d: %s" % k for k in enumerate(kinds)],
                          "layers " + " ".join(str(kinds.index(t)) for t in layers)])


def mixtral_bytes(c):
    """Of a Mixtral model in BF16: what a decoded token reads beside its experts (the embedding: one row), and an expert."""
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or h // heads
    attention = h * heads * d * 2 + h * kv * d * 2
    layer = attention + 2 * h + c["num_local_experts"] * h
    rest = c["vocab_size"] * h + h + h  # the head, tied or not; a row of the embedding; the last norm
    return 2 * (c["num_hidden_layers"] * layer + rest), 2 * 3 * h * c["intermediate_size"]
