"""vLLM's server, with its CPU build, for scripts that ask it beside ours."""
import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.request

from free_port import free_port

START_S = 600
STOP_S = 60


class VllmServer:
    """Serves an HF directory in bfloat16 until stop(). The process has a group of its own, so that its children stop with it."""

    def __init__(self, binary, model, max_model_len=2048):
        self.port = free_port()
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{os.cpu_count() - 1}",
                       "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        command = [binary, "serve", model, "--served-model-name", "bench", "--dtype", "bfloat16", "--host", "127.0.0.1", "--port",
                   str(self.port), "--max-model-len", str(max_model_len)]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment,
                                        start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                self.log.seek(0)
                raise SystemExit(f"error: vLLM did not start: {self.log.read().decode(errors='replace')[-2000:]}")
            time.sleep(0.5)

    def healthy(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
        except OSError:
            return False

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
