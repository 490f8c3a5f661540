"""OpenAI's own client: chat, streams, tools, parse helpers, responses."""
import json
from typing import Literal, Optional

import openai
from pydantic import BaseModel

from clients.servers import KEY, WEATHER, Qwen3, SmolLm2

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}}
FLAT_TOOL = {"type": "function", "name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}


class Leg(BaseModel):
    to: Literal["Rome", "Oslo"]
    hours: Literal[1, 2, 3]


class Trip(BaseModel):
    """A trip."""
    first: Leg
    back: Optional[Leg]
    paid: bool


class get_weather(BaseModel):
    city: Literal["Paris", "Rome", "Zürich"]
    days: Literal[1, 2, 3]


class Chat:
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.v1, api_key=KEY, max_retries=0, timeout=300)

    def chat(self, **fields):
        return self.client.chat.completions.create(model=self.model, messages=fields.pop("messages", QUESTION),
                                                   max_tokens=fields.pop("max_tokens", self.room), temperature=0, **fields)

    def test_models(self):
        self.assertEqual([card.id for card in self.client.models.list()], [self.model])

    def test_chat(self):
        answer = self.chat(max_tokens=8)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))

    def test_streamed_chat_has_the_same_text(self):
        message = self.chat(max_tokens=8).choices[0].message
        chunks = list(self.chat(max_tokens=8, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        self.assertEqual("".join(delta.content or "" for delta in deltas), message.content or "")
        self.assertEqual(chunks[-1].choices, [])
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)

    def test_tools_that_may_be_called(self):
        self.assertIn(self.chat(tools=[TOOL], max_tokens=8).choices[0].finish_reason, ("stop", "length", "tool_calls"))

    def test_required_call(self):
        choice = self.chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.check_weather(choice.message.tool_calls[0].function.arguments)

    def test_named_call(self):
        choice = self.chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
        self.assertEqual([call.function.name for call in choice.message.tool_calls], ["get_weather"])
        self.check_weather(choice.message.tool_calls[0].function.arguments)

    def test_streamed_call_is_the_whole_one(self):
        fields = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        whole = self.chat(**fields).choices[0].message.tool_calls[0].function
        calls = [call for chunk in self.chat(stream=True, **fields) if chunk.choices
                 for call in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual(calls[0].function.name, whole.name)
        self.assertEqual("".join(call.function.arguments or "" for call in calls), whole.arguments)

    def test_the_result_goes_back(self):
        message = self.chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        answer = self.chat(messages=[*QUESTION, message, result], tools=[TOOL], max_tokens=8)
        self.assertGreater(answer.usage.prompt_tokens, 0)

    def test_parse(self):
        message = self.client.chat.completions.parse(model=self.model, messages=QUESTION, response_format=Trip,
                                                     max_tokens=2 * self.room, temperature=0).choices[0].message
        self.assertIsInstance(message.parsed, Trip)

    def test_parse_of_tools(self):
        choice = self.client.chat.completions.parse(
            model=self.model, messages=QUESTION, tools=[openai.pydantic_function_tool(get_weather)], tool_choice="required",
            parallel_tool_calls=False, max_tokens=self.room, temperature=0).choices[0]
        self.assertIsInstance(choice.message.tool_calls[0].function.parsed_arguments, get_weather)

    def test_stream_helper(self):
        with self.client.chat.completions.stream(
                model=self.model, messages=QUESTION, response_format=Trip, max_tokens=2 * self.room, temperature=0) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.done", kinds)
        self.assertIsInstance(final.choices[0].message.parsed, Trip)

    def test_a_schema_that_cannot_be_enforced_is_refused(self):
        schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
        self.assertEqual((caught.exception.code, caught.exception.param), ("unsupported_schema", "/uniqueItems"))

    def test_a_wrong_key_is_refused(self):
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.v1, api_key="wrong", max_retries=0).models.list()

    def test_embeddings(self):
        answer = self.client.embeddings.create(model=self.model, input=["a", "b"])
        self.assertEqual([one.index for one in answer.data], [0, 1])
        self.assertGreater(len(answer.data[0].embedding), 0)
        self.assertNotEqual(answer.data[0].embedding, answer.data[1].embedding)


class Responses:
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.v1, api_key=KEY, max_retries=0, timeout=300)

    def respond(self, **fields):
        return self.client.responses.create(model=self.model, input=fields.pop("input", "What is the weather in Paris?"),
                                            max_output_tokens=fields.pop("max_output_tokens", self.room),
                                            temperature=0, **fields)

    def test_text(self):
        response = self.respond(max_output_tokens=16)
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertGreater(response.usage.output_tokens, 0)

    def test_stream(self):
        events = list(self.respond(max_output_tokens=16, stream=True))
        self.assertEqual([event.type for event in events[:2]], ["response.created", "response.in_progress"])
        self.assertIn(events[-1].type, ("response.completed", "response.incomplete"))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))

    def test_call_and_its_result(self):
        response = self.respond(tools=[FLAT_TOOL], tool_choice="required", parallel_tool_calls=False)
        call = next(item for item in response.output if item.type == "function_call")
        self.check_weather(call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"sky": "blue"})}
        again = self.respond(input=[result], previous_response_id=response.id, tools=[FLAT_TOOL], max_output_tokens=16)
        self.assertGreater(again.usage.input_tokens, response.usage.input_tokens)

    def test_streamed_call(self):
        events = list(self.respond(tools=[FLAT_TOOL], tool_choice="required", parallel_tool_calls=False, stream=True))
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        self.check_weather(done.arguments)

    def test_parse(self):
        response = self.client.responses.parse(
            model=self.model, input="Plan a trip.", text_format=Trip, max_output_tokens=2 * self.room, temperature=0)
        self.assertIsInstance(response.output_parsed, Trip)

    def test_get_and_delete(self):
        response = self.respond(max_output_tokens=16)
        self.assertEqual(self.client.responses.retrieve(response.id).id, response.id)
        self.client.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)

    def test_a_tool_of_openai_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond(tools=[{"type": "web_search"}])
        self.assertIn("tools", caught.exception.param)


class ChatOfSmolLm2(Chat, SmolLm2):
    pass


class ChatOfQwen3(Chat, Qwen3):
    pass


class ResponsesOfSmolLm2(Responses, SmolLm2):
    pass


class ResponsesOfQwen3(Responses, Qwen3):
    pass
