"""--kv-cache-dtype through the whole cluster: the cost in precision, the saved memory, and refused combinations."""
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from cluster.harness import ROOT, SMOLLM2, SOMNUS, Cluster, expected, tiny
from cluster.harness.together import Together, complete, prompt

MODEL = "llama-uneven"
FLOAT32, FP8, INT8 = "--dtype=float32", "--kv-cache-dtype=fp8", "--kv-cache-dtype=int8"
GOLDEN = os.path.join(ROOT, "tests", "data", "smollm2_greedy.json")
# How far an fp8 cache may move log-probabilities of the tiny models, whose random weights make large logits, on
# average (measured: 0.27), and the difference of SmolLM2's two best logits (0.3). An int8 cache moves log-probabilities less.
TINY_BOUND, SMOLLM2_BOUND = {FP8: 0.4, INT8: 0.15}, 1.0
# Two ranks add in another order than a single rank: a key whose last bit differs may round to another fp8, an eighth away.
# Below this distance between the two best tokens either token is right (measured: 0.06).
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
        for value in ("fp8_e5m2", "int4", "int8_per_tensor", "e4m3", ""):
            with self.subTest(value=value):
                code, text = refused(f"--kv-cache-dtype={value}")
                self.assertEqual(code, 2)
                self.assertIn("--kv-cache-dtype", text)
                self.assertEqual(len(text.splitlines()), 1, text)

    def test_names_in_status_metrics_and_log(self):
        for flags, label, name in ((("--kv_cache_dtype", "fp8"), "fp8", "fp8_e4m3"),
                                   (("--kv-cache-dtype=fp8_e4m3",), "fp8_e4m3", "fp8_e4m3"),
                                   (("--kv-cache-dtype=int8",), "int8", "int8"),
                                   (("--kv-cache-dtype=int8_per_token_head",), "int8_per_token_head", "int8"),
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

    def test_blocks_of_int8_have_scales(self):
        # Two layers; a head of 16 tokens has K and V of 32 dims and two scales of 4 bytes for each token.
        for workers, heads in ((1, 2), (2, 1)):
            block = 2 * heads * 16 * (2 * 32 + 2 * 4)
            for spare in (0, block - 1):
                with Cluster(tiny("qwen3"), INT8, f"--kv-cache-memory-bytes={20 * block + spare}", "--max-model-len=64",
                             workers=workers) as cluster:
                    self.assertEqual(cluster.status()["total_blocks"] + 1, 20)

    def test_logprobs_are_near_the_exact_ones(self):
        for model, dtype in itertools.product((MODEL, "qwen3", "opt"), (FP8, INT8)):
            with Cluster(tiny(model), FLOAT32, dtype, workers=2) as cluster:
                for one in expected(model):
                    answer = cluster.complete(one["prompt"], echo=True, logprobs=1, max_tokens=1)
                    got = answer["choices"][0]["logprobs"]["token_logprobs"][:len(one["prompt"])]
                    moved = [abs(ours - reference) for ours, reference in zip(got[1:], one["prompt_logprobs"][1:])]
                    if moved:
                        mean = sum(moved) / len(moved)
                        self.assertTrue(1e-4 < mean < TINY_BOUND[dtype], f"{model} {dtype} {one['name']}: {mean}")

    def test_company_cuts_preemption_and_the_prefix_cache_do_not_change_tokens(self):
        for dtype in (FP8, INT8):
            with self.subTest(dtype=dtype):
                self.check_invariance(dtype)

    def check_invariance(self, dtype):
        cases = expected(MODEL)
        with Cluster(tiny(MODEL), FLOAT32, dtype, workers=1) as cluster:
            alone = [cluster.tokens(one["prompt"], ignore_eos=True) for one in cases]
            again = [cluster.tokens(one["prompt"], ignore_eos=True) for one in cases]
            self.assertGreater(cluster.metric("vllm:prefix_cache_hits_total"), 160)
        self.assertEqual(again, alone)
        # The last cache holds little more than a longest sequence; heads of 16 numbers have a scale of four bytes each.
        smallest = {FP8: "40KiB", INT8: "56KiB"}[dtype]
        for flags in (("--max-num-batched-tokens=16", "--max-num-seqs=4"), ("--no-async-scheduling", "--no-enable-prefix-caching"),
                      (f"--kv-cache-memory-bytes={smallest}", "--max-model-len=256")):
            with self.subTest(flags=flags), Cluster(tiny(MODEL), FLOAT32, dtype, *flags, workers=1) as cluster:
                streams = [cluster.open_stream(one["prompt"], return_token_ids=True) for one in cases]
                got = [[token for event in stream.events() for choice in event["choices"]
                        for token in choice.get("token_ids") or []] for stream in streams]
                self.assertEqual(got, alone)


class Moved(unittest.TestCase):
    """Blocks of an int8 cache that forks copy, that are swapped out, and kept over a sleep: with the scales."""
    BLOCK_BYTES = 2304  # of qwen3's head on each of two ranks, as above
    REQUESTS = [
        {"prompt": prompt(3, 20), "max_tokens": 150, "temperature": 0, "ignore_eos": True},
        {"prompt": prompt(7, 37), "max_tokens": 60, "n": 4, "seed": 5, "temperature": 0.9, "ignore_eos": True},
        {"prompt": prompt(9, 120), "max_tokens": 90, "temperature": 0, "ignore_eos": True},
        {"prompt": prompt(9, 120) + [1, 2, 3], "max_tokens": 80, "logprobs": 2, "temperature": 0, "ignore_eos": True},
        {"prompt": prompt(15, 48), "max_tokens": 100, "temperature": 0, "ignore_eos": True},
    ]

    def cluster_of(self, blocks, *flags):
        # The null block counts, too.
        return Cluster(tiny("qwen3"), FLOAT32, INT8, f"--kv-cache-memory-bytes={(blocks + 1) * self.BLOCK_BYTES}",
                       "--max-num-seqs=16", *flags, workers=2)

    @staticmethod
    def answers(cluster, body):
        return [(choice["token_ids"], choice["logprobs"]) for choice in complete(cluster, body)]

    @classmethod
    def together(cls, cluster):
        return Together(cluster, cls.REQUESTS, cls.answers)

    def test_swaps_forks_and_sleeps_that_keep_the_cache(self):
        with self.cluster_of(1000) as cluster:
            wanted = [self.answers(cluster, body) for body in self.REQUESTS]
            self.assertEqual(self.together(cluster).join(), wanted)
            self.assertEqual(cluster.metric("vllm:num_preemptions_total"), 0)
        with self.cluster_of(28, "--preemption=swap", "--keep-kv-on-sleep") as cluster:
            self.assertEqual(cluster.status()["total_blocks"], 28)
            self.assertEqual(self.together(cluster).join(), wanted)
            self.assertGreater(cluster.metric("somnus:swapped_blocks_total", direction="in"), 0)
            slept = 0
            for _ in range(20):
                asked = self.together(cluster)
                while not asked.ended() and slept < 3:
                    cluster.admin("/sleep?level=1&mode=keep")
                    slept += cluster.metric("somnus:kv_host_blocks_used") > 0
                    cluster.admin("/wake_up")
                self.assertEqual(asked.join(), wanted)
                if slept >= 3:
                    break
            self.assertGreaterEqual(slept, 3)
            self.assertEqual(cluster.metric("somnus:preemptions_total", mode="recompute"), 0)
            prefix = prompt(21, 100)
            first = self.answers(cluster, {"prompt": prefix, "max_tokens": 8, "temperature": 0})
            cluster.admin("/sleep?level=1")
            cluster.admin("/wake_up")
            hits = cluster.metric("vllm:prefix_cache_hits_total")
            self.assertEqual(self.answers(cluster, {"prompt": prefix, "max_tokens": 8, "temperature": 0}), first)
            self.assertEqual(cluster.metric("vllm:prefix_cache_hits_total"), hits + 96)
            self.assertEqual(cluster.stop(), 0)

    def test_a_draft_model_has_its_own_blocks(self):
        one = {"prompt": prompt(3, 40), "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        answers = []
        for flags in ((), ("--speculative=draft", f"--draft-model={tiny('qwen3')}", "--num-speculative-tokens=3")):
            with Cluster(tiny("qwen3"), FLOAT32, INT8, *flags, workers=2) as cluster:
                answers.append(self.answers(cluster, one))
        self.assertEqual(answers[0], answers[1])


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
            # An int8 cache makes the scales.
            tokens, log = self.tokens(model, INT8)
            self.assertEqual(tokens, self.tokens(tiny(MODEL), INT8)[0])
            self.assertNotIn("scales", log)

    def test_sleeps_keep_them_and_a_reload_with_others_is_refused(self):
        def ask(cluster):
            choice = cluster.complete(case("prompt-33")["prompt"], ignore_eos=True, logprobs=2)["choices"][0]
            return choice["token_ids"], choice["logprobs"]

        def admin(target):
            return cluster.request("POST", target, port=cluster.admin_port)
        with Cluster(tiny(MODEL), FLOAT32, FP8, workers=2) as cluster:
            without = ask(cluster)
        # No powers of two, so that a lost factor shows.
        with with_scales(0.013, 0.007) as model, with_scales(0.013, 0.008) as other, Cluster(model, FLOAT32, FP8, workers=2) as cluster:
            wanted = ask(cluster)
            self.assertNotEqual(wanted, without)
            for level in (1, 2):
                for target in (f"/sleep?level={level}", "/wake_up"):
                    self.assertEqual(admin(target).status, 200)
                self.assertEqual(ask(cluster), wanted, f"level {level}")
            version = cluster.metric("somnus:weights_version")
            for path in (other, tiny(MODEL)):
                answer = admin(f"/reload_weights?path={path}")
                self.assertEqual(answer.status, 400, answer.text)
                self.assertIn("has other scales of the KV cache than what was loaded", answer.text)
                self.assertEqual(cluster.metric("somnus:weights_version"), version)
                self.assertEqual(ask(cluster), wanted)
            self.assertEqual(admin(f"/reload_weights?path={model}").status, 200)
            self.assertEqual(ask(cluster), wanted)
            self.assertEqual(cluster.stop(), 0)

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
        for dtype in (FP8, INT8):
            with self.subTest(dtype=dtype):
                self.check_text(dtype)

    def check_text(self, dtype):
        with open(GOLDEN, encoding="utf-8") as file:
            cases = json.load(file)["cases"][::2]
        answers = {}
        for workers in (1, 2):
            with Cluster(SMOLLM2, "--dequantize", FLOAT32, dtype, workers=workers) as cluster:
                with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
                    answers[workers] = list(pool.map(functools.partial(self.ask, cluster), cases))
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
