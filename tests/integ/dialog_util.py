"""What the tests of /v1/responses and /v1/messages share: prompts as od-main template renders them. Standard library."""
import json
import os

from cluster_util import TMP, pack, tool
from serve_util import parse_events

PROMPT = "Once upon a time there was a king"
WEATHER = "sunny"


def rendered(messages, pack_dir=None, *options, **variables):
    """The prompt of messages in the form of chat completions."""
    path = os.path.join(TMP, "messages.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"messages": messages, "add_generation_prompt": True, **variables}, f)
    return tool("od-main", "template", "--checkpoint", pack_dir or pack(), "--messages", path, *options).stdout


def prompt_tokens(messages, pack_dir=None, **variables):
    """Their number in that prompt, of which the texts of messages hold no special tokens."""
    return len(json.loads(rendered(messages, pack_dir, "--ids", **variables)))


def turn_of(case, ids):
    """The message of a case of chat_scripts, as chat completions have it."""
    calls = [{"id": i, "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for i, c in zip(ids, case.calls)]
    return {"role": "assistant", "content": case.content or None, **({"reasoning_content": case.reasoning} if case.reasoning else {}),
            "tool_calls": calls}


def results_of(ids):
    return [{"role": "tool", "tool_call_id": i, "content": WEATHER} for i in ids]


def named_events(server, path, body):
    """The events of a stream, each of which has its type as its name too."""
    status, headers, text = server.ask(path, {**body, "stream": True})
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream"), (status, text)
    lines, names = [], []
    for line in text.decode().split("\n"):
        if line.startswith("event: "):
            names.append(line[len("event: "):])
        else:
            lines.append(line)
    events, comments = parse_events("\n".join(lines))
    assert [e["type"] for e in events] == names, text
    return events, comments
