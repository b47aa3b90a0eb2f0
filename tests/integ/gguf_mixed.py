"""A Mixtral whose tensors have a format of GGUF each, and the same model as F32. Standard library only."""
import functools
import os
import random
import struct

import gguf_blocks as gb
import gguf_checkpoint as gg
import tiny_checkpoint as tc
from cluster_util import SLOW, TMP, tool
from float64_model import golden

# A Mixtral whose rows are whole blocks of 256 weights.
SHAPE = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 2,
         "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2,
         "vocab_size": 268, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
FORMATS = gb.NAMES + ["F16", "BF16", "F32"]
PROMPTS = [[1, 200, 202, 158], [1]]
TOKENS = 2 if SLOW else 3


def plain(name, n_out, n_in, rng):
    """A matrix in a format without blocks, and as F32."""
    values = [rng.gauss(0, gb.DEVIATION) for _ in range(n_out * n_in)]
    raw = {"F32": lambda: gg.as_f32(values), "F16": lambda: struct.pack("<%de" % len(values), *values),
           "BF16": lambda: b"".join(struct.pack("<f", v)[2:] for v in values)}[name]()
    return raw, gg.as_f32(gg.floats(name, raw))


def mixed(first):
    """Tensors of SHAPE in formats that differ by matrix and layer, from the first-th format on; and the same as F32."""
    c, rng, turn = SHAPE, random.Random(first), first
    hidden, kv = c["hidden_size"], c["num_key_value_heads"] * c["head_dim"]
    quantised, twin = {}, {}

    def put(name, n_out, n_in, kind=None):
        nonlocal turn
        if kind is None:
            kind, turn = FORMATS[turn % len(FORMATS)], turn + 1
        raw, values = (gb.matrix if kind in gb.NAMES else plain)(kind, n_out, n_in, rng)
        quantised[name + ".weight"], twin[name + ".weight"] = (kind, [n_out, n_in], raw), ("F32", [n_out, n_in], values)
        return kind

    def vector(name):
        raw = gg.as_f32([1 + rng.gauss(0, 0.1) for _ in range(hidden)])
        quantised[name + ".weight"] = twin[name + ".weight"] = ("F32", [hidden], raw)

    for layer in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % layer
        for part, n_out, n_in in ("q", hidden // 2, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, hidden // 2):
            put(p + "self_attn.%s_proj" % part, n_out, n_in)
        put(p + "block_sparse_moe.gate", c["num_local_experts"], hidden, "F32")
        for part, n_out, n_in in ("w1", c["intermediate_size"], hidden), ("w3", c["intermediate_size"], hidden), ("w2", hidden, c["intermediate_size"]):
            kind = None
            for e in range(c["num_local_experts"]):  # those of a layer are one tensor
                kind = put(p + "block_sparse_moe.experts.%d.%s" % (e, part), n_out, n_in, kind)
        vector(p + "input_layernorm")
        vector(p + "post_attention_layernorm")
    put("model.embed_tokens", c["vocab_size"], hidden)
    put("lm_head", c["vocab_size"], hidden)
    vector("model.norm")
    return quantised, twin


@functools.cache
def model(first):
    """A GGUF file, the pack of its twin, and a golden folder of that."""
    where = os.path.join(TMP, "mixed-%d" % first)
    quantised, twin = mixed(first)
    tc.write_checkpoint(where, SHAPE, twin, tokenizer=False)
    tool("od-pack", where, where + ".pack")
    gg.write_file(where + ".gguf", *gg.convert_tensors(SHAPE, quantised))
    return where + ".gguf", where + ".pack", golden(where + ".golden", where, PROMPTS, TOKENS)
