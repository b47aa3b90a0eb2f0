#!/usr/bin/env python3
"""Writes small tokenizer.model and tiktoken.model files (folders ranked_*), ranked.json: what sentencepiece and tiktoken make
of many texts with them, and slices.json: what tiktoken makes of long texts as Kimi's code cuts them.

Needs sentencepiece, protobuf and tiktoken (0.2.3, 7.36.2 and 0.14.0 made the committed files) beside what make_golden.py needs.
Special tokens in a text: sentencepiece knows none, so the parts between them are encoded one by one; in front of each part
stands a space ("legacy"), or only in front of the first."""
import base64
import hashlib
import io
import json
import os
import random
import re
import struct

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2

from make_golden import CORPUS, HERE, TEXTS
from make_golden import O200K

HAN = O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
KIMI = r"[\p{Han}]+|" + HAN
MORE = ["▁", " ▁ ▁▁x ", "a" * 300, "ab" * 200 + " " * 50, "狼々森の中ABC狼abc。Ａ漢字かな", "\n\n\n a\n\n", "\t\t\tx", "x<|im_end|>y [EOS][BOS] z",
        "<s>a</s> b <s> c</s></s>  d", "<b>bold</b>  <b> ", "Don't I'LL 狼's he'ſ THEY'Re", "Zażółć gęślą jaźń 한국어 ไทย עברית 🐺🏽"]


def train(**options):
    out = io.BytesIO()
    with_defaults = dict(model_type="bpe", vocab_size=620, character_coverage=0.99, byte_fallback=True, minloglevel=2,
                         normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1, split_digits=True,
                         allow_whitespace_only_pieces=True, hard_vocab_limit=False)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.split("\n") * 3), model_writer=out,
                                             **dict(with_defaults, **options))
    return out.getvalue()


def change(data, **normalizer):
    m = sentencepiece_model_pb2.ModelProto()
    m.ParseFromString(data)
    for key, value in normalizer.items():
        setattr(m.normalizer_spec, key, value)
    return m.SerializeToString()


class Pieces:
    """A tokenizer.model with its tokenizer_config.json."""

    def __init__(self, data, config):
        self.files = {"tokenizer.model": data}
        if config is not None:
            self.files["tokenizer_config.json"] = json.dumps(config).encode()
        self.config = config or {}
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=data)
        self.later = self.sp
        if not self.config.get("legacy", True):
            self.later = sentencepiece.SentencePieceProcessor(model_proto=change(data, add_dummy_prefix=False))
        n = self.sp.get_piece_size()
        self.special = {self.sp.id_to_piece(i): i for i in range(n) if self.sp.is_control(i) or self.sp.is_unknown(i)}
        for i, t in self.config.get("added_tokens_decoder", {}).items():
            self.special[t["content"]] = int(i)

    def parse(self, text):
        ids, begin = [], 0
        names = "|".join(re.escape(s) for s in sorted(self.special, key=len, reverse=True))
        for m in re.finditer(names, text):
            if m.start() > begin:
                ids += (self.later if begin > 0 else self.sp).encode(text[begin:m.start()])
            ids.append(self.special[m.group()])
            begin = m.end()
        return ids + ((self.later if begin > 0 else self.sp).encode(text[begin:]) if begin < len(text) else [])

    def plain(self, text):
        return self.sp.encode(text)

    def shows(self, ids):
        """sentencepiece has a sign of its own for what is unknown."""
        return self.sp.unk_id() not in ids

    def decode(self, ids):
        return self.sp.decode(ids)

    def both(self, text):
        def named(key, otherwise):
            t = self.config.get(key, otherwise)
            return [self.special[t["content"] if isinstance(t, dict) else t]]
        before = named("bos_token", "<s>") if self.config.get("add_bos_token", True) else []
        after = named("eos_token", "</s>") if self.config.get("add_eos_token", False) else []
        return before + self.parse(text) + after


class Ranks:
    """A tiktoken.model with the tokenizer_config.json of Kimi-K2."""

    def __init__(self, ranks, config):
        lines = [base64.b64encode(t) + b" %d\n" % r for t, r in sorted(ranks.items(), key=lambda x: x[1])]
        self.files = {"tiktoken.model": b"".join(lines), "tokenizer_config.json": json.dumps(config).encode()}
        names = {int(i): t["content"] for i, t in config["added_tokens_decoder"].items()}
        n = len(ranks)
        special = {names.get(i, "<|reserved_token_%d|>" % i): i for i in range(n, n + 256)}
        self.t = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)

    def shows(self, ids):
        return True

    def decode(self, ids):
        return self.t.decode(ids)

    def parse(self, text):
        return self.t.encode(text, allowed_special="all")

    def plain(self, text):
        return self.t.encode(text, disallowed_special=())

    both = parse


SLICE, RUN = 400_000, 25_000  # characters


def slices(text):
    """Where Kimi's code cuts: every SLICE characters, and in those before the character that makes a run longer than RUN."""
    for begin in range(0, len(text), SLICE):
        part, run, start = text[begin:begin + SLICE], 0, 0
        for i, c in enumerate(part):
            run = run + 1 if i > 0 and c.isspace() == part[i - 1].isspace() else 1
            if run > RUN:
                yield part[start:i]
                start, run = i, 1
        yield part[start:]


LONG = [  # parts, how often each
    [["abcdefg", 4000]], [["a", 25000]], [["a", 25001]], [["b", 1], ["a", 24999]], [["b", 1], ["a", 25003]], [["b", 1], ["a", 60001]],
    [[" ", 25001]], [["\n", 1], [" ", 60001]], [["x ", 20000]], [["a", 19999], [" ", 1], ["a", 19999]], [["\n", 25001], ["x", 25001]],
    [["\xa0", 12999], [" ", 13003]], [["\x1c", 12999], [" ", 13003]], [["\u3000", 12999], [" ", 13003]], [["\x85", 12999], [" ", 13003]],
    [["\u200b", 12999], ["a", 13003]], [["\ufeff", 12999], ["a", 13003]], [["\u180e", 12999], ["a", 13003]], [["1", 25001]],
    [["森", 24999], ["a", 13003]], [["🐺", 24999], ["é", 7], ["a", 25003]], [["wolf 12 ", 50001]], [["wolf 12 ", 49999], ["abcd aaaa", 9]],
    [["wolf 12 ", 49999], ["abcde", 1], ["a", 25003]], [["wolf森 the\n", 45000]], [["The wolf ran. ", 57200]],
    [["<|im_end|>", 3000]], [["b", 1], ["a", 24999], ["<|im_end|>", 1], ["a", 24999]], [["<|im_end|>", 1], ["b", 1], ["a", 25003]],
    [["a", 30000], ["[EOS]", 2], ["\n", 1], [" ", 30003]], [["The wolf ran. ", 28571], ["abcdef", 1], ["<|im_end|>", 1], ["abc", 10000]],
    [["The wolf ran. ", 20000], ["<|im_end|>", 1], ["wolf the ", 50001]],
]


def long_cases(t):
    names = "(" + "|".join(re.escape(s) for s in sorted(t.t.special_tokens_set, key=len, reverse=True)) + ")"
    out = []
    for parts in LONG:
        text = "".join(p * n for p, n in parts)
        ids = [i for part in re.split(names, text) for s in slices(part) for i in t.parse(s)]
        whole = t.parse(text)
        out.append(dict(parts=parts, n=len(ids), sha256=hashlib.sha256(struct.pack("<%di" % len(ids), *ids)).hexdigest()))
        print(len(text), len(ids), "cut" if ids != whole else "as the whole")
    return out


def ranks(rng):
    """Tokens as a trainer finds them, and random ones that no merging of pairs would: whole words count, ties are possible."""
    out = {bytes([b]): b for b in rng.sample(range(256), 256)}
    out = {t: i for i, t in enumerate(out)}
    words = re.findall(r"\s?\w+|\s+|[^\s\w]+", CORPUS)
    have = set(out)
    while len(out) < 900:
        w = rng.choice(words).encode()
        a = rng.randrange(len(w))
        t = w[a:a + rng.randrange(2, 9)] if rng.random() < 0.8 else w * rng.randrange(1, 3)
        if len(t) > 1 and t not in have:
            have.add(t)
            out[t] = len(out)
    for n in range(2, 7):
        out.setdefault(b"a" * n, len(out))
    return out


def token(content, special=True, **flags):
    return dict(dict(content=content, lstrip=False, normalized=False, rstrip=False, single_word=False, special=special), **flags)


def build(rng):
    llama = train()
    extra = change(train(vocab_size=600, user_defined_symbols=["<b>", "▁▁", "▁▁▁", "\n\n", "wolf"]), remove_extra_whitespaces=True)
    gemma = train(add_dummy_prefix=False, user_defined_symbols=["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<b>", "</b>", "<|im_end|>"],
                  bos_id=2, eos_id=1, unk_id=3, pad_id=0, bos_piece="<bos>", eos_piece="<eos>")
    plain = train(byte_fallback=False, vocab_size=380, character_coverage=0.98)
    end = len(Pieces(llama, None).special) and sentencepiece.SentencePieceProcessor(model_proto=llama).get_piece_size()
    r = ranks(rng)
    kimi = {str(len(r) + i): token(t, not t.startswith("<|tool")) for i, t in
            ((0, "[BOS]"), (1, "[EOS]"), (2, "<|im_end|>"), (3, "<|im_user|>"), (11, "<|tool_call_begin|>"), (255, "[PAD]"))}
    return {
        "ranked_llama": Pieces(llama, None),
        "ranked_first": Pieces(llama, dict(legacy=False, add_eos_token=True, bos_token=token("<s>"), eos_token="</s>",
                                           added_tokens_decoder={"1": token("<s>"), str(end): token("<|im_end|>"),
                                                                 str(end + 1): token("[EOS]")})),
        "ranked_extra": Pieces(extra, dict(add_bos_token=False)),
        "ranked_gemma": Pieces(gemma, dict(bos_token="<bos>", eos_token="<eos>", tokenizer_class="GemmaTokenizer")),
        "ranked_unknown": Pieces(plain, None),
        "ranked_kimi": Ranks(r, dict(tokenizer_class="TikTokenTokenizer", added_tokens_decoder=kimi)),
    }


def main():
    rng = random.Random(17)
    letters = sorted(set("".join(TEXTS + MORE + [CORPUS])))
    texts = TEXTS + MORE + ["".join(rng.choice(letters) for _ in range(rng.randrange(40))) for _ in range(40)]
    golden = []
    built = build(rng)
    with open(os.path.join(HERE, "slices.json"), "w") as f:
        f.write('{"cases": [\n%s\n]}\n' % ",\n".join(json.dumps(c) for c in long_cases(built["ranked_kimi"])))
    for name, t in built.items():
        os.makedirs(os.path.join(HERE, name), exist_ok=True)
        for file, data in t.files.items():
            with open(os.path.join(HERE, name, file), "wb") as f:
                f.write(data)
        cases = []
        for i, text in enumerate(texts):
            c = dict(text=i, parse=t.parse(text))
            for key in "plain", "both":
                other = getattr(t, key)(text)
                if other != c["parse"]:
                    c[key] = other
            if "plain" not in c and t.shows(c["parse"]):
                c["decoded"] = t.decode(c["parse"])
            cases.append(c)
        golden.append(dict(name=name + "/" + next(iter(t.files)), cases=cases))
    with open(os.path.join(HERE, "ranked.json"), "w") as f:
        f.write('{"texts": %s,\n"tokenizers": [\n' % json.dumps(texts, separators=(",", ":")))
        f.write(",\n".join('{"name": "%s", "cases": [\n%s]}' % (g["name"], ",\n".join(
            json.dumps(c, separators=(",", ":")) for c in g["cases"])) for g in golden))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
