"""Anthropic's Messages API of SmolLM2 through the whole cluster: whole messages, streams and forced calls. All else that requests
may ask: tests/api/messages_test.cc and chat_body_test.cc."""
import json
import os
import unittest

from cluster.harness import SMOLLM2, Cluster

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"], "additionalProperties": False}}
CONVERSATION = [
    {"role": "user", "content": [
        {"type": "text", "text": "What is the weather in Paris?", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I look it up.", "signature": "msg_1"},
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris", "days": 1}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "sunny, 21 C"}]},
        {"type": "text", "text": "Is that warm?"}]},
]


def events_of(text):
    """(name, data) of each event; comments are left out."""
    events = []
    for part in text.split("\n\n"):
        if part and not part.startswith(":"):
            name, data = part.split("\n", 1)
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def accumulate(events):
    """The message that a client puts together."""
    message, partial = None, ""
    for _, event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            partial = ""
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            partial += delta.get("partial_json", "")
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] += delta[name]
        elif kind == "content_block_stop" and partial:
            message["content"][event["index"]]["input"] = json.loads(partial)
        elif kind == "message_delta":
            message.update(event["delta"])
            message["usage"].update(event["usage"])
    return message


def without_ids(message):
    """The message without the fields that are random or depend on earlier requests."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {"content": blocks, "stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"],
            "output_tokens": message["usage"]["output_tokens"]}


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, "--api-key=secret", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def post(self, **fields):
        body = {"model": self.cluster.name, "max_tokens": 24, "temperature": 0, "messages": HELLO, **fields}
        return self.cluster.request("POST", PATH, body, headers={"x-api-key": "secret", "anthropic-version": "2023-06-01"})

    def message(self, **fields):
        response = self.post(**fields)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def test_a_message_is_the_chat_answer(self):
        message = self.message(system=[{"type": "text", "text": "You are brief."}])
        chat = self.cluster.request("POST", "/v1/chat/completions", {
            "messages": [{"role": "system", "content": "You are brief."}, *HELLO], "max_tokens": 24, "temperature": 0},
            headers={"Authorization": "Bearer secret"}).json
        self.assertEqual([block["type"] for block in message["content"]], ["text"])
        self.assertEqual(message["content"][0]["text"], chat["choices"][0]["message"]["content"])
        reasons = {"stop": "end_turn", "length": "max_tokens"}
        self.assertEqual(message["stop_reason"], reasons[chat["choices"][0]["finish_reason"]])
        usage = message["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], chat["usage"]["completion_tokens"])
        self.assertTrue(message["id"].startswith("msg_"))

    def test_the_stream_makes_the_same_message(self):
        forced = {"type": "any", "disable_parallel_tool_use": True}
        for fields in ({}, {"messages": CONVERSATION, "tools": [WEATHER]},
                       {"tools": [WEATHER], "tool_choice": forced, "max_tokens": 120}):
            with self.subTest(fields):
                whole = self.message(**fields)
                response = self.post(stream=True, **fields)
                events = events_of(response.text)
                self.assertEqual([name for name, _ in events], [event["type"] for _, event in events])
                self.assertEqual((events[0][0], events[-2][0], events[-1][0]), ("message_start", "message_delta", "message_stop"))
                self.assertEqual(without_ids(accumulate(events)), without_ids(whole))

    def test_a_forced_call_fits_its_schema(self):
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
            with self.subTest(choice):
                message = self.message(tools=[WEATHER], tool_choice=choice, max_tokens=120, temperature=1, seed=5)
                self.assertEqual(message["stop_reason"], "tool_use")
                call = message["content"][0]
                self.assertEqual((call["type"], call["name"]), ("tool_use", "get_weather"))
                self.assertEqual(set(call["input"]), {"city", "days"})
                self.assertIn(call["input"]["days"], (1, 2, 3))
