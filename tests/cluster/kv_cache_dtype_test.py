"""--kv-cache-dtype through the whole cluster: what it costs in precision, what it saves, what is refused."""
import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from cluster.harness import ROOT, SMOLLM2, SOMNUS, Cluster, expected, tiny

MODEL = "llama-uneven"
FLOAT32, FP8 = "--dtype=float32", "--kv-cache-dtype=fp8"
GOLDEN = os.path.join(ROOT, "tests", "data", "smollm2_greedy.json")
# How far an fp8 cache may move log-probabilities of the tiny models, whose random weights make large logits, on
# average (measured: 0.27), and the difference of SmolLM2's two best logits (0.3).
TINY_BOUND, SMOLLM2_BOUND = 0.4, 1.0
# Two ranks add in another order than one: a key whose last bit differs may round to another fp8, an eighth away. Below
# this distance of the two best either token is right (measured: 0.06).
TIE = 0.6


def case(name):
    return next(case for case in expected(MODEL) if case["name"] == name)


def refused(*flags, model=None):
    """Exit code and standard error of a server that does not start."""
    done = subprocess.run([SOMNUS, "serve", model or tiny(MODEL), "--port=0", "--admin-port=0", "--grpc-port=0", "--control-port=0", *flags],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@contextlib.contextmanager
def with_scales(k, v):
    """The tiny model with a k_scale and a v_scale in every layer, as a folder."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "scaled")
        shutil.copytree(tiny(MODEL), model)
        path = os.path.join(model, "model.safetensors")
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header, data = json.loads(file.read(length)), file.read()
        for layer in range(2):
            for name, value in (("k_scale", k), ("v_scale", v)):
                header[f"model.layers.{layer}.self_attn.{name}"] = {
                    "dtype": "F32", "shape": [], "data_offsets": [len(data), len(data) + 4]}
                data += struct.pack("<f", value)
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        yield model


class Flag(unittest.TestCase):
    def test_unknown_types_are_refused_at_once_in_one_line(self):
        for value in ("fp8_e5m2", "int8", "e4m3", ""):
            with self.subTest(value=value):
                code, text = refused(f"--kv-cache-dtype={value}")
                self.assertEqual(code, 2)
                self.assertIn("--kv-cache-dtype", text)
                self.assertEqual(len(text.splitlines()), 1, text)

    def test_names_in_status_metrics_and_log(self):
        for flags, label, name in ((("--kv_cache_dtype", "fp8"), "fp8", "fp8_e4m3"),
                                   (("--kv-cache-dtype=fp8_e4m3",), "fp8_e4m3", "fp8_e4m3"),
                                   (("--kv-cache-dtype=bfloat16",), "bfloat16", "bfloat16"), ((), "auto", "float32")):
            with self.subTest(flags=flags), Cluster(tiny(MODEL), FLOAT32, *flags, workers=1) as cluster:
                metrics = cluster.request("GET", "/metrics").text
                self.assertRegex(metrics, rf'(?m)^vllm:cache_config_info\{{[^}}]*cache_dtype="{label}"')
                self.assertEqual(cluster.status()["kv_cache_dtype"], name)
                self.assertIn(name, cluster.cli("status").stdout)
                self.assertRegex(cluster.log(), rf"KV cache: \d+ blocks of 16 tokens in {name}")


class Tiny(unittest.TestCase):
    def test_twice_as_many_blocks_in_the_same_bytes(self):
        for workers in (1, 2):
            blocks = {}
            for dtype in ("auto", "fp8"):
                # Block 0 is there too, and is not counted.
                with Cluster(tiny(MODEL), "--dtype=bfloat16", "--kv-cache-memory-bytes=200KiB", "--max-model-len=64",
                             f"--kv-cache-dtype={dtype}", workers=workers) as cluster:
                    blocks[dtype] = cluster.status()["total_blocks"] + 1
            self.assertIn(blocks["fp8"] - 2 * blocks["auto"], (0, 1), f"{workers} workers: {blocks}")

    def test_logprobs_are_near_the_exact_ones(self):
        for model in (MODEL, "qwen3", "opt"):
            with Cluster(tiny(model), FLOAT32, FP8, workers=2) as cluster:
                for one in expected(model):
                    answer = cluster.complete(one["prompt"], echo=True, logprobs=1, max_tokens=1)
                    got = answer["choices"][0]["logprobs"]["token_logprobs"][:len(one["prompt"])]
                    moved = [abs(ours - reference) for ours, reference in zip(got[1:], one["prompt_logprobs"][1:])]
                    if moved:
                        mean = sum(moved) / len(moved)
                        self.assertTrue(1e-3 < mean < TINY_BOUND, f"{model} {one['name']}: {mean}")

    def test_company_cuts_preemption_and_the_prefix_cache_do_not_change_tokens(self):
        cases = expected(MODEL)
        with Cluster(tiny(MODEL), FLOAT32, FP8, workers=1) as cluster:
            alone = [cluster.tokens(one["prompt"], ignore_eos=True) for one in cases]
            again = [cluster.tokens(one["prompt"], ignore_eos=True) for one in cases]
            self.assertGreater(cluster.metric("vllm:prefix_cache_hits_total"), 160)
        self.assertEqual(again, alone)
        # The last cache holds little more than one longest sequence.
        for flags in (("--max-num-batched-tokens=16", "--max-num-seqs=4"), ("--no-async-scheduling", "--no-enable-prefix-caching"),
                      ("--kv-cache-memory-bytes=40KiB", "--max-model-len=256")):
            with self.subTest(flags=flags), Cluster(tiny(MODEL), FLOAT32, FP8, *flags, workers=1) as cluster:
                streams = [cluster.open_stream(one["prompt"], return_token_ids=True) for one in cases]
                got = [[token for event in stream.events() for choice in event["choices"]
                        for token in choice.get("token_ids") or []] for stream in streams]
                self.assertEqual(got, alone)

    def test_sleep_changes_no_tokens(self):
        one = case("prompt-64")
        with Cluster(tiny(MODEL), FLOAT32, FP8, workers=2) as cluster:
            before = cluster.tokens(one["prompt"], ignore_eos=True)
            for level in ("1", "2"):
                cluster.cli("sleep", "--level", level)
                cluster.cli("wake-up")
                self.assertEqual(cluster.tokens(one["prompt"], ignore_eos=True), before)
            self.assertEqual(cluster.stop(), 0)


class Scales(unittest.TestCase):
    def tokens(self, model, *flags):
        one = case("prompt-33")
        with Cluster(model, FLOAT32, *flags, workers=2) as cluster:
            return cluster.tokens(one["prompt"], ignore_eos=True), cluster.log()

    def test_from_the_checkpoint_or_one(self):
        plain, log = self.tokens(tiny(MODEL), FP8)
        self.assertEqual(len(re.findall("0 of 2 layers have scales in the checkpoint", log)), 1, log)
        with with_scales(0.25, 0.125) as model:  # powers of two round alike
            tokens, log = self.tokens(model, FP8)
            self.assertEqual(tokens, plain)
            self.assertEqual(len(re.findall("with the checkpoint's scales", log)), 1, log)
        with with_scales(1e-5, 1e-5) as model:  # everything saturates
            self.assertNotEqual(self.tokens(model, FP8)[0], plain)
            self.assertNotIn("scales", self.tokens(model)[1])

    def test_bad_ones_are_refused_with_file_and_tensor(self):
        for bad in (0.0, -1.0, float("nan"), float("inf")):
            with self.subTest(scale=bad), with_scales(1.0, bad) as model:
                code, text = refused(FP8, "--workers=local:2", model=model)
                self.assertEqual(code, 1)
                line = next((line for line in text.splitlines() if line.startswith("coordinator:")), "")
                for word in ("model.safetensors", "model.layers.0.self_attn.v_scale", "positive"):
                    self.assertIn(word, line, text)


def parting(a, b):
    """The first position where two lists of tokens differ, or None."""
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), None)


class SmolLM2(unittest.TestCase):
    def ask(self, cluster, one):
        """Tokens, and by how much each was better than the second best."""
        answer = cluster.complete(one["prompt_ids"], max_tokens=12, ignore_eos=True, logprobs=2)["choices"][0]
        best = [sorted(top.values(), reverse=True)[:2] for top in answer["logprobs"]["top_logprobs"]]
        return answer["token_ids"], [first - second for first, second in best]

    def test_text_is_sane_on_one_and_two_workers(self):
        with open(GOLDEN, encoding="utf-8") as file:
            cases = json.load(file)["cases"][::2]
        answers = {}
        for workers in (1, 2):
            with Cluster(SMOLLM2, FLOAT32, FP8, workers=workers) as cluster:
                answers[workers] = [self.ask(cluster, one) for one in cases]
                question = [{"role": "user", "content": "What is the capital of France?"}]
                chat = cluster.request("POST", "/v1/chat/completions", {
                    "model": cluster.name, "messages": question, "temperature": 0, "max_tokens": 16}).json
                self.assertIn("Paris", chat["choices"][0]["message"]["content"])
        for one, (tokens, gaps), (others, _) in zip(cases, answers[1], answers[2]):
            position = parting(tokens, others)
            if position is not None:
                self.assertLess(gaps[position], TIE, f"{one['prompt']!r} position {position} on 1 and 2 workers")
            position = parting(tokens, one["tokens"])
            if position is not None:
                self.assertLess(one["gaps"][position], SMOLLM2_BOUND, f"{one['prompt']!r} position {position}")


if __name__ == "__main__":
    unittest.main()
