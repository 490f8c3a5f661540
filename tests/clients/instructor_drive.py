"""Instructor: every mode of OpenAI's client that the library has, and Anthropic's."""
from typing import Literal

import anthropic
import instructor
import openai
from pydantic import BaseModel

from clients.servers import KEY, Qwen3, SmolLm2

QUESTION = [{"role": "user", "content": "An apple, please."}]


class Order(BaseModel, extra="forbid"):  # a small model would make up further members, and find no end
    """An order of fruit."""
    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


class Instructor:
    def create(self, mode, **fields):
        client = instructor.from_openai(openai.OpenAI(base_url=self.v1, api_key=KEY, max_retries=0, timeout=300), mode=mode)
        return client.chat.completions.create(model=self.model, messages=QUESTION, response_model=Order, max_retries=0,
                                              temperature=0, **fields)

    def test_tools(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
            with self.subTest(mode):
                self.assertIsInstance(self.create(mode, max_tokens=self.room), Order)

    def test_schema(self):
        self.assertIsInstance(self.create(instructor.Mode.JSON_SCHEMA, max_tokens=self.room), Order)

    def test_responses(self):
        self.assertIsInstance(self.create(instructor.Mode.RESPONSES_TOOLS, max_output_tokens=self.room), Order)

    def test_partial_stream(self):
        client = instructor.from_openai(openai.OpenAI(base_url=self.v1, api_key=KEY, max_retries=0, timeout=300))
        parts = list(client.chat.completions.create_partial(
            model=self.model, messages=QUESTION, response_model=Order, max_tokens=self.room, temperature=0))
        self.assertIn(parts[-1].fruit, ("apple", "pear"))

    def test_anthropics_route(self):
        client = instructor.from_anthropic(anthropic.Anthropic(base_url=self.url, api_key=KEY, max_retries=0, timeout=300))
        order = client.messages.create(
            model=self.model, messages=QUESTION, response_model=Order, max_tokens=self.room, max_retries=0,
            extra_body={"temperature": 0})
        self.assertIsInstance(order, Order)


class OfSmolLm2(Instructor, SmolLm2):
    pass


class OfQwen3(Instructor, Qwen3):
    pass
