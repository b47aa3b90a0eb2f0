"""OpenAI's Agents SDK, over chat completions and responses."""
import asyncio
import sys

import agents
import openai

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="any")


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
            print("run", kind.__name__)
            agent = agents.Agent("Weatherman", instructions="You are helpful.", tools=[get_weather],
                                 model=kind(model="od-moe", openai_client=client))
            result = await answer(agent, "What is the weather in Bern?", streaming)
            print(result.final_output)
            result = await answer(agent, [*result.to_input_list(), {"role": "user", "content": "Thank you"}], streaming)
            print(result.final_output)


asyncio.run(main())
