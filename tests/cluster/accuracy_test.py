"""Perplexity and divergence of the tiny model in each type of weights, beside what it is in float64.

tests/data/perplexity_qwen2.json has a few texts and the model's own distributions (make_perplexity_golden.py, which compares
itself with transformers). A row of BOUNDS is a run: what it may be at most is about 1.5 times what was measured on a CPU with
AVX-512 and its 8-bit dot products; other instruction sets differ in the last bits of sums. A kernel that leaves out a
block, takes another one's scale or a wrong sign moves both numbers by far more.
"""
import json
import os
import sys
import tempfile
import unittest

from cluster.harness import ROOT, Cluster, tiny
from cluster.tiny_as_stored import GGUF_TYPES, MODEL, write_fp8, write_gguf

sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
import perplexity  # noqa: E402

GOLDEN = os.path.join(ROOT, "tests", "data", f"perplexity_{MODEL}.json")
DTYPES, ONLINE, FP8_FILE = ("float32", "bfloat16", "float16"), ("int8", "int4", "fp8"), "fp8 file"
BF16 = "--dtype=bfloat16"
BOUNDS = {}


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

    def check(self, name, model, *flags, types):
        """`types`: names that the workers say they compute in."""
        with self.subTest(name=name), Cluster(model, *flags, workers=1) as cluster:
            result = perplexity.compare(measure(cluster, self.texts), self.golden)
            kl, ratio, same = result["mean_kl"], result["perplexity_ratio"], result["same_top"]
            print(f"{name}: mean KL {kl:.6f}, perplexity times {ratio:.4f}, same likeliest token {same:.3f}")
            status = cluster.cli("status").stdout
            for one in types:
                self.assertIn(one, status)
            most_kl, most_change = BOUNDS[name]
            self.assertLess(kl, most_kl)
            self.assertLess(abs(ratio - 1), most_change)

    def test_weights_that_are_not_quantized(self):
        for dtype in DTYPES:
            self.check(dtype, tiny(MODEL), f"--dtype={dtype}", types=[dtype])

    def test_quantized_at_load(self):
        for method, stored in zip(ONLINE, ("Q8_0", "Q4_1", "fp8_e4m3")):
            self.check(method, tiny(MODEL), BF16, f"--quantization={method}", types=[stored])

    def test_each_type_of_gguf_as_stored(self):
        for name in GGUF_TYPES:
            path = os.path.join(self.folder, f"{name}.gguf")
            write_gguf(path, name)
            self.check(name, path, BF16, "--no-dequantize", types=[name, "Q8_0"])

    def test_fp8_as_stored(self):
        model = os.path.join(self.folder, MODEL)
        write_fp8(model)
        self.check(FP8_FILE, model, BF16, "--no-dequantize", types=["fp8_e4m3"])

    def test_the_file_without_quantization_is_the_same_model(self):
        """Otherwise the bounds of the types would be those of another model: the wider one, with layers in Q8_0, expanded."""
        path = os.path.join(self.folder, "wide.gguf")
        write_gguf(path, "Q8_0")
        self.check("Q8_0 expanded", path, "--dequantize", "--dtype=float32", types=["float32"])


if __name__ == "__main__":
    unittest.main()
