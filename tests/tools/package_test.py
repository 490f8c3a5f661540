"""tools/package.sh: artifacts from given programs, the same bytes twice; the wheel in an environment, and in a bare system."""
import glob
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

from cluster.harness import BIN, ROOT, expected, free_ports, tiny

SCRIPT = os.path.join(ROOT, "tools", "package.sh")
PROGRAMS = runpy.run_path(os.path.join(ROOT, "tools", "package", "programs.py"))["PROGRAMS"]
CACHE = os.environ.get("SOMNUS_CACHE", os.path.expanduser("~/.cache/somnus"))
# Releases of Debian that the wheel is installed in; trixie is the nearest to newer Ubuntus.
RELEASES_ARE_ASKED_FOR = "SOMNUS_BARE_RELEASES" in os.environ
RELEASES = os.environ.get("SOMNUS_BARE_RELEASES", "bookworm").split()
MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
NEEDED = ("patchelf", "strip", "protoc", "grpc_python_plugin", "dpkg-deb", "dpkg-shlibdeps")
OFFLINE = f"""
import json, sys
from somnus import LLM, SamplingParams
with LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB") as llm:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    print(json.dumps(llm.generate([{CASE["prompt"]}], params, use_tqdm=False)[0].outputs[0].token_ids))
"""


def setUpModule():
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise unittest.SkipTest(f"{', '.join(missing)}: not installed: tools/setup.sh packages tests")


def package(source, out, *kinds, **environment):
    subprocess.run([SCRIPT, "--bin", source, "--out", out, *kinds], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, env={**os.environ, **environment})


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

    def test_the_same_bytes_twice(self):
        os.utime(os.path.join(self.folder, "bin", "worker", "worker"))
        package(os.path.join(self.folder, "bin"), self.out("two"), SOURCE_DATE_EPOCH="1700000000", TZ="Asia/Tokyo", LC_ALL="C")
        names = sorted(os.listdir(self.out("one")))
        self.assertEqual(len(names), 3)
        self.assertEqual(sorted(os.listdir(self.out("two"))), names)
        for name in names:
            with open(os.path.join(self.out("one"), name), "rb") as one, open(os.path.join(self.out("two"), name), "rb") as two:
                self.assertTrue(one.read() == two.read(), name)

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
        self.assertNotRegex(metadata, r"(?m)^Requires-Dist: [^;]*$", "nothing is needed but for an extra")

    def test_the_tarball_and_the_debian_package(self):
        with tarfile.open(self.artifact("*.tar.gz")) as archive:
            names = [member.name.partition("/")[2] for member in archive.getmembers()]
            owners = {(member.uid, member.uname, member.mtime) for member in archive.getmembers()}
        self.assertEqual(owners, {(0, "root", 1700000000)})
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


class Wheel(unittest.TestCase):
    """The wheel of the programs that are tested."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        package(BIN, cls.folder, "wheel")
        cls.wheel, = glob.glob(os.path.join(cls.folder, "*.whl"))

    def test_in_an_environment_of_its_own(self):
        venv = os.path.join(self.folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, stdin=subprocess.DEVNULL)
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.folder}

        def run(*command):
            return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment,
                                  cwd=self.folder).stdout

        # The test's own pip: a new pip would be unpacked for some seconds. The bare system has its own pip.
        python = os.path.join(venv, "bin", "python")
        run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--disable-pip-version-check", self.wheel)
        programs, = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages", "somnus", "_programs"))
        for name in PROGRAMS:
            found = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", os.path.join(programs, name)), re.MULTILINE))
            self.assertGreater(len(found), 10)
            elsewhere = {library for library, path in found.items() if os.path.dirname(os.path.realpath(path)) != os.path.join(
                os.path.realpath(programs), "lib")}
            self.assertLessEqual(elsewhere, {"libc.so.6", "libm.so.6"})
        self.assertRegex(run(os.path.join(venv, "bin", "somnus"), "--version"), r"^somnus \d")
        tokens = json.loads(run(python, "-c", OFFLINE, tiny(MODEL)))
        self.assertEqual(tokens, CASE["tokens"][:8])

    def test_in_a_bare_system(self):
        for release in RELEASES:
            with self.subTest(release):
                self.answer_in(bare_system(release))

    def answer_in(self, root):
        """Debian's smallest system with Python, no network: pip install, somnus serve, an answer."""
        port, = free_ports(1)
        inside = f"""
            python3 -m venv /tmp/v; /tmp/v/bin/pip install -q --no-index --disable-pip-version-check /tmp/somnus-*.whl
            PATH=/tmp/v/bin:$PATH
            somnus serve /tmp/model --port {port} --admin-port 0 --grpc-port 0 --control-port 0 --workers local:2 &
            until somnus status --port {port} --ready >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
            somnus generate --port {port} --max-tokens 4 abc; kill $!; wait $!
            python /tmp/offline.py /tmp/model"""
        script = f"""
            mount -t tmpfs tmpfs {root}/tmp; mount -t proc proc {root}/proc
            mkdir -p {root}/dev/shm; mount -t tmpfs tmpfs {root}/dev/shm
            for device in null urandom; do mount --bind /dev/$device {root}/dev/$device; done
            ip link set lo up
            cp {self.wheel} {root}/tmp; cp -r {tiny(MODEL)} {root}/tmp/model; printf %s "$OFFLINE" >{root}/tmp/offline.py
            exec chroot {root} env -i PATH=/usr/bin:/bin HOME=/tmp sh -ec "$INSIDE" """
        done = subprocess.run(["unshare", "--mount", "--net", "--propagation", "private", "sh", "-ec", script], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "INSIDE": inside, "OFFLINE": OFFLINE})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), CASE["tokens"][:8])


def bare_system(release):
    """The folder of a Debian with Python, made once. Where there can be none: a failure if the environment asks for the folder,
    else SkipTest."""
    impossible = AssertionError if RELEASES_ARE_ASKED_FOR else unittest.SkipTest
    root = os.path.join(CACHE, f"{release}-python")
    if os.getuid() != 0 or not (shutil.which("debootstrap") and shutil.which("unshare") and shutil.which("ip")):
        raise impossible("a bare system needs root, debootstrap, unshare (util-linux) and ip (iproute2)")
    if not os.path.exists(os.path.join(root, "made")):
        shutil.rmtree(root, ignore_errors=True)
        done = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv", release, root],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise impossible(f"debootstrap made no system: {done.stdout[-300:]}")
        with open(os.path.join(root, "made"), "w", encoding="utf-8"):
            pass
    return root
