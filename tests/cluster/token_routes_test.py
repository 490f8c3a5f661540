"""The routes of token ids through the whole cluster: the tokens of a rendered chat or completion are answered with the tokens that
the chat or the completion has itself, with forms, streams and log-probabilities."""
import os
import unittest

from cluster.harness import SMOLLM2, Cluster, Stream

GENERATE, RENDER_CHAT, RENDER = "/inference/v1/generate", "/v1/chat/completions/render", "/v1/completions/render"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}}
MESSAGES = [{"role": "user", "content": "Who wrote Faust? Answer briefly."}]
FORMS = {
    "none": {},
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    "json_object": {"response_format": {"type": "json_object"}},
    "choice": {"structured_outputs": {"choice": ["Goethe", "Schiller"]}},
    "regex": {"structured_outputs": {"regex": "[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?"}},
    "tool": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "tool beside a form": {
        "tools": [TOOL], "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
}


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class TokenRoutes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def post(self, path, body):
        response = self.cluster.request("POST", path, body)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def chat(self, **fields):
        return {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "return_token_ids": True, **fields}

    def test_a_rendered_chat_is_answered_as_the_chat_is(self):
        for name, form in FORMS.items():
            for sampling in ({}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}):
                with self.subTest(form=name, sampling=sampling):
                    body = self.chat(**form, **sampling)
                    chat = self.post("/v1/chat/completions", body)
                    rendered = self.post(RENDER_CHAT, body)
                    self.assertEqual(rendered["token_ids"], chat["prompt_token_ids"])
                    answer = self.post(GENERATE, rendered)
                    self.assertEqual(answer["choices"][0]["token_ids"], chat["choices"][0]["token_ids"])
                    self.assertEqual(answer["usage"]["completion_tokens"], chat["usage"]["completion_tokens"])

    def test_a_rendered_completion_is_answered_as_the_completion_is(self):
        body = {"prompt": ["The capital of France is", "Water boils at"], "max_tokens": 12, "temperature": 0,
                "return_token_ids": True}
        choices = self.post("/v1/completions", body)["choices"]
        requests = self.post(RENDER, body)
        self.assertEqual([request["token_ids"] for request in requests], [choice["prompt_token_ids"] for choice in choices])
        answers = [self.post(GENERATE, request)["choices"][0]["token_ids"] for request in requests]
        self.assertEqual(answers, [choice["token_ids"] for choice in choices])

    def test_the_stream_has_the_same_tokens_and_log_probabilities(self):
        rendered = self.post(RENDER_CHAT, self.chat(logprobs=True, top_logprobs=2, n=2, temperature=0.7, seed=1))
        whole = self.post(GENERATE, rendered)
        stream = Stream(self.cluster.connection(self.cluster.port), GENERATE, {**rendered, "stream": True})
        self.assertEqual(stream.status, 200)
        ids, entries, ends = {0: [], 1: []}, {0: [], 1: []}, {}
        for event in stream.events():
            for choice in event["choices"]:
                ids[choice["index"]] += choice["token_ids"]
                entries[choice["index"]] += choice["logprobs"]["content"]
                if choice["finish_reason"]:
                    ends[choice["index"]] = choice["finish_reason"]
        for choice in whole["choices"]:
            self.assertEqual(ids[choice["index"]], choice["token_ids"])
            self.assertEqual(entries[choice["index"]], choice["logprobs"]["content"])
            self.assertEqual(ends[choice["index"]], choice["finish_reason"])
            names = [entry["token"] for entry in entries[choice["index"]]]
            self.assertEqual(names, [f"token_id:{id}" for id in choice["token_ids"]])
