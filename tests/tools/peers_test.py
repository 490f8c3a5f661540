"""Scripts that measure peers: the same requests for everyone, clear words about missing parts, and the right ratios.

The case that runs transformers needs a Python with torch and transformers: this Python, or the Python that SOMNUS_PEER_PYTHON
names.
"""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import BIN, ROOT, tiny
from tools.fake_openai import FakeOpenAi

PEERS = os.path.join(ROOT, "tools", "bench", "peers")
SERVING_BENCH = os.path.join(BIN, "tools", "bench", "serving_bench")
sys.path[:0] = [PEERS, os.path.dirname(PEERS)]
import flashinfer_kernels  # noqa: E402
import gpu_ratios  # noqa: E402
import grammar_peers  # noqa: E402
import workload  # noqa: E402
from mask_cost import renamed  # noqa: E402

SMALL = "--num-requests 5 --input-len 5-9 --output-len 3-6"


def script(name, *args, python=sys.executable, timeout=300):
    command = [python] if name.endswith(".py") else ["bash"]
    return subprocess.run([*command, os.path.join(PEERS, name), *args], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


class Requests(unittest.TestCase):
    def test_they_are_those_of_nano_vllm(self):
        requests = workload.requests()
        self.assertEqual(len(requests), 256)
        # Both sums are published with nano-vllm's results.
        self.assertEqual(sum(len(prompt) for prompt, _ in requests), 142827)
        self.assertEqual(sum(output_len for _, output_len in requests), 133966)
        self.assertTrue(all(100 <= len(prompt) <= 1024 and 100 <= output_len <= 1024 for prompt, output_len in requests))
        self.assertTrue(all(0 <= token <= 10000 for prompt, _ in requests for token in prompt))
        self.assertNotEqual(requests, workload.requests(seed=1))

    def test_serving_bench_sends_exactly_them(self):
        with tempfile.TemporaryDirectory() as folder, FakeOpenAi() as server:
            path = os.path.join(folder, "workload.jsonl")
            self.assertEqual(script("workload.py", "--out", path).stdout.strip(),
                             "256 requests, 142827 prompt tokens, 133966 output tokens")
            result = os.path.join(folder, "result.json")
            done = subprocess.run([SERVING_BENCH, "--base-url", server.url, "--dataset", path, "--in-order", "--num-requests", "40",
                                   "--concurrency", "1", "--ignore-eos", "--temperature", "0.6", "--no-probe", "--json", result],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            wanted = workload.requests()[:40]
            self.assertEqual([(asked["prompt"], asked["max_tokens"]) for asked in server.asked], wanted)
            self.assertTrue(all(asked["ignore_eos"] and asked["temperature"] == 0.6 for asked in server.asked))
            with open(result, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["result"]["output_tokens"], sum(output_len for _, output_len in wanted))

    def test_serving_bench_tries_every_address_of_a_name(self):
        # The server listens on 127.0.0.1; localhost is ::1 first where both addresses exist.
        with tempfile.TemporaryDirectory() as folder, FakeOpenAi() as server:
            path = os.path.join(folder, "workload.jsonl")
            script("workload.py", "--out", path, *SMALL.split())
            done = subprocess.run([SERVING_BENCH, "--base-url", server.url.replace("127.0.0.1", "localhost"), "--dataset", path,
                                   "--in-order", "--num-requests", "5", "--no-probe"], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_bad_lengths_are_refused(self):
        for flags in (("--input-len", "9-5"), ("--output-len", "0-3"), ("--num-requests", "0"), ("--output-len", "many")):
            with self.subTest(flags=flags):
                done = script("workload.py", "--out", os.devnull, *flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(flags[0], done.stderr)


class Missing(unittest.TestCase):
    def test_each_peer_says_what_it_lacks(self):
        """On a machine without a GPU no engine can run; the missing parts depend on the Python."""
        for name, args in (("offline_peer.py", ("vllm", "--model", tiny("qwen3"))),
                           ("offline_peer.py", ("nano-vllm", "--model", tiny("qwen3"))),
                           ("offline_peer.py", ("transformers", "--model", tiny("qwen3"))), ("flashinfer_kernels.py", ()),
                           ("grammar_peers.py", (tiny("qwen3"),))):
            with self.subTest(name=name, args=args):
                # -S: no site packages, so not even torch.
                done = subprocess.run([sys.executable, "-S", os.path.join(PEERS, name), *args], capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual(done.returncode, 77, done.stderr)
                self.assertRegex(done.stdout, r"^skipped: .*torch.* is not installed for .*python")
                self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_wrong_arguments(self):
        for args, word in (((), "peer"), (("sglang", "--model", tiny("qwen3")), "sglang"), (("vllm",), "--model"),
                           (("vllm", "--model", "/no/such/model"), "/no/such/model"),
                           (("transformers", "--model", tiny("qwen3"), "--dtype", "int3"), "int3")):
            with self.subTest(args=args):
                done = script("offline_peer.py", *args)
                self.assertEqual(done.returncode, 2)
                self.assertIn(word, done.stderr.splitlines()[-1])


class TwoTokens(grammar_peers.Wheel):
    """Stands in for an engine: allows token 0, in a word with the highest bit, negative as an int32, and then token 33."""

    def prepare(self, case):
        if case["kind"] == "regex":
            raise grammar_peers.Refused("patterns")
        return []

    def matcher(self, grammar):
        return []

    def fill(self, matcher):
        self.mask = [[0, 2] if matcher else [-(1 << 31) | 1, 0]]

    def accept(self, matcher, token):
        matcher.append(token)
        return True

    def complete(self, matcher):
        return matcher[-1] == 33

    def idle(self, matcher):
        pass


class Grammars(unittest.TestCase):
    def test_every_text_is_one_of_its_grammar(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            done = script("grammar_peers.py", tiny("qwen3"), "--engines", "somnus", "--rounds", "1", "--json", result.name)
            self.assertEqual(done.returncode, 0, done.stderr)
            found, = json.load(result)["rounds"]["somnus"]
        cases = grammar_peers.run_grammar_bench(tiny("qwen3"), "--cases")["cases"]
        titles = [case["name"] for case in cases if f"| {case['name']}, {len(case['tokens'])} tokens |" in done.stdout]
        self.assertEqual(titles, list(found))
        self.assertEqual(done.stdout.count("| somnus |"), len(cases))
        for case in cases:
            self.assertEqual(found[case["name"]]["prepared"]["calls"], grammar_peers.LATER_TEXTS * len(case["tokens"]))

    def test_an_engine_that_refuses_a_token_has_no_times(self):
        cases = [{"name": name, "kind": kind, "tokens": tokens} for name, kind, tokens in (
            ("both", "json_schema", [0, 33]), ("highest bit", "json_schema", [31, 33]), ("not allowed", "json_schema", [0, 32]),
            ("incomplete", "json_schema", [0]), ("grammar", "regex", [0, 33]))]
        found = TwoTokens(None, {"cases": cases}).measure()
        self.assertEqual({name: one.get("refused") for name, one in found.items()},
                         {"both": None, "highest bit": None, "not allowed": "token 2 of 2, 32", "incomplete": "the end of the text",
                          "grammar": "patterns"})
        self.assertIn("refuses token 2 of 2, 32 |", grammar_peers.row("x", [found["not allowed"]]))
        self.assertEqual(found["both"]["accept"]["calls"], grammar_peers.LATER_TEXTS * 2)

    def test_wrong_engines(self):
        done = script("grammar_peers.py", tiny("qwen3"), "--engines", "somnus,outlines")
        self.assertEqual(done.returncode, 2)
        self.assertIn("outlines", done.stderr)

    def test_each_round_has_a_schema_of_its_own(self):
        schema = {"type": "object", "$defs": {"a": {"enum": ["x", "y"]}}, "required": ["number"], "additionalProperties": False,
                  "properties": {"number": {"type": "number"}, "kind": {"const": "z"}, "list": {"items": {"$ref": "#/$defs/a"}}}}
        self.assertEqual(renamed(schema, 7), {
            "type": "object", "$defs": {"a": {"enum": ["x7", "y7"]}}, "required": ["number7"], "additionalProperties": False,
            "properties": {"number7": {"type": "number"}, "kind7": {"const": "z7"}, "list7": {"items": {"$ref": "#/$defs/a"}}}})


class TransformersOnCpu(unittest.TestCase):
    def test_continuous_batching_generates_what_is_asked(self):
        python = os.environ.get("SOMNUS_PEER_PYTHON", sys.executable)
        if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True, timeout=300).returncode != 0:
            self.skipTest(f"{python} has no torch and transformers")
        for model, extra in (("llama-uneven", ()), ("qwen3", ("--dummy",))):
            with self.subTest(model=model), tempfile.NamedTemporaryFile(suffix=".json") as result:
                done = script("offline_peer.py", "transformers", "--model", tiny(model), "--device", "cpu", "--dtype", "float32",
                              "--num-requests", "6", "--input-len", "5-40", "--output-len", "3-12", "--highest-id", "400",
                              "--json", result.name, *extra, python=python)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                wanted = workload.requests(6, (5, 40), (3, 12), 400)
                found = json.load(result)
                self.assertEqual(found["result"]["output_tokens"], sum(output_len for _, output_len in wanted))
                self.assertEqual(found["result"]["completed"], 6)
                self.assertGreater(found["result"]["output_tokens_per_s"], 0)


class Driver(unittest.TestCase):
    def compare(self, *args):
        return script("gpu_compare.sh", *args)

    def test_wrong_arguments(self):
        model = ("--model", tiny("qwen3"))
        for args, word in (((), "--model"), (("--model",), "--model"), (("--model", "/no/such"), "/no/such"),
                           ((*model, "--rounds", "0"), "--rounds"), ((*model, "--peers", "sglang"), "sglang"),
                           ((*model, "--peers", "somnus"), "somnus"), ((*model, "--server", "x"), "--server"),
                           ((*model, "--binaries", "/no/such"), "--binaries"), ((*model, "--no-such-flag"), "Usage"),
                           ((*model, "--workload", "--input-len 9-5"), "--input-len")):
            with self.subTest(args=args):
                done = self.compare(*args)
                self.assertEqual(done.returncode, 2)
                self.assertIn(word, done.stderr)

    def test_dry_run_shows_every_command_in_turns(self):
        done = self.compare("--model", tiny("qwen3"), "--dry-run", "--rounds", "2", "--dummy", "--out", "/no/such/folder",
                            "--python", "vllm=/venv/bin/python", "--server", "other=serve {model} --port {port}", "--",
                            "--enforce-eager")
        self.assertEqual(done.returncode, 0, done.stderr)
        marks = ("workload.jsonl", "gpu_bench", "flashinfer_kernels.py", "--enforce-eager", "offline_peer.py transformers",
                 "offline_peer.py nano-vllm", "/venv/bin/python", "vllm.entrypoints", "serve")
        for mark in marks:
            self.assertIn(mark, done.stdout)
        names = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("== round")]
        order = ["somnus-kernels", "flashinfer", "somnus", "transformers", "nano-vllm", "vllm", "vllm-server", "other"]
        self.assertEqual(names, order * 2)
        self.assertEqual(done.stdout.count("--load-format dummy"), 4)  # of somnus and vllm-server, twice
        self.assertFalse(os.path.exists("/no/such/folder"))

    def binaries(self, folder):
        """A bundle whose somnus is the fake server."""
        bench = os.path.join(folder, "tools", "bench")
        os.makedirs(bench)
        os.symlink(SERVING_BENCH, os.path.join(bench, "serving_bench"))
        somnus = os.path.join(folder, "tools", "somnus")
        with open(somnus, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/tools/fake_openai.py" "$@"\n')
        os.chmod(somnus, os.stat(somnus).st_mode | stat.S_IXUSR)
        return folder

    def test_it_measures_names_what_is_missing_and_compares(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out")
            # A "python" without packages: packages that are not installed are left out.
            bare = os.path.join(folder, "python")
            with open(bare, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
            os.chmod(bare, 0o755)
            fake = f"{sys.executable} {ROOT}/tests/tools/fake_openai.py --port {{port}}"
            done = self.compare("--model", tiny("qwen3"), "--rounds", "2", "--out", out, "--binaries",
                                self.binaries(os.path.join(folder, "bundle")), "--peers", "transformers vllm vllm-server",
                                "--python", bare, "--server", f"other={fake}", "--workload", SMALL)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            skips = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
            self.assertEqual(len(skips), 3, done.stdout)
            with open(os.path.join(out, "comparison.json"), encoding="utf-8") as file:
                rows = json.load(file)["serving"]
            self.assertEqual([row["name"] for row in rows], ["somnus", "other"])
            wanted = sum(output_len for _, output_len in workload.requests(5, (5, 9), (3, 6)))
            for row in rows:
                self.assertEqual((row["output_tokens"], row["failed_requests"]), (wanted, 0))
                self.assertEqual(row["tokens_per_s"]["rounds"], 2)
            self.assertEqual(rows[1]["ratio"]["rounds"], 2)
            self.assertIn("| other | served |", done.stdout)

    def test_a_server_that_does_not_start_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.compare("--model", tiny("qwen3"), "--rounds", "1", "--out", os.path.join(folder, "out"), "--binaries",
                                self.binaries(os.path.join(folder, "bundle")), "--peers", "", "--server", "broken=false {port}",
                                "--workload", SMALL)
            self.assertEqual(done.returncode, 1)
            self.assertIn("broken did not start", done.stderr)
            self.assertIn("| somnus | served |", done.stdout)


class Tables(unittest.TestCase):
    def write(self, folder, name, contents):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            for line in contents if name.endswith("l") else [contents]:
                print(json.dumps(line), file=file)

    def test_ratios_are_of_one_round(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, rates in (("somnus", (100, 300, 200)), ("vllm", (50, 100, None))):
                for number, rate in enumerate(rates, 1):
                    if rate:
                        self.write(folder, f"{name}.{number}.json", {"result": {"output_tokens_per_s": rate, "duration_s": 1.0,
                                                                                "output_tokens": rate, "errors": {}}})
            ours, theirs = gpu_ratios.serving(gpu_ratios.load(folder))
            self.assertEqual(ours["tokens_per_s"], {"median": 200, "min": 100, "max": 300, "rounds": 3})
            self.assertEqual(theirs["ratio"], {"median": 2.5, "min": 2.0, "max": 3.0, "rounds": 2})

    def test_kernels_are_joined_by_case(self):
        case = (32, 4096, 1)
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, "somnus-kernels.1.jsonl", [
                {"part": "ceilings", "name": "copies", "copy_gbps": 3000.0}, flashinfer_kernels.row_of(case, 500.0, 3000.0),
                {"part": "kernels", "name": "arg max", "us": 1, "gbps": 1, "of_copy": 1, "tflops": 0},
                {"part": "end", "rows": 3, "not_measured": []}])
            self.write(folder, "flashinfer.1.jsonl", [flashinfer_kernels.row_of(case, 600.0, 3000.0)])
            row, = gpu_ratios.kernels(gpu_ratios.load(folder))
            self.assertEqual(row["name"], "paged attention, 32 x 4096 tokens, 1 new")
            self.assertAlmostEqual(row["ratio"]["median"], 1.2)
            # K and V of 8 heads of 128 in bf16 for each token, once.
            self.assertAlmostEqual(row["ours"]["gbps"]["median"], 32 * 4096 * 2 * 8 * 128 * 2 / 500e-6 * 1e-9)
            self.assertEqual(flashinfer_kernels.cases_of(os.path.join(folder, "somnus-kernels.1.jsonl")), [case])

    def test_an_empty_folder_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            done = script("gpu_ratios.py", folder)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("no results", done.stderr)


if __name__ == "__main__":
    unittest.main()
