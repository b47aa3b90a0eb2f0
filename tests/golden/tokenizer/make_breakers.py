#!/usr/bin/env python3
"""Writes breakers.json: the tokens that break a repetition for DRY, by texts, as llama.cpp defines them.

A token that contains the text; or one that ends with the first bytes of the text, and behind it the tokens of the rest,
at most 20. The tokens' texts and the rests' tokens are those of Hugging Face tokenizers (0.23.3 made the committed
file)."""
import json
import os

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
USUAL = ["\n", ":", "\"", "*"]
CASES = [
    ("tok_gpt2", [USUAL, ["the wolf"], ["wolf and"], ["é"], ["  "], ["a", "aaaa"],
                  ["qxzjkvbwqxzjkvbwqxzjkvbwqxzjkvbwqxzjkvbw"]]),
    ("tok_llama3", [USUAL, ["\n\n"], ["wolves and"]]),
    ("tok_qwen3", [USUAL, ["<|im_end|>", "x\ny"]]),
    ("tok_mixtral", [USUAL, ["the wolf"], ["ten"], ["</s>"]]),
    ("tok_gemma", [USUAL, [" and "], ["thereafter together in the weather"]]),
]


def byte_alphabet():
    """GPT-2's characters that stand for bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{chr(b): b for b in shown}, **{chr(256 + i): b for i, b in enumerate(hidden)}}


def token_bytes(t, spec, token):
    text = t.id_to_token(token)
    decoder = json.dumps(spec["decoder"])
    alphabet = byte_alphabet()
    if "ByteLevel" in decoder and all(c in alphabet for c in text):
        return bytes(alphabet[c] for c in text)
    if "ByteFallback" in decoder and len(text) == 6 and text.startswith("<0x"):
        return bytes([int(text[3:5], 16)])
    return text.encode() if "ByteLevel" in decoder else t.decode([token], skip_special_tokens=False).encode()


def rest_tokens(t, rest):
    try:
        return t.encode(rest.decode(), add_special_tokens=False).ids[:20]
    except UnicodeDecodeError:
        return None  # within a character


def breakers(t, spec, text):
    text, found = text.encode()[:40], []
    for token in range(t.get_vocab_size()):
        word = token_bytes(t, spec, token) if t.id_to_token(token) is not None else b""
        tails = []
        if text in word:
            tails = [[]]
        else:
            for have in range(len(text) - 1, 0, -1):
                tail = rest_tokens(t, text[have:]) if word.endswith(text[:have]) else None
                if tail is not None and tail not in tails:
                    tails.append(tail)
        found += [v for tail in tails for v in [1 + len(tail), token] + tail]
    return found


def main():
    cases = []
    for name, lists in CASES:
        path = os.path.join(HERE, name + ".json")
        t, spec = Tokenizer.from_file(path), json.load(open(path))
        for texts in lists:
            cases.append(dict(tokenizer=name, texts=texts, breakers=[v for s in texts for v in breakers(t, spec, s)]))
    with open(os.path.join(HERE, "breakers.json"), "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
