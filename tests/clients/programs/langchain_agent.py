"""LangChain's agent, over chat completions, responses and Anthropic's messages."""
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

url = sys.argv[1]


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city in the days to come."""
    with open("calls.txt", "a") as f:
        f.write(f"{city} {days}\n")
    return "sunny"


def models():
    for streaming in False, True:
        yield ChatOpenAI(model="od-moe", base_url=url + "/v1", api_key="any", streaming=streaming)
        yield ChatOpenAI(model="od-moe", base_url=url + "/v1", api_key="any", streaming=streaming, use_responses_api=True)
        yield ChatAnthropic(model="od-moe", base_url=url, api_key="any", streaming=streaming)


for model in models():
    print("run", type(model).__name__)
    agent = create_agent(model, tools=[get_weather], system_prompt="You are helpful.")
    messages = [{"role": "user", "content": "What is the weather in Bern?"}]
    for more in {"role": "user", "content": "Thank you"}, None:
        messages = agent.invoke({"messages": messages})["messages"]
        print(messages[-1].text)
        messages.append(more)
