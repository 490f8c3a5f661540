"""The command line against a real server: one address for all commands, and what it says of a server that sleeps."""
import json
import unittest

from cluster.harness import Cluster, tiny, wait_until


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen3"), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_either_http_port_leads_to_all(self):
        for port in (self.cluster.port, self.cluster.admin_port):
            url = f"http://127.0.0.1:{port}"
            with self.subTest(port=port):
                table = self.cluster.cli("status", "--url", url).stdout
                self.assertIn(f"http://127.0.0.1:{self.cluster.port}, gRPC 127.0.0.1:{self.cluster.grpc_port}", table)
                self.assertEqual(self.cluster.cli("status", "--port", str(port), "--ready").stdout, "ready\n")
                self.assertNotEqual(self.cluster.cli("chat", "--url", url, "--max-tokens", "4", "Hello").stdout, "")

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
        self.cluster.cli("sleep", "--level", "1")
        self.assertEqual(self.cluster.cli("sleep", "--level", "2").stdout,
                         "asleep at level 2; no device memory was left to free\n")
        self.assertRegex(self.cluster.cli("wake-up", "--tags", "kv_cache").stdout,
                         r"^mapped .* \(kv_cache .*\) in .* s\nthe engine is still asleep; somnus wake-up maps the rest\n$")

    def test_a_key_that_is_missing_or_wrong_is_said(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", "--api-key=secret", workers=1) as cluster:
            for key, words in (("", "requires an API key (--api-key or SOMNUS_API_KEY)"), ("other", "refuses this API key")):
                with self.subTest(key=key):
                    cluster.api_key = key
                    done = cluster.cli("status", check=False)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
