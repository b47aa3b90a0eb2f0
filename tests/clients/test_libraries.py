#!/usr/bin/env python3
"""aider edits a file in its own notation; LangChain, OpenAI's Agents SDK, litellm and Ollama's client run a loop with a tool, over each
API that they speak, streaming and not."""
import atexit
import os

from client_models import PROGRAMS
from client_util import Conversation, for_families, own_network

own_network()
from cluster_util import run_tests  # noqa: E402
from serve_util import stop_servers  # noqa: E402

atexit.register(stop_servers)
CALL = ("get_weather", {"city": "Bern", "days": 2})
TELLS, BYE = "It will be sunny in Bern for two days.", "You are welcome, any time."
CHAT = [{"thought": "The weather tool knows.", "content": "I look.", "call": CALL},
        {"thought": "It worked.", "content": TELLS}, {"thought": "They are polite.", "content": BYE}]
EDIT = """I make the change.

greet.py
```python
<<<<<<< SEARCH
print("hi")
=======
print("Hello from the model")
>>>>>>> REPLACE
```"""


@for_families
def aider(family):
    c = Conversation("aider", family, lambda work: [{"thought": "The user wants an edit.", "content": EDIT}])
    with open(os.path.join(c.work, "greet.py"), "w", encoding="utf-8") as f:
        f.write('print("hi")\n')
    c.run(os.path.join(PROGRAMS, "aider/bin/aider"), "--model", "openai/od-moe", "--yes-always", "--no-git", "--no-check-update",
          "--no-analytics", "--no-show-model-warnings", "--edit-format", "diff", "--message", "Greet better", "greet.py",
          OPENAI_API_BASE=c.url + "/v1", OPENAI_API_KEY="any")
    assert c.file("greet.py") == 'print("Hello from the model")\n'
    c.end()


def library(name):
    """Runs a program of tests/clients/programs. It prints the answers; the tool notes in a file what it was called with."""
    def one(family):
        c = Conversation(name, family, lambda work: CHAT)
        out = c.run(os.path.join(PROGRAMS, "agents/bin/python"), os.path.abspath(f"tests/clients/programs/{name}.py"), c.url)
        runs = out.count("run ")
        assert runs > 0 and out.count(TELLS) == out.count(BYE) == runs, out
        assert c.file("calls.txt") == "Bern 2\n" * runs, c.file("calls.txt")
        c.end()
    one.__name__, one.__module__ = name, "__main__"
    for_families(one)


for program in "langchain_agent", "openai_agents", "litellm_loop", "ollama_loop":
    library(program)
run_tests()
