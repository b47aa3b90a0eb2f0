"""litellm's completion, over chat completions and Anthropic's messages."""
import json
import sys

import litellm

url = sys.argv[1]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city in the days to come.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]


def get_weather(city, days=1):
    with open("calls.txt", "a") as f:
        f.write(f"{city} {days}\n")
    return "sunny"


def answer(messages, **options):
    """Adds the answer to messages, and results of its calls until there are none."""
    while True:
        r = litellm.completion(messages=messages, tools=TOOLS, api_key="any", **options)
        if options["stream"]:
            r = litellm.stream_chunk_builder(list(r), messages=messages)
        message = r.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": get_weather(**json.loads(call.function.arguments))})


for model, base in ("openai/od-moe", url + "/v1"), ("anthropic/od-moe", url):
    for stream in False, True:
        print("run", model)
        talk = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "What is the weather in Bern?"}]
        print(answer(talk, model=model, api_base=base, stream=stream))
        talk.append({"role": "user", "content": "Thank you"})
        print(answer(talk, model=model, api_base=base, stream=stream))
