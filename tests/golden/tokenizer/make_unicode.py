#!/usr/bin/env python3
"""Writes unicode.json: what components of Hugging Face tokenizers (0.23.3) make of random characters of all categories and of
those that are newer than the components' tables."""
import json
import os
import random
import unicodedata

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
NEW = [(0x7fd, 0x7fd), (0x898, 0x8d3), (0x1715, 0x1715), (0x1abf, 0x1ace), (0x32ff, 0x32ff), (0xa7ca, 0xa7dc), (0x10781, 0x107ba),
       (0x10d24, 0x10d27), (0x10d40, 0x10d85), (0x10f46, 0x10f50), (0x11380, 0x113e2), (0x11930, 0x11944), (0x16130, 0x16139),
       (0x1e130, 0x1e136), (0x2e43, 0x2e5d)]
PARTS = {
    "normalizer": [dict(type=t) for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")],
    "pre_tokenizer": [dict(type="Digits", individual_digits=False), dict(type="Punctuation", behavior="Isolated"),
                      dict(type="Whitespace"), dict(type="WhitespaceSplit")],
}


def main():
    rng = random.Random(23)
    kinds = {}
    for c in range(0x110000):
        if not 0xd800 <= c < 0xe000:
            kinds.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    kinds = [v for _, v in sorted(kinds.items())]
    marks = [c for v in kinds for c in v if unicodedata.combining(c)]
    some = lambda: rng.choice([lambda: rng.choice("aeuAE 1.,\n가ᄀ각"), lambda: rng.choice(rng.choice(kinds)), lambda: rng.choice(marks),
                               lambda: chr(rng.randint(*rng.choice(NEW)))])()
    texts = ["".join(some() for _ in range(24)) for _ in range(40)] + ["\U00011935\U00011930", "x\u0345\u07fd\u0334", "\u1112\u1161\u11ab"]
    # Hangul: each pair of leading consonant and vowel, alone and as a syllable, before what is just outside and inside the range of
    # trailing consonants, with and without a mark.
    pairs = [(l, v) for l in range(19) for v in range(21)]
    for behind in "\u11a7", "\u11a8", "\u11c2", "\u11c3", "\u11a7\u0301", "\u0301\u11a7", "\u11a7\u11a8":
        texts.append("".join(chr(0x1100 + l) + chr(0x1161 + v) + behind for l, v in pairs[::16]))
        texts.append("".join(chr(0xac00 + (l * 21 + v) * 28) + behind for l, v in pairs[::16]))
    texts.append("".join(chr(0xac00 + i) + "\u11a7" for i in range(0, 11172, 531)))
    out = []
    for field, parts in PARTS.items():
        for part in parts:
            t = json.loads(Tokenizer(models.BPE()).to_str())
            t[field] = part
            t = Tokenizer.from_str(json.dumps(t))
            run = t.normalizer.normalize_str if field == "normalizer" else lambda s: [p for p, _ in t.pre_tokenizer.pre_tokenize_str(s)]
            out.append({field: part, "made": [run(s) for s in texts]})
    with open(os.path.join(HERE, "unicode.json"), "w") as f:
        json.dump(dict(texts=texts, parts=out), f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
