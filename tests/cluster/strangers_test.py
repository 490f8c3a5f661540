"""Strangers at every port: garbage, other protocols, forged calls and replayed connections make nobody do anything.

Each case ends with the same group: the same processes in the same epoch, and exact tokens.
"""
import os
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

from cluster.harness import WORKER, Cluster, expected, free_ports, stubs, tiny, wait_until
from cluster.harness.certificates import Certificates
from cluster.lifecycle_test import HandStartedWorkers
from cluster.rude_clients_test import HTTP2_PREFACE, TLS_HELLO

try:
    import grpc
    from google.protobuf import message_factory
except ImportError:
    grpc = None

MODEL = "qwen3"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
SECRET = "s" * 32
WRONG = "t" * 32
DEADLINE_S = 30
MAX_HANDSHAKES = 16
NOBODY = 65534
HTTP_SLEEP = b"POST /sleep?level=2 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
NOISE = (TLS_HELLO, HTTP2_PREFACE, HTTP_SLEEP, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, os.urandom(4096), b"\n")


def setUpModule():
    stubs.generate("model", "transition", "weights", "control", "cluster", "step", "worker")
    global services
    from proto import cluster_pb2, control_pb2, weights_pb2, worker_pb2
    services = [service for module in (worker_pb2, cluster_pb2, control_pb2, weights_pb2)
                for service in module.DESCRIPTOR.services_by_name.values()]


def forged(message):
    """A request as forged by a stranger who knows the protocol: of a later epoch, which no fence refuses."""
    for field, value in (("group_epoch", 1 << 40), ("operation_id", 7), ("worker_id", "forged"), ("address", "127.0.0.1:1"),
                         ("version", "0"), ("level", 2), ("step_id", 1)):
        if field in message.DESCRIPTOR.fields_by_name:
            setattr(message, field, value)
    return message


def forge_calls(target, metadata=(), credentials=None):
    """Every call of every service at one address: the name and the code of the answer."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with (grpc.secure_channel(target, credentials, options) if credentials else grpc.insecure_channel(target, options)) as channel:
        for service in services:
            for method in service.methods:
                request = forged(message_factory.GetMessageClass(method.input_type)())
                # As bytes, and as a stream of one message: right for every kind of call.
                call = channel.stream_stream(f"/{service.full_name}/{method.name}")
                try:
                    list(call(iter([request.SerializeToString()]), timeout=DEADLINE_S, metadata=metadata))
                    yield method.name, grpc.StatusCode.OK
                except grpc.RpcError as error:
                    yield method.name, error.code()


def exchange(sock, data, wait):
    """Sends bytes; returns the bytes that come back until nothing has come for `wait` seconds."""
    sock.settimeout(wait)
    received = b""
    try:
        sock.sendall(data)
        while piece := sock.recv(65536):
            received += piece
    except OSError:
        pass
    return received


def send(address, data, wait=0.3):
    """Sends bytes to a port or a socket; returns the bytes that come back within `wait` seconds."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as sock:
        sock.settimeout(wait)
        try:
            sock.connect(address)
        except OSError:
            return b""
        return exchange(sock, data, wait)


class Recorder:
    """Passes connections on to a port, and keeps the bytes that each dialing side has sent."""

    def __init__(self, address, target):
        self.sent = []
        self._target = target
        self._listener = socket.create_server(address)
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def _accept(self):
        while True:
            try:
                dialer, _ = self._listener.accept()
                target = socket.create_connection(self._target)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                dialer.close()
                continue
            self._sockets += [dialer, target]
            record = bytearray()
            self.sent.append(record)
            threading.Thread(target=self._pass, args=(dialer, target, record), daemon=True).start()
            threading.Thread(target=self._pass, args=(target, dialer, bytearray()), daemon=True).start()

    @staticmethod
    def _pass(source, sink, record):
        try:
            while data := source.recv(65536):
                record += data
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Unmoved:
    """The state that must be the same before and after: checked around every case."""

    def setUp(self):
        self.before = self.group()

    def tearDown(self):
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
        self.assertEqual(self.group(), self.before)
        self.assertEqual(self.cluster.health(), 200)

    def group(self):
        status = self.cluster.status()
        return (status["state"], status["epoch"], status["num_recoveries"],
                [(rank["pid"], rank["state"], rank["weights_version"]) for rank in status["ranks"]])


class LocalWorkers(Unmoved, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--admin-api-key=operators", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.sockets = []
        for pid in cls.cluster.worker_pids():
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                coordinator = re.search(r"--coordinator=unix:([^\0]*)", file.read()).group(1)
            cls.sockets += [coordinator, os.path.join(os.path.dirname(coordinator), f"worker-{pid}.sock")]

    def test_noise_at_every_port_and_socket(self):
        ports = (self.cluster.port, self.cluster.admin_port, self.cluster.grpc_port, self.cluster.control_port)
        for address in [*self.sockets, *(("127.0.0.1", port) for port in ports)]:
            for data in NOISE:
                with self.subTest(address=address, data=data[:20]):
                    self.assertNotRegex(send(address, data), rb"HTTP/1.1 200")

    def test_forged_calls_without_the_secret(self):
        for path in self.sockets:
            for metadata in ((), (("somnus-cluster-token", "0" * 64),), (("somnus-cluster-token", ""),)):
                for name, code in forge_calls(f"unix:{path}", metadata):
                    with self.subTest(path=path, method=name, metadata=metadata):
                        self.assertIn(code, (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED))
                        own = "coordinator" in path, name in ("Register", "Heartbeat")
                        if own == (True, True) or (own == (False, False) and name in ("Fence", "Shutdown", "Execute", "LoadModel")):
                            self.assertEqual(code, grpc.StatusCode.UNAUTHENTICATED)

    def test_forged_calls_at_the_ports_of_clients_and_operators(self):
        for port, code_of_sleep in ((self.cluster.grpc_port, grpc.StatusCode.UNIMPLEMENTED),
                                    (self.cluster.control_port, grpc.StatusCode.UNAUTHENTICATED)):
            for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "Bearer clients"),)):
                for name, code in forge_calls(f"127.0.0.1:{port}", metadata):
                    with self.subTest(port=port, method=name):
                        self.assertIn(code, (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED))
                        if name == "GetStatus" and port == self.cluster.grpc_port:
                            self.assertEqual(code, code_of_sleep)

    def test_other_users_cannot_connect(self):
        for path in self.sockets:
            self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700, path)
        if os.geteuid() != 0:
            self.skipTest("only root can try as another user")
        for path in self.sockets:
            script = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
            done = subprocess.run(["/usr/bin/python3", "-c", script], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL)
            self.assertIn("PermissionError", done.stderr)


class ListenersWithTls(Unmoved, unittest.TestCase):
    """The four listeners of clients and operators, with certificates and keys."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        certificates = Certificates(folder.name)
        certificate, key = certificates.make("server")
        files = [f"--{prefix}ssl-{kind}file={path}" for prefix in ("", "admin-") for kind, path in (("cert", certificate), ("key", key))]
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--admin-api-key=operators", *files, workers=2, ca=certificates.ca)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_noise_below_tls_and_within(self):
        for port in sorted(self.cluster.tls_ports):
            for data in NOISE:
                with self.subTest(port=port, data=data[:20]):
                    self.assertNotRegex(send(("127.0.0.1", port), data), rb"HTTP/1.1 200")
                    self.assertNotRegex(self.send_over_tls(port, data), rb"HTTP/1.1 200")

    def test_forged_calls_without_tls_or_the_key(self):
        for port in sorted(self.cluster.tls_ports):
            for name, code in forge_calls(f"127.0.0.1:{port}"):
                with self.subTest(port=port, method=name):
                    self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)
        with open(self.cluster.ca, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        for metadata in ((), (("authorization", "Bearer operator"),)):
            for name, code in forge_calls(f"127.0.0.1:{self.cluster.control_port}", metadata, credentials):
                with self.subTest(method=name, metadata=metadata):
                    self.assertIn(code, (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED))

    def send_over_tls(self, port, data):
        context = ssl.create_default_context(cafile=self.cluster.ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock, \
                context.wrap_socket(sock, server_hostname="127.0.0.1") as channel:
            return exchange(channel, data, wait=0.3)


class RemoteWorkers(Unmoved, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster_port, proxy_port, *worker_ports = free_ports(4)
        cls.worker_ports = worker_ports
        secret = {"SOMNUS_CLUSTER_SECRET": SECRET}
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--workers=remote:2", f"--cluster-port={cls.cluster_port}",
                              f"--max-handshakes={MAX_HANDSHAKES}",
                              workers=0, wait=False, env=secret)
        cls.addClassCleanup(cls.cluster.__exit__)
        # Everybody who dials a worker or the coordinator is recorded: workers advertise the recorder's address.
        cls.recorders = [(cls.cluster_port, Recorder(("127.0.0.1", proxy_port), ("127.0.0.1", cls.cluster_port)))]
        cls.recorders += [(port, Recorder(("127.0.0.2", port), ("127.0.0.1", port))) for port in worker_ports]
        for _, recorder in cls.recorders:
            cls.addClassCleanup(recorder.close)
        for rank, port in enumerate(worker_ports):
            process = subprocess.Popen([WORKER, f"--coordinator=127.0.0.1:{proxy_port}", f"--listen=127.0.0.1:{port}",
                                        "--host=127.0.0.2", f"--rank={rank}"], stdin=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env={**os.environ, **secret})
            cls.addClassCleanup(process.wait)
            cls.addClassCleanup(process.kill)
        cls.cluster.wait_ready()

    def ports(self):
        return [self.cluster_port, *self.worker_ports]

    def test_noise(self):
        for port in self.ports():
            for data in NOISE:
                send(("127.0.0.1", port), data)

    def test_many_who_say_nothing_or_begin_a_handshake_hold_few_descriptors(self):
        files = f"/proc/{self.cluster.process.pid}/fd"
        before = len(os.listdir(files))
        strangers = []
        try:
            for i in range(400):
                sock = socket.create_connection(("127.0.0.1", self.cluster_port), timeout=DEADLINE_S)
                strangers.append(sock)
                if i % 2:
                    sock.sendall(TLS_HELLO[:40])
            # Each of the MAX_HANDSHAKES open handshakes has two descriptors; the other connections read an end.
            for sock in strangers[:-MAX_HANDSHAKES]:
                self.assertEqual(sock.recv(1), b"")
            wait_until(lambda: len(os.listdir(files)) <= before + 2 * MAX_HANDSHAKES, DEADLINE_S, "few descriptors")
            # The worker's heartbeats, new connections among them, come through all the same.
            self.assertEqual(self.group(), self.before)
            self.assertIn("more connections than --max-handshakes", self.cluster.log())
            with HandStartedWorkers(self.cluster_port) as workers:
                workers.start("--register-timeout=2s", env={"SOMNUS_CLUSTER_SECRET": SECRET}).wait(DEADLINE_S)
                self.assertNotIn("TLS", workers.logs()[0])  # the worker is told that there is no place
        finally:
            for sock in strangers:
                sock.close()

    def test_replayed_connections(self):
        for port, recorder in self.recorders:
            self.assertTrue(recorder.sent, "somebody has dialled")
            for record in list(recorder.sent):
                self.assertTrue(bytes(record).startswith(b"\x16\x03"), "TLS")
                for secret in (SECRET, "Register", "somnus"):
                    self.assertNotIn(secret.encode(), bytes(record))
                send(("127.0.0.1", port), bytes(record), wait=1)

    def test_forged_calls_without_tls(self):
        for port in self.ports():
            for name, code in forge_calls(f"127.0.0.1:{port}"):
                with self.subTest(port=port, method=name):
                    self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)

    def test_certificates_of_another_authority(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("key.pem", "certificate.pem")]
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=somnus cluster", "-keyout",
                            files[0], "-out", files[1]], check=True, capture_output=True, stdin=subprocess.DEVNULL)
            for own in (True, False):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols(["h2"])
                if own:
                    context.load_cert_chain(files[1], files[0])
                for port in self.ports():
                    with self.subTest(port=port, own=own), socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
                        # With TLS 1.3 a client learns only at a read that the certificate was refused.
                        try:
                            with context.wrap_socket(sock) as channel:
                                channel.sendall(HTTP2_PREFACE)
                                received = b"".join(iter(lambda: channel.recv(65536), b""))
                        except OSError:
                            received = b""
                        self.assertEqual(received, b"")

    def test_workers_that_do_not_know_the_secret(self):
        for secret in (None, WRONG):
            with self.subTest(secret=secret), HandStartedWorkers(self.cluster_port) as workers:
                saved = os.environ.pop("SOMNUS_CLUSTER_SECRET", None)
                if secret is not None:
                    os.environ["SOMNUS_CLUSTER_SECRET"] = secret
                try:
                    worker = workers.start("--register-timeout=2s")
                finally:
                    os.environ.pop("SOMNUS_CLUSTER_SECRET", None)
                    if saved is not None:
                        os.environ["SOMNUS_CLUSTER_SECRET"] = saved
                self.assertEqual(worker.wait(DEADLINE_S), 1)
                self.assertIn("not registered at the coordinator", workers.logs()[0])
                if secret == WRONG:
                    self.assertIn("the TLS handshake has failed: the other side has another cluster secret", workers.logs()[0])
                    self.assertNotIn("asn1", workers.logs()[0].lower())
        self.assertIn("a TLS handshake on a gRPC port has failed", self.cluster.log())


class Listeners(unittest.TestCase):
    def test_beyond_loopback_a_coordinator_wants_to_know_its_workers(self):
        with Cluster(tiny(MODEL), "--workers=remote:1", "--cluster-host=0.0.0.0", "--cluster-port=0", workers=0,
                     wait=False) as cluster:
            self.assertEqual(cluster.process.wait(DEADLINE_S), 1)
            self.assertIn("--cluster-secret-file", cluster.log())

    def test_a_secret_file_that_others_may_read_is_refused(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(SECRET.encode())
            file.flush()
            os.chmod(file.name, 0o644)
            with Cluster(tiny(MODEL), f"--cluster-secret-file={file.name}", workers=1, wait=False) as cluster:
                self.assertEqual(cluster.process.wait(DEADLINE_S), 2)
                self.assertIn("chmod 600", cluster.log())
