"""LlamaIndex: chat, streams, tools and structured programs by OpenAILike. An environment of its own: llama_index.txt."""
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from clients.servers import KEY, Qwen3, SmolLm2


class Order(BaseModel):
    """An order of fruit."""
    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


def get_weather(city: Literal["Paris", "Rome", "Zürich"], days: Literal[1, 2, 3]) -> str:
    """The weather in a city."""
    return f"sunny in {city} for {days} days"


class LlamaIndex:
    def llm(self, **fields):
        return OpenAILike(model=self.model, api_base=self.v1, api_key=KEY, is_chat_model=True, is_function_calling_model=True,
                          max_tokens=self.room, temperature=0, max_retries=0, timeout=300, context_window=2048, **fields)

    def test_chat_and_stream(self):
        message = ChatMessage(role="user", content="Say hello.")
        self.assertEqual(self.llm().chat([message]).message.role.value, "assistant")
        self.assertGreater(len(list(self.llm().stream_chat([message]))), 1)

    def test_completion(self):
        llm = OpenAILike(model=self.model, api_base=self.v1, api_key=KEY, is_chat_model=False, max_tokens=8, max_retries=0)
        self.assertIsInstance(llm.complete("Once upon a time").text, str)

    def test_tools(self):
        tool = FunctionTool.from_defaults(get_weather)
        answer = self.llm().chat_with_tools([tool], user_msg="What is the weather in Paris?", tool_required=True)
        calls = self.llm().get_tool_calls_from_response(answer)
        self.check_weather(calls[0].tool_kwargs)
        self.llm().chat_with_tools([tool], user_msg="What is the weather in Paris?")

    def test_structured_llm(self):
        answer = self.llm().as_structured_llm(Order).chat([ChatMessage(role="user", content="An apple!")])
        self.assertIsInstance(answer.raw, Order)

    def test_structured_llm_by_schema(self):
        llm = self.llm(should_use_structured_outputs=True)
        self.assertIsInstance(llm.as_structured_llm(Order).chat([ChatMessage(role="user", content="An apple!")]).raw, Order)


class OfSmolLm2(LlamaIndex, SmolLm2):
    pass


class OfQwen3(LlamaIndex, Qwen3):
    pass
