"""SmolLM2-135M-Instruct from its GGUF file, through the whole cluster and the command line."""
import json
import os
import unittest

from cluster.harness import ROOT, SMOLLM2, SOMNUS, Cluster, free_ports

GOLDEN = os.path.join(ROOT, "tests", "data", "smollm2_greedy.json")
# Below this distance of the two best logits in the reference, either token is right.
TIE_FLOAT32, TIE_BFLOAT16 = 0.01, 0.6


def cases():
    with open(GOLDEN, encoding="utf-8") as file:
        return json.load(file)["cases"]


class Greedy(unittest.TestCase):
    def compare(self, tokens, case, tie):
        """None, or where the tokens part from the reference at a near tie; fails where they part elsewhere."""
        for position, (ours, reference) in enumerate(zip(tokens, case["tokens"])):
            if ours != reference:
                self.assertLess(case["gaps"][position], tie, f"{case['prompt']!r} position {position}: {tokens}")
                return position
        self.assertEqual(len(tokens), len(case["tokens"]))
        return None

    def run_all(self, cluster):
        return [cluster.tokens(case["prompt_ids"], max_tokens=64, ignore_eos=True) for case in cases()]

    def test_float32_gives_the_reference_tokens_on_any_number_of_workers(self):
        answers = {}
        for workers in (1, 2, 3, 4):
            with self.subTest(workers=workers), Cluster(SMOLLM2, "--dtype=float32", workers=workers) as cluster:
                answers[workers] = self.run_all(cluster)
                for tokens, case in zip(answers[workers], cases()):
                    self.compare(tokens, case, TIE_FLOAT32)
                self.assertEqual(answers[workers], answers[1])
                self.assertEqual(cluster.stop(), 0)

    def test_bfloat16_differs_only_where_the_reference_nearly_ties(self):
        with Cluster(SMOLLM2, workers=2) as cluster:
            parted = [self.compare(tokens, case, TIE_BFLOAT16) for tokens, case in zip(self.run_all(cluster), cases())]
        for case, position in zip(cases(), parted):
            if position is not None:
                print(f"near tie (gap {case['gaps'][position]}) at {position}: {case['prompt']!r}")


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_chat(self):
        question = "What is the capital of France?"
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


if __name__ == "__main__":
    unittest.main()
