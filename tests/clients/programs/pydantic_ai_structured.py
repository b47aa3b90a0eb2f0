"""Pydantic AI over chat completions, responses and Anthropic's messages: types as tools that must be called, and as schemas of answers."""
import sys

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from structured_models import QUESTION, Court, King, check

url = sys.argv[1]
openai, claude = OpenAIProvider(base_url=url + "/v1", api_key="any"), AnthropicProvider(base_url=url, api_key="any")
for model in OpenAIChatModel("od-moe", provider=openai), OpenAIResponsesModel("od-moe", provider=openai), AnthropicModel(
        "od-moe", provider=claude):
    # It knows of few of Anthropic's models that they have schemas of answers.
    for way in (ToolOutput,) if isinstance(model, AnthropicModel) else (ToolOutput, NativeOutput):
        for schema in King, Court:
            agent = Agent(model, output_type=way(schema), retries=0, model_settings={"max_tokens": 700})
            check(agent.run_sync(QUESTION).output, schema)
    agent = Agent(model, output_type=[ToolOutput(King), ToolOutput(Court)], retries=0, model_settings={"max_tokens": 700})
    answer = agent.run_sync(QUESTION).output
    check(answer, King if isinstance(answer, King) else Court)
