"""Perplexity and divergence of the tiny model in each type of weights, beside the figures in float64.

tests/data/perplexity_qwen2.json has a few texts and the model's own distributions (make_perplexity_golden.py, which compares
itself with transformers). Types of few bits change this model of random weights a great deal, so that a run of a GGUF file is
compared with the same file in float32 as well, where only the rounding of activations is between them: a kernel that leaves out
a block, takes the scale of another block or a wrong sign moves the difference by far more than the bound.
"""
import json
import math
import os
import sys
import tempfile
import unittest

from cluster.harness import ROOT, Cluster, tiny
from cluster.harness.tiny_as_stored import GGUF_TYPES, MODEL, write_fp8, write_gguf

sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
import perplexity  # noqa: E402

GOLDEN = os.path.join(ROOT, "tests", "data", f"perplexity_{MODEL}.json")
DTYPES, ONLINE, FP8_FILE = ("float32", "bfloat16", "float16"), ("int8", "int4", "fp8"), "fp8 file"
BF16 = "--dtype=bfloat16"
# By run: the mean Kullback-Leibler divergence from the golden, by how much the logarithm of the perplexity is off, and, for a
# type of a file, the divergence from the same file in float32. Measured on a CPU with AMX; other sets differ in the last bits
# of sums, and sets without BF16 do not round activations of bf16 weights.
MEASURED = {
    "float32": (0.0, 0.0), "float16": (0.000012, 0.0001), "bfloat16": (0.000925, 0.0042),
    "int8": (0.006407, 0.0082), "int4": (0.414466, 0.5975), "fp8": (0.047140, 0.0224), FP8_FILE: (0.055528, 0.0970),
    "Q8_0": (0.010074, 0.0109, 0.003600), "Q4_0": (0.450781, 0.6349, 0.003080), "Q4_1": (0.388798, 0.5105, 0.003887),
    "Q5_0": (0.123394, 0.1367, 0.003146), "Q5_1": (0.145393, 0.2147, 0.003699), "IQ4_NL": (0.539416, 0.6564, 0.003573),
    "MXFP4": (0.774413, 1.1107, 0.003406), "Q2_K": (2.227953, 4.8100, 0.005279), "Q3_K": (1.090641, 1.8515, 0.003661),
    "Q4_K": (0.384276, 0.5405, 0.003008), "Q5_K": (0.136655, 0.2225, 0.003540), "Q6_K": (0.029440, 0.0661, 0.003409)}


def bounds(name):
    """Half as much again as was measured; perplexity, in which changes cancel each other, has further noise."""
    kl, change, *from_expanded = MEASURED[name]
    return 1.5 * kl + 1e-4, 1.5 * change + 0.02, *(1.5 * value + 1e-4 for value in from_expanded)


def read_golden():
    with open(GOLDEN, encoding="utf-8") as file:
        return json.load(file)["texts"], perplexity.read_run(GOLDEN)


def measure(cluster, texts):
    server = perplexity.Server(f"http://127.0.0.1:{cluster.port}")
    run = []
    for text in texts:
        run += perplexity.positions(text, server.prompt_logprobs(cluster.name, text))
    return run


class Accuracy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts, cls.golden = read_golden()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_of(self, model, *flags, types):
        """`types`: the names of types in the workers' reports."""
        with Cluster(model, *flags, workers=1) as cluster:
            status = cluster.cli("status").stdout
            for one in types:
                self.assertIn(one, status)
            return measure(cluster, self.texts)

    def check(self, name, run, expanded=None):
        result = perplexity.compare(run, self.golden)
        kl, change = result["mean_kl"], abs(math.log(result["perplexity_ratio"]))
        print(f"{name}: mean KL {kl:.6f}, log perplexity off by {change:.4f}, same likeliest token {result['same_top']:.3f}")
        most_kl, most_change, *most_from_expanded = bounds(name)
        self.assertLess(kl, most_kl)
        self.assertLess(change, most_change)
        if expanded is not None:
            kl = perplexity.compare(run, expanded)["mean_kl"]
            print(f"{name}: mean KL {kl:.6f} from the same file in float32")
            self.assertLess(kl, *most_from_expanded)

    def test_weights_that_are_not_quantized(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                self.check(dtype, self.run_of(tiny(MODEL), f"--dtype={dtype}", types=[dtype]))

    def test_quantized_at_load(self):
        for method, stored in zip(ONLINE, ("Q8_0", "Q4_1", "fp8_e4m3")):
            with self.subTest(method=method):
                self.check(method, self.run_of(tiny(MODEL), BF16, f"--quantization={method}", types=[stored]))

    def test_each_type_of_gguf_as_stored(self):
        for name in GGUF_TYPES:
            path = os.path.join(self.folder, f"{name}.gguf")
            write_gguf(path, name)
            with self.subTest(type=name):
                expanded = self.run_of(path, "--dequantize", "--dtype=float32", types=["float32"])
                self.check(name, self.run_of(path, BF16, types=[name, "Q8_0"]), expanded)

    def test_fp8_as_stored(self):
        model = os.path.join(self.folder, MODEL)
        write_fp8(model)
        self.check(FP8_FILE, self.run_of(model, BF16, types=["fp8_e4m3"]))


if __name__ == "__main__":
    unittest.main()
