"""OpenAI's and Anthropic's own clients: schemas that they make from pydantic models, tools that must be called, whole and streamed."""
import sys

import anthropic
import openai
from structured_models import QUESTION, Court, Doll, King, Treasure, check

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0)
claude = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
PLAIN = Court.model_json_schema()

chat = client.chat.completions
check(chat.parse(model="od-moe", messages=MESSAGES, response_format=King).choices[0].message.parsed, King)
with chat.stream(model="od-moe", messages=MESSAGES, response_format=King) as stream:
    check(stream.get_final_completion().choices[0].message.parsed, King)
parsed = chat.parse(model="od-moe", messages=MESSAGES, tools=[openai.pydantic_function_tool(King)], tool_choice="required",
                    parallel_tool_calls=False)
check(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, King)
check(chat.parse(model="od-moe", messages=MESSAGES, response_format=Doll).choices[0].message.parsed, Doll)
tool = {"type": "function", "function": {"name": "court", "parameters": PLAIN}}
for choice in "required", {"type": "function", "function": {"name": "court"}}, {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "court"}}]}}:
    calls = chat.create(model="od-moe", messages=MESSAGES, tools=[tool], tool_choice=choice).choices[0].message.tool_calls
    check(Court.model_validate_json(calls[0].function.arguments), Court)

check(client.responses.parse(model="od-moe", input=QUESTION, text_format=King).output_parsed, King)
with client.responses.stream(model="od-moe", input=QUESTION, text_format=King) as stream:
    check(stream.get_final_response().output_parsed, King)
tool = {"type": "function", "name": "court", "parameters": PLAIN, "strict": False}
for choice in "required", {"type": "function", "name": "court"}:
    call, = client.responses.create(model="od-moe", input=QUESTION, tools=[tool], tool_choice=choice, parallel_tool_calls=False).output
    check(Court.model_validate_json(call.arguments), Court)

for messages in claude.messages, claude.beta.messages:
    check(messages.parse(model="od-moe", max_tokens=700, messages=MESSAGES, output_format=Treasure).parsed_output, Treasure)
    with messages.stream(model="od-moe", max_tokens=700, messages=MESSAGES, output_format=Treasure) as stream:
        check(stream.get_final_message().parsed_output, Treasure)
tool = {"name": "court", "input_schema": PLAIN}
for choice in {"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "court"}:
    use, = claude.messages.create(model="od-moe", max_tokens=700, messages=MESSAGES, tools=[tool], tool_choice=choice).content
    assert use.type == "tool_use", use
    check(Court.model_validate(use.input), Court)
