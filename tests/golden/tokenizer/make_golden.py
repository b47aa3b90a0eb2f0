#!/usr/bin/env python3
"""Writes small tokenizers (tok_*.json) and golden.json: what Hugging Face tokenizers makes of many texts with them.

Needs the package tokenizers (0.23.3 made the committed files; its trainer numbers "affixes" differently from run to
run, so that one is read if it is there). build() is also of use to compare more texts."""
import json
import os
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

CORPUS = """Once upon a time there was a wolf who lived at the edge of the forest and was afraid of the dark.
"Why," said the owl, "don't you light a lamp?" The wolf hadn't thought of that; he'd never owned a lamp.
They'll say I'm a coward, he thought, and I've got 12 good reasons not to be: 1 moon, 3 stars, 2024 fireflies.
It's the little things we're missing: a naive cafe, a warm fire, a friend who isn't far. The end of the tale.
El niño comió piñas en la montaña. Straße, Füße, größer. L'été, où êtes-vous? Çа va très bien, merci.
Волк жил на краю леса и боялся темноты. Сова сказала: зажги лампу. Ο λύκος φοβόταν το σκοτάδι.
昔々、森の端に狼が住んでいました。 狼は暗闇が怖かった。 从前有一只狼，他住在森林边上。 늑대는 어둠을 무서워했다.
for (i = 0; i < n; i++) { total += x[i] * 3.14; }    /* four spaces */  if a != b: return None
The wolf and the owl and the moon, the other wolves and the others, thereafter together in the weather.
"""

TEXTS = [
    "", " ", "   ", "a", " a", "a ", "  leading and   inner   spaces  ", "\t tabs\tand\nnew\n\nlines\r\n\r\nend\n ",
    "Once upon a time there was a wolf.", "don't can't we'll I've he'd it's they're DON'T THEY'LL I'M ſ'ſ 'S",
    "1234567890 12,345.67 ²③ Ⅷ ٣٤٥ 1a2b", "“Où est la princesse?” — l’ogre", "naïve café Ångström ﬁne ①",
    "e\u0301 a\u0308\u0323 \u0301x n\u0303o \u1e9b\u0323", "日本語のテキスト、森。狼", "늑대는 어둠을 \u1112\u1161\u11ab",
    "👩\u200d👩\u200d👧 emoji ☃️ 🐺🐺 \U0001f3f3\ufe0f\u200d\U0001f308", "nul\x00byte \x01\x1f\x7f\x85\xa0\u2028\u2029\u3000\u180ez",
    "Волк и сова; Ο λύκος ΣΑΣ", "שלום עולם مرحبا", "İstanbul ẞ ß ŉ ǰ", "<s> and </s> in<s>text</s>", "<s><s> </s>",
    "a <unk> b <|x|>  <|x|><|xyz|> <|xy|>", "word wordy aword word. _word word\u0301 (word) word", "  [L]  a [R]  b [LR]  c",
    "[L][R][LR] [N] [n] NORM norm Ｎorm caFÉ", "▁under▁score _ ▁ ▁▁x", "for (i = 0; i < n; i++) { x += 3.14*y; }\n    return",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the" * 30, "normal NORMALITY norma norm", "x" * 70 + " " * 40 + "y", "!!!...???---***###$$$+++<<<>>>~~~```^^^|||",
    "a-b_c.d,e;f:g!h?i(j)k[l]m{n}o", "\r\n \n\t\n  \n x", "<0x41><0xE2><0x82> <0x0A>", "\ufeffbom \ufffd \ue000 \U0010fffd",
    "thereafter together weather others wolves", "I'll say: “it's 5 o’clock”…", "\u200b\u200cjoin\u200der\u2060",
    "<|im_start|>user\n<think>a</think> <|im_end|>  <think><|im_st", "  \n\n  x       y\n        z         w",
    "<｜begin▁of▁sentence｜>x<｜User｜> ü u\u0308Ü <｜Assistant｜>", "</s> a</s>  b<|end|>\n c <|end|>",
    "क्षत्रिय हिन्दी ภาษาไทย กำ ๑๒๓४५६ 12月3日 カタカナ、한글 ！？ ～ a！b", "HTTPServer\r\n\r\n\tx=$y; +1 ~/z 123456789",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
QWEN_MARKS = QWEN.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
DEEPSEEK_V2 = ["[\r\n]", "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᏠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ"
               "ἘＡ-Ｚａ-ｚ𐐀-𐑏𞤀-𞥃]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
               r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def added(content, special=True, **flags):
    return dict(dict(content=content, single_word=False, lstrip=False, rstrip=False, normalized=not special,
                     special=special), **flags)


def template(before, after=()):
    special = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    return dict(type="TemplateProcessing",
                single=[special(t) for t, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}] +
                [special(t) for t, _ in after], pair=[],
                special_tokens={t: dict(id=t, ids=[i], tokens=[t]) for t, i in list(before) + list(after)})


def train(size, pre, alphabet=(), specials=(), texts=CORPUS.split("\n"), **model):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    extra = {k: model[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in model}
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(alphabet), special_tokens=list(specials), **extra))
    return json.loads(t.to_str())["model"]


def spm(size, unk="<unk>", byte_fallback=True):
    """SentencePiece's order: specials, the 256 bytes, then the rest."""
    m = train(size, pre_tokenizers.Metaspace())
    head = [unk, "<s>", "</s>"] + (["<0x%02X>" % b for b in range(256)] if byte_fallback else [])
    m["vocab"] = {t: i for i, t in enumerate(head + [t for t in m["vocab"] if t not in head])}
    m.update(unk_token=unk, byte_fallback=byte_fallback, fuse_unk=byte_fallback)
    return m


def file(model, tokens=(), strings=False, **parts):
    if strings:  # the older form of merges
        model["merges"] = [" ".join(m) for m in model["merges"]]
    n, listed = len(model["vocab"]), []
    for t in tokens:
        i = model["vocab"].get(t["content"])
        if i is None:
            i, n = n, n + 1
        listed.append(dict(id=i, **t))
    base = dict(version="1.0", truncation=None, padding=None, added_tokens=listed, normalizer=None, pre_tokenizer=None,
                post_processor=None, decoder=None)
    base.update(parts)
    base["model"] = model
    return base


def build():
    byte, split = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True), {}
    plain_bytes = dict(byte, use_regex=False)
    regex = lambda p, behavior="Isolated", invert=False: dict(type="Split", pattern={"Regex": p}, behavior=behavior,
                                                              invert=invert)
    string = lambda p, behavior: dict(type="Split", pattern={"String": p}, behavior=behavior, invert=False)
    seq = lambda *p: dict(type="Sequence", pretokenizers=list(p))
    norm = lambda *p: dict(type="Sequence", normalizers=list(p))
    dec = lambda *p: dict(type="Sequence", decoders=list(p))
    replace = lambda a, b: dict(type="Replace", pattern={"String": a}, content=b)
    prefix_space = dict(type="Prepend", prepend="▁")
    strip = dict(type="Strip", content=" ", start=1, stop=0)
    meta = lambda scheme, cut=True: dict(type="Metaspace", replacement="▁", prepend_scheme=scheme, split=cut)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = lambda size: train(size, pre_tokenizers.ByteLevel(add_prefix_space=False), letters)
    # Merges over the boundaries of words, numbers and marks: where a pattern cuts shows in the ids.
    across = lambda: train(700, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), letters, texts=TEXTS)
    specials = [added("<unk>"), added("<s>"), added("</s>")]
    words = lambda size: train(size, pre_tokenizers.BertPreTokenizer(), specials=["<unk>"])
    with_unk = lambda m: dict(m, unk_token="<unk>")

    flags = [added("<s>"), added("</s>"), added("word", False, single_word=True), added("[L]", False, lstrip=True),
             added("[R]", True, rstrip=True, normalized=False), added("[LR]", True, lstrip=True, rstrip=True),
             added("[N]", False, normalized=True), added("norm", False, normalized=True),
             added("normal", False, normalized=True),
             added("<|x|>", False, normalized=False), added("<|xy|>", True), added("<|xyz|>", False, normalized=False),
             added("  ", False, normalized=False), added("café", False)]
    im = [added("<|im_start|>"), added("<|im_end|>")]
    begin = "<｜begin▁of▁sentence｜>"
    sentence = [added(begin), added("<｜end▁of▁sentence｜>"), added("<｜User｜>", False), added("<｜Assistant｜>", False)]
    return {
        "gpt2": file(bpe(420), [added("<|endoftext|>"), added("<s>")], True, pre_tokenizer=byte, decoder=byte),
        "gpt2_prefix": file(bpe(330), [], normalizer=dict(type="NFC"), decoder=byte, post_processor=byte,
                            pre_tokenizer=dict(byte, add_prefix_space=True)),
        "llama3": file(dict(bpe(400), ignore_merges=True), [added("<s>"), added("</s>"), added("<|x|>")],
                       pre_tokenizer=seq(regex(LLAMA3), plain_bytes), decoder=byte,
                       post_processor=dict(type="Sequence", processors=[byte, template([("<s>", 400)])])),
        "o200k": file(bpe(340), [added("<|x|>")], pre_tokenizer=seq(regex(O200K), plain_bytes), decoder=dec(byte),
                      post_processor=byte),
        "deepseek": file(bpe(340), [added("<s>"), added("<|x|>", False, normalized=False)], decoder=byte,
                         pre_tokenizer=seq(regex(r"[\r\n]"), regex(r"\s?\p{L}+"), regex(r"\s?\p{P}+"),
                                           regex("[一-龥ࠀ-一가-퟿]+"), dict(type="Digits", individual_digits=True), plain_bytes)),
        "mixtral": file(spm(200), specials + [added("☃")], True, normalizer=norm(prefix_space, replace(" ", "▁")),
                        post_processor=template([("<s>", 1)]),
                        decoder=dec(replace("▁", " "), dict(type="ByteFallback"), dict(type="Fuse"), strip)),
        "gemma": file(spm(200), specials + [added("<|x|>", False, normalized=False)], normalizer=replace(" ", "▁"),
                      pre_tokenizer=string(" ", "MergedWithPrevious"), post_processor=template([("<s>", 1)], [("</s>", 2)]),
                      decoder=dec(replace("▁", " "), dict(type="ByteFallback"), dict(type="Fuse"))),
        "metaspace": file(spm(200, byte_fallback=False), specials, pre_tokenizer=meta("always"), decoder=meta("always")),
        "metaspace_first": file(spm(200), specials + [added("<|x|>", False)], pre_tokenizer=meta("first", False),
                                normalizer=dict(type="Strip", strip_left=True, strip_right=False), decoder=dec(
                                    dict(type="ByteFallback"), meta("first"))),
        "metaspace_old": file(spm(160, byte_fallback=False), specials, decoder=dict(type="Metaspace", replacement="▁",
                              add_prefix_space=True), pre_tokenizer=dict(type="Metaspace", replacement="▁",
                                                                         add_prefix_space=True)),
        "added": file(bpe(300), flags, pre_tokenizer=byte, decoder=byte,
                      normalizer=norm(dict(type="NFKC"), dict(type="Lowercase"))),
        "nfkc_lower": file(with_unk(words(180)), [added("<unk>"), added("norm", False)],
                           normalizer=norm(dict(type="NFKC"), dict(type="Lowercase")),
                           pre_tokenizer=seq(dict(type="WhitespaceSplit"), dict(type="Digits", individual_digits=True),
                                             dict(type="Punctuation"))),
        "nfd_strip": file(with_unk(dict(words(180), fuse_unk=True)), [added("<unk>")],
                          normalizer=norm(dict(type="NFD"), dict(type="StripAccents"),
                                          dict(type="Strip", strip_left=True, strip_right=True)),
                          pre_tokenizer=seq(dict(type="Whitespace"), dict(type="Digits", individual_digits=False),
                                            dict(type="Punctuation", behavior="MergedWithPrevious")),
                          decoder=dict(type="Fuse")),
        "nfkd": file(bpe(290), [], normalizer=dict(type="NFKD"), decoder=byte,
                     pre_tokenizer=seq(regex(r"\w+|[^\w\s]+", "Removed", True), regex(r"\b[aeo]\w?|[\w']{4}", "Contiguous"),
                                       dict(type="Punctuation", behavior="Contiguous"), plain_bytes)),
        "merged_next": file(bpe(420), [], decoder=byte, normalizer=norm(
            dict(type="Replace", pattern={"Regex": r"\s{2,}|[[:punct:]]{2}"}, content="~ "), replace("o", "")),
            pre_tokenizer=seq(regex("[ th]", "MergedWithNext"), regex(r"[aeiou]{1,2}+", "MergedWithPrevious"),
                              regex("(?=w)|x", "Removed"), plain_bytes)),
        "affixes": file(with_unk(train(200, pre_tokenizers.WhitespaceSplit(), specials=["<unk>"],
                                       continuing_subword_prefix="##", end_of_word_suffix="</w>")), [added("<unk>")],
                        pre_tokenizer=dict(type="WhitespaceSplit"),
                        decoder=dec(replace("##", ""), replace("</w>", " "), dict(type="Fuse"),
                                    dict(type="Strip", content=" ", start=0, stop=1), replace("<unk>", "?"))),
        "qwen3": file(across(), im + [added(t, False, normalized=False) for t in ("<think>", "</think>")],
                      normalizer=dict(type="NFC"), pre_tokenizer=seq(regex(QWEN), plain_bytes), decoder=byte,
                      post_processor=dict(byte, trim_offsets=False)),
        "qwen3_5": file(across(), im, normalizer=dict(type="NFC"), pre_tokenizer=seq(regex(QWEN_MARKS), plain_bytes),
                        decoder=byte, post_processor=dict(byte, trim_offsets=False)),
        "olmoe": file(across(), [added("<|im_end|>")] + [added(" " * n, False) for n in range(8, 1, -1)],
                      normalizer=dict(type="NFC"), pre_tokenizer=byte, decoder=byte, post_processor=byte),
        "deepseek_v2": file(across(), sentence + [added("ü", False)], decoder=byte, post_processor=template([(begin, 700)]),
                            pre_tokenizer=seq(*map(regex, DEEPSEEK_V2), dict(type="Digits", individual_digits=True),
                                              plain_bytes)),
        "deepseek_v3": file(across(), sentence + [added("<think>", False), added("</think>", False)], decoder=byte,
                            normalizer=norm(), post_processor=template([(begin, 700)]),
                            pre_tokenizer=seq(*map(regex, DEEPSEEK_V3), plain_bytes)),
        "phi": file(spm(200), [added("<unk>"), added("<s>"), added("</s>", False, normalized=False, rstrip=True),
                               added("<|end|>", True, rstrip=True)], normalizer=norm(prefix_space, replace(" ", "▁")),
                    post_processor=template([]), decoder=dec(replace("▁", " "), dict(type="ByteFallback"),
                                                             dict(type="Fuse"), strip)),
    }


def load(data):
    t = Tokenizer.from_str(json.dumps(data))
    return t


def ids(t, text, parse, add):
    t.encode_special_tokens = not parse
    return t.encode(text, add_special_tokens=add).ids


def decode(t, some, skip=True):
    """None where the reference falls over (its Strip does on an empty token)."""
    try:
        return t.decode(some, skip_special_tokens=skip)
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        return None


def stream(t, all_ids, n_context):
    """What decoding shows beyond the context, and how much of it is final after each id: the common beginning of
    what is shown after it and after each later one. None where the context itself ends in the middle."""
    before = decode(t, all_ids[:n_context])
    shown = [decode(t, all_ids[: i + 1]) for i in range(n_context, len(all_ids))]
    if before is None or None in shown:
        return None
    whole = shown[-1] if shown else before
    if not all(s.startswith(before) for s in shown) or before.endswith("\ufffd"):
        return None
    final, common = [], whole
    for s in reversed(shown):
        common = os.path.commonprefix([common, s])
        final.append(len(common[len(before):].encode()))
    return dict(context=n_context, text=whole[len(before):], final=final[::-1])


def cases(t, rng):
    out = []
    for i, text in enumerate(TEXTS):
        c = dict(text=i, parse=ids(t, text, True, False))
        for key, parse, add in (("plain", False, False), ("both", True, True)):
            other = ids(t, text, parse, add)
            if other != c["parse"]:
                c[key] = other
        out.append(c)
    n = t.get_vocab_size()
    fallback = [i for i in (t.token_to_id("<0x%02X>" % b) for b in range(128, 256)) if i is not None]
    euro = [i for i in (t.token_to_id("<0x%02X>" % b) for b in "€🐺".encode()) if i is not None]
    for k in range(14):
        some = [rng.randrange(n) for _ in range(12)]
        if fallback and k % 2:
            some = [rng.choice(fallback) if rng.random() < 0.5 else x for x in some[:8]]
            some[rng.randrange(8):0] = euro
        c = dict(parse=some)
        c["stream"] = stream(t, some, rng.randrange(5))
        out.append(c)
    for k in (8, 13, 14, 16, 21):
        c = out[k]
        c["stream"] = stream(t, c["parse"], rng.randrange(len(c["parse"]) // 2 + 1))
    for c in out:
        c["decoded"] = decode(t, c["parse"])
        with_special = decode(t, c["parse"], False)
        if with_special != c["decoded"]:
            c["with_special"] = with_special
    return out


def main():
    rng = random.Random(5)
    golden = []
    for name, data in build().items():
        path = os.path.join(HERE, "tok_%s.json" % name)
        if name == "affixes" and os.path.exists(path):
            with open(path) as f:
                data = json.load(f)
        with open(path, "w") as f:
            json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        golden.append(dict(name=name, cases=cases(load(data), rng)))
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        f.write('{"texts": %s,\n"tokenizers": [\n' % json.dumps(TEXTS, separators=(",", ":")))
        f.write(",\n".join('{"name": "%s", "cases": [\n%s]}' % (g["name"], ",\n".join(
            json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in g["cases"])) for g in golden))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
