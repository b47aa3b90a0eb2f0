"""Ollama's client: a loop with a tool, in chats and in a stream, as its documentation shows it."""
import sys

import ollama

client = ollama.Client(host=sys.argv[1])


def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city in the days to come.

    Args:
        city: its name
        days: how many
    """
    with open("calls.txt", "a") as f:
        f.write(f"{city} {days}\n")
    return "sunny"


def whole(messages):
    return client.chat("od-moe", messages, tools=[get_weather]).message


def streamed(messages):
    said = ollama.Message(role="assistant", content="", thinking="", tool_calls=[])
    for piece in client.chat("od-moe", messages, tools=[get_weather], stream=True):
        said.content += piece.message.content
        said.thinking += piece.message.thinking or ""
        said.tool_calls += piece.message.tool_calls or []
    return said


assert client.list().models and client.ps().models and "tools" in client.show(client.list().models[0].model).capabilities
for ask in whole, streamed:
    print("run", ask.__name__)
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "What is the weather in Bern?"}]
    while len(messages) < 6:
        answer = ask(messages)
        messages.append(answer)
        for call in answer.tool_calls or []:
            messages.append({"role": "tool", "content": get_weather(**call.function.arguments), "tool_name": call.function.name})
        if not answer.tool_calls:
            print(answer.content)
            messages.append({"role": "user", "content": "Thank you"})
    print(ask(messages).content)
