#!/usr/bin/env python3
"""Clients that ask for answers of a form, with pydantic models of theirs. The demo model, which writes tales, answers them validly at once,
since the server holds it to the form; what is not held (JSON mode, tools) is written by scripted models."""
import atexit
import json
import os

from client_models import PROGRAMS
from client_util import Conversation, for_families, own_network

own_network()
from cluster_util import run_tests, test  # noqa: E402
from free_model import free_pack  # noqa: E402
from serve_util import stop_servers  # noqa: E402

atexit.register(stop_servers)
COURT = {"king": "Otto", "guests": {}, "any_of_them": {"kind": "cat", "lives": 9}, "pair": [3, "iron"], "metals": {"gold": True},
         "heirs": ["Ida"], "until": None}
WEATHER = {"city": "Bern", "sunny": True, "days": [2, 3]}


class Talebook:
    """The demo model as a family of client_models."""
    name = "talebook"

    @staticmethod
    def pack(folder, answers, held):
        return free_pack(folder)


def program(c, name, *args, environment="agents"):
    """Runs one of tests/clients/programs. It says of each answer that it is good."""
    out = c.run(os.path.join(PROGRAMS, environment, "bin/python"), "-W", "ignore",
                os.path.abspath(f"tests/clients/programs/{name}.py"), c.url, *args)
    return sum(line.startswith("good ") for line in out.splitlines())


@test
def free_model():
    c = Conversation("structured", Talebook, lambda work: [])
    assert program(c, "official_structured") == 17
    assert program(c, "langchain_structured") == 18
    assert program(c, "openai_agents_structured") == 8
    assert program(c, "ollama_structured") == 6
    assert program(c, "pydantic_ai_structured", environment="pydantic_ai") == 13
    modes = "TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "ANTHROPIC_TOOLS"
    assert program(c, "instructor_structured", *modes, environment="instructor") == 2 * len(modes)
    c.end()


@for_families
def json_mode(family):
    c = Conversation("json-mode", family, lambda work: [{"thought": "They want JSON.", "content": json.dumps(COURT)}], held=True)
    assert program(c, "json_mode") == 5
    assert program(c, "instructor_structured", "JSON", "MD_JSON", environment="instructor") == 2
    c.end()


@for_families
def tool_then_type(family):
    c = Conversation("agents-structured", family, lambda work: [
        {"thought": "The weather tool knows.", "call": ("get_weather", {"city": "Bern", "days": 2})},
        {"thought": "It worked.", "content": json.dumps(WEATHER)}], held=True)
    assert program(c, "openai_agents_structured", "tool") == 4
    assert c.file("calls.txt") == "Bern 2\n" * 4
    c.end()


run_tests()
