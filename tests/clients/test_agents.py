#!/usr/bin/env python3
"""Claude Code and Codex with the README's commands: each writes a file by a tool of its own and goes on with the conversation."""
import atexit
import glob
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
DONE, BYE = "The file greeting.txt has a greeting now.", "You are welcome, any time."


@for_families
def claude_code(family):
    c = Conversation("claude-code", family, lambda work: [
        {"thought": "The user wants a file.", "content": "I write it.",
         "call": ("Write", {"file_path": os.path.join(work, "greeting.txt"), "content": GREETING})},
        {"thought": "It worked.", "content": DONE}, {"thought": "They are polite.", "content": BYE}])
    env = {"ANTHROPIC_BASE_URL": c.url, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_MODEL": "od-moe"}
    assert DONE in c.run(CLAUDE, "--allowedTools", "Write", "-p", "Write a greeting to greeting.txt", **env)
    assert c.file("greeting.txt") == GREETING
    assert BYE in c.run(CLAUDE, "--continue", "-p", "Thank you", **env)
    c.end(refused=["/api/hello"])  # it looks whether the server is there


@for_families
def codex(family):
    c = Conversation("codex", family, lambda work: [
        {"thought": "The user wants a file.", "content": "I write it.",
         "call": ("exec_command", {"cmd": f"printf '{GREETING}' > greeting.txt".replace("\n", "\\n")})},
        {"thought": "It worked.", "content": DONE}, {"thought": "They are polite.", "content": BYE}])
    provider = f'model_providers.od={{name="od-moe", base_url="{c.url}/v1", wire_api="responses"}}'
    exec_ = [CODEX, "-m", "od-moe", "-c", "model_provider=od", "-c", provider, "exec", "--skip-git-repo-check",
             "--sandbox", "danger-full-access"]
    assert DONE in c.run(*exec_, "Write a greeting to greeting.txt")
    assert c.file("greeting.txt") == GREETING
    assert BYE in c.run(*exec_, "resume", "--last", "Thank you")
    c.end()


run_tests()
