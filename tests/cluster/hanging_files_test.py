"""File systems that do not answer: the log and the status say which part waits and since when, a verb ends the call, SIGTERM
ends the server in bounded time. And a FIFO in place of a file is refused at once."""
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from cluster.harness import BIN, Cluster, alive, expected, tiny, wait_until
from cluster.harness.hanging_files import HangingFiles, waits_for_files
from cluster.harness.lora_files import write_adapter
from cluster.harness.run_directory import RunDirectory, kill, pids

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
COORDINATOR = os.path.join(BIN, "coordinator", "coordinator")
PATIENCE_S = 180
LEFT = "or files are still being read: leaving without them"  # what such a worker says


class Fifos(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = shutil.copytree(tiny(MODEL), os.path.join(folder.name, "model"))
        self.fifo = os.path.join(folder.name, "fifo")
        os.mkfifo(self.fifo, 0o600)

    def refusal(self, *flags):
        done = subprocess.run([COORDINATOR, self.model, "--port=0", "--workers=local:1", *flags], capture_output=True, text=True,
                              timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        return done.stderr

    def test_in_place_of_a_flags_file(self):
        for flags in (("--api-key-file",), ("--cluster-secret-file",), ("--ssl-certfile", "--ssl-keyfile")):
            with self.subTest(flags):
                said = self.refusal(*(f"{flag}={self.fifo}" for flag in flags))
                self.assertIn(f"coordinator: {flags[0]}: {self.fifo} is not a regular file\n", said)
        self.assertIn(f"coordinator: --access-log: {self.fifo} is a FIFO that nobody reads, or a socket\n",
                      self.refusal(f"--access-log={self.fifo}"))
        self.assertIn(f"--spill-dir: a spill file in {self.fifo}: Not a directory\n",
                      self.refusal("--backup=file", f"--spill-dir={self.fifo}"))

    def test_a_config_and_a_template_of_a_shells_commands(self):
        # The command line is read twice where there is a configuration file.
        def said(flags):
            return subprocess.run(["bash", "-c", f"exec {COORDINATOR} {flags}"], capture_output=True, text=True, timeout=PATIENCE_S,
                                  stdin=subprocess.DEVNULL, check=False).stderr

        both = """--config=<(echo "flags: '--port=0'") --chat-template=<(sleep 0.1; echo "{{ messages }}")"""
        self.assertEqual(said(f"{both} {self.fifo}"), f"coordinator: {self.fifo}: fifo: not a regular file\n")
        self.assertRegex(said('--config=<(echo "no_such: 0")'), r"--config: /dev/fd/\d+: line 1: .*no_such")

    def test_in_place_of_a_models_file(self):
        for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "modules.json"):
            path = os.path.join(self.model, name)
            if os.path.exists(path):
                os.rename(path, path + ".kept")
            os.rename(self.fifo, path)
            with self.subTest(name):
                self.assertIn(f"{name}: not a regular file\n", self.refusal())
            os.rename(path, self.fifo)
            if os.path.exists(path + ".kept"):
                os.rename(path + ".kept", path)


class Hangs(unittest.TestCase):
    def serve(self, files, model, *flags, **options):
        cluster = Cluster(model, "--dtype=float32", "--shutdown-timeout=1s", *flags, **options)
        self.addCleanup(cluster.__exit__)
        # After a failure the files go first: a server and workers that wait for them would not end.
        self.addCleanup(files.__exit__)
        return cluster

    def files(self, folder=None, only=None):
        files = HangingFiles(folder, only)
        self.addCleanup(files.__exit__)
        return files

    def call(self, cluster, target, body=None):
        """The thread of an operator's call, and a list for the response."""
        responses = []
        thread = threading.Thread(target=lambda: responses.append(cluster.request("POST", target, body, port=cluster.admin_port)),
                                  daemon=True)
        thread.start()
        return thread, responses

    def call_that_hangs(self, cluster, files, target):
        files.hang()
        thread, responses = self.call(cluster, target)
        wait_until(lambda: files.num_waiting() > 0, PATIENCE_S, "somebody who waits for the files")
        return thread, responses

    def test_a_start_that_reads_says_so_and_ends(self):
        files = self.files(tiny(MODEL))
        files.hang()
        cluster = self.serve(files, files.path, wait=False)
        wait_until(lambda: "The model is loading: the headers of its files are read. Why: the server has started. Since: " in cluster.log(),
                   PATIENCE_S, cluster.log)
        cluster.process.send_signal(signal.SIGTERM)
        # The system cannot end a process within a read that has begun, but all other processes may go on.
        wait_until(lambda: "the server has not stopped within 1m30s" in cluster.log(), PATIENCE_S, cluster.log)
        files.go_on()
        self.assertEqual(cluster.process.wait(PATIENCE_S), 1)

    def test_a_start_that_found_workers_answers_while_it_reads_the_tokenizer(self):
        files = self.files(tiny(MODEL), only="tokenizer.json")
        run_dir = RunDirectory(files.path, "--dtype=float32")
        self.addCleanup(run_dir.close)
        self.addCleanup(files.__exit__)
        cluster = run_dir.start()
        known = pids(cluster)
        kill(cluster)
        files.hang()
        cluster = run_dir.start(wait=False)
        wait_until(lambda: files.num_waiting() > 0, PATIENCE_S, cluster.log)
        self.assertEqual(cluster.request("GET", "/livez").status, 200)
        ready = cluster.request("GET", "/readyz")
        self.assertEqual(ready.status, 503)
        self.assertIn("The model is loading", ready.text)
        files.go_on()
        cluster.wait_ready()
        self.assertEqual(pids(cluster), known)
        self.assertEqual(cluster.stop(), 0)

    def test_a_wake_up_that_reads_is_named_and_given_up(self):
        files = self.files(tiny(MODEL))
        cluster = self.serve(files, files.path)
        tokens = cluster.tokens(CASE["prompt"], max_tokens=4)
        cluster.admin("/sleep?level=2")
        thread, responses = self.call_that_hangs(cluster, files, "/wake_up")
        status = cluster.cli("status").stdout
        self.assertRegex(status, r"(?m)^call +wake_up of .* for .*; somnus abort-call ends it$")
        self.assertIn("somnus abort-call gives it up", cluster.request("GET", "/readyz").text)
        self.assertIn("the call has ended", cluster.cli("abort-call").stdout)
        thread.join(PATIENCE_S)
        self.assertEqual([response.status for response in responses], [409])
        # A worker that is killed within a read ends once the read does, and a new worker takes the place.
        files.go_on()
        wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_ASLEEP", PATIENCE_S, cluster.log)
        cluster.admin("/wake_up")
        self.assertEqual(cluster.tokens(CASE["prompt"], max_tokens=4), tokens)
        self.assertEqual(cluster.stop(), 0)

    def test_a_server_ends_without_a_worker_that_cannot_be_killed(self):
        files = self.files()
        cluster = self.serve(files, tiny(MODEL), "--backup=file", f"--spill-dir={files.path}")
        workers = cluster.worker_pids()
        thread, _ = self.call_that_hangs(cluster, files, "/sleep?level=1")
        cluster.process.send_signal(signal.SIGTERM)
        self.assertEqual(cluster.process.wait(PATIENCE_S), 0, cluster.log())
        self.assertNotIn("has not stopped within", cluster.log())
        self.assertRegex(cluster.log(), r"rank \d \(pid \d+\) was killed and does not end: ")
        thread.join(PATIENCE_S)
        self.assertFalse(thread.is_alive())
        files.go_on()
        wait_until(lambda: not [pid for pid in workers if alive(pid)], PATIENCE_S, "the workers have ended")

    def test_a_worker_leaves_a_read_of_an_adapter(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        adapter = os.path.join(folder.name, "poet")
        write_adapter(tiny(MODEL), adapter)
        files = self.files(adapter)
        cluster = self.serve(files, tiny(MODEL), "--enable-lora", workers=1)
        tokens = cluster.tokens(CASE["prompt"], max_tokens=4)
        first = pids(cluster)[0]
        files.freeze()
        thread, responses = self.call(cluster, "/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": files.path})
        wait_until(lambda: waits_for_files(first), PATIENCE_S, cluster.log)
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{first}"), PATIENCE_S, cluster.log)
        self.assertEqual(cluster.log().count(LEFT), 1, cluster.log())
        # A new worker has the place, the server serves, and the load goes on: it has its files in the end.
        second = wait_until(lambda: pids(cluster).get(0, first) not in (0, first) and pids(cluster)[0], PATIENCE_S, cluster.log)
        cluster.wait_ready()
        wait_until(lambda: waits_for_files(second), PATIENCE_S, cluster.log)
        self.assertEqual(cluster.tokens(CASE["prompt"], max_tokens=4), tokens)
        files.thaw()
        thread.join(PATIENCE_S)
        self.assertEqual([response.status for response in responses], [200], cluster.log())
        self.assertEqual(cluster.stop(), 0)

    def test_workers_leave_a_read_of_the_checkpoint(self):
        files = self.files(tiny(MODEL))
        cluster = self.serve(files, files.path)
        cluster.admin("/sleep?level=2")
        workers = pids(cluster).values()
        files.freeze()
        thread, _ = self.call(cluster, "/wake_up")
        wait_until(lambda: any(map(waits_for_files, workers)), PATIENCE_S, cluster.log)
        cluster.process.send_signal(signal.SIGTERM)
        self.assertEqual(cluster.process.wait(PATIENCE_S), 0, cluster.log())
        self.assertEqual([pid for pid in workers if os.path.exists(f"/proc/{pid}")], [])
        self.assertGreater(cluster.log().count(LEFT), 0, cluster.log())
        self.assertNotIn("was killed", cluster.log())
        thread.join(PATIENCE_S)
        self.assertFalse(thread.is_alive())
