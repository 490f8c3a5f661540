"""The README's first command, on what is built already: an answer, exit code 0, and nothing left running."""
import os
import signal
import subprocess
import tempfile
import time
import unittest

from cluster.harness import BIN, ROOT, alive, children, free_ports, wait_until

QUICKSTART = os.path.join(ROOT, "tools", "quickstart.sh")


@unittest.skipUnless(BIN == os.path.join(ROOT, "bazel-bin"), "builds into bazel-bin, which is not what is tested here")
class Quickstart(unittest.TestCase):
    def environment(self):
        return {**os.environ, **dict(zip(("PORT", "ADMIN_PORT", "GRPC_PORT"), map(str, free_ports(3))))}

    def test_once_answers_and_leaves_nothing(self):
        # Files: the script would wait for a pipe that is not read before it ends.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout, tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:
            started = subprocess.Popen([QUICKSTART, "--once"], env=self.environment(), stdin=subprocess.DEVNULL,
                                       stdout=stdout, stderr=stderr)
            seen = set()
            while started.poll() is None:
                seen.update(pid for pid in children(started.pid) if "somnus" in self.command(pid) or "worker" in self.command(pid))
                time.sleep(0.05)
            stdout.seek(0)
            stderr.seek(0)
            answer, log = stdout.read(), stderr.read()
        self.assertEqual(started.returncode, 0, log)
        self.assertIn("Paris", answer)
        self.assertTrue(seen)
        self.assertFalse([pid for pid in seen if alive(pid)])

    def command(self, pid):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def test_serves_until_interrupted(self):
        environment = self.environment()
        started = subprocess.Popen([QUICKSTART], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        log = []
        try:
            for line in started.stderr:
                log.append(line)
                if "until Ctrl-C" in line:
                    break
            self.assertIsNone(started.poll(), "".join(log))
            family = children(started.pid)
            os.killpg(started.pid, signal.SIGINT)  # as a terminal's Ctrl-C: to everyone
            self.assertEqual(started.wait(60), 0)
            wait_until(lambda: not [pid for pid in family if alive(pid)], 10, "everything has ended")
        finally:
            started.stderr.close()
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGTERM)
                started.wait()

    def test_unknown_argument_is_refused(self):
        done = subprocess.run([QUICKSTART, "--twice"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--twice", done.stderr)


if __name__ == "__main__":
    unittest.main()
