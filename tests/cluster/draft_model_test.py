"""A draft model through whole clusters: every answer is the one without, whichever model guesses, also across sleeps of both
levels, preemptions and killed workers; and a model that cannot guess is refused with the name of the flag."""
import os
import shutil
import tempfile
import unittest

from cluster import speculation_test as plain
from cluster.harness import Cluster, tiny

ACCEPTED = plain.ACCEPTED
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
REQUESTS = plain.REQUESTS
# 43 blocks of 16 tokens, as in SMALL_CACHE, of the model and of the draft model, on each of two workers.
SAME = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * 2 * 8192}", "--max-num-seqs=16")
OTHER = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * (8192 + 4096)}", "--max-num-seqs=16")


def draft(name):
    return ("--speculative=draft", f"--draft-model={tiny(name)}", "--num-speculative-tokens=6", "--no-drafts-must-pay")


class DraftModel(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        with Cluster(tiny(plain.MODEL), *plain.SMALL_CACHE, workers=2) as cluster:
            cls.wanted = [plain.answers(cluster, body) for body in REQUESTS]

    def greedy(self, cluster):
        """The first request alone: greedy, and no parameter that a draft model does not know."""
        self.assertEqual(plain.answers(cluster, REQUESTS[0]), self.wanted[0])

    def sleep_and_wake(self, cluster, level):
        for path in (f"/sleep?level={level}", "/wake_up"):
            cluster.admin(path)

    def test_the_model_itself_is_right(self):
        for workers, flags in ((1, ()), (2, ()), (2, ("--no-async-scheduling",))):
            with self.subTest(workers=workers, flags=flags), \
                    Cluster(tiny(plain.MODEL), *SAME, *draft(plain.MODEL), *flags, workers=workers) as cluster:
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
                if workers == 2:  # log-probabilities are those of as many ranks
                    self.assertEqual([plain.answers(cluster, body) for body in REQUESTS], self.wanted)
                    self.assertEqual(plain.together(cluster), self.wanted)
                cluster.wait_idle()

    def test_another_model_changes_nothing(self):
        for name, flags in (("llama-rope3", ()), ("llama-rope3", ("--no-enable-prefix-caching", "--max-num-batched-tokens=16"))):
            with self.subTest(name=name, flags=flags), \
                    Cluster(tiny(plain.MODEL), *OTHER, *draft(name), *flags, workers=2) as cluster:
                self.assertEqual([plain.answers(cluster, body) for body in REQUESTS], self.wanted)
                self.assertEqual(plain.together(cluster), self.wanted)
                self.assertGreaterEqual(cluster.metric(DRAFTED), cluster.metric(ACCEPTED))
                cluster.wait_idle()

    def test_preemption_and_sleep(self):
        plain.check_preemption_and_sleep(self, (*SAME, *draft(plain.MODEL)))

    def test_a_killed_worker(self):
        plain.check_killed_workers(self, (*SAME, *draft(plain.MODEL)), strikes=3, accepted=50)

    def test_what_the_server_says_of_itself(self):
        with Cluster(tiny(plain.MODEL), *SAME, *draft(plain.MODEL), workers=1) as cluster:
            info = cluster.request("GET", "/server_info?config_format=json", port=cluster.admin_port)
            self.assertEqual(info.json["vllm_config"]["speculative_config"],
                             {"method": "draft", "num_speculative_tokens": 6, "model": tiny(plain.MODEL)})

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
                        Cluster(tiny(plain.MODEL), "--speculative=draft", f"--draft-model={model}", "--num-speculative-tokens=4", *flags,
                                workers=1, wait=False) as cluster:
                    self.assertNotEqual(cluster.process.wait(30), 0)
                    self.assertIn(message, cluster.log())


if __name__ == "__main__":
    unittest.main()
