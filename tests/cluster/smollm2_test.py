"""SmolLM2-135M-Instruct from a GGUF file, through the whole cluster and the command line."""
import concurrent.futures
import json
import math
import os
import statistics
import unittest

from cluster.harness import ROOT, SMOLLM2, SOMNUS, Cluster, free_ports

GOLDEN = os.path.join(ROOT, "tests", "data", "smollm2_greedy.json")
VLLM_BEAMS = os.path.join(ROOT, "tests", "data", "vllm_beams.json")
# Below this distance of the two best logits in the reference, either token is right.
TIE_FLOAT32, TIE_BFLOAT16 = 0.01, 0.6
# With the file's own types activations are rounded to 8 bits (measured: a gap of 0.8 among 1280 tokens).
TIE_AS_STORED = 1.2
EXPANDED = "--dequantize"
# How far computing as stored may move the distribution of the next token (mean Kullback-Leibler divergence, measured
# 0.003) and the perplexity of the reference's text (measured: 0.1 %).
MAX_DIVERGENCE, MAX_PERPLEXITY_CHANGE = 0.006, 0.01


def cases():
    with open(GOLDEN, encoding="utf-8") as file:
        return json.load(file)["cases"]


class Greedy(unittest.TestCase):
    def compare(self, tokens, case, tie):
        """None, or where the tokens part from the reference at a near tie; fails where tokens part elsewhere."""
        for position, (ours, reference) in enumerate(zip(tokens, case["tokens"])):
            if ours != reference:
                self.assertLess(case["gaps"][position], tie, f"{case['prompt']!r} position {position}: {tokens}")
                return position
        self.assertEqual(len(tokens), len(case["tokens"]))
        return None

    def run_all(self, cluster, at_once=1, tokens=64):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda case: cluster.tokens(case["prompt_ids"], max_tokens=tokens, ignore_eos=True), cases()))

    def test_float32_gives_the_reference_tokens_on_any_number_of_workers(self):
        # Together, since a step takes as long for all cases as for a single case; the file's own types, which are quick, ask in
        # turn. Several workers answer with the first tokens alone, as the tokens of a single worker are compared to the end.
        alone = []
        for workers, length in ((1, 64), (2, 16), (3, 16), (4, 16)):
            with self.subTest(workers=workers), Cluster(SMOLLM2, EXPANDED, "--dtype=float32", workers=workers) as cluster:
                answers = self.run_all(cluster, at_once=len(cases()), tokens=length)
                alone = alone or answers
                self.assertEqual(answers, [tokens[:length] for tokens in alone])
                self.assertEqual(cluster.stop(), 0)
        for tokens, case in zip(alone, cases()):
            self.compare(tokens, case, TIE_FLOAT32)

    def test_bfloat16_differs_only_where_the_reference_nearly_ties(self):
        self.check_near_ties(TIE_BFLOAT16, EXPANDED, at_once=len(cases()))

    def test_the_files_own_types_differ_only_where_the_reference_nearly_ties(self):
        self.check_near_ties(TIE_AS_STORED)

    def check_near_ties(self, tie, *flags, at_once=1):
        with Cluster(SMOLLM2, *flags, workers=2) as cluster:
            parted = [self.compare(tokens, case, tie) for tokens, case in zip(self.run_all(cluster, at_once), cases())]
        for case, position in zip(cases(), parted):
            if position is not None:
                print(f"near tie (gap {case['gaps'][position]}) at {position}: {case['prompt']!r}")


class BeamSearch(unittest.TestCase):
    """The answers of a real vLLM with the same weights (tests/data/make_vllm_beams.py)."""

    def test_gives_vllms_answers(self):
        with open(VLLM_BEAMS, encoding="utf-8") as file:
            exchanges = json.load(file)["exchanges"]
        with Cluster(SMOLLM2, EXPANDED, "--dtype=float32", workers=2) as cluster:
            for exchange in exchanges:
                with self.subTest(**exchange["body"]):
                    body = {"use_beam_search": True, "temperature": 0, **exchange["body"]}
                    response = cluster.request("POST", exchange["path"], body)
                    self.assertEqual(response.status, 200, response.text)
                    answer = response.json
                    choices = [{"text": choice["text"] if "text" in choice else choice["message"]["content"],
                                "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
                               for choice in answer["choices"]]
                    self.assertEqual(choices, exchange["choices"])
                    self.assertEqual({name: answer["usage"][name] for name in exchange["usage"]}, exchange["usage"])


class AsStored(unittest.TestCase):
    """The weights computed as stored in the file, beside the same weights in float32."""

    def score(self, *flags):
        """For each position of the reference's texts the log-probabilities of the likeliest tokens and of the text's token."""
        positions = []
        with Cluster(SMOLLM2, *flags, workers=1) as cluster:
            status = cluster.cli("status").stdout
            for case in cases():
                text = case["prompt_ids"] + case["tokens"]
                answer = cluster.complete(text, max_tokens=1, prompt_logprobs=20)["choices"][0]["prompt_logprobs"]
                for token, top in zip(text[1:], answer[1:]):
                    logprobs = {int(id): entry["logprob"] for id, entry in top.items()}
                    positions.append((logprobs, logprobs[token]))
        return positions, status

    def test_is_near_the_dequantized_one(self):
        reference, dequantized_status = self.score(EXPANDED, "--dtype=float32")
        stored, status = self.score()
        self.assertIn("Q4_1", status)
        self.assertIn("Q8_0", status)
        self.assertNotIn("Q4_1", dequantized_status.replace(os.path.basename(SMOLLM2), ""))
        divergence = statistics.fmean(
            sum(math.exp(p) * (p - other[id]) for id, p in one.items() if id in other)
            for (one, _), (other, _) in zip(reference, stored))
        change = math.exp(statistics.fmean(one - other for (_, one), (_, other) in zip(reference, stored))) - 1
        print(f"mean divergence {divergence:.5f}, perplexity {100 * change:+.2f} %")
        self.assertLess(divergence, MAX_DIVERGENCE)
        self.assertGreater(divergence, 1e-4, "nothing was quantized")
        self.assertLess(abs(change), MAX_PERPLEXITY_CHANGE)


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_chat(self):
        question = "Tell me the capital of France."
        by_argument = self.cluster.cli("chat", "--temperature", "0", "--max-tokens", "32", question).stdout
        self.assertIn("Paris", by_argument)
        by_pipe = self.cluster.cli("chat", "--temperature=0", "--max_tokens=32", stdin=question + "\n").stdout
        self.assertEqual(by_pipe, by_argument)
        self.assertNotIn("\033", by_argument)

    def test_generate(self):
        case = cases()[0]
        text = self.cluster.cli("generate", "--temperature", "0", "--max-tokens", "8", case["prompt"]).stdout
        self.assertEqual(text, self.cluster.complete(case["prompt"], max_tokens=8)["choices"][0]["text"] + "\n")

    def test_status(self):
        table = self.cluster.cli("status").stdout
        self.assertIn(self.cluster.name, table)
        self.assertIn("awake", table)
        self.assertEqual(len(self.cluster.status()["ranks"]), 2)
        self.assertEqual(self.cluster.cli("status", "--ready").stdout, "ready\n")

    def test_exit_codes(self):
        nobody = str(free_ports(1)[0])
        for args, code, words in (
                (("chat", "--model", "no-such-model", "x"), 1, "no-such-model"),
                (("generate", "--stop", "", "x"), 2, "--stop"),
                (("frobnicate",), 2, "frobnicate"), (("chat", "--prt", "1", "x"), 2, "--port"),
                (("sleep", "--level", "x"), 2, "--level"), (("chat",), 2, "nothing to ask"),
                (("chat", "--port", nobody, "x"), 3, nobody), (("status", "--port", nobody), 3, nobody)):
            with self.subTest(args=args):
                done = self.cluster.cli(*args, check=False)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_help_of_every_command(self):
        commands = ("serve", "chat", "generate", "status", "sleep", "wake-up")
        overview = self.cluster.cli("--help").stdout
        for command in commands:
            self.assertIn(command, overview)
            text = self.cluster.cli(command, "--help").stdout
            self.assertIn(f"somnus {command}", text)
            self.assertIn("--", text)
        self.assertTrue(os.access(SOMNUS, os.X_OK))
