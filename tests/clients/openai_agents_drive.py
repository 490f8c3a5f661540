"""OpenAI's Agents SDK over chat and over Responses: text, tools, output types, hand-offs, streams."""
import asyncio
import contextlib
from typing import Literal

from agents import (Agent, MaxTurnsExceeded, ModelBehaviorError, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel,
                    Runner, function_tool, set_tracing_disabled)
from openai import AsyncOpenAI
from pydantic import BaseModel

from clients.servers import KEY, Qwen3, SmolLm2

set_tracing_disabled(True)


class Order(BaseModel):
    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


@function_tool
def get_price(fruit: Literal["apple", "pear"]) -> str:
    """The price of a fruit."""
    return f"an {fruit} is 3"


class Agents:
    def on_each_route(self, check):
        async def run(kind):
            async with AsyncOpenAI(base_url=self.v1, api_key=KEY, max_retries=0, timeout=300) as client:
                await check(kind(self.model, client))

        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            with self.subTest(kind.__name__):
                asyncio.run(run(kind))

    @contextlib.contextmanager
    def maybe_cut(self):
        """Random weights find no end, and this library takes a response that is cut for an error of the model."""
        try:
            yield
        except ModelBehaviorError as error:
            self.assertIn("response.incomplete", str(error))

    def settings(self, **fields):
        return ModelSettings(max_tokens=self.room, temperature=0, **fields)

    def test_text(self):
        async def check(model):
            agent = Agent("Tester", model=model, instructions="Be brief.", model_settings=self.settings())
            with self.maybe_cut():
                result = await Runner.run(agent, "Hello!")
                self.assertGreater(result.context_wrapper.usage.output_tokens, 0)
        self.on_each_route(check)

    def test_a_tool_is_called(self):
        async def check(model):
            settings = self.settings(tool_choice="required", parallel_tool_calls=False)
            agent = Agent("Tester", model=model, tools=[get_price], model_settings=settings, tool_use_behavior="stop_on_first_tool")
            result = await Runner.run(agent, "What does an apple cost?", max_turns=1)
            self.assertEqual([item.type for item in result.new_items], ["tool_call_item", "tool_call_output_item"])
            self.assertRegex(result.final_output, "^an (apple|pear) is 3$")
            # The result goes back to the model, which may call again.
            agent = Agent("Tester", model=model, tools=[get_price], model_settings=settings)
            with self.maybe_cut(), contextlib.suppress(MaxTurnsExceeded):
                result = await Runner.run(agent, "What does an apple cost?", max_turns=3)
                self.assertIn("tool_call_output_item", [item.type for item in result.new_items])
        self.on_each_route(check)

    def test_output_type(self):
        async def check(model):
            agent = Agent("Tester", model=model, output_type=Order, model_settings=self.settings())
            result = await Runner.run(agent, "An apple!")
            self.assertIsInstance(result.final_output, Order)
        self.on_each_route(check)

    def test_handoff(self):
        async def check(model):
            seller = Agent("Seller", model=model, output_type=Order, model_settings=self.settings())
            first = Agent("First", model=model, handoffs=[seller], model_settings=self.settings(
                tool_choice="required", parallel_tool_calls=False))
            result = await Runner.run(first, "An apple!", max_turns=3)
            self.assertEqual(result.last_agent.name, "Seller")
            self.assertIsInstance(result.final_output, Order)
        self.on_each_route(check)

    def test_stream(self):
        async def check(model):
            result = Runner.run_streamed(Agent("Tester", model=model, model_settings=self.settings()), "Hello!")
            kinds = []
            with self.maybe_cut():
                async for event in result.stream_events():
                    if event.type == "raw_response_event":
                        kinds.append(event.data.type)
            self.assertEqual(kinds[0], "response.created")
            self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))
        self.on_each_route(check)


class OfSmolLm2(Agents, SmolLm2):
    pass


class OfQwen3(Agents, Qwen3):
    pass
