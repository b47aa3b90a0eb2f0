#!/usr/bin/env python3
"""Makes cases.json: vocabularies as a GGUF file's metadata has them, and the ids that Hugging Face tokenizers gives
(pip install tokenizers) with the published pre-tokenisers. tests/unit/test_gguf_tokenizer.c reads it."""
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
WORDS = ("the there then hello Hello world don't DON'T we'll I'm it's running rapidly token tokenizer 2024 1234567 3.14 "
         "naïve café 中文 汉字 かな カナ 한국어 привет мир Ελλάδα if (x == 0) { return x; } // path/to/file.c "
         "ABCdef camelCase HTTPServer x_y_z ... !!! ?? ").split(" ")
TEXTS = [
    "", " ", "  ", "Hello world", "  leading and   inner  ", "the there then\n\n\nthen\r\n  the", "don't DON'T we'LL I'm it'ſ",
    "1234567 12 3.14159 ٣٤٥ ½ Ⅷ", "naïve cafe\u0301 e\u0301\u0300 \u212b", "中文汉字かなカナ 한국어 mixed中文text", "привет мир Ελλάδα ÀÉ",
    "if (x == 0) {\n\treturn x; // path/to/file.c\n}\n", "ABCdef camelCase HTTPServer McDonald's", "x_y_z...!!! ??$+<=>^~|`", "\t\tx \u00a0y\u3000z \n",
    "<|im_start|>user\nhi<|im_end|> ok", "<think>the</think>", "a [PAD3] b", "😀👍🏽 \u200d", "[unclosed <|im_", "हिन्दी ไทย",
]
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%(h)s]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%(h)s]+%(c)s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%(h)s]+[\p{Ll}\p{Lm}\p{Lo}\p{M}%(h)s]*%(c)s|")
END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = CASED % {"h": "", "c": END} + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = CASED % {"h": "", "c": ""} + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = (r"[\p{Han}]+|" + CASED % {"h": r"&&[^\p{Han}]", "c": END} +
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
CJK = "[一-龥ࠀ-一가-\ud7ff]+"
LETTERS = (r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-" "\u1f7d"
           "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
           "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
GPT2_OF_LLAMA_CPP = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
GPT2 = GPT2_OF_LLAMA_CPP + r"|\s+"
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
DIGITS = "digits"
# name: patterns (none: GPT-2's), NFC
PRES = {
    "default": ([r"[\p{P}\$\+<=>\^~\|]+", GPT2_OF_LLAMA_CPP, r"\p{N}+", "[0-9][0-9][0-9]"], False),
    "gpt-2": ([], False),
    "olmo": ([], True),
    "llama-bpe": ([CL100K % "{1,3}"], False),
    "glm4": ([CL100K % "{1,3}"], False),
    "dbrx": ([CL100K % "{1,3}"], False),
    "smollm": ([r"\p{N}", GPT2], False),
    "qwen2": ([CL100K % ""], True),
    "qwen35": ([QWEN35], True),
    "gpt-4o": ([O200K], False),
    "minimax-m2": ([O200K], False),
    "tekken": ([TEKKEN], False),
    "kimi-k2": ([KIMI], False),
    "deepseek-v3": (DEEPSEEK_V3, False),
    "deepseek-llm": (["[\r\n]", LETTERS, r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", CJK, DIGITS], False),
    "deepseek-coder": (["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGITS], False),
}
ADDED = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER), ("</think>", USER)]


def pre_tokenizer(patterns):
    steps = [pre_tokenizers.Digits(individual_digits=True) if p is DIGITS else
             pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns))
    return pre_tokenizers.Sequence(steps)


def add(t, added, normalized=False):
    for text, kind in added:
        token = AddedToken(text, special=kind == CONTROL, normalized=kind == USER and normalized)
        (t.add_special_tokens if kind == CONTROL else t.add_tokens)([token])


def ids_of(t):
    return [t.encode(x, add_special_tokens=True).ids for x in TEXTS]


def bytes_models():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([" ".join(WORDS * 3)], trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(t.to_str())["model"]
    n = len(model["vocab"])
    tokens = [None] * n
    for text, i in model["vocab"].items():
        tokens[i] = text
    merges = [tuple(m) for m in model["merges"]]
    out = {"tokens": tokens + [a[0] for a in ADDED] + ["[PAD%d]" % (n + len(ADDED) + i) for i in range(2)],
           "types": [NORMAL] * n + [a[1] for a in ADDED] + [UNUSED] * 2,
           "merges": [" ".join(m) for m in merges], "ids": {}}
    for name, (patterns, nfc) in PRES.items():
        t = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, ignore_merges=name in ("llama-bpe", "glm4", "gpt-4o", "tekken", "kimi-k2")))
        if nfc:
            t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizer(patterns)
        add(t, ADDED, normalized=name == "olmo")
        out["ids"][name] = ids_of(t)
    return out


def pieces(vocab_size):
    """Pieces and merges of BPE over characters."""
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "▁")
    text = " ".join(w for w in WORDS if w.isascii() or w in ("naïve", "café", "中文"))
    t.train_from_iterator([text + "\n\n\n"], trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, max_token_length=7))
    model = json.loads(t.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def merges_of(scores):
    """As transformers converts a SentencePiece model."""
    found = [(score, len(p[:i]), len(p[i:]), p[:i], p[i:]) for p, score in scores.items() for i in range(1, len(p))
             if p[:i] in scores and p[i:] in scores]
    return [m[3:] for m in sorted(found, key=lambda m: m[:3], reverse=True)]


def scores_model():
    words, _ = pieces(150)
    base = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] + [("<0x%02X>" % b, BYTE) for b in range(256)]
    # Longer pieces first, with one score twice: ties count, too.
    scores = {w: -float(i // 2) if len(w) > 1 else -1000.0 - i for i, w in enumerate(sorted(words, key=lambda w: (-len(w), w)))}
    more = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER), ("</think>", USER)]
    tokens = [b[0] for b in base] + list(scores)
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges_of(scores), unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    add(t, [(b, CONTROL) for b in ("<unk>", "<s>", "</s>")] + more)
    n = len(tokens) + len(more)
    return {"tokens": tokens + [m[0] for m in more] + ["[PAD%d]" % n],
            "types": [b[1] for b in base] + [NORMAL] * len(scores) + [m[1] for m in more] + [UNUSED],
            "scores": [0.0] * len(base) + list(scores.values()) + [-1000.0] * (len(more) + 1), "ids": {"llama": ids_of(t)}}


def pieces_model():
    words, merges = pieces(150)
    # The converter calls most of Gemma's special tokens normal.
    head = [("<pad>", NORMAL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", NORMAL), ("[multimodal]", NORMAL)]
    tail = [("<|turn>", NORMAL), ("<turn|>", NORMAL), ("<|im_start|>", NORMAL), ("<|im_end|>", USER), ("<think>", NORMAL)]
    tokens = [h[0] for h in head] + ["<0x%02X>" % b for b in range(256)] + [w for w in words if w not in ("<unk>",)]
    n = len(tokens) - len(head) - 256
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens + [x[0] for x in tail])}, merges=merges, unk_token="<unk>",
                             fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    add(t, [(x[0], USER if x[0][0] == "[" or x[0] == "<think>" else CONTROL) for x in head + tail])
    return {"tokens": tokens + [x[0] for x in tail], "types": [h[1] for h in head] + [BYTE] * 256 + [NORMAL] * n + [x[1] for x in tail],
            "scores": [-1000.0] * (len(tokens) + len(tail)), "merges": [" ".join(m) for m in merges], "ids": {"gemma4": ids_of(t)}}


def main():
    cases = {"texts": TEXTS, "gpt2": bytes_models(), "llama": scores_model(), "gemma4": pieces_model()}
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as f:
        for i, (key, value) in enumerate(cases.items()):
            f.write(("{" if i == 0 else ",\n") + json.dumps(key) + ":")
            if key == "texts":
                f.write(json.dumps(value))
                continue
            ids = value.pop("ids")
            f.write("{" + ",\n".join("%s:%s" % (json.dumps(k), json.dumps(v, separators=(",", ":"))) for k, v in value.items()))
            f.write(',\n"ids":{' + ",\n".join("%s:%s" % (json.dumps(k), json.dumps(v, separators=(",", ":"))) for k, v in ids.items()))
            f.write("}}")
        f.write("}\n")


main()
