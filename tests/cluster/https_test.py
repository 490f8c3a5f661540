"""TLS on both HTTP listeners and on operators' gRPC, and operators' key: real clients, strangers, certificates that change."""
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from cluster.harness import BIN, SOMNUS, Cluster, expected, tiny, wait_until
from cluster.harness.certificates import Certificates

MODEL = "qwen3"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
CLIENTS, OPERATORS = "key-of-clients", "key-of-operators"
SERVING_BENCH = os.path.join(BIN, "tools", "bench", "serving_bench")
PATIENCE_S = 30
NO_CLUSTER = {name: "" for name in ("SOMNUS_URL", "SOMNUS_CA_CERT", "SOMNUS_API_KEY", "SOMNUS_ADMIN_API_KEY")}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def serial(port, ca):
    """The serial number of the certificate that a port shows, or None for a certificate of another authority."""
    context = ssl.create_default_context(cafile=ca)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock, \
                context.wrap_socket(sock, server_hostname="127.0.0.1") as channel:
            return channel.getpeercert()["serialNumber"]
    except ssl.SSLCertVerificationError:
        return None


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificates = Certificates(folder.name)
        cls.certificate, cls.key = cls.certificates.make("server")
        files = [f"--{prefix}ssl-{kind}file={path}" for prefix in ("", "admin-")
                 for kind, path in (("cert", cls.certificate), ("key", cls.key))]
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", *files, workers=2, ca=cls.certificates.ca,
                              env={"SOMNUS_API_KEY": CLIENTS, "SOMNUS_ADMIN_API_KEY": OPERATORS})
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.cluster.api_key, cls.cluster.admin_api_key = CLIENTS, OPERATORS
        cls.ports = (cls.cluster.port, cls.cluster.admin_port, cls.cluster.grpc_port, cls.cluster.control_port)

    def tokens(self):
        body = {"model": self.cluster.name, "prompt": CASE["prompt"], "temperature": 0, "max_tokens": len(CASE["tokens"]),
                "ignore_eos": CASE["ignore_eos"], "return_token_ids": True}
        response = self.cluster.request("POST", "/v1/completions", body, bearer(CLIENTS))
        self.assertEqual(response.status, 200, response.text)
        return response.json["choices"][0]["token_ids"]

    def tearDown(self):
        self.assertEqual(self.tokens(), CASE["tokens"])
        self.cluster.wait_idle()

    def admin(self, method, path, key=OPERATORS):
        return self.cluster.request(method, path, headers=bearer(key) if key else {}, port=self.cluster.admin_port)

    def test_the_openai_client(self):
        import openai
        context = ssl.create_default_context(cafile=self.certificates.ca)
        http_client = getattr(openai, "DefaultHttpx2Client", None) or openai.DefaultHttpxClient  # since 3.0, or before
        client = openai.OpenAI(base_url=f"https://127.0.0.1:{self.cluster.port}/v1", api_key=CLIENTS, max_retries=0,
                               http_client=http_client(verify=context))

        def chat(**fields):
            return client.chat.completions.create(model=self.cluster.name, messages=[{"role": "user", "content": "Hello"}],
                                                  max_tokens=16, temperature=0, **fields)
        whole = chat().choices[0].message.content
        chunks = list(chat(stream=True))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), whole)

    def test_serving_bench(self):
        def bench(*flags):
            return subprocess.run([SERVING_BENCH, f"--base-url=https://127.0.0.1:{self.cluster.port}", "--num-requests=4",
                                   "--concurrency=2", "--input-len=8", "--output-len=8", "--vocab-low=5", "--vocab-high=100",
                                   "--no-probe", *flags], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **NO_CLUSTER, "SOMNUS_API_KEY": CLIENTS})
        done = bench(f"--ca-cert={self.certificates.ca}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for refused in (bench(), bench(f"--ca-cert={self.key}")):
            self.assertNotEqual(refused.returncode, 0)

    def test_readiness_needs_no_key(self):
        done = subprocess.run([SOMNUS, "status", "--ready", f"--url=https://127.0.0.1:{self.cluster.port}",
                               f"--ca-cert={self.certificates.ca}"], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={**os.environ, **NO_CLUSTER})
        self.assertEqual((done.returncode, done.stdout), (0, "ready\n"), done.stderr)

    def test_another_authority_is_not_trusted(self):
        with tempfile.TemporaryDirectory() as folder:
            other = Certificates(folder, "other")
            for port in self.ports:
                self.assertIsNone(serial(port, other.ca))
            with self.assertRaises(urllib.error.URLError) as caught:
                urllib.request.urlopen(f"https://127.0.0.1:{self.cluster.port}/health", cafile=other.ca)
            self.assertIn("certificate verify failed", str(caught.exception))

    def test_old_versions_and_other_protocols_are_refused(self):
        for change in (lambda context: setattr(context, "maximum_version", ssl.TLSVersion.TLSv1_1),
                       lambda context: context.set_alpn_protocols(["h2"])):
            context = ssl.create_default_context(cafile=self.certificates.ca)
            context.set_ciphers("ALL:@SECLEVEL=0")
            change(context)
            with self.assertRaises(ssl.SSLError), socket.create_connection(("127.0.0.1", self.cluster.port), timeout=PATIENCE_S) as sock:
                context.wrap_socket(sock, server_hostname="127.0.0.1")

    def test_the_command_line(self):
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")
        self.assertIn(f"https://127.0.0.1:{self.cluster.port}", self.cluster.cli("status").stdout)
        operators = f"--url=https://127.0.0.1:{self.cluster.admin_port}"
        self.cluster.cli("sleep", operators)
        self.cluster.cli("wake-up", operators)
        self.assertTrue(self.cluster.cli("generate", "--max-tokens=4", "Hello").stdout)

        def refused(*args, **environment):
            done = subprocess.run([SOMNUS, "status", *args], capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **NO_CLUSTER, **environment})
            self.assertNotEqual(done.returncode, 0)
            for secret in (CLIENTS, OPERATORS):
                self.assertNotIn(secret, done.stderr)
            return done.stderr
        url = f"--url=https://127.0.0.1:{self.cluster.port}"
        trust = f"--ca-cert={self.certificates.ca}"
        self.assertIn("--ca-cert", refused(url))
        self.assertIn("speaks https", refused(f"--port={self.cluster.port}"))
        self.assertIn("--api-key", refused(url, trust))
        self.assertIn("refuses this key (--admin-api-key", refused(url, trust, SOMNUS_API_KEY=CLIENTS, SOMNUS_ADMIN_API_KEY=CLIENTS))

    def test_a_certificate_is_replaced(self):
        before = serial(self.cluster.port, self.certificates.ca)
        stream = self.cluster.connection(self.cluster.port)
        stream.request("GET", "/v1/models", headers=bearer(CLIENTS))
        self.assertEqual(stream.getresponse().read()[:1], b"{")
        for source, target in zip(self.certificates.make("next"), (self.certificate, self.key)):
            shutil.copy(source, f"{target}.new")
            os.replace(f"{target}.new", target)
        for port in self.ports:
            wait_until(lambda: serial(port, self.certificates.ca) not in (None, before), PATIENCE_S, f"a new certificate at {port}")
        stream.request("GET", "/v1/models", headers=bearer(CLIENTS))
        self.assertEqual(stream.getresponse().status, 200, "an open connection goes on")
        stream.close()

    def test_nothing_secret_is_told(self):
        self.cluster.request("GET", "/v1/models", headers=bearer("wrong-key"))
        self.admin("POST", "/sleep", "wrong-key")
        with open(self.key, encoding="ascii") as file:
            lines = [line for line in file.read().splitlines() if "-----" not in line]
        told = self.cluster.log()
        for pid in (self.cluster.process.pid, *self.cluster.worker_pids()):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                told += file.read()
        for secret in (CLIENTS, OPERATORS, "wrong-key", *lines):
            self.assertNotIn(secret, told)


class ClientsWithCertificates(unittest.TestCase):
    def test_clients_must_show_one_and_operators_need_not(self):
        with tempfile.TemporaryDirectory() as folder:
            certificates = Certificates(folder)
            certificate, key = certificates.make("server")
            with Cluster(tiny(MODEL), f"--ssl-certfile={certificate}", f"--ssl-keyfile={key}", f"--ssl-ca-certs={certificates.ca}",
                         workers=1, ca=certificates.ca, client=certificates.make("client")) as cluster:
                self.assertTrue(cluster.cli("generate", "--max-tokens=4", "Hello").stdout)
                self.assertEqual(cluster.status()["state"], "ENGINE_STATE_AWAKE")
                cluster.client = ()
                with self.assertRaises(OSError):
                    cluster.request("GET", "/health")
                self.assertEqual(cluster.request("GET", "/readyz", port=cluster.admin_port).status, 200)
                self.assertIn("--client-cert", cluster.cli("generate", "--max-tokens=4", "Hello", check=False).stderr)
