"""Speculative decoding through whole clusters, by prompt lookup and by a draft model: every answer is the answer without
guesses, also beside other requests, with preempted sequences, sleeps in the middle of an answer, and killed workers."""
import os
import shutil
import signal
import tempfile
import time
import unittest

from cluster.harness import Cluster, tiny
from cluster.harness.together import Together

MODEL = "qwen3"
# Whether drafts pay on a model this small is chance.
DRAFTS = ("--num-speculative-tokens=6", "--no-drafts-must-pay", "--prompt-lookup-min=1", "--prompt-lookup-max=4")
# 43 blocks of 16 tokens: the requests do not fit at once.
SMALL_CACHE = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * 8192}", "--max-num-seqs=16")
# 43 blocks of 16 tokens, as in SMALL_CACHE, of the model and of the draft model, on each of two workers.
SAME = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * 2 * 8192}", "--max-num-seqs=16")
OTHER = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * (8192 + 4096)}", "--max-num-seqs=16")
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"


def prompt(first, length, period=23):
    return [(37 * (i % period) + first) % 500 for i in range(length)]


GREEDY = {"temperature": 0, "ignore_eos": True}
REQUESTS = [
    {"prompt": prompt(3, 40), "max_tokens": 120, **GREEDY},
    {"prompt": prompt(5, 64), "max_tokens": 100, "temperature": 0.3, "seed": 17, "ignore_eos": True},
    {"prompt": prompt(7, 37), "max_tokens": 80, "temperature": 0.8, "n": 3, "seed": 5, "ignore_eos": True, "logprobs": 2},
    {"prompt": prompt(9, 50), "max_tokens": 90, "logprobs": 3, **GREEDY},
    {"prompt": prompt(11, 30), "max_tokens": 90, "repetition_penalty": 1.05, "frequency_penalty": 0.05, **GREEDY},
    {"prompt": prompt(13, 20), "max_tokens": 90, "min_tokens": 40, "temperature": 0, "stop_token_ids": list(range(0, 512, 5))},
    {"prompt": prompt(15, 20), "max_tokens": 60, "logit_bias": {"7": 4, "100": -4}, "bad_words": ["a", "the"], **GREEDY},
    {"prompt": prompt(17, 33), "max_tokens": 1, **GREEDY},
    {"prompt": prompt(19, 33), "max_tokens": 2, **GREEDY},
    {"prompt": prompt(21, 60), "max_tokens": 60, "prompt_logprobs": 1, **GREEDY},
    {"prompt": prompt(23, 45), "max_tokens": 90, "allowed_token_ids": list(range(100)), "temperature": 0.5, "seed": 3},
]


def answers(cluster, body):
    response = cluster.request("POST", "/v1/completions", {"model": cluster.name, "return_token_ids": True, **body})
    if response.status != 200:
        raise AssertionError(f"HTTP {response.status}: {response.text}")
    usage = response.json["usage"]
    return response.json["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def together(cluster, during=lambda ended: None):
    """The answers to all requests at once; during(ended) is called while the requests run."""
    asked = Together(cluster, REQUESTS, answers)
    during(asked.ended)
    return asked.join()


def check_preemption_and_sleep(case, flags):
    """The answers of `case` while requests are preempted, and while the engine falls asleep and wakes."""
    for keep in ((), ("--keep-kv-on-sleep",)):
        with case.subTest(keep=keep), Cluster(tiny(MODEL), *flags, *keep, workers=2) as cluster:
            def sleep(ended):
                while not ended():
                    for path in ("/sleep?level=1&mode=keep", "/wake_up"):
                        cluster.admin(path)
            for _ in range(3):
                case.assertEqual(together(cluster), case.wanted)
            case.assertGreater(cluster.metric("vllm:num_preemptions_total"), 0)
            case.assertEqual(together(cluster, sleep), case.wanted)
            case.assertGreater(cluster.metric(ACCEPTED), 100)
            cluster.wait_idle()


def check_killed_workers(case, flags, accepted):
    """The answers of `case` while workers are killed, in up to 20 attempts until two kills have come in the middle of requests.
    More than `accepted` guesses must have been right."""
    with Cluster(tiny(MODEL), "--max-recoveries=1000000", *flags, workers=2) as cluster:
        struck = 0
        for attempt in range(20):
            def kill(ended):
                nonlocal struck
                time.sleep(0.01 * attempt)
                os.kill(cluster.worker_pids()[attempt % 2], signal.SIGKILL)
                struck += not ended()
            case.assertEqual(together(cluster, kill), case.wanted)
            cluster.wait_ready()
            if struck >= 2:
                break
        case.assertGreaterEqual(struck, 2)
        case.assertGreater(cluster.metric(ACCEPTED), accepted)
        cluster.wait_idle()


def draft(name):
    return ("--speculative=draft", f"--draft-model={tiny(name)}", "--num-speculative-tokens=6", "--no-drafts-must-pay")


class WithoutDrafts(unittest.TestCase):
    """`wanted`: the answers without guesses; `stopped`: the first answer with a stop string. Asked once for all classes."""

    maxDiff = 2000
    wanted = None

    @classmethod
    def setUpClass(cls):
        if WithoutDrafts.wanted is None:
            with Cluster(tiny(MODEL), *SMALL_CACHE, workers=2) as cluster:
                wanted = [answers(cluster, body) for body in REQUESTS]
                WithoutDrafts.stop = wanted[0][0][0]["text"][60:63]
                WithoutDrafts.stopped = answers(cluster, {**REQUESTS[0], "stop": [cls.stop]})
                assert cluster.metric("vllm:spec_decode_num_drafts_total") == 0
                WithoutDrafts.wanted = wanted


class Speculation(WithoutDrafts):
    def test_answers_are_those_without(self):
        for flags in ((), ("--no-async-scheduling",), ("--no-enable-prefix-caching", "--max-num-batched-tokens=16")):
            with self.subTest(flags), Cluster(tiny(MODEL), *SMALL_CACHE, *DRAFTS, *flags, workers=2) as cluster:
                self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
                accepted = cluster.metric(ACCEPTED)
                self.assertGreater(accepted, 100)
                self.assertGreaterEqual(cluster.metric(DRAFTED), accepted)
                self.assertGreater(cluster.metric("vllm:spec_decode_num_drafts_total"), 0)
                self.assertEqual(cluster.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted)
                self.assertGreater(cluster.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0"), 0)
                self.assertEqual(together(cluster), self.wanted)
                cluster.wait_idle()

    def test_a_stop_string_and_streams(self):
        with Cluster(tiny(MODEL), *SMALL_CACHE, *DRAFTS, workers=2) as cluster:
            self.assertEqual(answers(cluster, {**REQUESTS[0], "stop": [self.stop]}), self.stopped)
            for body, wanted in zip(REQUESTS[:2], self.wanted):
                stream = cluster.open_stream(return_token_ids=True, stream_options={"include_usage": True}, **body)
                events = list(stream.events())
                stream.close()
                tokens = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
                text = "".join(choice["text"] for event in events for choice in event["choices"])
                self.assertEqual((tokens, text), (wanted[0][0]["token_ids"], wanted[0][0]["text"]))
                self.assertEqual(events[-1]["usage"]["completion_tokens"], len(tokens))
                self.assertLess(len(events), len(tokens), "several tokens come at once")
            self.assertGreater(cluster.metric(ACCEPTED), 50)
            cluster.wait_idle()

    def test_what_the_server_says_of_itself(self):
        with Cluster(tiny(MODEL), *SMALL_CACHE, *DRAFTS, workers=2) as cluster:
            info = cluster.request("GET", "/server_info?config_format=json", port=cluster.admin_port)
            self.assertEqual(info.json["vllm_config"]["speculative_config"],
                             {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 4})
        for flags, message in ((("--speculative=draft",), "--speculative: draft needs --draft-model"),
                               (("--prompt-lookup-min=5", "--prompt-lookup-max=4"), "--prompt-lookup-min: 5 is more than")):
            cluster = Cluster(tiny(MODEL), *flags, workers=1, wait=False)
            with cluster:
                self.assertEqual(cluster.process.wait(30), 2)
                self.assertIn(message, cluster.log())


class DraftModel(WithoutDrafts):
    """Whichever model guesses; a model that cannot guess is refused with the name of the flag."""

    def greedy(self, cluster):
        """The first request alone: greedy, and no parameter that a draft model does not know."""
        self.assertEqual(answers(cluster, REQUESTS[0]), self.wanted[0])

    def sleep_and_wake(self, cluster, level):
        for path in (f"/sleep?level={level}", "/wake_up"):
            cluster.admin(path)

    def test_the_model_itself_is_right(self):
        for workers, flags in ((1, ()), (2, ()), (2, ("--no-async-scheduling",))):
            with self.subTest(workers=workers, flags=flags), \
                    Cluster(tiny(MODEL), *SAME, *draft(MODEL), *flags, workers=workers) as cluster:
                self.greedy(cluster)
                self.assertEqual(cluster.metric(ACCEPTED), cluster.metric(DRAFTED))
                self.assertGreater(cluster.metric(ACCEPTED), 50)
                for level in (1, 2):
                    self.sleep_and_wake(cluster, level)
                    before = cluster.metric(ACCEPTED)
                    cluster.admin("/reset_prefix_cache")
                    self.greedy(cluster)
                    self.assertGreater(cluster.metric(ACCEPTED), before + 50, f"after a sleep at level {level}")
                    self.assertEqual(cluster.metric(ACCEPTED), cluster.metric(DRAFTED))
                if workers == 2:  # log-probabilities are the same for as many ranks
                    self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
                    self.assertEqual(together(cluster), self.wanted)
                cluster.wait_idle()

    def test_another_model_changes_nothing(self):
        for name, flags in (("llama-rope3", ()), ("llama-rope3", ("--no-enable-prefix-caching", "--max-num-batched-tokens=16"))):
            with self.subTest(name=name, flags=flags), \
                    Cluster(tiny(MODEL), *OTHER, *draft(name), *flags, workers=2) as cluster:
                self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
                self.assertEqual(together(cluster), self.wanted)
                self.assertGreaterEqual(cluster.metric(DRAFTED), cluster.metric(ACCEPTED))
                cluster.wait_idle()

    def test_preemption_and_sleep(self):
        check_preemption_and_sleep(self, (*SAME, *draft(MODEL)))

    def test_a_killed_worker(self):
        check_killed_workers(self, (*SAME, *draft(MODEL)), accepted=50)

    def test_what_the_server_says_of_itself(self):
        with Cluster(tiny(MODEL), *SAME, *draft(MODEL), workers=1) as cluster:
            info = cluster.request("GET", "/server_info?config_format=json", port=cluster.admin_port)
            self.assertEqual(info.json["vllm_config"]["speculative_config"],
                             {"method": "draft", "num_speculative_tokens": 6, "model": tiny(MODEL)})

    def test_checks_of_the_weights_include_the_draft_model(self):
        def check(action):
            response = cluster.request("POST", f"/weight_checker?action={action}&tensors=true", port=cluster.admin_port)
            self.assertEqual(response.status, 200, response.text)
            return response.json["ranks"][0]["tensors"]

        with Cluster(tiny(MODEL), *SAME, *draft("llama-rope3"), workers=1) as cluster:
            sums = check("snapshot")
            drafts = [name for name in sums if name.startswith("draft_model:")]
            self.assertTrue(any("layers.1" in name for name in drafts), drafts)
            self.assertNotEqual(sums["draft_model:model.norm.weight"], sums["model.norm.weight"])
            self.sleep_and_wake(cluster, 2)
            self.assertEqual(check("compare"), sums)

    def test_a_model_that_cannot_guess_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other")
            shutil.copytree(tiny("qwen2"), other, copy_function=shutil.copyfile)
            os.chmod(other, 0o755)
            path = os.path.join(other, "tokenizer.json")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace('": 300,', '": x,').replace('": 301,', '": 300,').replace('": x,', '": 301,'))
            for model, flags, message in (
                    (other, (), f"--draft-model: {other}: its tokenizer is not the model's: token 300"),
                    (tiny("opt"), ("--max-model-len=300",), "it has 256 positions, and the model is served with 300"),
                    (os.path.join(folder, "nothing"), (), f"--draft-model: {os.path.join(folder, 'nothing')}")):
                with self.subTest(model=model), \
                        Cluster(tiny(MODEL), "--speculative=draft", f"--draft-model={model}", "--num-speculative-tokens=4", *flags,
                                workers=1, wait=False) as cluster:
                    self.assertNotEqual(cluster.process.wait(30), 0)
                    self.assertIn(message, cluster.log())
