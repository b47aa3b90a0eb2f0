"""JSON mode, of no schema: OpenAI's client and LangChain, whole and streamed."""
import sys

import openai
from langchain_openai import ChatOpenAI
from structured_models import COURT, QUESTION, Court, check

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0)
messages, json_object = [{"role": "user", "content": QUESTION}], {"type": "json_object"}
answer = client.chat.completions.create(model="od-moe", messages=messages, response_format=json_object)
check(Court.model_validate_json(answer.choices[0].message.content), Court)
chunks = client.chat.completions.create(model="od-moe", messages=messages, response_format=json_object, stream=True)
check(Court.model_validate_json("".join(c.choices[0].delta.content or "" for c in chunks if c.choices)), Court)
answer = client.responses.create(model="od-moe", input=QUESTION, text={"format": json_object})
check(Court.model_validate_json(answer.output_text), Court)
for responses in False, True:
    model = ChatOpenAI(model="od-moe", base_url=url + "/v1", api_key="any", max_retries=0, use_responses_api=responses)
    model = model.with_structured_output(Court, method="json_mode")
    check(model.invoke(QUESTION), Court)
    *_, last = model.stream(QUESTION)
    assert last == COURT, last
