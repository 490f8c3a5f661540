"""The calls with which controllers that were written for vLLM put a model to sleep and wake the model, in the controllers'
order, with real workers: each call succeeds, and afterwards the model gives the right tokens.

The controllers know one address, the operators', and no differences to vLLM: a wake-up from level 2 has read the weights
itself, and reload_weights, which vLLM needs then, reads the weights again.
"""
import concurrent.futures
import itertools
import threading
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until

MODELS = {"test-model": "llama-uneven", "qwen": "qwen3"}
CASES = {name: next(case for case in expected(model) if not case["ambiguous"]) for name, model in MODELS.items()}
KV_BYTES = 32 << 20  # far more than the rest of a model: memory for one and a half models has room for one
FLAGS = ("--dtype=float32", f"--kv-cache-memory-bytes={KV_BYTES}", "--max-model-len=512", "--no-elastic-kv-cache")

RELOAD = ("/collective_rpc", {"method": "reload_weights"})
# The line of llama-swap after a model was put to sleep.
LLAMA_SWAP_WAKES = (("/wake_up", None), RELOAD, ("/reset_prefix_cache", None))
# TRL and verl do so: after the wake-up of the weights the trainer gives up the memory that the KV cache then takes.
TRAINER_WAKES = (("/wake_up?tags=weights", None), RELOAD, ("/wake_up?tags=kv_cache", None))


class Controller(unittest.TestCase):
    """Base of cases: one controller, whose calls are for one model. A derived class serves the cluster."""

    def call(self, method, target, body=None, name=None):
        """The answer of one call, which has to be a 200; `name`: the model's name in the call."""
        if name is not None:
            target += f"{'&' if '?' in target else '?'}model={name}"
        answer = self.cluster.request(method, target, body, port=self.cluster.admin_port)
        self.assertEqual(answer.status, 200, f"{target}: {answer.text}")
        return answer

    def sleeps(self, name=None):
        return self.call("GET", "/is_sleeping", name=name).json["is_sleeping"]

    def version(self, name=None):
        return int(self.call("GET", "/weight_info", name=name).json["weight_version"])

    def post(self, steps, name=None):
        for target, body in steps:
            self.call("POST", target, body, name)

    def assert_exact(self, name=None):
        name = name or self.cluster.name
        case = CASES[name]
        body = {"model": name, "prompt": case["prompt"], "temperature": 0, "max_tokens": 32, "return_token_ids": True,
                "ignore_eos": case["ignore_eos"]}
        self.assertEqual(self.call("POST", "/v1/completions", body).json["choices"][0]["token_ids"], case["tokens"], name)

    def check_wakes(self, steps, name=None):
        """Sleeps at level 2 and wakes by these steps, in which the weights are read anew."""
        for _ in range(2):
            version = self.version(name)
            self.call("POST", "/sleep?level=2", name=name)
            self.assertTrue(self.sleeps(name))
            self.post(steps, name)
            self.assertFalse(self.sleeps(name))
            self.assertEqual(self.version(name), version + 1)
            self.assert_exact(name)

    def check_llm_d(self, name=None):
        """The controller asks all the time, also in the middle of a transition, whether the model sleeps."""
        over, asked = threading.Event(), []

        def ask():
            while not over.is_set():
                asked.append(self.sleeps(name))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                for target, sleeps in ((None, False), *(("/sleep", True), ("/wake_up", False)) * 3):
                    if target is not None:
                        self.call("POST", target, name=name)
                    # The first answer may be to a question that was older than the reply.
                    wait_until(lambda count=len(asked): len(asked) > count + 1 or asking.done(), 30, "it asks")
                    if asking.done():
                        asking.result()
                    self.assertEqual(asked[-1], sleeps, target)
                self.call("GET", "/health")
                self.assert_exact(name)
            finally:
                over.set()
            asking.result(30)
        self.assertEqual([sleeps for sleeps, _ in itertools.groupby(asked)], [False, True] * 3 + [False])


class OneModel(Controller):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODELS["test-model"]), *FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_llama_swap(self):
        self.check_wakes(LLAMA_SWAP_WAKES)

    def test_trl_and_verl(self):
        self.check_wakes(TRAINER_WAKES)

    def test_llm_d(self):
        self.check_llm_d()


class OneOfTwoModels(Controller):
    @staticmethod
    def serve(*flags):
        return Cluster(tiny(MODELS["test-model"]), f"--model=qwen={tiny(MODELS['qwen'])}", "--workers=local:1", *FLAGS, *flags,
                       workers=0)

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.serve()
        cls.addClassCleanup(cls.cluster.__exit__)

    def check_alone(self, check, *args):
        """Checks each model in turn; the other model stays as it is."""
        for name, other in itertools.permutations(MODELS):
            version = self.version(other)
            check(*args, name)
            self.assertEqual((self.version(other), self.sleeps(other)), (version, False))
            self.assert_exact(other)

    def test_llama_swap(self):
        self.check_alone(self.check_wakes, LLAMA_SWAP_WAKES)

    def test_trl_and_verl(self):
        self.check_alone(self.check_wakes, TRAINER_WAKES)

    def test_llm_d(self):
        self.check_alone(self.check_llm_d)

    def test_llama_swap_where_one_has_room(self):
        """The controller puts one model to sleep, and then wakes the other model."""
        most = max(self.cluster.metric("somnus:resident_bytes", model_name=name) for name in MODELS)
        with self.serve(f"--device-memory-budget={int(1.5 * most)}") as self.cluster:  # of this case alone
            for asleep, awake in (*itertools.permutations(MODELS), *itertools.permutations(MODELS)):
                self.call("POST", "/sleep?level=2", name=asleep)
                self.post(LLAMA_SWAP_WAKES, awake)
                self.assert_exact(awake)
                self.assertEqual([self.sleeps(asleep), self.sleeps(awake)], [True, False])
            self.assertEqual(self.cluster.stop(), 0)
