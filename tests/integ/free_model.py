"""The demo model with a chat template that offers tools. It writes tales whatever it is asked, so that an answer of a form shows that the
server held it to that. Standard library."""
import os
import shutil

from cluster_util import CHECKPOINT, tool

# Prompts only name tools: the model's context is too short for schemas.
TEMPLATE = """{{- bos_token -}}
{%- for tool in tools or [] -%}{{- tool.function.name ~ ' ' -}}{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role in ['user', 'tool'] -%}{{- message.content -}}{%- endif -%}
    {%- if message.role == 'assistant' -%}{{- message.content or '' -}}{%- endif -%}
    {%- for call in message.tool_calls or [] -%}
        {{- '<tool_call>\\n' ~ {'name': call.function.name, 'arguments': call.function.arguments} | tojson ~ '\\n</tool_call>' -}}
    {%- endfor -%}
{%- endfor -%}
"""


def free_pack(folder):
    shutil.copytree(CHECKPOINT, folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    tool("od-pack", folder, folder + ".pack", "--shadow", "none")
    return folder + ".pack"
