"""Conversations of agents with the models of agent_model.py, as clients of each API send them, and what of their prompts need not be
computed: each prompt is compared with all earlier ones and their answers, token by token. Standard library."""
import json
import threading

from agent_model import END

BOUND = 128  # tokens that may be computed again


class Ledger:
    """What a server, or one after the other in its place, has been asked so far."""

    def __init__(self, server):
        self.server, self.known, self.short, self.lock = server, [], [], threading.Lock()
        self.n_turns = self.least = self.missing = 0

    def tokens(self, text):
        return self.server.ask("/tokenize", {"content": text, "add_special": False})[2]["tokens"]

    def common(self, tokens):
        """The longest prefix that an earlier turn has, and whose it was."""
        best = 0, None
        with self.lock:
            known = [*self.known]
        for name, other in known:
            while tokens[:best[0] + 1] == other[:best[0] + 1] and best[0] < len(tokens):
                step = 1
                while tokens[best[0]:best[0] + 2 * step] == other[best[0]:best[0] + 2 * step] and best[0] + 2 * step <= len(tokens):
                    step *= 2
                best = best[0] + step, name
        return best

    def note(self, name, tokens, whole, common, cached):
        with self.lock:
            self.known.append((name, whole))
            self.n_turns += 1
            self.least += max(common[0] - BOUND, 0)
            self.missing += max(common[0] - BOUND - cached, 0)
            if cached < common[0] - BOUND:
                self.short.append(f"{name}: {cached} of {len(tokens)} cached, {common[0]} as {common[1]}")


def _events(server, path, body, headers):
    """The events of a stream, as JSON."""
    status, _, text = server.ask(path, {**body, "stream": True}, headers=headers)
    assert status == 200, (status, text)
    data = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(d) for d in data if d != "[DONE]"]


def _ask(server, path, body, headers=None):
    status, _, o = server.ask(path, body, headers=headers)
    assert status == 200, (status, o)
    return o


class Chat:
    """As Cline and aider ask: /v1/chat/completions, without the thoughts."""
    keeps_thoughts = False

    def tool(self, name, description, parameters):
        return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

    def begin(self, system, users):
        return [{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": t} for t in users]}]

    def ask(self, server, messages, tools, stream):
        body = {"model": "m", "messages": messages, "tools": tools, "temperature": 0}
        if not stream:
            o = _ask(server, "/v1/chat/completions", body)
            m = o["choices"][0]["message"]
        else:
            m, o = {"content": "", "reasoning_content": "", "tool_calls": []}, {}
            for e in _events(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, None):
                o = e if e.get("usage") else o
                for c in e["choices"]:
                    for key in "content", "reasoning_content":
                        m[key] += c["delta"].get(key) or ""
                    for call in c["delta"].get("tool_calls") or []:
                        if "id" in call:
                            m["tool_calls"].append({"id": call["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                        for key, value in call["function"].items():
                            m["tool_calls"][-1]["function"][key] += value
        calls = m.get("tool_calls") or []
        answer = {"role": "assistant", "content": m["content"]}
        if calls:
            answer["tool_calls"] = calls
        u = o["usage"]
        return ([answer], m.get("reasoning_content") or "", m["content"] or "", [(c["id"], c["function"]["name"]) for c in calls],
                u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"])

    def results(self, results):
        return [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results]

    def user(self, text):
        return [{"role": "user", "content": text}]


class Messages:
    """As Claude Code asks: /v1/messages, with all blocks of the answers."""
    keeps_thoughts = True

    def tool(self, name, description, parameters):
        return {"name": name, "description": description, "input_schema": parameters}

    def begin(self, system, users):
        return [{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": t} for t in users]}]

    def ask(self, server, messages, tools, stream):
        system, *messages = messages
        messages[-1] = {**messages[-1], "content": [*messages[-1]["content"][:-1],
                                                    {**messages[-1]["content"][-1], "cache_control": {"type": "ephemeral"}}]}
        body = {"model": "m", "max_tokens": 4096, "system": [{"type": "text", "text": system["content"]}], "messages": messages,
                "tools": tools, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        headers = {"anthropic-version": "2023-06-01"}
        if not stream:
            o = _ask(server, "/v1/messages", body, headers)
            blocks, usage = o["content"], o["usage"]
        else:
            blocks, usage = [], {}
            for e in _events(server, "/v1/messages", body, headers):
                if e["type"] == "content_block_start":
                    blocks.append({**e["content_block"], "json": ""})
                elif e["type"] == "content_block_delta":
                    d = e["delta"]
                    for key, to in ("thinking", "thinking"), ("text", "text"), ("signature", "signature"), ("partial_json", "json"):
                        if key in d:
                            blocks[-1][to] += d[key]
                elif e["type"] == "message_delta":
                    usage = e["usage"]
            for b in blocks:
                text = b.pop("json")
                if b["type"] == "tool_use":
                    b["input"] = json.loads(text)
        text = "".join(b["text"] for b in blocks if b["type"] == "text")
        return ([{"role": "assistant", "content": blocks}], "".join(b.get("thinking", "") for b in blocks), text,
                [(b["id"], b["name"]) for b in blocks if b["type"] == "tool_use"],
                usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"])

    def results(self, results):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": [{"type": "text", "text": text}]}
                                             for id_, text in results]}]

    def user(self, text):
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]


class Responses:
    """As Codex asks: /v1/responses, with all items of the answers."""
    keeps_thoughts = True

    def tool(self, name, description, parameters):
        return {"type": "function", "name": name, "description": description, "strict": False, "parameters": parameters}

    def begin(self, system, users):
        return [system, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in users]}]

    def ask(self, server, messages, tools, stream):
        body = {"model": "m", "instructions": messages[0], "input": messages[1:], "tools": tools, "store": False, "temperature": 0,
                "include": ["reasoning.encrypted_content"]}
        if stream:
            o = _events(server, "/v1/responses", body, None)[-1]["response"]
        else:
            o = _ask(server, "/v1/responses", body)
        items = o["output"]
        thought = "".join(p["text"] for i in items if i["type"] == "reasoning" for p in i["content"])
        text = "".join(p["text"] for i in items if i["type"] == "message" for p in i["content"])
        u = o["usage"]
        return (items, thought, text, [(i["call_id"], i["name"]) for i in items if i["type"] == "function_call"], u["input_tokens"],
                u["input_tokens_details"]["cached_tokens"])

    def results(self, results):
        return [{"type": "function_call_output", "call_id": id_, "output": text} for id_, text in results]

    def user(self, text):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]


class Dialog:
    """A context: a system's text, tools, and turns. users: the texts of the first message."""

    def __init__(self, name, api, ledger, system, tools, users):
        self.name, self.api, self.ledger, self.system = name, api, ledger, system
        self.tools = [api.tool(*t) for t in tools]
        self.functions = [Chat().tool(*t) for t in tools]
        self.messages, self.turns = api.begin(system, users), [("user", "\n".join(users))]
        self.calls, self.n = [], 0

    def copy(self, name, n_turns):
        """As it was before the request number n_turns from the end, to be continued in another way."""
        d = object.__new__(Dialog)
        d.__dict__.update(self.__dict__, name=name, n=0)
        d.messages, d.turns, d.calls = self.past[-n_turns]
        d.past = []
        return d

    past = ()

    def prompt(self, answers):
        """The rendered text, as by the template of agent_model.py."""
        last = max(i for i, (role, _) in enumerate(self.turns) if role == "user")
        out = "<|im_start|>system\n" + self.system + "\n\n# Tools\n\n<tools>"
        out += "".join("\n" + json.dumps(f, ensure_ascii=False) for f in self.functions)
        out += '\n</tools>\n\nWrite calls as\n<tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|im_end|>\n'
        for i, (role, what) in enumerate(self.turns):
            if role == "user":
                out += f"<|im_start|>user\n{what}{END}\n"
            elif role == "results":
                out += "<|im_start|>user" + "".join(f"\n<tool_response>\n{t}\n</tool_response>" for t in what) + f"{END}\n"
            else:
                out += f"<|im_start|>assistant\n<|begin {what}|>{answers[what].text(self.api.keeps_thoughts and i > last)}{END}\n"
        return out + f"<|im_start|>assistant\n<|begin {self.next_name()}|>"

    def next_name(self):
        """Of the answer that comes next, as the template of agent_model.py finds it."""
        texts = self.turns[-1][1] if self.turns[-1][0] == "results" else [self.turns[-1][1]]
        return next(t.split("@@")[1] for t in reversed(texts) if "@@" in t)

    def ask(self, answers, stream=False):
        """The answer, which the last message names, is checked, and stays in the conversation. Returns its calls' ids."""
        self.past = [*self.past, ([*self.messages], [*self.turns], [*self.calls])]
        self.n += 1
        want = answers[self.next_name()]
        text = self.prompt(answers)
        tokens = self.ledger.tokens(text)
        whole = self.ledger.tokens(text + want.text(True) + END)
        common = self.ledger.common(tokens)
        messages, thought, content, calls, n, cached = self.api.ask(self.ledger.server, self.messages, self.tools, stream)
        assert (thought, content) == (want.thought, want.content), (self.name, thought, content)
        assert [name for _, name in calls] == [name for name, _ in want.calls], (self.name, calls)
        assert whole[:len(tokens)] == tokens
        assert n == len(tokens), f"{self.name}, turn {self.n}: the prompt is rendered otherwise: {n} tokens, expected {len(tokens)}"
        self.ledger.note(f"{self.name}, turn {self.n}", tokens, whole, common, cached)
        self.messages = [*self.messages, *messages]
        self.turns = [*self.turns, ("assistant", want.name)]
        self.calls = [id_ for id_, _ in calls]

    def give(self, *texts):
        """Results of the last answer's calls."""
        self.messages = [*self.messages, *self.api.results(zip(self.calls, texts))]
        self.turns = [*self.turns, ("results", list(texts))]

    def say(self, text):
        self.messages = [*self.messages, *self.api.user(text)]
        self.turns = [*self.turns, ("user", text)]
