"""What models write when they call tools: the cases of tests/golden/chat/answers.json, each with its chat template, as scripts for
scripted_checkpoint.py. Standard library."""
import json
import os
import re
import typing

from cluster_util import TMP, tool
from scripted_checkpoint import EOS, write_scripted

MARK = re.compile(r'<\|[^<>|]*\|>|<｜[^<>｜]*｜>|\[/?[A-Z_]+\]|</?think>|</?(?:minimax:)?tool_call>|<\|tool_call>|<tool_call\|>|<\|"\|>')
FINAL = "It will be sunny tomorrow, as ever."
# What ends a turn, where it is not EOS.
END = {"qwen3_moe": "<|im_end|>", "qwen3_next": "<|im_end|>", "qwen3_5_moe": "<|im_end|>", "hermes": "<|im_end|>", "kimi": "<|im_end|>",
       "glm4_moe": "<|observation|>", "minimax_m2": "[e~[", "gpt_oss": "<|call|>", "gemma4": "<turn|>", "llama": "<|eot_id|>"}


class Case(typing.NamedTuple):
    name: str
    template: str
    tools: list
    text: str  # what the model writes, without its end
    content: str
    reasoning: str
    calls: list  # of name, arguments, perhaps id
    end: str


def golden(name):
    with open(os.path.join("tests/golden/chat", name), encoding="utf-8") as f:
        return json.load(f)


def untyped(calls):
    return [{"type": "function", "function": {"name": name, "description": "D.",
                                              "parameters": {"type": "object"}}} for name in {c["name"] for c in calls}]


def call_cases():
    """Those that a client's answer renders again byte for byte."""
    answers, templates = golden("answers.json"), {}
    for name in "chat_cases.json", "chat_cases-3.json":
        for c in golden(name)["cases"]:
            templates.setdefault(c["family"], c["template"])
    templates.update(answers["templates"])
    for c in answers["cases"]:
        if c["echo"] is None or c["in_thought"]:
            continue
        end = END.get(c["template"], EOS)
        text = c["text"].removesuffix(end).removesuffix("<｜end▁of▁sentence｜>")
        yield Case(c["name"], templates[c["template"]], c["tools"] or untyped(c["tool_calls"]), text, c["content"], c["reasoning"],
                   c["tool_calls"], end)


def pack_of(case, final=FINAL):
    """A pack that writes case.text as an answer to a user, and final as one to a tool."""
    folder = os.path.join(TMP, re.sub(r"\W", "_", case.name))
    end = "<|return|>" if case.end == "<|call|>" else case.end
    if case.end == "<|call|>":
        final = "<|channel|>final<|message|>" + final
    scripts = {"user": case.text + case.end, "tool": final + end}
    marks = {m for text in scripts.values() for m in MARK.findall(text) if m in case.template}
    n = write_scripted(folder, case.template, scripts, sorted((marks | {case.end, end}) - {EOS}))
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    return folder + ".pack", n
