"""isa_compare.py: the programs that it starts for each set and file, and the table; a script stands for decode_bench."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "tools", "bench", "peers")
sys.path.insert(0, PEERS)
import isa_compare  # noqa: E402

# Writes arguments and set to a log, refuses one set, and has two samples of each size.
DECODE_BENCH = r"""#!/usr/bin/env python3
import json, os, sys
name = os.environ["SOMNUS_CPU_ISA"]
with open(os.environ["LOG"], "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\n")
if name == "amx":
    sys.exit(print('decode_bench: SOMNUS_CPU_ISA is "amx", which this CPU lacks; it may be avx2', file=sys.stderr) or 1)
flags = dict(arg[2:].split("=", 1) for arg in sys.argv[1:] if "=" in arg)
if "broken" in flags["model"]:
    sys.exit(print("decode_bench: no such type", file=sys.stderr) or 1)
peers = [50.0, 100.0] if "peer" in flags else []
def row(kind, batch, prompt, new, read):
    return {"kind": kind, "batch": batch, "prompt_tokens": prompt, "new_tokens": new, "dropped": 1,
            "tokens_per_second": [100.0, 300.0], "ratio": [2.0, 3.0] if peers else [], "peer_tokens_per_second": peers,
            "read_bandwidth_percent": read, "peak_percent": [40.0, 60.0], "read_gbps": [20.0, 30.0]}
print("some model, loaded\nf32 1 GFLOP/s, bf16 2 GFLOP/s, int8 3 GOP/s")
with open(flags["json"], "w") as file:
    json.dump([row("decode", 4, 128, 64, [80.0, 90.0]), row("prefill", 4, 128, 64, []),
               row("prefill", 1, 512, 0, [])], file)
"""


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


class Recipe(unittest.TestCase):
    def test_a_build_has_what_its_set_has_and_no_more(self):
        avx2, amx = isa_compare.cmake_flags("avx2"), isa_compare.cmake_flags("amx")
        for flags in (avx2, amx):
            self.assertIn("-DGGML_NATIVE=OFF", flags)
            self.assertIn("-DGGML_FMA=ON", flags)
            self.assertIn("-DGGML_AVX_VNNI=OFF", flags)
        self.assertIn("-DGGML_AVX512=OFF", avx2)
        self.assertIn("-DGGML_AVX512_BF16=ON", amx)
        self.assertIn("-DGGML_AMX_INT8=ON", amx)
        self.assertIn("-DGGML_AVX512_BF16=OFF", isa_compare.cmake_flags("avx512_vnni"))
        self.assertFalse([flag for flag in isa_compare.cmake_flags("portable") if flag.endswith("=ON")])
        self.assertEqual(isa_compare.cmake_flags("neon_dotprod")[-1], "-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod")

    def test_the_type_is_that_of_the_name(self):
        for path, kind in (("a/smol-Q4_K_M.gguf", "Q4_K_M"), ("smol.bf16.gguf", "BF16"), ("smol-IQ4_NL.gguf", "IQ4_NL"),
                           ("model.gguf", "model")):
            self.assertEqual(isa_compare.type_of(path), kind)


class Driver(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        executable(self.path("bin", "tools", "bench", "decode_bench"), DECODE_BENCH)
        for build in ("build-avx2/bin", "build"):
            executable(self.path(build, "llama-batched-bench"), "#!/bin/sh\n")
        for name in ("m-F16.gguf", "m-Q4_0.gguf", "broken-Q4_0.gguf"):
            open(self.path(name), "wb").close()

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def compare(self, *args):
        return subprocess.run([sys.executable, os.path.join(PEERS, "isa_compare.py"), *args], capture_output=True,
                              text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env={**os.environ, "SOMNUS_BIN": self.path("bin"), "LOG": self.path("log")})

    def test_each_set_runs_beside_its_own_build(self):
        files = [self.path("m-F16.gguf"), self.path("m-Q4_0.gguf")]
        done = self.compare("--sets=avx2,avx512", f"--peer-dir=avx2={self.path('build-avx2')}",
                            f"--peer-dir={self.path('build')}", "--threads=2", *files)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("log"), encoding="utf-8") as file:
            calls = [json.loads(line) for line in file]
        self.assertEqual([call[0] for call in calls], ["avx2", "avx2", "avx512", "avx512"])
        for name, *flags in calls:
            build = "build-avx2/bin" if name == "avx2" else "build"
            self.assertIn(f"--peer={self.path(build, 'llama-batched-bench')}", flags)
            self.assertIn("--no-dequantize", flags)
            model = next(flag for flag in flags if flag.startswith("--model="))
            self.assertIn(model.replace("--model", "--peer-model"), flags)
            self.assertIn("--dtype=float16" if "F16" in model else "--dtype=bfloat16", flags)

    def test_the_table_has_medians_and_the_nearer_ceiling(self):
        done = self.compare("--sets=avx2,amx", f"--peer-dir={self.path('build')}", "--threads=2", "--rounds=2",
                            f"--json={self.path('all.json')}", self.path("m-Q4_0.gguf"))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
        self.assertEqual(rows, [
            "| `avx2` | Q4_0 | 4 | 200.0 (100.0..300.0) | 75.0 (50.0..100.0) | 2.50 (2.00..3.00) | "
            "0.85 (0.80..0.90) of read | 1 |",
            "| `avx2` | Q4_0 | prefill 512 | 200.0 (100.0..300.0) | 75.0 (50.0..100.0) | 2.50 (2.00..3.00) | "
            "0.50 (0.40..0.60) of peak | 1 |"])
        self.assertIn("2 threads, 2 rounds", done.stdout)
        self.assertIn("Memory gave 25.0 (20.0..30.0) GB/s.", done.stdout)
        self.assertIn("avx2: f32 1 GFLOP/s", done.stdout)
        self.assertRegex(done.stdout, r'left out: .*SOMNUS_CPU_ISA is "amx", which this CPU lacks')
        with open(self.path("all.json"), encoding="utf-8") as file:
            self.assertEqual([row["set"] for row in json.load(file)["rows"]], ["avx2", "avx2"])

    def test_without_a_peer_its_cells_are_empty(self):
        done = self.compare("--sets=avx2", self.path("m-Q4_0.gguf"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 200.0 (100.0..300.0) | - | - | 0.85", done.stdout)

    def test_what_is_wrong_is_said(self):
        good = self.path("m-Q4_0.gguf")
        for args, code, words in ((("--sets=sse9", good), 2, "sse9"), (("--sets=avx2",), 2, "FILE.gguf"),
                                  ((good,), 2, "--sets"), (("--sets=avx2", "/no/such.gguf"), 2, "/no/such.gguf"),
                                  (("--sets=avx2", "--peer-dir=/no/such", good), 1,
                                   "no llama-batched-bench in /no/such"),
                                  (("--sets=avx2", "--peer-dir=sse9=/x", good), 1, "sse9"),
                                  (("--sets=avx2", self.path("broken-Q4_0.gguf")), 1, "avx2: decode_bench: no such")):
            with self.subTest(args=args):
                done = self.compare(*args)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
