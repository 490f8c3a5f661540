"""Processes that the system gives too little: a process says at once, in a single line, which limit is too low and what limit
suffices, or works. Where strangers hold every connection that there is for clients, or for workers, operators command, workers
are replaced, and afterwards every port serves again."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from cluster.harness import BIN, SOMNUS, WORKER, Cluster, expected, free_ports, tiny, wait_until
from cluster.lifecycle_test import HandStartedWorkers

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
COORDINATOR = os.path.join(BIN, "coordinator", "coordinator")
PATIENCE_S = 60
FEW = re.compile(r"may have (\d+) file descriptors, and needs at least (\d+): raise the hard limit \(ulimit -Hn, LimitNOFILE\)")
LIMIT = 256  # descriptors of a process that strangers reach
# HTTP/2's preface and an empty SETTINGS frame; a server replies with a SETTINGS frame.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SOMEBODY = 61234  # a user without processes of his own


def coordinator(*prefix, binary=COORDINATOR, worker=WORKER, model=None, workers=1, **more):
    """The exit code and the output, in lines."""
    done = subprocess.run([*prefix, binary, model or tiny(MODEL), "--port=0", "--admin-port=0", "--grpc-port=0", "--control-port=0",
                           f"--workers=local:{workers}", f"--worker-binary={worker}", "--threads-per-worker=1"],
                          capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False, **more)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def mounts_work():
    return os.geteuid() == 0 and shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"], capture_output=True, check=False).returncode == 0


def connect(port):
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def descriptors(pid):
    return sorted(map(int, os.listdir(f"/proc/{pid}/fd")))


def speaks_grpc(port):
    with connect(port) as sock:
        try:
            sock.sendall(HELLO)
            return len(sock.recv(9)) > 0
        except OSError:
            return False


class StartLimits(unittest.TestCase):
    def refusal(self, limit, workers=1):
        code, lines = coordinator("prlimit", f"--nofile={limit}", workers=workers)
        self.assertEqual((code, len(lines)), (1, 1), lines)
        found = FEW.search(lines[0])
        self.assertTrue(lines[0].startswith("coordinator: ") and found, lines)
        self.assertEqual(int(found[1]), limit)
        return int(found[2])

    def test_few_descriptors(self):
        needed = self.refusal(24)
        for limit in (12, 16, 20, 28, needed - 1):
            self.assertEqual(self.refusal(limit), needed)
        self.assertGreater(self.refusal(24, workers=4), needed)

    def test_as_many_as_it_says_are_enough(self):
        for workers in (1, 2):
            needed = self.refusal(24, workers)
            with self.subTest(workers), Cluster(tiny(MODEL), "--dtype=float32", workers=workers, prefix=("prlimit", f"--nofile={needed}")) as cluster:
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
                os.kill(cluster.worker_pids()[0], signal.SIGKILL)
                wait_until(lambda: "the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
                cluster.wait_ready()
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
                self.assertNotIn("Too many open files", cluster.log())
                self.assertEqual(cluster.stop(), 0)

    def test_few_descriptors_of_a_worker(self):
        for limit in (8, 16):
            done = subprocess.run(["prlimit", f"--nofile={limit}", WORKER, "--coordinator=127.0.0.1:9"], capture_output=True, text=True,
                                  timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"^worker: this process {FEW.pattern}\n$")

    def test_few_addresses(self):
        for limit in (300, 1000):
            code, lines = coordinator("prlimit", f"--as={limit << 20}")
            self.assertEqual((code, len(lines)), (1, 1), lines)
            self.assertRegex(lines[0], r"^coordinator: this process may map .* of addresses, and needs at least .* GiB .*ulimit -v")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv (util-linux)")
    def test_few_threads(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            copies = [shutil.copy(path, folder) for path in (COORDINATOR, WORKER)]
            model = shutil.copytree(tiny(MODEL), os.path.join(folder, "model"))
            for path in [*copies, model, *(os.path.join(model, name) for name in os.listdir(model))]:
                os.chmod(path, 0o755)
            somebody = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "prlimit")
            for limit in (5, 20, 40):
                code, lines = coordinator(*somebody, f"--nproc={limit}", binary=copies[0], worker=copies[1], model=model)
                self.assertEqual(code, 1, lines)
                # A coordinator that has all threads leaves too few for the worker.
                said = [line for line in lines if re.search(r"^coordinator: .*(can start \d+ threads|no thread can be started).*ulimit -u", line)]
                self.assertEqual(len(said), 1, lines)
                if limit < 30:
                    self.assertEqual(len(lines), 1, lines)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv (util-linux)")
    def test_few_threads_and_descriptors_of_a_command(self):
        """Without the check gRPC waits for ever, or aborts."""
        with tempfile.TemporaryDirectory() as folder, Cluster(tiny(MODEL), "--dtype=float32", workers=1) as cluster:
            os.chmod(folder, 0o755)
            somnus = shutil.copy(SOMNUS, folder)
            model = shutil.copytree(tiny(MODEL), os.path.join(folder, "model"))
            os.chmod(model, 0o755)
            threads = r"^error: this process can start \d+ threads, and needs at least \d+: .*ulimit -u"
            for limit, words, commands in (("--nproc=1", threads, (["status"], ["doctor"], ["run", model, "x"])),
                                           ("--nofile=6", f"^error: this process {FEW.pattern}", (["status"], ["sleep"]))):
                for command in commands:
                    done = subprocess.run(["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "prlimit", limit,
                                           somnus, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                                          stdin=subprocess.DEVNULL, env={**cluster.cli_environment(), "HOME": folder})
                    with self.subTest(limit=limit, command=command):
                        self.assertEqual(done.returncode, 1, done.stderr)
                        self.assertRegex(done.stderr, words)

    @unittest.skipUnless(mounts_work(), "mount namespaces")
    def test_a_shared_memory_folder_that_is_small_full_or_cannot_be_written(self):
        for name, mount in (("small", "mount -t tmpfs -o size=4k tmpfs /dev/shm"),
                            ("full", "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero >/dev/shm/full"),
                            ("read-only", "mount -t tmpfs -o ro tmpfs /dev/shm")):
            prefix = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
            with self.subTest(name), Cluster(tiny(MODEL), "--dtype=float32", workers=2, prefix=prefix) as cluster:
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_no_locked_memory(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=2, prefix=("prlimit", "--memlock=0")) as cluster:
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_no_file_may_have_a_byte(self):
        code, lines = coordinator("prlimit", "--fsize=0", workers=2)
        self.assertEqual(code, 1, lines)
        self.assertRegex(lines[-1] if "leaving" not in lines[-1] else "\n".join(lines), "File too large")
        self.assertFalse([line for line in lines if "signal" in line], lines)


class Strangers(unittest.TestCase):
    def test_a_short_lack_of_them(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=2, prefix=("prlimit", f"--nofile={LIMIT}")) as cluster:
            answer = cluster.tokens(CASE["prompt"])
            self.assertIn(f"--max-connections: 2048 are more than this process may have (ulimit -n: {LIMIT})", cluster.log())
            strangers = [connect(port) for _ in range(LIMIT) for port in (cluster.grpc_port, cluster.port)]
            try:
                # On a gRPC port a stranger looks like a client that is slow to speak.
                wait_until(lambda: f"{cluster.grpc_port} for now" in cluster.log(), PATIENCE_S, "a shortage in the log")
                # Connections of clients never keep a descriptor that is kept back for operators and workers.
                bound = LIMIT - 2 * (LIMIT // 8)
                wait_until(lambda: max(descriptors(cluster.process.pid)) < bound, PATIENCE_S, lambda: descriptors(cluster.process.pid))
                self.assertEqual(cluster.request("GET", "/livez", port=cluster.admin_port).status, 200)
                self.assertTrue(speaks_grpc(cluster.control_port))
                os.kill(cluster.worker_pids()[0], signal.SIGKILL)
                wait_until(lambda: "the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
                self.assertTrue(speaks_grpc(cluster.control_port))
            finally:
                for sock in strangers:
                    sock.close()
            wait_until(lambda: speaks_grpc(cluster.grpc_port), PATIENCE_S, "gRPC serves clients again")
            self.assertEqual(cluster.tokens(CASE["prompt"]), answer)
            self.assertEqual(cluster.metric("somnus:recoveries_total"), 1)

    def test_at_the_ports_of_workers(self):
        """Over TCP strangers reach the port where workers register, and the ports where workers listen."""
        cluster_port, = free_ports(1)
        few = ("prlimit", f"--nofile={LIMIT}")
        with HandStartedWorkers(cluster_port) as workers, \
                Cluster(tiny(MODEL), "--dtype=float32", "--workers=remote:2", f"--cluster-port={cluster_port}", "--hang-timeout=5s",
                        workers=0, wait=False, prefix=few) as cluster:
            ports = free_ports(3)

            def start(port):
                return workers.start(f"--listen=127.0.0.1:{port}", prefix=few)
            first = start(ports[0])
            start(ports[1])
            cluster.wait_ready()
            answer = cluster.tokens(CASE["prompt"])
            strangers = [connect(port) for _ in range(LIMIT) for port in (cluster_port, ports[1])]
            try:
                # The bound on unproven connections comes before a lack of descriptors.
                for port, log in ((cluster_port, cluster.log), (ports[1], lambda: workers.logs()[1])):
                    wait_until(lambda: f"{port}: more connections than --max-handshakes" in log(), PATIENCE_S, log)
                first.kill()
                start(ports[2])  # may have to try again until strangers who say nothing are cut off
            finally:
                for sock in strangers:
                    sock.close()
            wait_until(lambda: "the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
            cluster.wait_ready()
            self.assertEqual(cluster.tokens(CASE["prompt"]), answer)
            for port in (cluster_port, *ports[1:]):
                self.assertTrue(speaks_grpc(port), port)
