"""LangChain: bind_tools and with_structured_output, over OpenAI's and Anthropic's routes."""
from typing import Literal, Optional

import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from clients.servers import KEY, Qwen3, SmolLm2


class Order(BaseModel, extra="forbid"):  # a small model would make up further members without an end
    """An order of fruit."""
    fruit: Literal["apple", "pear"] = Field(description="which fruit")
    count: Literal[1, 2, 3]
    note: Optional[Literal["ripe", "green"]] = None


@tool
def get_weather(city: Literal["Paris", "Rome", "Zürich"], days: Literal[1, 2, 3]) -> str:
    """The weather in a city."""
    return f"sunny in {city} for {days} days"


class LangChain:
    def model_of(self, **fields):
        return ChatOpenAI(
            model=self.model, base_url=self.v1, api_key=KEY, max_retries=0, max_tokens=self.room, timeout=300, **fields)

    def test_invoke_and_stream(self):
        self.assertGreater(self.model_of().invoke("Say hello.").usage_metadata["output_tokens"], 0)
        self.assertGreater(len(list(self.model_of(stream_usage=True).stream("Say hello."))), 1)

    def test_bind_tools_auto(self):
        self.model_of().bind_tools([get_weather]).invoke("What is the weather in Paris?")

    def test_bind_tools_and_a_result(self):
        for choice in ("any", "required", "get_weather"):
            with self.subTest(choice):
                bound = self.model_of().bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
                answer = bound.invoke("What is the weather in Paris?")
                self.check_weather(answer.tool_calls[0]["args"])
        messages = [HumanMessage("What is the weather in Paris?"), answer,
                    ToolMessage(get_weather.invoke(answer.tool_calls[0]["args"]), tool_call_id=answer.tool_calls[0]["id"])]
        self.assertGreater(self.model_of().bind_tools([get_weather]).invoke(messages).usage_metadata["input_tokens"], 0)

    def test_streamed_tools(self):
        whole = None
        for chunk in self.model_of().bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).stream("Weather?"):
            whole = chunk if whole is None else whole + chunk
        self.check_weather(whole.tool_calls[0]["args"])

    def test_with_structured_output(self):
        for method in ("json_schema", "function_calling"):
            for strict in (None, True):
                with self.subTest(method=method, strict=strict):
                    form = self.model_of(temperature=0).with_structured_output(Order, method=method, strict=strict)
                    order = form.invoke("An apple, please.")
                    self.assertIsInstance(order, Order)

    def test_json_mode(self):
        form = self.model_of(temperature=0).with_structured_output(None, method="json_mode", include_raw=True)
        try:
            self.assertIn("parsed", form.invoke("Answer in JSON."))
        except openai.LengthFinishReasonError:
            pass  # a small model's object may find no end

    def test_responses_api(self):
        model = self.model_of(use_responses_api=True)
        self.assertGreater(model.invoke("Say hello.").usage_metadata["output_tokens"], 0)
        answer = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False).invoke("Weather?")
        self.check_weather(answer.tool_calls[0]["args"])
        # A sampled answer of a small model may reach the limit of its length.
        form = self.model_of(use_responses_api=True, temperature=0).with_structured_output(Order)
        self.assertIsInstance(form.invoke("An apple, please."), Order)

    def test_anthropics_route(self):
        model = ChatAnthropic(model=self.model, base_url=self.url, api_key=KEY, max_retries=0, max_tokens=self.room, timeout=300)
        self.assertGreater(model.invoke("Say hello.").usage_metadata["output_tokens"], 0)
        bound = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
        self.check_weather(bound.invoke("Weather?").tool_calls[0]["args"])
        self.assertIsInstance(model.with_structured_output(Order).invoke("An apple, please."), Order)


class OfSmolLm2(LangChain, SmolLm2):
    pass


class OfQwen3(LangChain, Qwen3):
    pass
