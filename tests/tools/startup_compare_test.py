"""startup_compare.py starts and times both servers on the same file; a script stands for either."""
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools", "bench", "peers", "startup_compare.py")

# Notes the arguments; is not ready for the first question, and answers completions only once asked for /health.
SERVER = r"""#!/usr/bin/env python3
import http.server, json, os, sys
with open(os.environ["LOG"], "a") as file:
    file.write(json.dumps(sys.argv) + "\n")
if "ends.gguf" in " ".join(sys.argv):
    sys.exit(1)
asked = []
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        asked.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ready = len(asked) > 1 and asked[0] == "/health"
        self.send_response(200 if ready else 503)
        self.end_headers()
    do_GET = do_POST = answer
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


class StartupCompare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("tools"))
        for name in ("tools/somnus", "llama-server"):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(SERVER)
            os.chmod(file.name, os.stat(file.name).st_mode | stat.S_IXUSR)

    def path(self, name):
        return os.path.join(self.folder, name)

    def compare(self, *args):
        return subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL,
                              env={**os.environ, "SOMNUS_BIN": self.folder, "LOG": self.path("log")})

    def test_both_read_the_same_file_in_turns(self):
        done = self.compare("--model=some-Q4_0.gguf", "--llama-server", self.path("llama-server"), "--rounds=2", "--",
                            "--dequantize", "--workers=local:2")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("log"), encoding="utf-8") as file:
            calls = [json.loads(line) for line in file]
        self.assertEqual([os.path.basename(call[0]) for call in calls], ["somnus", "llama-server"] * 3)
        for ours, theirs in zip(calls[::2], calls[1::2]):
            self.assertEqual(ours[1:3], ["serve", "some-Q4_0.gguf"])
            self.assertEqual(ours[-2:], ["--dequantize", "--workers=local:2"])
            self.assertEqual(theirs[1:3], ["-m", "some-Q4_0.gguf"])
        for what in ("ready", "first token"):
            line = rf"exec to {what} +median [\d.]+ \([\d.]+\.\.[\d.]+\) s, 2 starts"
            self.assertEqual(len(re.findall(line, done.stdout)), 2, done.stdout)
            self.assertRegex(done.stdout, rf"ratio +exec to {what} +median ")

    def test_alone_it_has_no_ratio(self):
        done = self.compare("--model=hf-bf16", "--rounds=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("ratio", done.stdout)
        with open(self.path("log"), encoding="utf-8") as file:
            self.assertNotIn("dequantize", file.read())

    def test_what_is_wrong_is_said(self):
        done = self.compare("--model=hf-bf16", "--llama-server", self.path("llama-server"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("--gguf", done.stderr)
        done = self.compare("--model=ends.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "somnus did not serve")


if __name__ == "__main__":
    unittest.main()
