#!/usr/bin/env python3
"""Claude Code and Codex with the README's commands: each writes a file by a tool of its own and goes on with the conversation; and each
reads a file by a tool of its own, and answers in a form that is asked for."""
import atexit
import glob
import json
import os

from client_models import PROGRAMS
from client_util import Conversation, for_families, own_network

own_network()
from cluster_util import run_tests  # noqa: E402
from serve_util import stop_servers  # noqa: E402

atexit.register(stop_servers)
PACKAGES = glob.glob(os.path.join(PROGRAMS, "agents/lib/python3*/site-packages"))[0]
CLAUDE = os.path.join(PACKAGES, "claude_agent_sdk/_bundled/claude")
CODEX = os.path.join(PACKAGES, "codex_cli_bin/bin/codex")
GREETING = "Hello from the model.\n"
READING, FORECAST = "Bern: sunny for 27 days.\n", {"city": "Bern", "days": 27}
FORM = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"],
        "additionalProperties": False}
DONE, BYE = "The file greeting.txt has a greeting now.", "You are welcome, any time."


def claude_env(c):
    return {"ANTHROPIC_BASE_URL": c.url, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_MODEL": "od-moe"}


@for_families
def claude_code(family):
    c = Conversation("claude-code", family, lambda work: [
        {"thought": "The user wants a file.", "content": "I write it.",
         "call": ("Write", {"file_path": os.path.join(work, "greeting.txt"), "content": GREETING})},
        {"thought": "It worked.", "content": DONE}, {"thought": "They are polite.", "content": BYE}])
    assert DONE in c.run(CLAUDE, "--allowedTools", "Write", "-p", "Write a greeting to greeting.txt", **claude_env(c))
    assert c.file("greeting.txt") == GREETING
    assert BYE in c.run(CLAUDE, "--continue", "-p", "Thank you", **claude_env(c))
    c.end(refused=["/api/hello"])  # it looks whether the server is there


@for_families
def claude_agent_sdk(family):
    """What it is told to answer in a form, it has as a tool of its own."""
    c = Conversation("claude-agent-sdk", family, lambda work: [
        {"thought": "There is a file.", "content": "I read it.", "call": ("Read", {"file_path": os.path.join(work, "weather.txt")})},
        {"thought": "It is about Bern.", "content": "I answer by the other tool.", "call": ("StructuredOutput", FORECAST)}, {"content": DONE}])
    with open(os.path.join(c.work, "weather.txt"), "w", encoding="utf-8") as f:
        f.write(READING)
    out = c.run(os.path.join(PROGRAMS, "agents/bin/python"), os.path.abspath("tests/clients/programs/claude_agent.py"), json.dumps(FORM),
                **claude_env(c))
    assert READING.strip() in out and f"structured {json.dumps(FORECAST)}" in out, out
    c.end(refused=["/api/hello"])


def codex_exec(c):
    provider = f'model_providers.od={{name="od-moe", base_url="{c.url}/v1", wire_api="responses"}}'
    return [CODEX, "-m", "od-moe", "-c", "model_provider=od", "-c", provider, "exec", "--skip-git-repo-check", "--sandbox",
            "danger-full-access"]


@for_families
def codex(family):
    c = Conversation("codex", family, lambda work: [
        {"thought": "The user wants a file.", "content": "I write it.",
         "call": ("exec_command", {"cmd": f"printf '{GREETING}' > greeting.txt".replace("\n", "\\n")})},
        {"thought": "It worked.", "content": DONE}, {"thought": "They are polite.", "content": BYE}])
    exec_ = codex_exec(c)
    assert DONE in c.run(*exec_, "Write a greeting to greeting.txt")
    assert c.file("greeting.txt") == GREETING
    assert BYE in c.run(*exec_, "resume", "--last", "Thank you")
    c.end()


@for_families
def codex_output_schema(family):
    c = Conversation("codex-schema", family, lambda work: [
        {"thought": "There is a file.", "call": ("exec_command", {"cmd": "cat weather.txt"})},
        {"thought": "It is about Bern.", "content": json.dumps(FORECAST)}], held=True)
    for name, text in ("weather.txt", READING), ("form.json", json.dumps(FORM)):
        with open(os.path.join(c.work, name), "w", encoding="utf-8") as f:
            f.write(text)
    out = c.run(*codex_exec(c), "--json", "--output-schema", "form.json", "--output-last-message", "last.json", "What does weather.txt say?")
    assert json.loads(c.file("last.json")) == FORECAST and READING.strip() in out, out
    c.end()


run_tests()
