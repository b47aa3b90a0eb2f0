"""OpenAI's Agents SDK over chat completions and responses, streaming and not: a tool that must be called, then an answer of a type. The
answer is a King for a model that is free, and says what the weather is where the tool is given."""
import asyncio
import sys

import agents
import openai
from pydantic import BaseModel
from structured_models import QUESTION, Doll, King, check

agents.set_tracing_disabled(True)
url, with_tool = sys.argv[1], sys.argv[2:] == ["tool"]
client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0)


class Weather(BaseModel):
    city: str
    sunny: bool
    days: list[int]


@agents.function_tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city in the days to come."""
    with open("calls.txt", "a") as f:
        f.write(f"{city} {days}\n")
    return "sunny"


async def answer(agent, question, streaming):
    if not streaming:
        return await agents.Runner.run(agent, question)
    result = agents.Runner.run_streamed(agent, question)
    async for _ in result.stream_events():
        pass
    return result


async def main():
    for kind in agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel:
        for streaming in False, True:
            print("asks", kind.__name__, streaming)
            for schema in (Weather,) if with_tool else (King, Doll):
                agent = agents.Agent("King's", instructions="You are helpful.", output_type=schema, tools=[get_weather] if with_tool else [],
                                     model_settings=agents.ModelSettings(tool_choice="required" if with_tool else None),
                                     model=kind(model="od-moe", openai_client=client))
                check((await answer(agent, QUESTION, streaming)).final_output, schema)


asyncio.run(main())
