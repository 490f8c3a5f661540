"""Pydantic AI: outputs by tool, natively and by prompt, function tools, streams; chat, Responses, Anthropic's Messages."""
import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from clients.servers import KEY, Qwen3, SmolLm2


NO_ORDER = r"[Ee]xceeded maximum (output )?retries|token limit"


class Order(BaseModel):
    """An order of fruit."""
    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


class PydanticAi:
    def models(self):
        openai = OpenAIProvider(base_url=self.v1, api_key=KEY)
        return {"chat": OpenAIChatModel(self.model, provider=openai),
                "responses": OpenAIResponsesModel(self.model, provider=openai),
                "messages": AnthropicModel(self.model, provider=AnthropicProvider(base_url=self.url, api_key=KEY))}

    def settings(self):
        return {"max_tokens": self.room, "temperature": 0, "timeout": 300, "parallel_tool_calls": False}

    def on_each_route(self, check):
        for name, model in self.models().items():
            with self.subTest(name):
                asyncio.run(check(name, model))

    def test_text(self):
        async def check(_, model):
            result = await Agent(model, model_settings=self.settings(), instructions="Be brief.").run("Say hello.")
            self.assertGreater(result.usage.output_tokens, 0)
        self.on_each_route(check)

    def test_output_by_tool(self):
        async def check(_, model):
            result = await Agent(model, model_settings=self.settings(), output_type=ToolOutput(Order)).run("An apple, please.")
            self.assertIsInstance(result.output, Order)
        self.on_each_route(check)

    def test_output_natively(self):
        async def check(name, model):
            if name == "messages":
                return  # the client itself knows which of Anthropic's models have the feature
            result = await Agent(model, model_settings=self.settings(), output_type=NativeOutput(Order)).run("An apple, please.")
            self.assertIsInstance(result.output, Order)
        self.on_each_route(check)

    def test_output_by_prompt(self):
        async def check(_, model):
            agent = Agent(model, model_settings=self.settings(), output_type=PromptedOutput(Order), retries=0)
            try:
                self.assertIsInstance((await agent.run("An apple, please.")).output, Order)
            except UnexpectedModelBehavior as error:  # a small model's text is no order, which only the library's check may say
                self.assertRegex(str(error), NO_ORDER)
        self.on_each_route(check)

    def test_function_tools(self):
        async def check(_, model):
            agent, prices = Agent(model, model_settings=self.settings(), output_type=ToolOutput(Order), retries=0), []

            @agent.tool_plain
            def get_price(fruit: Literal["apple", "pear"]) -> int:
                """The price of a fruit."""
                prices.append(fruit)
                return 3

            try:
                result = await agent.run("An apple, please.", usage_limits=UsageLimits(request_limit=3))
                self.assertIsInstance(result.output, Order)
            except UsageLimitExceeded:
                self.assertGreater(len(prices), 0)  # a small model may ask for the price again and again
        self.on_each_route(check)

    def test_stream(self):
        async def check(_, model):
            agent = Agent(model, model_settings=self.settings(), output_type=ToolOutput(Order))
            async with agent.run_stream("An apple, please.") as result:
                self.assertIsInstance(await result.get_output(), Order)
        self.on_each_route(check)


class OfSmolLm2(PydanticAi, SmolLm2):
    pass


class OfQwen3(PydanticAi, Qwen3):
    pass
