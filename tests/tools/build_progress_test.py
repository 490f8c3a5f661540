"""A build through tools/env.sh prints little when it passes, and everything when it fails."""
import os
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = """
genrule(name = "good", outs = ["good.txt"], cmd = "echo chatter >&2; touch $@")
genrule(name = "bad", outs = ["bad.txt"], cmd = "seq -f 'line %.0f' 1 300 >&2; exit 3")
"""


class BuildProgress(unittest.TestCase):
    """A workspace of two actions, with Somnus' own .bazelrc, rules and scripts."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="somnus_build_")
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        cls.addClassCleanup(subprocess.run, ["chmod", "-R", "u+w", cls.root], check=False)  # Bazel makes read-only folders
        workspace = os.path.join(cls.root, "workspace")
        cls.environment = {**os.environ, "TMPDIR": cls.root, "SOMNUS_DISK_CACHE": "off", "SOMNUS_CUDA": "0",
                           "SOMNUS_BAZEL_STARTUP": f"--output_base={cls.root}/output --max_idle_secs=60",
                           "SOMNUS_BAZEL_FLAGS": ""}
        shutil.copytree(os.path.join(ROOT, "tools", "bazel"), os.path.join(workspace, "tools", "bazel"))
        for name in (".bazelrc", "WORKSPACE", "tools/env.sh", "tools/build_progress.py"):
            shutil.copy(os.path.join(ROOT, name), os.path.join(workspace, name))
        with open(os.path.join(workspace, "BUILD.bazel"), "w", encoding="ascii") as file:
            file.write(BUILD)
        cls.script = f"source {workspace}/tools/env.sh; run_bazel "
        cls.addClassCleanup(cls.run_bazel, "shutdown")

    @classmethod
    def run_bazel(cls, arguments):
        return subprocess.run(["bash", "-c", cls.script + arguments], env=cls.environment, text=True, timeout=300,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def logs(self):
        return [name for name in os.listdir(self.root) if name.endswith(".log")]

    def test_a_build_that_passes_writes_nothing_and_leaves_no_log(self):
        done = self.run_bazel("build //:good")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertEqual(self.logs(), [])

    def test_a_build_that_fails_shows_all_that_was_written_and_names_the_log(self):
        done = self.run_bazel("build //:bad")
        self.assertEqual(done.returncode, 1)
        self.assertIn("".join(f"line {i}\n" for i in range(1, 301)), done.stdout)
        self.assertNotIn("linux-sandbox.cc", done.stdout)
        name = re.search(r"exit code 1; the output above is in (\S+)\n$", done.stdout)[1]
        with open(name, encoding="utf-8") as log:
            self.assertTrue(done.stdout.startswith(log.read()))
        os.unlink(name)

    def test_a_terminal_sees_one_line_that_moves(self):
        primary, secondary = pty.openpty()
        with subprocess.Popen(["timeout", "300", "bash", "-c", self.script + "build //:good"], env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=secondary, stderr=secondary) as process:
            os.close(secondary)
            written = b""
            try:
                while piece := os.read(primary, 4096):
                    written += piece
            except OSError:
                pass  # the other end is closed
            os.close(primary)
        self.assertEqual(process.returncode, 0)
        self.assertIn(b"\r\033[K", written)
        self.assertNotIn(b"\n", written)
        self.assertTrue(written.endswith(b"\r\033[K"))


class ProgressLines(unittest.TestCase):
    """The lines themselves, on a clock of the test's."""

    def setUp(self):
        import sys
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        self.addCleanup(sys.path.pop, 0)
        from build_progress import Progress
        self.now, self.written = 0.0, []
        self.progress = lambda columns: Progress(self.written.append, columns, clock=lambda: self.now)

    def test_without_a_terminal_a_line_comes_every_thirty_seconds(self):
        progress = self.progress(0)
        for self.now in (1, 15, 29.9, 30, 31, 59, 61.5, 95):
            progress.see("[1,057 / 1,109] Compiling a/b.cc; 3s remote-cache, linux-sandbox ... (4 actions running)\n")
        progress.clear()
        self.assertEqual(self.written, [f"   {t}  1,057 of 1,109: Compiling a/b.cc\n" for t in ("0:30", "1:01", "1:35")])

    def test_a_terminal_line_is_cut_at_its_width(self):
        progress = self.progress(20)
        progress.see("[0 / 4] [Prepa] BazelWorkspaceStatusAction stable-status.txt\n")
        progress.clear()
        self.assertEqual(self.written, ["\r\033[K   0:00  0 of 4: Ba", "\r\033[K"])

    def test_the_time_before_the_first_action(self):
        progress = self.progress(80)
        progress.see("Analyzing: 3 targets (24 packages loaded, 56 targets configured)\n")
        self.now = 61
        progress.tick()
        self.assertEqual(self.written[-1], "\r\033[K   1:01  Analyzing: 3 targets (24 packages loaded, 56 targets configured)")


if __name__ == "__main__":
    unittest.main()
