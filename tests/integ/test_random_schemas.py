#!/usr/bin/env python3
"""od-main serve --resident writes random answers to random schemas: those that finish are valid by Python's jsonschema, and hardly any
are cut off at 400 tokens. make random-schemas asks for a thousand."""
import atexit
import concurrent.futures
import json
import os
import statistics

import api_clients  # noqa: F401 (where make api-clients puts packages)
from cluster_util import Skip, run_tests, test
from random_schemas import MIN_KEYWORDS, MIN_LEVELS, SchemaWriter, keywords, levels
from serve_util import Server, stop_servers

atexit.register(stop_servers)
COUNT = int(os.environ.get("OD_SCHEMAS", 40))
SEED = int(os.environ.get("OD_SEED", 1))
MAX_TOKENS = 400
FINISHED = 0.8  # of the answers
AT_ONCE = 8


def validator():
    try:
        import jsonschema
    except ImportError as e:
        raise Skip(f"{e}; install it with: make api-clients") from e
    return jsonschema.Draft202012Validator


def answer(server, n, schema):
    """(finish reason, text, tokens); the reason is an error if the schema is refused."""
    status, _, o = server.ask("/v1/completions", {
        "prompt": "The answer as JSON:", "max_tokens": MAX_TOKENS, "temperature": 1.5, "seed": SEED + n,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}})
    if status != 200:
        return f"{status}: {o}", "", 0
    return o["choices"][0]["finish_reason"], o["choices"][0]["text"], o["usage"]["completion_tokens"]


def why_invalid(check, schema, text):
    """None: it is valid."""
    try:
        value = json.loads(text)
    except ValueError as e:
        return str(e)
    return next((e.message for e in check(schema, format_checker=check.FORMAT_CHECKER).iter_errors(value)), None)


@test
def random_answers_to_random_schemas_are_valid():
    check = validator()
    writer = SchemaWriter(SEED)
    schemas = [writer.schema() for _ in range(COUNT)]
    rich = [s for s in schemas if levels(s) >= MIN_LEVELS and len(keywords(s)) >= MIN_KEYWORDS]
    assert len(rich) >= COUNT // 2 and len({json.dumps(s, sort_keys=True) for s in schemas}) == COUNT
    server = Server("--parallel", AT_ONCE)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda n: answer(server, n, schemas[n]), range(COUNT)))
    finished, lengths, bad = 0, [], []
    for schema, (reason, text, tokens) in zip(schemas, answers):
        if reason == "length":
            continue
        finished += 1
        why = why_invalid(check, schema, text) if reason == "stop" else reason
        if why:
            bad.append(f"{why}\n  schema {json.dumps(schema, ensure_ascii=False)}\n  text {text!r}")
        lengths.append(tokens)
    print(f"# {COUNT} schemas, {len(rich)} of {MIN_LEVELS} levels and {MIN_KEYWORDS} keywords or more; {finished} answers finished, "
          f"{finished - len(bad)} are valid; tokens: median {statistics.median(lengths)}, mean {statistics.mean(lengths):.0f}, "
          f"most {max(lengths)}")
    assert not bad, "\n".join(bad)
    assert finished >= FINISHED * COUNT, finished
    assert statistics.median(lengths) > 10, "hardly any answer says something"


run_tests()
