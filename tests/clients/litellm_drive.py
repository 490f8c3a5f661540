"""LiteLLM: chat, streams, tools, forms, responses, over the providers hosted_vllm, openai and anthropic."""
from typing import Literal

import litellm
from pydantic import BaseModel

from clients.servers import KEY, WEATHER, Qwen3, SmolLm2

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}}
PROVIDERS = ("hosted_vllm", "openai")


class Order(BaseModel):
    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


class LiteLlm:
    def complete(self, provider="hosted_vllm", base=None, **fields):
        return litellm.completion(model=f"{provider}/{self.model}", messages=QUESTION, api_base=base or self.v1, api_key=KEY,
                                  max_tokens=fields.pop("max_tokens", self.room), temperature=0, num_retries=0, timeout=300,
                                  **fields)

    def test_chat(self):
        for provider in PROVIDERS:
            with self.subTest(provider):
                self.assertGreater(self.complete(provider, max_tokens=8).usage.completion_tokens, 0)

    def test_stream(self):
        chunks = list(self.complete(max_tokens=8, stream=True, stream_options={"include_usage": True}))
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)

    def test_tools(self):
        for provider in PROVIDERS:
            with self.subTest(provider):
                self.complete(provider, max_tokens=8, tools=[TOOL], tool_choice="auto")
                choice = self.complete(provider, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0]
                self.check_weather(choice.message.tool_calls[0].function.arguments)

    def test_forms(self):
        for provider in PROVIDERS:
            with self.subTest(provider):
                Order.model_validate_json(self.complete(provider, response_format=Order).choices[0].message.content)

    def test_responses(self):
        response = litellm.responses(model=f"openai/{self.model}", input="Say hello.", api_base=self.v1, api_key=KEY,
                                     max_output_tokens=16, timeout=300)
        self.assertGreater(response.usage.output_tokens, 0)

    def test_anthropics_route(self):
        answer = self.complete("anthropic", base=self.url, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        self.check_weather(answer.choices[0].message.tool_calls[0].function.arguments)

    def test_a_refusal_keeps_its_words(self):
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array", "uniqueItems": True}}}
        with self.assertRaises(litellm.BadRequestError) as caught:
            self.complete(response_format=schema)
        self.assertIn("uniqueItems", str(caught.exception))


class OfSmolLm2(LiteLlm, SmolLm2):
    pass


class OfQwen3(LiteLlm, Qwen3):
    pass
