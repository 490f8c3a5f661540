"""Clients that leave, many clients at once, and the official openai client."""
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until
from cluster.harness.soak import Soak, open_files

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")


class Leaving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_dropped_stream_frees_its_blocks(self):
        streams = [self.cluster.open_stream(CASE["prompt"], max_tokens=480) for _ in range(8)]
        for stream in streams:
            next(stream.events())
        for stream in streams:
            stream.drop()
        self.cluster.wait_idle()
        self.assertEqual(self.cluster.metric("vllm:num_requests_running"), 0)
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=True), CASE["tokens"])

    def test_client_that_leaves_before_the_answer_frees_its_blocks(self):
        for _ in range(8):
            stream = self.cluster.open_stream(CASE["prompt"], max_tokens=480)
            stream.drop()
        self.cluster.wait_idle()

    def test_thirty_two_streams_whose_clients_vanish(self):
        coordinator = self.cluster.process.pid
        before = open_files(coordinator)
        soak = Soak(self.cluster, streams=32, seed=7)
        soak.run(seconds=6, interval=3)
        self.assertEqual(soak.errors, [])
        self.assertGreater(soak.finished, 0)
        self.assertGreater(soak.vanished, 0)
        self.cluster.wait_idle()
        wait_until(lambda: open_files(coordinator) <= before + 4, 30, "file descriptors are back")
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=True), CASE["tokens"])


class OpenAiClient(unittest.TestCase):
    """The official Python client, unchanged, as tools/setup.sh tests installs the package."""

    @classmethod
    def setUpClass(cls):
        import openai
        cls.openai = openai
        cls.cluster = Cluster(tiny("qwen3"), "--dtype=float32", "--api-key=secret", "--sse-keepalive=1ms", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.cluster.port}/v1", api_key="secret", max_retries=0)
        cls.model = cls.cluster.name

    def chat(self, **fields):
        return self.client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": "Hello"}],
                                                   max_tokens=16, temperature=0, **fields)

    def test_models(self):
        self.assertEqual([card.id for card in self.client.models.list()], [self.model])

    def test_chat(self):
        answer = self.chat(logprobs=True, top_logprobs=2)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(len(choice.logprobs.content), answer.usage.completion_tokens)
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)

    def test_chat_stream_is_the_same_text(self):
        whole = self.chat().choices[0].message.content
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole)
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)

    def test_a_stream_that_waits_for_a_wake_up_is_the_same_text(self):
        """Until the wake-up the stream has comments, which the client ignores."""
        whole = self.chat().choices[0].message.content
        chunks = iter(self.chat(stream=True))
        text = next(chunks).choices[0].delta.content or ""
        for path in ("/sleep?level=1", "/wake_up"):
            self.cluster.admin(path)
        text += "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole)

    def test_completion_choices_and_stream(self):
        whole = self.client.completions.create(model=self.model, prompt=[5, 6, 7], max_tokens=8, n=2, seed=3)
        self.assertEqual([choice.index for choice in whole.choices], [0, 1])
        greedy = self.client.completions.create(model=self.model, prompt="Hello", max_tokens=8, temperature=0)
        stream = self.client.completions.create(model=self.model, prompt="Hello", max_tokens=8, temperature=0, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream if chunk.choices), greedy.choices[0].text)

    def test_errors_are_the_clients_own_classes(self):
        with self.assertRaises(self.openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(self.openai.BadRequestError) as caught:
            self.chat(top_p=0)
        self.assertIn("top_p", str(caught.exception))
        with self.assertRaises(self.openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()

    def test_closing_a_stream_frees_its_blocks(self):
        with self.client.completions.create(model=self.model, prompt="Hello", max_tokens=200, stream=True,
                                            extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        self.cluster.wait_idle()
