"""--quantization through the whole cluster: precision, ranks, the status, and refusals.
tests/runner (quantized_model_test, online_quantization_test) has sleeps and updates."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster.harness import ROOT, SOMNUS, Cluster, expected, tiny

# Two ranks cut the matrices at whole blocks of 32; the layers have biases, the output matrix is the embedding.
MODEL = "qwen2"
FLOAT32, INT8, INT4, FP8 = "--dtype=float32", "--quantization=int8", "--quantization=int4", "--quantization=fp8"
PACKED = os.path.join(ROOT, "tests", "data", "packed")
# How far log-probabilities of the tiny model, whose random weights make large logits, may move on average (measured in the
# runner: 0.13 and 1.2, the same on one and two ranks; fp8 has a mantissa of three bits and rounds no activations).
BOUNDS = {INT8: 0.3, INT4: 2.0, FP8: 1.2}
# Two ranks add in another order than a single rank, after which an activation may round to the next of 255 steps. Below this
# distance between the two best tokens either token is right.
TIE = 0.3


def refused(*flags, model=None):
    """Exit code and standard error of a server that does not start."""
    done = subprocess.run([SOMNUS, "serve", model or tiny(MODEL), "--port=0", "--admin-port=0", "--grpc-port=0", "--control-port=0", *flags],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def prompt_logprobs(cluster, prompt):
    answer = cluster.complete(prompt, echo=True, logprobs=1, max_tokens=1)
    return answer["choices"][0]["logprobs"]["token_logprobs"][1:len(prompt)]


def ask(cluster, prompt):
    """Greedy tokens, and by how much each was better than the second best."""
    choice = cluster.complete(prompt, max_tokens=24, ignore_eos=True, logprobs=2)["choices"][0]
    best = [sorted(top.values(), reverse=True)[:2] for top in choice["logprobs"]["top_logprobs"]]
    return choice["token_ids"], [first - second for first, second in best]


class Flag(unittest.TestCase):
    def test_unknown_names_are_refused_at_once_in_one_line(self):
        for value in ("int3", "q8_0", "marlin", ""):
            with self.subTest(value=value):
                code, text = refused(f"--quantization={value}")
                self.assertEqual(code, 2)
                self.assertIn("--quantization", text)
                self.assertEqual(len(text.splitlines()), 1, text)

    def test_a_method_that_the_checkpoint_does_not_have_is_refused(self):
        for name in ("awq", "gptq_marlin", "compressed-tensors", "gguf"):
            with self.subTest(name=name):
                code, text = refused(f"--quantization={name}")
                self.assertEqual(code, 1)
                self.assertIn(f"--quantization={name.removesuffix('_marlin')}: ", text)
                self.assertIn("has no quantization_config", text)


class Tiny(unittest.TestCase):
    def test_logprobs_are_near_the_exact_ones_on_one_and_two_ranks(self):
        for flag, name in ((INT8, "Q8_0"), (INT4, "Q4_1"), (FP8, "fp8_e4m3")):
            for workers in (1, 2, 4) if flag == FP8 else (1, 2):
                with self.subTest(flag=flag, workers=workers), Cluster(tiny(MODEL), FLOAT32, flag, workers=workers) as cluster:
                    moved = []
                    for one in expected(MODEL):
                        got = prompt_logprobs(cluster, one["prompt"])
                        moved += [abs(ours - reference) for ours, reference in zip(got, one["prompt_logprobs"][1:])]
                    mean = sum(moved) / len(moved)
                    print(f"{flag}, {workers} workers: log-probabilities moved by {mean:.4f}")
                    self.assertTrue(1e-4 < mean < BOUNDS[flag], mean)
                    status = cluster.cli("status").stdout
                    self.assertIn(name, status)
                    self.assertIn("float32", status, "the embedding stays")

    def test_one_and_two_ranks_part_only_at_near_ties(self):
        for flag in (INT8, INT4, FP8):
            answers = {}
            for workers in (1, 2):
                with Cluster(tiny(MODEL), FLOAT32, flag, workers=workers) as cluster:
                    answers[workers] = [ask(cluster, one["prompt"]) for one in expected(MODEL)]
            for one, (tokens, gaps), (others, _) in zip(expected(MODEL), answers[1], answers[2]):
                parting = next((i for i, pair in enumerate(zip(tokens, others)) if pair[0] != pair[1]), None)
                if parting is not None:
                    self.assertLess(gaps[parting], TIE, f"{flag} {one['name']} position {parting}")

    def test_random_weights_are_quantized_too(self):
        with Cluster(tiny(MODEL), "--load-format=dummy", INT8, workers=1) as cluster:
            self.assertIn("Q8_0", cluster.cli("status").stdout)
            self.assertEqual(len(cluster.tokens([5, 6, 7], max_tokens=4, ignore_eos=True)), 4)


class Packed(unittest.TestCase):
    """Checkpoints with a quantization_config. The goldens have no tokenizer: a tiny model's serves, of other tokens."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def golden(self, name, **quantization):
        model = os.path.join(self.folder, name)
        shutil.copytree(os.path.join(PACKED, name), model, dirs_exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(tiny(MODEL), file), model)
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["quantization_config"] |= quantization
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return model

    def test_as_stored_and_expanded(self):
        prompt = [3 + i * 7 % 40 for i in range(40)]
        goldens = {"gptq4": "Q4_0", "awq4": "Q4_1", "compressed-int8": "Q8_0", "fp8-blocks": "fp8_e4m3"}
        for name, stored in goldens.items():
            logprobs = {}
            for flags in ((), ("--dequantize",)):
                with Cluster(self.golden(name), FLOAT32, *flags, workers=1) as cluster:
                    logprobs[flags] = prompt_logprobs(cluster, prompt)
                    self.assertEqual(stored in cluster.cli("status").stdout, not flags)
                    note = rf"weights: float32 .*; --no-dequantize would compute with .*{stored}"
                    self.assertEqual(re.search(note, cluster.log()) is not None, bool(flags))
                    self.assertNotIn("not computed here as it is stored", cluster.log())
            moved = [abs(a - b) for a, b in zip(*logprobs.values())]
            # Fp8 rounds no activations: only the order of sums differs.
            self.assertLess(sum(moved) / len(moved), 1e-3 if stored == "fp8_e4m3" else 0.2, f"{name}: {moved}")
            if stored != "fp8_e4m3":
                self.assertGreater(sum(moved), 0, name)

    def test_what_cannot_be_computed_as_stored_is_expanded_with_a_line(self):
        """Numbers with reordered inputs fit no block (docs/operations.md)."""
        with Cluster(self.golden("gptq4-order"), FLOAT32, workers=1) as cluster:
            self.assertRegex(cluster.log(), r"weights: float32 [^;]*; not computed here as it is stored: numbers of "
                                            r"quantization_config")
            self.assertEqual(len(cluster.tokens([3, 10, 17], max_tokens=4, ignore_eos=True)), 4)

    def test_a_quantization_at_load_quantizes_anew(self):
        with Cluster(self.golden("gptq4"), FLOAT32, INT8, workers=1) as cluster:
            status = cluster.cli("status").stdout
            self.assertIn("Q8_0", status)
            self.assertNotIn("Q4_0", status)

    def test_the_names_of_methods_say_what_is_there(self):
        prompt = [3 + i * 7 % 40 for i in range(40)]
        for name, methods in (("gptq4", ("gptq", "gptq_marlin")), ("compressed-fp8", ("compressed-tensors",))):
            model = self.golden(name)
            with Cluster(model, FLOAT32, workers=1) as cluster:
                want = prompt_logprobs(cluster, prompt)
            for method in methods:
                with Cluster(model, FLOAT32, f"--quantization={method}", workers=1) as cluster:
                    self.assertEqual(prompt_logprobs(cluster, prompt), want, method)
        code, text = refused("--quantization=fp8", model=self.golden("gptq4"))
        self.assertEqual(code, 1)
        self.assertIn("--quantization=fp8: gptq4 has quantization_config.quant_method gptq", text)

    def test_fp8_is_computed_as_stored_by_its_name(self):
        prompt = [3 + i * 7 % 40 for i in range(40)]
        logprobs = {}
        for flag in ("--no-dequantize", FP8):  # --no-dequantize is the default, and may be given
            with Cluster(self.golden("fp8"), FLOAT32, flag, workers=1) as cluster:
                logprobs[flag] = prompt_logprobs(cluster, prompt)
                self.assertIn("fp8_e4m3", cluster.cli("status").stdout)
        self.assertEqual(*logprobs.values())

    def test_other_methods_are_refused_by_their_key(self):
        code, text = refused(model=self.golden("gptq4", quant_method="bitsandbytes"))
        self.assertEqual(code, 1)
        self.assertIn("quantization_config.quant_method: bitsandbytes", text)

    def test_a_damaged_file_is_refused_by_its_tensor(self):
        model = self.golden("gptq4", group_size=64)
        code, text = refused(model=model)
        self.assertEqual(code, 1)
        self.assertIn("model.layers.0.self_attn.q_proj.qzeros", text)
        path = os.path.join(model, "model.safetensors")
        os.truncate(path, os.path.getsize(path) - 100)
        code, text = refused(model=model)
        self.assertEqual(code, 1)
        self.assertIn("model.safetensors", text)
