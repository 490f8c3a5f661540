"""What tests of the engine within a Python program share. Tests import `somnus` behind this module, which puts the package of this
checkout first in the path."""
import os
import signal
import subprocess
import sys

from cluster.harness import BIN, ROOT, children, expected

PACKAGE = os.path.join(ROOT, "clients", "python")
sys.path.insert(0, PACKAGE)
os.environ["SOMNUS_BIN"] = BIN

# pylint: disable=wrong-import-position
from somnus import SamplingParams  # noqa: E402

MODEL = "llama-uneven"
SETTINGS = {"dtype": "float32", "kv_cache_memory_bytes": "32MiB"}
CASES = [case for case in expected(MODEL) if not case["ambiguous"]]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def engine_pids(pid):
    """The coordinator that the process has started, and the coordinator's workers."""
    return children(pid)


def run_program(text, *arguments, path=PACKAGE):
    """A Python process that runs the text, with pipes. Ctrl-C reaches the process also where the tests run in the background of
    a shell, which ignores it."""
    return subprocess.Popen([sys.executable, "-c", text, *arguments], env={**os.environ, "PYTHONPATH": path},
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
