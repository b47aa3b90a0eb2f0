"""Ollama's client: schemas of pydantic models as format, in chats and of plain prompts, whole and streamed."""
import sys

import ollama
from structured_models import QUESTION, Court, King, check

client = ollama.Client(host=sys.argv[1])
messages = [{"role": "user", "content": QUESTION}]
for schema in King, Court:
    form = schema.model_json_schema()
    check(schema.model_validate_json(client.chat("od-moe", messages, format=form).message.content), schema)
    pieces = client.chat("od-moe", messages, format=form, stream=True)
    check(schema.model_validate_json("".join(p.message.content for p in pieces)), schema)
    check(schema.model_validate_json(client.generate("od-moe", QUESTION, format=form).response), schema)
