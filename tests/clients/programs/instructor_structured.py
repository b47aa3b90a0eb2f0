"""instructor in the modes that are named, whole and streamed; what the server answers first must be valid."""
import sys

import anthropic
import instructor
import openai
from structured_models import QUESTION, Closed, Court, King, Word, check



class Page(Closed):
    """instructor has no partial models of enumerations and discriminators."""
    title: Word
    read: bool


url, modes = sys.argv[1], sys.argv[2:]
for name in modes:
    print("asks", name, flush=True)
    if name.startswith("ANTHROPIC"):
        client = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="any", max_retries=0), mode=instructor.Mode[name])
    else:
        client = instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0), mode=instructor.Mode[name])
    schema = King if name in ("TOOLS_STRICT", "JSON_SCHEMA") else Court
    request = {"response_model": schema, "model": "od-moe", "max_tokens": 700, "max_retries": 0,
               "messages": [{"role": "user", "content": QUESTION}]}
    check(client.chat.completions.create(**request), schema)
    if "JSON" not in name or name == "JSON_SCHEMA":  # else the scripted model writes of a court
        *_, last = client.chat.completions.create_partial(**{**request, "response_model": Page})
        check(Page.model_validate(last.model_dump()), Page)
