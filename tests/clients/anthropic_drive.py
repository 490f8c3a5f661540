"""Anthropic's client: messages, streams, tools, count_tokens."""
import anthropic

from clients.servers import KEY, WEATHER, Qwen3, SmolLm2

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"name": "get_weather", "description": "The weather in a city.", "input_schema": WEATHER}
FORCED = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}


class Messages:
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.url, api_key=KEY, max_retries=0, timeout=300)

    def create(self, **fields):
        return self.client.messages.create(model=self.model, max_tokens=fields.pop("max_tokens", self.room),
                                           messages=fields.pop("messages", QUESTION), **fields)

    def test_message(self):
        message = self.create(max_tokens=8, system="Be brief.")
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(message.usage.input_tokens + message.usage.cache_read_input_tokens, 0)

    def test_stream(self):
        with self.client.messages.stream(model=self.model, max_tokens=8, messages=QUESTION) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, "".join(block.text for block in message.content if block.type == "text"))
        self.assertGreater(message.usage.output_tokens, 0)

    def test_call_and_its_result(self):
        message = self.create(tools=[TOOL], tool_choice=FORCED)
        call = next(block for block in message.content if block.type == "tool_use")
        self.check_weather(call.input)
        self.assertEqual(message.stop_reason, "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        again = self.create(messages=[*QUESTION, {"role": "assistant", "content": message.content},
                                      {"role": "user", "content": [result]}], tools=[TOOL], max_tokens=8)
        self.assertGreater(again.usage.output_tokens, 0)

    def test_streamed_call(self):
        with self.client.messages.stream(model=self.model, max_tokens=self.room, messages=QUESTION, tools=[TOOL],
                                         tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
            message = stream.get_final_message()
        call = next(block for block in message.content if block.type == "tool_use")
        self.check_weather(call.input)

    def test_count_tokens(self):
        count = self.client.messages.count_tokens(model=self.model, messages=QUESTION)
        message = self.create(max_tokens=1)
        self.assertEqual(count.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens)

    def test_count_tokens_of_tools(self):
        self.assertGreater(self.client.messages.count_tokens(model=self.model, messages=QUESTION, tools=[TOOL]).input_tokens, 0)

    def test_thinking(self):
        message = self.create(max_tokens=1100, thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["e"])
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens", "stop_sequence"))

    def test_a_form(self):
        message = self.create(output_config={"format": {"type": "json_schema", "schema": WEATHER}})
        self.check_weather(message.content[-1].text)

    def test_an_image_is_refused(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(messages=[{"role": "user", "content": [image]}])
        self.assertIn("image", str(caught.exception))


class MessagesOfSmolLm2(Messages, SmolLm2):
    pass


class MessagesOfQwen3(Messages, Qwen3):
    pass
