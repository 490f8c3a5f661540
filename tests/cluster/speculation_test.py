"""Speculative decoding through whole clusters: every answer is the one without, also beside others, with preempted sequences,
sleeps in the middle of it, and killed workers."""
import os
import signal
import time
import unittest

from cluster.harness import Cluster, tiny
from cluster.together import Together

MODEL = "qwen3"
# Whether drafts pay on a model this small is chance.
DRAFTS = ("--num-speculative-tokens=6", "--no-drafts-must-pay", "--prompt-lookup-min=1", "--prompt-lookup-max=4")
# 43 blocks of 16 tokens: the requests do not fit at once.
SMALL_CACHE = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * 8192}", "--max-num-seqs=16")
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


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
    """The answers to all requests at once; during(ended) is called while they run."""
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


def check_killed_workers(case, flags, strikes, accepted):
    """The answers of `case` while workers are killed, in up to 20 attempts until `strikes` have come in the middle of requests.
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
            if struck >= strikes:
                break
        case.assertGreaterEqual(struck, 2)
        case.assertGreater(cluster.metric(ACCEPTED), accepted)
        cluster.wait_idle()


class Speculation(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        with Cluster(tiny(MODEL), *SMALL_CACHE, workers=2) as cluster:
            cls.wanted = [answers(cluster, body) for body in REQUESTS]
            cls.stop = cls.wanted[0][0][0]["text"][60:63]
            cls.stopped = answers(cluster, {**REQUESTS[0], "stop": [cls.stop]})
            assert cluster.metric("vllm:spec_decode_num_drafts_total") == 0

    def test_answers_are_those_without(self):
        for flags in ((), ("--no-async-scheduling",), ("--no-enable-prefix-caching", "--max-num-batched-tokens=16")):
            with self.subTest(flags), Cluster(tiny(MODEL), *SMALL_CACHE, *DRAFTS, *flags, workers=2) as cluster:
                self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
                accepted = cluster.metric(ACCEPTED)
                self.assertGreater(accepted, 100)
                self.assertGreaterEqual(cluster.metric("vllm:spec_decode_num_draft_tokens_total"), accepted)
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

    def test_preemption_and_sleep(self):
        check_preemption_and_sleep(self, (*SMALL_CACHE, *DRAFTS))

    def test_a_killed_worker(self):
        check_killed_workers(self, (*SMALL_CACHE, *DRAFTS), strikes=4, accepted=100)

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


if __name__ == "__main__":
    unittest.main()
