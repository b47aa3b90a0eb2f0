#!/usr/bin/env python3
"""Makes the headers of GGUF files that the fuzzers change: model_*.gguf of each architecture's goldens (tests/golden/families),
text_*.gguf of tokenisers (tests/golden/tokenizer) of each kind. They have no bytes behind the header. Run it here."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(os.path.dirname(GOLDEN), "integ"))
import gguf_checkpoint as gg  # noqa: E402

MODELS = ["mixtral_top3", "qwen2_moe_plain", "qwen3_moe_plain", "qwen3_next_plain", "qwen3_5_moe_yarn", "olmoe_clip", "deepseek_v2_groups",
          "deepseek_v3_groups", "glm4_moe_air", "minimax_m2_yarn", "gpt_oss_mxfp4", "gemma4_layer_inputs", "phimoe_crossing"]
# file of a tokeniser, kind, how words are cut
TEXTS = [("gpt2", "gpt2", "gpt-2"), ("llama3", "gpt2", "llama-bpe"), ("gemma", "gemma4", None), ("mixtral", "llama", "default")]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"


def kind_of(text, special):
    if text in special:
        return UNKNOWN if text == "<unk>" else CONTROL if special[text] else USER_DEFINED
    return BYTE if text.startswith("<0x") else NORMAL


def texts(name, model, pre):
    with open(os.path.join(GOLDEN, "tokenizer", "tok_%s.json" % name)) as f:
        tok = json.load(f)
    ids = {i: t for t, i in tok["model"]["vocab"].items()}
    ids.update((a["id"], a["content"]) for a in tok["added_tokens"])
    special = {a["content"]: a["special"] for a in tok["added_tokens"]}
    tokens = [ids.get(i, "<unused%d>" % i) for i in range(max(ids) + 1)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    first = next(i for i, t in enumerate(tokens) if special.get(t))
    kv = {"general.architecture": (gg.STRING, "llama"), "tokenizer.ggml.model": (gg.STRING, model)}
    if pre:
        kv["tokenizer.ggml.pre"] = (gg.STRING, pre)
    kv["tokenizer.ggml.tokens"] = (gg.ARRAY, (gg.STRING, tokens))
    kv["tokenizer.ggml.token_type"] = (gg.ARRAY, (gg.I32, [kind_of(t, special) for t in tokens]))
    if model == "llama":
        kv["tokenizer.ggml.scores"] = (gg.ARRAY, (gg.F32, [-float(i) for i in range(len(tokens))]))
        kv["tokenizer.ggml.add_space_prefix"] = (gg.BOOL, True)
    else:
        kv["tokenizer.ggml.merges"] = (gg.ARRAY, (gg.STRING, merges))
    kv["tokenizer.ggml.bos_token_id"] = (gg.U32, first)
    kv["tokenizer.ggml.eos_token_id"] = (gg.U32, len(tokens) - 1)
    kv["tokenizer.ggml.unknown_token_id"] = (gg.U32, 0)
    kv["tokenizer.ggml.add_bos_token"] = (gg.BOOL, True)
    kv["tokenizer.chat_template"] = (gg.STRING, TEMPLATE)
    kv["tokenizer.chat_templates"] = (gg.ARRAY, (gg.STRING, ["tools"]))
    kv["tokenizer.chat_template.tools"] = (gg.STRING, TEMPLATE.replace("<|", "[").replace("|>", "]"))
    return kv, [("token_embd.weight", "F32", [1, len(tokens)], b"")]


def write(name, kv, tensors):
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(gg.header_of(kv, tensors))


for model in MODELS:
    write("model_%s.gguf" % model, *gg.convert(os.path.join(GOLDEN, "families", model)))
for name, model, pre in TEXTS:
    write("text_%s.gguf" % name, *texts(name, model, pre))
