"""The Python client, installed by pip from its folder, for separate processes: the tests' own stubs have the same messages."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import ROOT

CLIENT = os.path.join(ROOT, "clients", "python")
RLHF_STEP = os.path.join(CLIENT, "examples", "rlhf_step.py")
TIMEOUT_S = 120


class InstalledClient:
    """Use as a context manager; leaving the context removes the client. SkipTest without grpcio-tools."""

    def __init__(self):
        try:
            import grpc_tools  # noqa: F401 pylint: disable=unused-import
            import setuptools  # noqa: F401 pylint: disable=unused-import
        except ImportError as error:
            raise unittest.SkipTest("grpcio-tools is not installed: tools/setup.sh tests") from error
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "client")
        # pip builds within the given folder.
        checkout = os.path.join(self._folder.name, "checkout")
        for source in ("clients/python", "proto", "base/version.h"):
            target = os.path.dirname(os.path.join(checkout, source))
            os.makedirs(target, exist_ok=True)
            subprocess.run(["cp", "-r", os.path.join(ROOT, source), target], check=True)
        # The packages of the tests' environment will do: nothing is downloaded.
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation",
                        "--disable-pip-version-check", "--target", self.path, os.path.join(checkout, "clients", "python")],
                       check=True, stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def run(self, cluster, *command):
        """The output of a Python process with the client, as JSON; the server's addresses are in the process's environment."""
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": self.path, "GRPC": f"127.0.0.1:{cluster.grpc_port}",
                                   "CONTROL": f"127.0.0.1:{cluster.control_port}"})
        if done.returncode != 0:
            raise AssertionError(f"{command[0]}: {done.stderr}\n{cluster.log()}")
        return json.loads(done.stdout)

    def rlhf_step(self, cluster, checkpoint, prompt, max_tokens=16, shared_memory=False):
        """The output of clients/python/examples/rlhf_step.py."""
        flags = ["--shared-memory"] if shared_memory else []
        return self.run(cluster, RLHF_STEP, "--grpc", f"127.0.0.1:{cluster.grpc_port}", "--control",
                        f"127.0.0.1:{cluster.control_port}", "--prompt", prompt, "--max-tokens", str(max_tokens), *flags, checkpoint)
