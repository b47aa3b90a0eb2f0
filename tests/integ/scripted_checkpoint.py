"""A tiny checkpoint whose greedy text is a given script: attention and experts add nothing, embeddings are one-hot, and the head
makes each token be followed by the next one of its script. So a chat can be tested with any text that a model may write.
Standard library.

Each script is cut into tokens of its own, since one token has one successor. What a model has as a special token is one where it
first occurs in the scripts, if the text before can be cut; elsewhere it is ordinary text. A script begins behind a special token which the checkpoint's
chat template writes at the end of the generation prompt, one for each role of the last message. A model that does not stop behind
its script writes BEYOND. The tokenizer is a published one with a few more tokens, if that is given; else each byte is a token."""
import json
import math
import os
import struct

import tiny_checkpoint as tc
from model_config import Model

BOS, EOS = "<s>", "</s>"
BEYOND = "(beyond the end)"


def start_of(script):
    return f"<|begin {script}|>"


def byte_alphabet():
    """The characters by which a byte-level tokenizer writes bytes (GPT-2's)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


class Cutter:
    """Cuts scripts into texts that are all different."""

    def __init__(self, specials):
        self.unspent, self.spent = set(specials), set()
        self.used = {BOS, EOS, *specials}

    def whole(self, script):
        """A script that ends with a special token has that as its last one, whatever it had before."""
        end = next((s for s in [EOS, *self.unspent, *self.spent] if script.endswith(s)), "")
        return [*self.cut(script[:len(script) - len(end)]), *([end] if end else [])]

    def cut(self, text):
        for at, special in sorted((text.find(s), s) for s in self.unspent if s in text):
            before = self.plain(text[:at])
            if before is not None:  # else it stays ordinary text
                self.unspent.remove(special)
                self.spent.add(special)
                return [*before, special, *self.cut(text[at + len(special):])]
        pieces = self.plain(text)
        assert pieces is not None, f"change the script: {text!r} is a part of another one"
        return pieces

    def plain(self, text):
        """None: it is too short to be cut into texts that are new. A single byte has a token already."""
        pieces, at = [], 0
        while at < len(text):
            n = next((n for n in range(2, len(text) - at + 1) if text[at:at + n] not in self.used | {*pieces}), None)
            if n is None and not pieces:
                return None
            if n is None:  # what is left goes to the piece before
                pieces[-1] += text[at:]
                if pieces[-1] in self.used:
                    return None
                break
            pieces.append(text[at:at + n])
            at += n
        self.used.update(pieces)
        return pieces


def tokenizer(ids, specials):
    """ids: of specials, and of texts that encoding never gives, as there are no merges."""
    alphabet = byte_alphabet()
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab.update({"".join(alphabet[b] for b in t.encode()): i for t, i in ids.items() if t not in specials})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "added_tokens": [
        {"id": ids[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for t in specials],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def published_ids(base, texts, specials):
    """The ids of these in a published tokenizer; new ones get those behind all others."""
    ids = {t["content"]: t["id"] for t in base["added_tokens"]}
    vocab, alphabet = base["model"]["vocab"], byte_alphabet()
    n = max([*ids.values(), *vocab.values()]) + 1
    for t in [*texts, *specials]:
        if t not in ids:
            ids[t] = None if t in specials else vocab.get("".join(alphabet[b] for b in t.encode()))
        if ids[t] is None:
            ids[t], n = n, n + 1
    return {t: ids[t] for t in [*texts, *specials]}, n


def extended(base, ids, specials):
    """A published tokenizer with these tokens. Those that were added are in the vocabulary, too, so that they keep their ids."""
    out, alphabet = json.loads(json.dumps(base)), byte_alphabet()
    known = {t["content"] for t in out["added_tokens"]}
    vocab = out["model"]["vocab"]
    vocab.update({t["content"]: t["id"] for t in out["added_tokens"]})
    vocab.update({"".join(alphabet[b] for b in t.encode()): i for t, i in ids.items() if t not in specials})
    vocab.update({t: ids[t] for t in specials})
    out["added_tokens"] += [{"id": ids[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                             "special": True} for t in specials if t not in known]
    return out


def one_hot(rows, columns, ones):
    """A bf16 matrix with 16 at (row, column): the next token is then certain at any usual temperature, too."""
    raw = bytearray(2 * rows * columns)
    for row, column in ones:
        struct.pack_into("<H", raw, 2 * (row * columns + column), 0x4180)
    return bytes(raw)


def weights(cfg, successor):
    """Only tokens that have a successor have an embedding."""
    out, place = {}, {token: i for i, token in enumerate(successor)}
    for name, shape in Model(cfg).tensors():
        raw = bytes(2 * math.prod(shape))
        if name.endswith("norm.weight"):
            raw = struct.pack("<H", 0x3F80) * shape[0]
        elif name == "model.embed_tokens.weight":
            raw = one_hot(*shape, place.items())
        elif name == "lm_head.weight":
            raw = one_hot(*shape, [(after, place[token]) for token, after in successor.items()])
        out[name] = ("BF16", shape, raw)
    return out


BY_ROLE = "{%- if add_generation_prompt -%}{{- '<|begin ' ~ messages[-1].role ~ '|>' -}}{%- endif -%}"


def write_scripted(path, template, scripts, specials=(), ctx=8192, base=None, begin=BY_ROLE, start=start_of, eos=EOS):
    """template: of the chat. scripts: name -> the text that is then written, its last token included; begin: what a template
    writes at the end of a generation prompt, start(name) of a script; here the last message's role is the name.
    specials: special tokens of the model, beside BOS and EOS. base: the tokenizer.json to extend.
    Returns the number of tokens of each script."""
    cutter = Cutter(specials)
    cut = {name: cutter.whole(text) for name, text in scripts.items()}
    specials = [*((BOS, EOS) if base is None else ()), *specials, *map(start, scripts)]
    texts = [t for pieces in cut.values() for t in pieces if t not in specials]
    if base is None:
        ids = {t: 256 + i for i, t in enumerate([*texts, BEYOND, *specials])}
        vocab = 256 + len(ids)
    else:
        ids, vocab = published_ids(base, [*texts, BEYOND], specials)
    successor = {}
    for name, pieces in cut.items():
        chain = [start(name), *pieces, BEYOND]
        for token, after in zip(chain, chain[1:]):
            assert successor.setdefault(ids[token], ids[after]) == ids[after], token
    cfg = {**tc.CONFIG, "hidden_size": -(-len(successor) // 64) * 64, "head_dim": 16, "intermediate_size": 32, "num_hidden_layers": 1,
           "vocab_size": vocab, "max_position_embeddings": ctx, "bos_token_id": ids.get(BOS), "eos_token_id": ids[eos]}
    tc.write_checkpoint(path, cfg, weights(cfg, successor), tokenizer=False)
    for name, value in {"generation_config.json": {"do_sample": False, "eos_token_id": ids[eos]},
                        "tokenizer.json": tokenizer(ids, specials) if base is None else extended(base, ids, specials),
                        "tokenizer_config.json": {"bos_token": BOS, "eos_token": eos}}.items():
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(template + begin)
    return {name: len(pieces) for name, pieces in cut.items()}
