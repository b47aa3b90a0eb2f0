"""Models of several families that play the part of an agent's model, and the tokens of its prompts, for tests of what a prompt need
not compute. Attention and experts add nothing, and the head makes each token be followed by the next one of its answer, as in
scripted_checkpoint.py. But here a conversation has the tokens that the model wrote: each piece of an answer is a token that is
added to the tokenizer, so its text is encoded as that token wherever it stands. Standard library.

Which answer comes next is said by the last message: it has the answer's name between two @@. Or by the conversation: its first
message has the name of a session, and a session's answers come in order."""
import json
import math
import os
import random
import struct

import tiny_checkpoint as tc
from cluster_util import TMP, tool
from model_config import Model
from scripted_checkpoint import byte_alphabet

END, PAD = "<|im_end|>", "<|endoftext|>"
HIDDEN = 256
DELTA = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
# Kinds of attention, each by a family that has it, and what differs from its golden checkpoint's config.json.
KINDS = {"plain": ("qwen3_moe_plain", {}), "window": ("qwen3_moe_window", {"sliding_window": 512}), "latent": ("deepseek_v2_lite", {}),
         "recurrent": ("qwen3_next_plain", DELTA)}
# Thoughts of turns before the user's last message are left out, as by the templates of Qwen3, Qwen3.5 and DeepSeek.
TEMPLATE = """
{%- set ns = namespace(user=-1, tag='', session='', n=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
{{- '# Tools\\n\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nWrite calls as\\n<tool_call>\\n{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + ns.tag -}}
{%- if m.reasoning_content and loop.index0 > ns.user -%}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{%- if m.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' -}}{{- c.function.arguments | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- if m.role == 'assistant' -%}{%- set ns.n = ns.n + 1 -%}{%- endif -%}
{%- if m.content is string and '<session>' in m.content -%}{%- set ns.session = m.content.split('<session>')[1].split('<')[0] -%}{%- endif -%}
{%- if ns.session -%}{%- set ns.tag = begins.get(ns.session ~ '-' ~ ns.n, '') -%}
{%- elif m.content is string and '@@' in m.content -%}{%- set ns.tag = begins.get(m.content.split('@@')[1], '') -%}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' + ns.tag -}}{%- endif -%}
"""


class Answer:
    """What the model writes: thought, text, and calls, each (name, arguments' text). Its pieces differ from all others' by its name, which
    has a fixed length; calls' arguments have it too."""

    def __init__(self, name, thought=24, words=24, calls=()):
        assert all(name in arguments for _, arguments in calls)
        self.name, self.calls = name, list(calls)
        thoughts, texts = ([f"{' ' * (i > 0)}{name}{kind}{i:03}" for i in range(n)] for kind, n in (("t", thought), ("w", words)))
        self.thought, self.content = "".join(thoughts), "".join(texts)
        if thoughts:
            thoughts[0], thoughts[-1] = "<think>\n" + thoughts[0], thoughts[-1] + "\n</think>\n\n"
        written = [f'{chr(10) * bool(texts or i)}<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>'
                   for i, (n, a) in enumerate(self.calls)]
        self.pieces = [*thoughts, *texts, *written]

        self.n_thought = len(thoughts)  # pieces

    def text(self, with_thought):
        """As it stands in a prompt."""
        return "".join(self.pieces[0 if with_thought else self.n_thought:])


class TextAnswer(Answer):
    """An answer of a given text, cut into pieces that `used` has not; it gets them."""

    def __init__(self, name, thought, content, calls, used):
        self.name, self.thought, self.content, self.calls = name, thought, content, calls
        thoughts = self._cut(f"<think>\n{thought}\n</think>\n\n", used) if thought else []
        calls = [f'{chr(10) * bool(content or i)}<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>'
                 for i, (n, a) in enumerate(calls)]
        self.pieces, self.n_thought = [*thoughts, *self._cut(content + "".join(calls), used)], len(thoughts)

    @staticmethod
    def _cut(text, used):
        """Pieces of 16 characters and more. None is the begin of another one, so that each text is encoded in one way."""
        pieces, at = [], 0
        while at < len(text):
            n = 16
            while at + n < len(text) and any(u.startswith(text[at:at + n]) or text[at:at + n].startswith(u) for u in used):
                n += 1
            if len(text) - at - n < 16:
                n = len(text) - at
            pieces.append(text[at:at + n])
            assert pieces[-1] not in used, f"a part of another answer: {pieces[-1]!r}"
            used.add(pieces[-1])
            at += n
        return pieces


def _weights(cfg, successor):
    """A token's embedding is the code of its successor, by which the head finds that."""
    rng, out = random.Random(1), {}
    code = {after: struct.pack(f"<{HIDDEN}H", *rng.choices((0x3F80, 0xBF80), k=HIDDEN)) for after in successor.values()}
    rows = {"model.embed_tokens.weight": {t: code[after] for t, after in successor.items()}, "lm_head.weight": code}
    for name, shape in Model(cfg).tensors():
        raw = bytes(2 * math.prod(shape))
        if name.endswith("norm.weight"):
            raw = struct.pack("<H", 0x3F80) * shape[0]
        elif name in rows:
            raw = b"".join(rows[name].get(t, bytes(2 * HIDDEN)) for t in range(shape[0]))
        out[name] = ("BF16", shape, raw)
    return out


def _tokenizer(vocab, specials, pieces):
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": t in specials}
             for t, i in vocab.items() if t in specials or t in pieces]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {t: i for t, i in vocab.items() if i < 256}, "merges": []}}


def agent_pack(kind, answers, ctx=32768):
    """A pack of a model that writes these answers."""
    base, more = KINDS[kind]
    specials = ["<|im_start|>", END, PAD, *(f"<|begin {a.name}|>" for a in answers)]
    pieces = [p for a in answers for p in a.pieces]
    assert len({*pieces}) == len(pieces)
    vocab = {t: i for i, t in enumerate([*byte_alphabet(), *specials, *pieces])}
    successor = {}
    for a in answers:
        chain = [f"<|begin {a.name}|>", *a.pieces, END]
        successor.update({vocab[t]: vocab[after] for t, after in zip(chain, chain[1:])})
    with open(f"tests/golden/families/{base}/config.json", encoding="utf-8") as f:
        cfg = {**json.load(f), **more, "hidden_size": HIDDEN, "vocab_size": len(vocab), "max_position_embeddings": ctx,
               "rope_scaling": None, "bos_token_id": vocab[PAD], "eos_token_id": vocab[END]}
    folder = os.path.join(TMP, "agent-" + kind)
    tc.write_checkpoint(folder, cfg, _weights(cfg, successor), tokenizer=False)
    for name, value in {"generation_config.json": {"do_sample": False, "eos_token_id": vocab[END]},
                        "tokenizer.json": _tokenizer(vocab, {*specials}, {*pieces}),
                        "tokenizer_config.json": {"eos_token": END}}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write("{%- set begins = {" + ", ".join(f"'{a.name}': '<|begin {a.name}|>'" for a in answers) + "} -%}" + TEMPLATE.strip())
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    return folder + ".pack"
