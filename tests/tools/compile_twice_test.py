"""tools/package/compile_twice.py: two compilations of a small program and of CUDA's smallest kernel give the same bytes; what the
comparison sees."""
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools", "package", "compile_twice.py")
# Sources that are compiled as one, an archive, a program; what nvcc makes, where it is.
PROGRAM = "//tests/jinja:render_cli"
NVCC = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
KERNELS = ["//kernels/cuda:base_nvcc"] if os.path.exists(NVCC) and os.environ.get("SOMNUS_CUDA") != "0" else []


class Comparison(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folders = [os.path.join(temporary.name, name) for name in ("one", "two")]
        for folder in self.folders:
            self.write(folder, "a/program", b"the same")

    @staticmethod
    def write(folder, path, data):
        path = os.path.join(folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def test_what_it_sees(self):
        differences = runpy.run_path(SCRIPT)["differences"]
        self.assertEqual(differences(*self.folders), (1, []))
        for number, folder in enumerate(self.folders):
            self.write(folder, "a/lib.a", b"%d" % number)
            self.write(folder, "a/program.runfiles/MANIFEST", folder.encode())
            self.write(folder, "a/program.runfiles_manifest", folder.encode())
        self.write(self.folders[1], "b/more.o", b"")
        self.assertEqual(differences(*self.folders), (2, ["only in one of both: b/more.o", "differs: a/lib.a"]))


@unittest.skipUnless(shutil.which("bazel"), "bazel is not installed")
class Compilations(unittest.TestCase):
    def test_the_same_bytes_twice(self):
        done = subprocess.run([sys.executable, SCRIPT, PROGRAM, *KERNELS],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^compiled: \d\d+ files in both, 0 differ$")


if __name__ == "__main__":
    unittest.main()
