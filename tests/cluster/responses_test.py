"""OpenAI's Responses API through the whole cluster, as the official Python client uses it: whole and streamed responses, function
calls, conversations that go on, and responses that are cancelled. tests/api has forms and the store of responses."""
import json
import os
import unittest

from cluster.harness import SMOLLM2, Cluster

WEATHER = {"type": "function", "name": "get_weather", "description": "The weather in a city.", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"], "additionalProperties": False}}
PARTS = {"response.output_text.delta": "message", "response.function_call_arguments.delta": "function_call",
         "response.reasoning_text.delta": "reasoning"}


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import openai
        cls.openai = openai
        cls.cluster = Cluster(SMOLLM2, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.cluster.port}/v1", api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def create(self, given="What is the capital of France?", **fields):
        fields = {"max_output_tokens": 24, "temperature": 0, **fields}
        return self.client.responses.create(model=self.cluster.name, input=given, **fields)

    def chat_text(self, messages, **fields):
        answer = self.client.chat.completions.create(model=self.cluster.name, messages=messages, temperature=0, **fields)
        return answer.choices[0].message.content

    def check_stream(self, events):
        """Numbers, order, and that deltas make the items and the items make the response, which is returned."""
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual([event.type for event in events[:2]], ["response.created", "response.in_progress"])
        response, items, text, is_open = events[-1].response, [], "", False
        for event in events[2:-1]:
            self.assertEqual(event.output_index, len(items), event)
            if event.type == "response.output_item.added":
                self.assertFalse(is_open)
                self.assertEqual(event.item.status, "in_progress")
                text, is_open = "", True
            elif event.type in PARTS:
                self.assertEqual(event.item_id, events[-1].response.output[len(items)].id)
                self.assertEqual(response.output[len(items)].type, PARTS[event.type])
                text += event.delta
            elif event.type == "response.output_item.done":
                item, is_open = event.item, False
                self.assertEqual(item.arguments if item.type == "function_call" else item.content[0].text, text)
                items.append(item)
        self.assertEqual([item.to_dict() for item in items], [item.to_dict() for item in response.output])
        return response

    def test_a_response_is_the_chat_answer(self):
        response = self.create(instructions="Answer in one sentence.")
        question = {"role": "user", "content": "What is the capital of France?"}
        instructions = {"role": "system", "content": "Answer in one sentence."}
        self.assertEqual(response.output_text, self.chat_text([instructions, question], max_tokens=24))
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens)
        self.assertLessEqual(response.usage.output_tokens, 24)
        self.assertIsNone(response.error)

    def test_the_stream_says_the_same(self):
        whole = self.create()
        streamed = self.check_stream(list(self.create(stream=True)))
        self.assertEqual(streamed.output_text, whole.output_text)
        self.assertEqual((streamed.status, streamed.usage), (whole.status, whole.usage))

    def test_a_function_is_called_and_its_output_comes_back(self):
        forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 120}
        whole = self.create("How is the weather in Rome?", **forced)
        streamed = self.check_stream(list(self.create("How is the weather in Rome?", stream=True, **forced)))
        call, again = whole.output[-1], streamed.output[-1]
        self.assertEqual((call.type, call.name, call.status), ("function_call", "get_weather", "completed"))
        self.assertEqual(set(json.loads(call.arguments)), {"city", "days"})
        self.assertEqual((again.name, again.arguments), (call.name, call.arguments))
        self.assertNotEqual(again.call_id, call.call_id)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
        # Both ways to go on: the items by hand, and the response that the server keeps.
        question = {"role": "user", "content": "How is the weather in Rome?"}
        by_hand = self.create([question, *(item.to_dict() for item in whole.output), output])
        kept = self.create([output], previous_response_id=whole.id)
        self.assertEqual(by_hand.output_text, kept.output_text)
        self.assertEqual(by_hand.usage.input_tokens, kept.usage.input_tokens)

    def test_a_conversation_goes_on(self):
        first = self.create("My name is Ada.")
        second = self.create("What is my name?", previous_response_id=first.id)
        messages = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": first.output_text},
                    {"role": "user", "content": "What is my name?"}]
        self.assertEqual(second.output_text, self.chat_text(messages, max_tokens=24))
        self.assertEqual(second.previous_response_id, first.id)
        with self.assertRaises(self.openai.BadRequestError) as caught:
            self.create(previous_response_id="resp_unknown")
        self.assertEqual((caught.exception.param, caught.exception.code), ("previous_response_id", "previous_response_not_found"))

    def test_a_response_under_way_is_cancelled(self):
        stream = self.create("Tell a long story.", max_output_tokens=1500, stream=True, extra_body={"ignore_eos": True})
        events = []
        for event in stream:
            events.append(event)
            if event.type == "response.created":
                cancelled = self.client.responses.cancel(event.response.id)
                self.assertEqual(cancelled.status, "cancelled")
        response = self.check_stream(events)
        self.assertEqual((events[-1].type, response.status), ("response.incomplete", "cancelled"))
        self.assertEqual(self.client.responses.retrieve(response.id).status, "cancelled")
        self.cluster.wait_idle()
        with self.assertRaises(self.openai.BadRequestError):
            self.client.responses.cancel(self.create().id)
