"""The artifacts of tools/package.sh, made once of the programs that are tested and installed as users install them: the wheel in an
environment, with CUDA's libraries beside it; each artifact in a bare Debian; what the Debian package brings beside programs."""
import glob
import gzip
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from cluster.harness import BIN, ROOT, Cluster, expected, free_ports, grpc, tiny
from tools.packaging import PROGRAMS, package, skip_where_nothing_is_packaged

PACKAGE = os.path.join(ROOT, "tools", "package")
sys.path.append(PACKAGE)
import bare_system  # noqa: E402

WRITE_WHEEL = runpy.run_path(os.path.join(PACKAGE, "wheel.py"))["write"]
# Releases of Debian that wheel and tarball are installed in; trixie is the nearest to newer Ubuntus.
RELEASES_ARE_ASKED_FOR = "SOMNUS_BARE_RELEASES" in os.environ
RELEASES = os.environ.get("SOMNUS_BARE_RELEASES", "bookworm").split()
MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
WANTED = CASE["tokens"][:8]
FLAGS = "--dtype=float32 --kv-cache-memory-bytes=32MiB"
OFFLINE = f"""
import json, sys
from somnus import LLM, SamplingParams
with LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB") as llm:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    print(json.dumps(llm.generate([{CASE["prompt"]}], params, use_tqdm=False)[0].outputs[0].token_ids))
"""
ASK = f"""
import json, urllib.request
body = dict(model="m", prompt={CASE["prompt"]}, max_tokens=8, temperature=0, ignore_eos=True, return_token_ids=True)
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {{"Content-Type": "application/json"}})
print(json.dumps(json.load(urllib.request.urlopen(request))["choices"][0]["token_ids"]))
"""
# A server as a user starts one, with the ports that it has by default; prints the tokens of an answer.
SERVE = f"""
    somnus serve /tmp/{MODEL} --served-model-name=m --workers=local:2 {FLAGS} >/tmp/log 2>&1 || {{ cat /tmp/log; exit 1; }} &
    server=$!
    until somnus status --ready >/dev/null 2>&1; do kill -0 $server; sleep 0.1; done
    python3 /tmp/ask.py
    somnus stop >/dev/null
    wait $server
"""
AS_ONE_QUESTION = f'test -n "$(somnus run --raw /tmp/{MODEL} abc --max-tokens=4)"\n'
# Beside the server: the unit's user can run the programs, the completions are those of the programs, and nothing stays of the
# package but the user.
AFTER_DPKG = """
    test "$(dpkg-query -W -f '${db:Status-Status}' somnus)" = installed
    setpriv --reuid=somnus --regid=somnus --clear-groups somnus bench --help >/dev/null
    cd /usr/share
    somnus completions bash | cmp - bash-completion/completions/somnus
    somnus completions zsh | cmp - zsh/vendor-completions/_somnus
    somnus completions fish | cmp - fish/vendor_completions.d/somnus.fish
    bash -ec '. bash-completion/completions/somnus; COMP_WORDS=(somnus wake); COMP_CWORD=1; _somnus; test "${COMPREPLY[*]}" = wake-up'
    dpkg -r somnus >/dev/null 2>&1
    for left in /opt/somnus /usr/bin/somnus /lib/systemd/system/somnus-coordinator.service /usr/share/doc/somnus; do test ! -e $left; done
"""
ARTIFACTS = {}


def setUpModule():
    skip_where_nothing_is_packaged()
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    package(BIN, folder.name)
    ARTIFACTS.update((kind, glob.glob(os.path.join(folder.name, f"*.{kind}"))[0]) for kind in ("whl", "tar.gz", "deb"))


class Environment(unittest.TestCase):
    """The wheel in an environment that has nothing else but its extra `cuda`: libraries of the right names in the places of the real
    ones, which do next to nothing. Neither a GPU nor CUDA is needed."""

    # Where NVIDIA's wheels of these names have their libraries, and the functions that we look for there.
    CUDA = {"nvidia_cublas": ("13.1.0", "nvidia/cu13/lib/libcublasLt.so.13", "kernels/cuda/cublaslt_api.h", r"X\((cublasLt\w+)\)"),
            "nvidia_nccl_cu13": ("2.29.0", "nvidia/nccl/lib/libnccl.so.2", "worker/comm/nccl_api.h", r"X\((nccl\w+),")}
    # Functions that say something; all others return 0.
    WORDS = {
        "cublasLtGetVersion": 'int puts(const char*); long cublasLtGetVersion(void) { puts("a stand-in"); return 130100; }',
        "cublasLtGetStatusName": 'const char* cublasLtGetStatusName(int status) { return "CUBLAS_STATUS_NOT_SUPPORTED"; }',
        "ncclGetVersion": "int ncclGetVersion(int* version) { *version = 22900; return 0; }",
        "ncclGetUniqueId": 'int ncclGetUniqueId(char* id) { for (int i = 0; i < 128; ++i) id[i] = "stand-in"[i % 8]; return 0; }'}
    UNIQUE_ID = b"stand-in" * 16
    FIRST_EPOCH = b"\x08\x01"  # group_epoch: 1, of FenceRequest and of NewGroupRequest

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        cls.venv = os.path.join(cls.folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", cls.venv], check=True, stdin=subprocess.DEVNULL)
        cls.python = os.path.join(cls.venv, "bin", "python")
        wheels = os.path.join(cls.folder, "wheels")
        os.mkdir(wheels)
        for name, (version, *library) in cls.CUDA.items():
            cls.make_wheel(os.path.join(wheels, f"{name}-{version}-py3-none-any.whl"), name, version, *library)
        # The test's own pip: a new pip would be unpacked for some seconds. The bare system has its own pip.
        cls.run_there(sys.executable, "-m", "pip", "--python", cls.python, "install", "-q", "--no-index", "--disable-pip-version-check",
                      "--find-links", wheels, f"{ARTIFACTS['whl']}[cuda]")
        cls.site_packages, = glob.glob(os.path.join(cls.venv, "lib", "python3*", "site-packages"))
        cls.programs = os.path.join(cls.site_packages, "somnus", "_programs")
        cls.worker = os.path.join(cls.programs, "worker", "worker")

    @classmethod
    def make_wheel(cls, path, name, version, library, header, pattern):
        folder = os.path.join(cls.folder, name)
        library = os.path.join(folder, library)
        os.makedirs(os.path.dirname(library))
        with open(os.path.join(ROOT, header), encoding="utf-8") as file:
            entries = re.findall(pattern, file.read())
        source = "".join(cls.WORDS.get(entry, f"int {entry}(void) {{ return 0; }}") + "\n" for entry in entries)
        subprocess.run(["g++", "-w", "-shared", "-fPIC", f"-Wl,-soname,{os.path.basename(library)}", "-o", library, "-x", "c", "-"],
                       input=source, text=True, check=True)
        info = os.path.join(folder, f"{name}-{version}.dist-info")
        os.mkdir(info)
        for file_name, text in (("METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
                                ("WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n")):
            with open(os.path.join(info, file_name), "w", encoding="utf-8") as file:
                file.write(text)
        WRITE_WHEEL(folder, path, 1700000000)

    @classmethod
    def run_there(cls, *command):
        return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=cls.folder,
                              env={"PATH": "/usr/bin:/bin", "HOME": cls.folder}).stdout

    def test_the_programs_have_their_libraries(self):
        for name in PROGRAMS:
            found = dict(re.findall(r"^\s*(\S+) => (\S+)", self.run_there("ldd", os.path.join(self.programs, name)), re.MULTILINE))
            self.assertGreater(len(found), 10)
            elsewhere = {library for library, path in found.items() if os.path.dirname(os.path.realpath(path)) != os.path.join(
                os.path.realpath(self.programs), "lib")}
            self.assertLessEqual(elsewhere, {"libc.so.6", "libm.so.6"})
        self.assertRegex(self.run_there(os.path.join(self.venv, "bin", "somnus"), "--version"), r"^somnus \d")

    def test_the_offline_engine(self):
        self.assertEqual(json.loads(self.run_there(self.python, "-c", OFFLINE, tiny(MODEL))), WANTED)

    def test_workers_of_the_command_look_where_pip_has_put_the_libraries(self):
        with mock.patch("cluster.harness.SOMNUS", os.path.join(self.venv, "bin", "somnus")), \
                Cluster(tiny(MODEL), *FLAGS.split(), workers=2, prefix=("env", "-u", "SOMNUS_BIN")) as cluster:
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=True, max_tokens=8), WANTED)
            workers = [pid for pid in cluster.worker_pids() if os.path.samefile(f"/proc/{pid}/exe", self.worker)]
            self.assertEqual(len(workers), 2)
            for pid in workers:
                with open(f"/proc/{pid}/environ", encoding="utf-8") as file:
                    variables = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
                self.assertTrue(os.path.samefile(variables["SOMNUS_LIBRARY_PATH"], self.site_packages))
            self.assertEqual(cluster.stop(), 0)

    def new_group(self, **variables):
        """The reply of a worker that is to make the id of NCCL's group, in which no GPU takes part."""
        coordinator, port = free_ports(2)
        with subprocess.Popen([self.worker, f"--coordinator=127.0.0.1:{coordinator}", f"--listen=127.0.0.1:{port}", "--device=cpu"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={"PATH": "/usr/bin:/bin", "HOME": self.folder, **variables}) as process:
            try:
                with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
                    grpc.channel_ready_future(channel).result(60)
                    channel.unary_unary("/somnus.v1.WorkerService/Fence")(self.FIRST_EPOCH, timeout=60)
                    return channel.unary_unary("/somnus.v1.WorkerService/NewGroup")(self.FIRST_EPOCH, timeout=60)
            finally:
                process.kill()

    @unittest.skipUnless(grpc, "no gRPC for Python: tools/setup.sh tests")
    def test_a_worker_opens_nccl_there(self):
        program = "import json; from somnus import programs; print(json.dumps(programs.environment()))"
        variables = json.loads(self.run_there(self.python, "-c", program))
        self.assertTrue(os.path.samefile(variables["SOMNUS_LIBRARY_PATH"], self.site_packages))
        self.assertEqual(self.new_group(**variables), b"\x0a\x80\x01" + self.UNIQUE_ID)
        self.assertNotIn(self.UNIQUE_ID, self.new_group(), "nothing else leads there")

    def test_cublaslt_is_opened_there(self):
        """By the function by which a worker with a GPU opens it."""
        test = os.path.join(BIN, "tests", "cuda", "cublaslt_test")
        if not os.path.exists(test):
            self.skipTest("there is no tests/cuda/cublaslt_test: built without CUDA")
        program = "import os, sys; from somnus import programs; os.execve(sys.argv[1], sys.argv[1:], {**os.environ, **programs.environment()})"
        said = self.run_there(self.python, "-c", program, test, "--gtest_filter=CublasLtApi.TheRealOneHasAllEntryPoints")
        self.assertIn("[  PASSED  ] 1 test", said)
        self.assertIn("a stand-in\n", said)


class BareSystem(unittest.TestCase):
    """Each artifact in Debian's smallest system with Python, without a network: installed, a server, an answer."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.files = [tiny(MODEL)]
        for name, text in (("ask.py", ASK), ("offline.py", OFFLINE)):
            cls.files.append(os.path.join(temporary.name, name))
            with open(cls.files[-1], "w", encoding="utf-8") as file:
                file.write(text)

    def answers(self, release, kind, command):
        """The lines that `command` has printed behind the installation."""
        try:
            done, steps = bare_system.install_and_run(bare_system.made(release), ARTIFACTS[kind], "echo installed\n" + command, self.files)
        except bare_system.Impossible as error:
            if RELEASES_ARE_ASKED_FOR:
                raise
            self.skipTest(str(error))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertGreaterEqual(len(steps), 2, done.stdout)
        return done.stdout.split("installed\n", 1)[1].splitlines()

    def test_the_wheel(self):
        for release in RELEASES:
            with self.subTest(release):
                lines = self.answers(release, "whl", f"{AS_ONE_QUESTION}{SERVE}/tmp/venv/bin/python /tmp/offline.py /tmp/{MODEL}\n")
                self.assertEqual([json.loads(line) for line in lines], [WANTED, WANTED])

    def test_the_tarball(self):
        """Unpacked into a folder with a blank in the name; then the folder is moved."""
        moved = 'mkdir /opt/x; mv "/srv/another place"/somnus-* /opt/x/y; PATH=/opt/x/y/bin:$PATH\n'
        for release in RELEASES:
            with self.subTest(release):
                lines = self.answers(release, "tar.gz", AS_ONE_QUESTION + moved + SERVE)
                self.assertEqual([json.loads(line) for line in lines], [WANTED])

    def test_the_debian_package(self):
        lines = self.answers("bookworm", "deb", AS_ONE_QUESTION + SERVE + AFTER_DPKG)
        self.assertEqual([json.loads(line) for line in lines], [WANTED])


class DebianPackage(unittest.TestCase):
    """What the package brings beside the programs, unpacked and not installed."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.root = temporary.name
        subprocess.run(["dpkg-deb", "-x", ARTIFACTS["deb"], cls.root], check=True, stdin=subprocess.DEVNULL)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed: tools/setup.sh tests")
    def test_the_man_page(self):
        with gzip.open(os.path.join(self.root, "usr/share/man/man1/somnus.1.gz")) as file:
            page = file.read()
        done = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou"], input=page, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr.decode()), (0, ""))
        shown = done.stdout.decode().replace("\N{MINUS SIGN}", "-").replace("\N{HYPHEN}", "-")
        for name in ("NAME", "SYNOPSIS", "COMMANDS", "FLAGS OF THE SERVER"):
            self.assertRegex(shown, rf"(?m)^{name}$")
        wanted = subprocess.run([os.path.join(BIN, "coordinator", "coordinator"), "--help=all"], stdout=subprocess.PIPE, text=True,
                                check=True, stdin=subprocess.DEVNULL).stdout
        for help_text in (wanted, subprocess.run([os.path.join(BIN, "tools", "somnus"), "top", "--help"], stdout=subprocess.PIPE,
                                                 text=True, check=True, stdin=subprocess.DEVNULL).stdout):
            self.assertGreater(len(help_text), 300)
            lines = [line.strip() for line in shown.splitlines()]
            self.assertEqual([line for line in help_text.splitlines() if line.strip() not in lines], [], "as the program prints them")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_takes_the_units_and_finds_their_programs(self):
        """As systemd-analyze says, which looks for the programs too: in copies of the units that name them where they are here."""
        units = os.path.join(self.root, "lib/systemd/system")
        self.assertEqual(sorted(os.listdir(units)), ["somnus-coordinator.service", "somnus-worker@.service"])
        for name in os.listdir(units):
            with open(os.path.join(units, name), encoding="utf-8") as file:
                text, changed = re.subn(r"(?m)^ExecStart=/", f"ExecStart={self.root}/", file.read())
            self.assertEqual(changed, 1)
            copy = os.path.join(self.root, name.replace("@.", "@0."))
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False)
            complaints = [line for line in done.stderr.splitlines() if "somnus" in line]
            self.assertEqual((done.returncode, complaints), (0, []), done.stderr)


if __name__ == "__main__":
    unittest.main()
