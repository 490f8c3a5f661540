"""The command line against a real server: one address for all commands, and the words about a sleeping server. And the doctor,
which needs no server.
"""
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

from cluster.harness import SOMNUS, TINY, Cluster, free_ports, tiny, wait_until
from cluster.harness.on_a_terminal import output_of


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen3"), "--dtype=float32", "--root-path=/llm", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_either_http_port_leads_to_all(self):
        for port in (self.cluster.port, self.cluster.admin_port):
            url = f"http://127.0.0.1:{port}"
            with self.subTest(port=port):
                table = self.cluster.cli("status", "--url", url).stdout
                self.assertIn(f"http://127.0.0.1:{self.cluster.port}, gRPC 127.0.0.1:{self.cluster.grpc_port}", table)
                self.assertEqual(self.cluster.cli("status", "--port", str(port), "--ready").stdout, "ready\n")
                self.assertNotEqual(self.cluster.cli("chat", "--url", url, "--max-tokens", "4", "Hello").stdout, "")

    def test_an_address_may_have_the_path_before_the_routes(self):
        for port, path in ((self.cluster.port, "/llm"), (self.cluster.admin_port, "/llm/"), (self.cluster.port, "/llm/v1")):
            url = f"http://127.0.0.1:{port}{path}"
            with self.subTest(url=url):
                self.assertIn("gRPC", self.cluster.cli("status", "--url", url).stdout)
                self.assertNotEqual(self.cluster.cli("chat", "--url", url, "--max-tokens", "4", "Hello").stdout, "")
                self.assertIn("cmpl-", self.cluster.cli("logs", "--url", url).stdout)
        other = self.cluster.cli("status", "--url", f"http://127.0.0.1:{self.cluster.port}/other", check=False)
        self.assertEqual(other.returncode, 3)
        self.assertIn("GET /other/server_info is HTTP 404", other.stderr)

    def test_the_status_as_json(self):
        status = json.loads(self.cluster.cli("status", "--json").stdout)
        self.assertEqual((status["epoch"], status["state"], status["num_recoveries"]), (1, "ENGINE_STATE_AWAKE", "0"))
        self.assertNotIn("group_epoch", status)
        for rank in status["ranks"]:
            self.assertGreater(rank["pid"], 0)
            self.assertEqual(rank["state"], "awake")
            self.assertGreaterEqual(int(rank["weights_version"]), 1)

    def test_serving_says_what_it_does_before_the_weights_are_there(self):
        ready = f"serving {self.cluster.name} on http://127.0.0.1:{self.cluster.port}"
        wait_until(lambda: ready in self.cluster.log(), 10, "the line that says where it serves")
        lines = self.cluster.log().splitlines()
        first = next(i for i, line in enumerate(lines) if f"loading {self.cluster.name} from {tiny('qwen3')} into 2 workers" in line)
        self.assertLess(first, next(i for i, line in enumerate(lines) if "weights loaded" in line))

    def test_the_grpc_port_is_recognized(self):
        for command in (("status",), ("chat", "Hello"), ("generate", "Hello"), ("sleep",), ("wake-up",), ("roll",), ("stop",)):
            with self.subTest(command=command):
                done = self.cluster.cli(*command, "--port", str(self.cluster.grpc_port), check=False)
                self.assertEqual(done.returncode, 3)
                self.assertEqual(done.stderr, f"error: 127.0.0.1:{self.cluster.grpc_port} is a gRPC port; give the address "
                                              "of the HTTP port (--url)\n")

    def test_a_sleeping_server_is_not_waited_for_in_silence(self):
        self.addCleanup(self.cluster.cli, "wake-up")
        for level in ("1", "2"):
            with self.subTest(level=level):
                self.assertIn("freed", self.cluster.cli("sleep", "--level", level).stdout)
                self.assertEqual(self.cluster.cli("sleep", "--level", level).stdout, f"already asleep at level {level}\n")
                for command in ("chat", "generate"):
                    done = self.cluster.cli(command, "Hello", check=False)
                    self.assertEqual(done.returncode, 1)
                    self.assertEqual(done.stderr, f"error: {self.cluster.name} is asleep (level {level}), and a request would "
                                                  "wait; wake it with: somnus wake-up\n")
                url = f"http://127.0.0.1:{self.cluster.port}"
                self.assertTrue(self.cluster.cli("chat", "Hello", "--url", url, check=False).stderr.endswith(
                    f"; wake it with: somnus wake-up --url={url}\n"))
                self.assertIn("mapped", self.cluster.cli("wake-up").stdout)
                self.assertEqual(self.cluster.cli("wake-up").stdout, "already awake\n")

    def test_a_sleep_that_deepens_and_a_wake_up_of_one_tag_say_what_they_did(self):
        self.addCleanup(self.cluster.cli, "wake-up")
        # Backups are in the memory that a CPU computes in: only the deeper sleep frees the backups' bytes.
        freed, backups = self.cluster.cli("sleep", "--level", "1").stdout.splitlines()
        self.assertRegex(freed, r"^freed .* \(kv_cache [1-9].*, weights 0.0 MiB, workspace .*\) in .* s$")
        kept, = re.fullmatch(r"(.* MiB) more are in backups, which this host's memory holds, too", backups).groups()
        self.assertEqual(self.cluster.cli("sleep", "--level", "2").stdout, f"asleep at level 2; freed {kept} of backups\n")
        self.assertRegex(self.cluster.cli("wake-up", "--tags", "kv_cache").stdout,
                         r"^mapped .* \(kv_cache .*\) in .* s\nthe engine is still asleep; somnus wake-up maps the rest\n$")

    def test_each_command_names_the_next_one_until_other_weights_have_come(self):
        self.addCleanup(self.cluster.cli, "wake-up")
        self.cluster.cli("sleep", "--level", "2")
        self.assertIn("(somnus wake-up --no-load-weights)", self.cluster.cli("reload-weights", check=False).stderr)
        self.assertRegex(self.cluster.cli("wake-up", "--no-load-weights").stdout,
                         r"^mapped .* s\nthe weights are stale; somnus reload-weights brings others\n$")
        self.cluster.cli("reload-weights")
        self.assertEqual(self.cluster.cli("wake-up").stdout, "already awake\n")

    def test_sixty_columns_are_enough(self):
        for arguments in ("status",), ("models",), ("top", "--count=2", "--interval=200ms"):
            with self.subTest(arguments=arguments):
                lines = output_of(arguments, self.cluster.cli_environment(), columns=60).splitlines()
                self.assertGreater(len(lines), 1)
                # A path has no blank at which a line could be broken.
                self.assertEqual([line for line in lines if len(line) > 60 and tiny("qwen3") not in line], [])

    def test_a_sleeping_cache_has_no_mapped_blocks(self):
        self.addCleanup(self.cluster.cli, "wake-up")
        for sleeps in (False, True):
            if sleeps:
                self.cluster.cli("sleep")
            model, = json.loads(self.cluster.cli("models", "--json").stdout)["models"]
            self.assertEqual(model["mapped_blocks"], 0 if sleeps else model["max_blocks"])
            self.assertIn(f"{model['mapped_blocks']}/{model['max_blocks']}", self.cluster.cli("models").stdout)

    def test_a_second_server_is_told_all_ports_that_are_taken(self):
        ports = {"--port": self.cluster.port, "--admin-port": self.cluster.admin_port, "--grpc-port": self.cluster.grpc_port,
                 "--control-port": self.cluster.control_port}

        def refused(changes):
            flags = [f"{flag}={port}" for flag, port in {**ports, **changes}.items()]
            done = subprocess.run([SOMNUS, "serve", tiny("qwen3"), *flags], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 1)
            line, = done.stderr.splitlines()
            return line
        self.assertEqual(refused({}), "coordinator: " + ", ".join(f"{flag} {port}" for flag, port in ports.items()) + " are in use (by a "
                         f"Somnus server, it seems: see somnus status --port {self.cluster.port}); another --port moves all "
                         "that are not given, and --port 0 takes free ones")
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            free, other, third = free_ports(3)
            port = stranger.getsockname()[1]
            self.assertEqual(refused({"--port": free, "--admin-port": port, "--grpc-port": other, "--control-port": third}),
                             f"coordinator: --admin-port {port} is in use; another --port moves all that are not given, and "
                             "--port 0 takes free ones")

    def test_any_port_is_for_all_listeners(self):
        with subprocess.Popen([SOMNUS, "serve", tiny("qwen3"), "--dtype=float32", "--port=0"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
            try:
                ready = next(line for line in server.stderr if "serving " in line)
                ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", ready)]
                self.assertEqual(len(set(ports)), 4, ready)
                self.assertFalse({8000, 8001, 50051, 50054} & set(ports), ready)
            finally:
                server.terminate()
                server.stderr.read()

    def test_a_key_that_is_missing_or_wrong_is_said(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", "--api-key=secret", workers=1) as cluster:
            for key, words in (("", "requires an API key (--api-key or SOMNUS_API_KEY)"), ("other", "refuses this API key")):
                with self.subTest(key=key):
                    cluster.api_key = key
                    done = cluster.cli("status", check=False)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(words, done.stderr)


class Doctor(unittest.TestCase):
    def doctor(self, *args, isa=""):
        """`isa`: what forces an instruction set; without `isa` the best set is chosen, also where this test itself runs under a
        forced set."""
        return subprocess.run([SOMNUS, "doctor", *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                              env={**os.environ, "SOMNUS_CPU_ISA": isa})

    def report(self, *args, isa=""):
        done = self.doctor(*args, "--json", "--no-measure", isa=isa)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_a_host_for_two_workers_as_json(self):
        report = self.report(tiny("qwen3"), "--workers=2")
        self.assertEqual((report["isa"], report["isa_is_forced"]), (report["isas"][-1], False))
        self.assertGreater(len(report["allowed_cpus"]), 0)
        self.assertEqual([worker["num_threads"] >= 1 for worker in report["workers"]], [True, True])
        self.assertEqual(report["model"]["name"], "qwen3")
        self.assertEqual(report["model"]["stored_bytes"], 2 * report["model"]["num_parameters"])
        self.assertNotIn("ceilings", report)
        self.assertNotIn("at_best", report["model"])
        self.assertTrue(report["model"]["as_stored"]["fits"])

    def test_one_worker_and_no_model_without_arguments(self):
        report = self.report()
        self.assertEqual(len(report["workers"]), 1)
        self.assertNotIn("model", report)

    def test_every_family_in_its_directory_and_its_file(self):
        """For each model it is known which tokens of a sequence the cache must have; a model with an unknown kind of layer is
        refused."""
        windows = {"mistral-window": 16, "phi3-window": 24}
        for folder in ("tiny", "variants", "gguf_variants"):
            for path in sorted(pathlib.Path(TINY).parent.joinpath(folder).iterdir()):
                if not path.is_dir():
                    continue
                for model in (path, *path.glob("*.gguf")) if folder != "gguf_variants" else path.glob("*.gguf"):
                    with self.subTest(model=model):
                        report = self.report(str(model))["model"]
                        self.assertGreater(report["num_parameters"], 1000)
                        self.assertGreater(report["kv_token_bytes"], 0)
                        self.assertEqual(report["kv_reach"], windows.get(path.name, 0))
        self.assertRegex(self.doctor("--no-measure", os.path.join(TINY, "..", "variants", "mistral-window")).stdout,
                         r"KV cache .*a\s+token of the last 16 of a\s+sequence")

    def test_a_model_of_another_kind(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["mamba"], "num_hidden_layers": 1,
                           "num_local_experts": 0, "hidden_size": 8, "shared_intermediate_size": 8, "num_attention_heads": 1,
                           "vocab_size": 8, "time_step_limit": [0.0, float("inf")]}, file)
            done = self.doctor(folder, "--no-measure")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn('config.json: layer_types: a layer of kind "mamba" is not supported', done.stderr)

    def test_what_is_no_model_or_has_no_tokenizer(self):
        data = pathlib.Path(TINY).parent
        for model, code, words in ((data / "gguf", 1, "of the GGUF files in a directory one is given, by its path"),
                                   (data / "lora" / "fused", 1, "an adapter is given by --lora-modules, beside a model"),
                                   (data / "tiny" / "qwen3" / "model.safetensors", 2, "the directory is given")):
            with self.subTest(model=model):
                done = self.doctor(str(model), "--no-measure")
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertRegex(done.stderr, rf"^error: [^\n]*; [^\n]*{words}\n$")
        model = str(data / "variants" / "granite")
        self.assertIn("no tokenizer", self.report(model)["model"]["tokenizer_error"])
        self.assertRegex(self.doctor(model, "--no-measure").stdout, r"(?m)^cannot serve +no tokenizer: ")
        self.assertEqual(self.report(tiny("qwen3"))["model"]["tokenizer_error"], "")

    def test_the_same_as_text(self):
        done = self.doctor(tiny("qwen3"), "--no-measure", "--workers=2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([line[:15].strip() for line in done.stdout.splitlines()],
                         ["CPU", "instructions", "memory", "NUMA", "worker 0", "worker 1", "model", "in memory"])

    def test_ceilings_are_measured_unless_that_is_declined(self):
        done = self.doctor(tiny("qwen3"), "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertGreaterEqual(report["ceilings"]["num_threads"], 1)
        self.assertGreater(report["ceilings"]["read_gbps"], 0)
        self.assertGreater(report["model"]["at_best"]["decode_tokens_per_s"], 0)

    def test_the_environment_names_the_instruction_set(self):
        lowest = self.report()["isas"][0]
        report = self.report(isa=lowest)
        self.assertEqual((report["isa"], report["isa_is_forced"]), (lowest, True))
        self.assertIn(f"{lowest}, which SOMNUS_CPU_ISA names;", self.doctor("--no-measure", isa=lowest).stdout)

    def test_sixty_columns_are_enough(self):
        lines = output_of(("doctor", tiny("qwen3"), "--workers=2", "--no-measure"), dict(os.environ), columns=60).splitlines()
        self.assertEqual([line for line in lines if len(line) > 60], [])

    def test_an_instruction_set_that_is_none_is_refused(self):
        done = self.doctor(tiny("qwen3"), "--no-measure", isa="sse9")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r'^error: SOMNUS_CPU_ISA is "sse9"; it may be one of \w+(, \w+)*\n$')

    def test_what_it_is_told_wrongly(self):
        for args, code, words in ((("--workers=0",), 2, "--workers"), (("/nowhere", "--no-measure"), 1, "nowhere")):
            with self.subTest(args=args):
                done = self.doctor(*args)
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertIn(words, done.stderr)
