"""Choices of one prompt: each has the tokens that it would have alone, and the prompt is computed once for all of them."""
import unittest

from cluster.harness import Cluster, tiny

MODEL = "qwen3"
COMPUTED = "vllm:iteration_tokens_total_sum"
PROMPT = [(37 * i + 11) % 200 for i in range(90)]
NUM_CHOICES, SEED, NUM_TOKENS = 16, 1000, 12


class ChoicesTest(unittest.TestCase):
    def computed(self, cluster, **fields):
        """(the choices' tokens, how many tokens were computed for them)"""
        before = cluster.metric(COMPUTED) or 0
        body = {"model": cluster.name, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.1,
                "return_token_ids": True, **fields}
        answer = cluster.request("POST", "/v1/completions", body)
        self.assertEqual(answer.status, 200, answer.text)
        return [choice["token_ids"] for choice in self.choices(answer)], cluster.metric(COMPUTED) - before

    @staticmethod
    def choices(answer):
        return sorted(answer.json["choices"], key=lambda choice: choice["index"])

    def check(self, *flags):
        with Cluster(tiny(MODEL), "--dtype=float32", *flags, workers=2) as cluster:
            together, computed = self.computed(cluster, n=NUM_CHOICES, seed=SEED)
            self.assertEqual(cluster.metric("somnus:forked_sequences_total"), NUM_CHOICES - 1)
            # Steps that are under way when a choice ends compute one token of it in vain.
            decoded = NUM_CHOICES * (NUM_TOKENS - 1)
            self.assertTrue(len(PROMPT) + decoded <= computed <= len(PROMPT) + decoded + NUM_CHOICES, computed)
            alone = [self.computed(cluster, seed=SEED + index)[0][0] for index in range(NUM_CHOICES)]
            self.assertEqual(together, alone)
            self.assertGreater(len({tuple(tokens) for tokens in alone}), NUM_CHOICES // 2)

    def test_choices_fork_their_prompt(self):
        self.check()

    def test_a_prompt_in_chunks_without_a_prefix_cache(self):
        self.check("--max-num-batched-tokens=32", "--max-num-seqs=32", "--no-enable-prefix-caching")

    def test_the_best_of_several(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=2) as cluster:
            body = {"model": cluster.name, "prompt": [PROMPT, PROMPT[:40]], "max_tokens": NUM_TOKENS, "temperature": 1.1, "seed": SEED,
                    "return_token_ids": True}

            def ask(**fields):
                answer = cluster.request("POST", "/v1/completions", {**body, **fields})
                self.assertEqual(answer.status, 200, answer.text)
                return answer
            everything = ask(n=6, logprobs=0)
            best = ask(n=2, best_of=6)
            candidates, chosen = self.choices(everything), self.choices(best)
            for prompt in (0, 1):
                likeliest = sorted(candidates[6 * prompt:6 * prompt + 6], key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
                wanted = [(choice["token_ids"], choice["text"], choice["finish_reason"]) for choice in likeliest[:2]]
                found = chosen[2 * prompt:2 * prompt + 2]
                self.assertEqual([(choice["token_ids"], choice["text"], choice["finish_reason"]) for choice in found], wanted)
            self.assertEqual([choice["logprobs"] for choice in chosen], [None] * 4)
            self.assertEqual(best.json["usage"]["completion_tokens"], everything.json["usage"]["completion_tokens"])
            cluster.wait_idle()


if __name__ == "__main__":
    unittest.main()
