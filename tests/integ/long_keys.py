"""A checkpoint that writes JSON with long keys, in the tokens that its tokenizer makes of it. Standard library."""
import json
import os

from scripted_checkpoint import EOS, byte_alphabet, write_scripted

KEYS = ["the_first_name_of_this_customer", "where_an_invoice_should_be_sent", "currency_used_in_all_the_amounts"]
TEXT = json.dumps(dict(zip(KEYS, ["Ada", "Zug", "CHF"])))
SCHEMA = {"type": "object", "properties": {k: {"type": "string"} for k in KEYS}, "required": KEYS, "additionalProperties": False}


def write_long_keys(folder):
    """The texts of the script become added tokens, so that encoding gives them."""
    write_scripted(folder, "{{ messages[0].content }}", {"user": TEXT + EOS})
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    vocab, level = tokenizer["model"]["vocab"], {c: bytes([i]) for i, c in enumerate(byte_alphabet())}
    for token, i in [*vocab.items()]:
        if len(token) > 1:
            del vocab[token]
            tokenizer["added_tokens"].append({"id": i, "content": b"".join(level[c] for c in token).decode(), "single_word": False,
                                              "lstrip": False, "rstrip": False, "normalized": False, "special": False})
    tokenizer["added_tokens"].sort(key=lambda t: t["id"])
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tokenizer, f)
