"""Writes small checkpoints of any family (families/) with random weights, as published ones are laid out: config.json,
generation_config.json, tokenizer.json, safetensors in one file or several.

Weights depend on the configuration and the seed alone: they are the same on every machine."""
import json
import os
import random

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import publish
from families import FAMILIES, parts
from families.parts import VOCAB, head_dim

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

    def qkvo(self, p, bias=False, o_bias=False):
        c, d = self.cfg, head_dim(self.cfg)
        self.linear(p + "q_proj", c["num_attention_heads"] * d, c["hidden_size"], 1.5, bias)
        self.linear(p + "k_proj", c["num_key_value_heads"] * d, c["hidden_size"], 1.5, bias)
        self.linear(p + "v_proj", c["num_key_value_heads"] * d, c["hidden_size"], 1.2, bias)
        self.linear(p + "o_proj", c["hidden_size"], c["num_attention_heads"] * d, 1.0, o_bias)


def of_family(family, name, default):
    return getattr(family, name, default)


def ends(w, n_text):
    """Embedding, last norm, head. What is no text has small rows in the head, so that it is never chosen."""
    c, h, v = w.cfg, w.cfg["hidden_size"], w.cfg["vocab_size"]
    low = np.where(np.arange(v) < n_text, 1.0, 0.05).astype(np.float32)[:, None]
    head = w.normal(v, h) * np.float32(1.6 / np.sqrt(h)) * low
    w.norm("model.norm", h, of_family(FAMILIES[c["model_type"]], "NORM", 1.0))
    if c["tie_word_embeddings"]:
        w.put("model.embed_tokens.weight", head)
    else:
        w.put("model.embed_tokens.weight", w.normal(v, h) * np.float32(0.7))
        w.put("lm_head.weight", head)
    if c.get("lm_head_bias"):
        w.put("lm_head.bias", np.where(np.arange(v) < n_text, 0.5 * w.normal(v), -3.0))


def weights(cfg, seed, dtype, n_text):
    """All tensors of this config.json by name."""
    family, w = FAMILIES[cfg["model_type"]], Weights(cfg, seed, dtype)
    of_family(family, "ends", ends)(w, n_text)
    for i in range(cfg["num_hidden_layers"] + (cfg.get("num_nextn_predict_layers") or 0)):
        p = f"model.layers.{i}."
        family.layer(w, p, i)
        of_family(family, "norms", parts.norms)(w, p)
    of_family(family, "rest", lambda w: None)(w)
    return w.t


# ---- files ----

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


LEFT_OUT = ("first_k_dense_replace", "rope_theta", "rotary_dim", "partial_rotary_factor", "layer_types",
            "full_attention_interval")  # where they are None


PLAIN = "-plain"


def plain(path):
    """The folder of a checkpoint's weights in BF16, F16 or F32."""
    return path + PLAIN if os.path.isdir(path + PLAIN) else path


def write_checkpoint(spec, out):
    """spec: cfg, seed, and perhaps dtype, shards, one_by_one (experts that the family has stacked), and published (publish.HOW), then
    the same in F32 goes to out + PLAIN. Returns the tokenizer and the ids that end a text."""
    dtype = spec.get("dtype", "BF16")
    t = tokenizer(of_family(FAMILIES[spec["cfg"]["model_type"]], "BOS", False))
    begin, end, turn = (t.token_to_id(x) for x in ("<|begin|>", "<|end|>", "<|turn|>"))
    assert t.get_vocab_size() <= VOCAB - 4
    cfg = {k: v for k, v in spec["cfg"].items() if v is not None or k not in LEFT_OUT}
    cfg |= dict(bos_token_id=begin, eos_token_id=end, torch_dtype=str(TYPES[dtype]).removeprefix("torch."))
    os.makedirs(out, exist_ok=True)
    tensors = weights(cfg, spec["seed"], TYPES[dtype], begin)
    if spec.get("one_by_one"):
        tensors = FAMILIES[cfg["model_type"]].one_by_one(tensors)
    if spec.get("published"):
        tensors, same, config = publish.publish(tensors, spec["published"], random.Random(spec["seed"]))
        os.makedirs(out + PLAIN, exist_ok=True)
        dump(os.path.join(out + PLAIN, "config.json"), cfg | dict(torch_dtype="float32"))
        write_shards(same, out + PLAIN, 1)
        cfg["quantization_config"] = config
    t.save(os.path.join(out, "tokenizer.json"), pretty=False)
    dump(os.path.join(out, "config.json"), dict(sorted(cfg.items())), indent=1)
    dump(os.path.join(out, "generation_config.json"), dict(do_sample=False, bos_token_id=begin, eos_token_id=[end, turn]))
    write_shards(tensors, out, spec.get("shards", 1))
    return t, {end, turn}
