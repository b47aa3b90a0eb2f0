"""The families that the references know, one file each, by model_type:

    config(**fields)  config.json of a small model, with these fields
    layer(w, p, i)    writes the tensors of layer i; names begin with p (checkpoint.Weights)
    draw(rng)         config.json with random settings, anywhere in what od-moe says it supports

and, where a family differs from the others:

    BOS               its tokenizer puts one in front of a text
    norms(w, p)       the norms that a layer ends with (parts.norms)
    ends(w, n_text)   embedding, last norm, head (checkpoint.ends)
    NORM              what the last norm's weights are about, else 1
    one_by_one(t)     the same tensors with experts that are not stacked
    MATRICES, TURNED  what a shadow quantises (shadow.py), and what of it is [in][out]: patterns of names
    rest(w)           tensors behind all layers
    scores(...)       what its router chooses by (reference_model.scores)
    prepare()         repairs transformers
    load_options()    arguments of from_pretrained for a checkpoint with a quantization_config
    dequantised(t)    the tensors of such a checkpoint without it

A new family is a file here and a name in NAMES."""
import importlib

NAMES = ["mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2",
         "qwen3_next", "qwen3_5_moe_text", "gpt_oss", "gemma4_text", "phimoe"]
FAMILIES = {name: importlib.import_module("families." + name) for name in NAMES}
