"""tools/package.sh: artifacts of given programs, the same bytes twice; the commands that find what they start."""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import zipfile

from cluster.harness import BIN, ROOT
from tools.packaging import PROGRAMS, SCRIPT, package, skip_where_nothing_is_packaged

# What the script reads of a checkout.
SOURCES = ("base", "clients", "docs", "proto", "tools")


def setUpModule():
    skip_where_nothing_is_packaged()


def sums(folder):
    """{name of a file: SHA-256 of the file}."""
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = hashlib.sha256(file.read()).hexdigest()
    return found


class StandIns(unittest.TestCase):
    """Artifacts of small programs: an artifact's contents do not depend on the programs' text."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        for name in PROGRAMS:
            path = os.path.join(cls.folder, "bin", name)
            os.makedirs(os.path.dirname(path))
            # A program of Debian's with a library beside the C library.
            shutil.copyfile("/usr/bin/openssl" if name.startswith("worker") else "/bin/true", path)
            os.chmod(path, 0o755)
        package(os.path.join(cls.folder, "bin"), cls.out("one"), SOURCE_DATE_EPOCH="1700000000")

    @classmethod
    def out(cls, name):
        return os.path.join(cls.folder, name)

    def artifact(self, pattern):
        found, = glob.glob(os.path.join(self.out("one"), pattern))
        return found

    def other_checkout(self):
        """The script of a checkout in another folder, made at another time by somebody with another umask."""
        root = self.out("other checkout")
        for name in SOURCES:
            shutil.copytree(os.path.join(ROOT, name), os.path.join(root, name), ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("README.md", "CHANGELOG.md"):
            shutil.copyfile(os.path.join(ROOT, name), os.path.join(root, name))
        for where, folders, files in os.walk(root):
            for path in (os.path.join(where, name) for name in [*folders, *files]):
                os.chmod(path, os.stat(path).st_mode & 0o700)
                os.utime(path, (1000000000, 1000000000))
        return os.path.join(root, "tools", "package.sh")

    def test_the_same_bytes_twice(self):
        """In other folders, at another time, by another user: SOURCE_DATE_EPOCH alone is the same."""
        programs = shutil.copytree(os.path.join(self.folder, "bin"), self.out("other bin"))
        for name in PROGRAMS:
            os.chmod(os.path.join(programs, name), 0o700)
            os.utime(os.path.join(programs, name), (1000000000, 1000000000))
        temporary = self.out("other temporary folder")
        os.mkdir(temporary)
        package(programs, self.out("two"), script=self.other_checkout(), umask=0o077, SOURCE_DATE_EPOCH="1700000000",
                TZ="Asia/Tokyo", LC_ALL="C", TMPDIR=temporary)
        self.assertEqual(len(sums(self.out("one"))), 3)
        self.assertEqual(sums(self.out("two")), sums(self.out("one")))

    def test_the_wheel(self):
        path = self.artifact("*.whl")
        self.assertRegex(os.path.basename(path), r"^somnus-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl$")
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            modes = {name: wheel.getinfo(name).external_attr >> 16 & 0o777 for name in names}
            record = next(name for name in names if name.endswith("/RECORD"))
            listed = [line.split(",")[0] for line in wheel.read(record).decode().splitlines()]
            metadata = wheel.read(record.replace("RECORD", "METADATA")).decode()
        self.assertEqual(sorted(listed), sorted(names))
        for name in PROGRAMS:
            self.assertEqual(modes[f"somnus/_programs/{name}"], 0o755)
        for name in ("somnus/llm.py", "somnus/py.typed", "somnus/v1/control_pb2_grpc.py", "somnus/_programs/lib/libcrypto.so.3",
                     "somnus/_programs/licenses/libssl3.txt"):
            self.assertIn(name, names)
        with open(os.path.join(ROOT, "base", "version.h"), encoding="utf-8") as file:
            version = re.search(r'"(\d[\d.]+)"', file.read()).group(1)
        self.assertIn(f"\nVersion: {version}\n", metadata)
        needed = re.findall(r"(?m)^Requires-Dist: ([\w-]+)[^;\n]*(?:; extra == \"(\w+)\")?$", metadata)
        self.assertEqual([name for name, extra in needed if not extra], [], "nothing is needed but for an extra")
        self.assertEqual([name for name, extra in needed if extra == "cuda"], ["nvidia-cublas", "nvidia-nccl-cu13"])
        self.assertEqual(set(re.findall(r"(?m)^Provides-Extra: (\w+)$", metadata)), {extra for _, extra in needed})

    def test_the_tarball_and_the_debian_package(self):
        with tarfile.open(self.artifact("*.tar.gz")) as archive:
            names = [member.name.partition("/")[2] for member in archive.getmembers()]
            owners = {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in archive.getmembers()}
            modes = {member.mode for member in archive.getmembers() if not member.issym()}
        self.assertEqual(owners, {(0, 0, "root", "root", 1700000000)})
        self.assertEqual(modes, {0o755, 0o644})
        self.assertEqual([name.split("/") for name in names], sorted(name.split("/") for name in names))
        for name in ("bin/somnus", *PROGRAMS, "lib/libcrypto.so.3", "docs/install.md", "deploy/systemd/README.md"):
            self.assertIn(name, names)
        deb = self.artifact("*.deb")
        depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True, capture_output=True, text=True).stdout
        self.assertRegex(depends, r"libssl3 \(>= .*\)")
        listed = subprocess.run(["dpkg-deb", "-c", deb], check=True, capture_output=True, text=True).stdout
        for name in (*(f"./opt/somnus/{name}\n" for name in PROGRAMS),
                     "./usr/bin/somnus -> ../../opt/somnus/tools/somnus", "./lib/systemd/system/somnus-coordinator.service",
                     "./usr/share/man/man1/somnus.1.gz", "./usr/share/doc/somnus/docs/install.md",
                     "./usr/share/bash-completion/completions/somnus", "./usr/share/zsh/vendor-completions/_somnus",
                     "./usr/share/fish/vendor_completions.d/somnus.fish"):
            self.assertIn(name, listed)

    def test_programs_that_are_not_there(self):
        done = subprocess.run([SCRIPT, "--bin", self.out("nothing"), "--out", self.out("three"), "wheel"],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no", done.stderr)


class Commands(unittest.TestCase):
    """Every command of `somnus` where there is nothing but the programs that an artifact has."""

    def test_every_command_finds_what_it_starts(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in PROGRAMS:
                os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
                shutil.copy(os.path.join(BIN, name), os.path.join(folder, name))

            def run(*arguments):
                return subprocess.run([os.path.join(folder, "tools", "somnus"), *arguments], stdin=subprocess.DEVNULL, text=True,
                                      capture_output=True, check=False, env={"PATH": "/usr/bin:/bin", "HOME": folder})

            names = [line.split("\t")[0] for line in run("--help=commands").stdout.splitlines()]
            self.assertIn("bench", names)
            for name in names:
                done = run(name, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)
                self.assertIn("usage: ", done.stdout, name)
            for shell in ("bash", "zsh", "fish"):
                script = run("completions", shell).stdout
                self.assertIn("max-num-seqs", script, "of the coordinator")
                self.assertIn("num-requests", script, "of serving_bench")
            for name, command in (("tools/bench/serving_bench", "bench"), ("coordinator/coordinator", "serve")):
                os.remove(os.path.join(folder, name))
                done = run(command, "--help")
                self.assertEqual(done.returncode, 1)
                self.assertIn(name, done.stderr)
