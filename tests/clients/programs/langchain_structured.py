"""LangChain's structured output by each of its methods, whole and streamed, over chat completions, responses and Anthropic's messages."""
import sys

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from structured_models import QUESTION, Court, King, Treasure, check

url = sys.argv[1]


def ways():
    """(model, method, schema, options)"""
    for responses in False, True:
        model = ChatOpenAI(model="od-moe", base_url=url + "/v1", api_key="any", max_retries=0, use_responses_api=responses, max_tokens=700)
        yield model, "json_schema", King, {"strict": True}
        yield model, "function_calling", King, {"strict": True}
        yield model, "function_calling", Court, {"strict": False}
    model = ChatOpenAI(model="od-moe", base_url=url + "/v1", api_key="any", max_retries=0, max_tokens=700)
    yield model, "json_schema", Court, {"strict": False}
    model = ChatAnthropic(model="od-moe", base_url=url, api_key="any", max_retries=0, max_tokens=700)
    yield model, "json_schema", Treasure, {}
    yield model, "function_calling", Court, {}


for model, method, schema, options in ways():
    print("asks", type(model).__name__, method, schema.__name__, options)
    structured = model.with_structured_output(schema, method=method, **options)
    check(structured.invoke(QUESTION), schema)
    *_, last = structured.stream(QUESTION)
    check(last, schema)
