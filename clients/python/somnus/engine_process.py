"""The engine's processes: a coordinator on private ports of this host, which starts its workers."""
import collections
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from typing import Deque, List, Optional

from somnus import programs
from somnus.errors import EngineDeadError, EngineStartError

_READY = re.compile(r" serving .* on http://[^ ]*:(\d+), admin http://[^ ]*:(\d+), gRPC [^ ]*:(\d+), admin gRPC [^ ]*:(\d+);")
_LINES_KEPT = 200
_LINES_SHOWN = 20
_STOP_S = 20
# This program is the only client, and bounds itself: the bounds that keep strangers from a server's memory are wide here. The
# caller's own flags come behind these, and count.
_BOUNDS = ["--max-num-waiting=65536", "--max-num-waiting-tokens=1000000000", "--max-waiting-bytes=16GiB", "--max-n=65536",
           "--max-sequences=65536", "--max-stop-strings=4096", "--max-stop-token-ids=1048576", "--max-logit-bias=1048576",
           "--max-allowed-token-ids=1048576", "--max-bad-words=4096", "--max-body-bytes=1GiB", "--enable-tokenizer-info-endpoint",
           "--lora-unload-timeout=24h"]
_LOGGER = logging.getLogger("somnus.engine")

# The script that becomes the coordinator. The script asks the kernel for SIGTERM when the thread that has started it ends, then
# looks whether the thread has ended already. In a program with threads Python's own fork may not run more code of ours than
# exec().
_BECOME = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EngineProcess:
    """Started by the constructor, which returns at once. Thread safe. Ends with stop(), and with the process that has started it,
    however that ends: the coordinator gets SIGTERM from the kernel, and takes its workers along.

    A thread of its own starts the coordinator, reads the log (into the logger `somnus.engine`, at the level DEBUG) and waits for
    the end: the kernel's signal is bound to the thread.
    """

    def __init__(self, model: str, flags: List[str]):
        self.key, self.admin_key = secrets.token_hex(32), secrets.token_hex(32)
        self.port = self.admin_port = self.grpc_port = self.control_port = 0
        coordinator = os.path.join(programs.folder(), "coordinator", "coordinator")
        self._command = [coordinator, model, "--host=127.0.0.1", "--port=0", "--admin-host=127.0.0.1", "--log-level=info",
                         "--idle-timeout=24h", "--shutdown-timeout=1s", *_BOUNDS, *flags]
        self._owner = os.getpid()
        self._lines: Deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._process: Optional[subprocess.Popen[str]] = None
        self._started, self._settled, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._watch, name="somnus-engine", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Until the engine serves. EngineStartError: it has ended before. No time is set: weights may take long, and the
        coordinator itself bounds every step of its start."""
        self._settled.wait()
        if self._error is not None:
            raise EngineStartError(f"the engine could not be started: {self._error}") from self._error
        if not self.port:
            raise EngineStartError(self._last_words("the engine has ended before it served"))

    @property
    def pid(self) -> int:
        """Of the coordinator."""
        self._started.wait()
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def dead_error(self) -> EngineDeadError:
        return EngineDeadError(self._last_words("the engine has ended" if not self.running else "the engine does not reply"))

    @property
    def is_owner(self) -> bool:
        """False in a forked process, which has a copy of this object, and none of the threads."""
        return os.getpid() == self._owner

    def wait_end(self, timeout: float) -> bool:
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Ends coordinator and workers, and returns when they have ended. In a forked process nothing is done."""
        if not self.is_owner:
            return
        self._started.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            if self._ended.wait(_STOP_S):
                break

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and not self._ended.is_set():
            self._process.send_signal(number)

    def _watch(self) -> None:
        try:
            # A session of its own: a terminal's Ctrl-C is this program's to handle, which may want to go on.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, str(self._owner), *self._command], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                env={**os.environ, **programs.environment(), "SOMNUS_API_KEY": self.key, "SOMNUS_ADMIN_API_KEY": self.admin_key})
            self._started.set()
            self._read_log()
            self._process.wait()
        except BaseException as error:  # pylint: disable=broad-except
            self._error = error
        finally:
            self._ended.set()
            self._started.set()
            self._settled.set()

    def _read_log(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as log:
            for line in log:
                self._lines.append(line.rstrip("\n"))
                _LOGGER.debug("%s", self._lines[-1])
                ready = None if self.port else _READY.search(line)
                if ready:
                    port, self.admin_port, self.grpc_port, self.control_port = map(int, ready.groups())
                    self.port = port  # the last: readers look at this one
                    self._settled.set()

    def _last_words(self, what: str) -> str:
        code = self._process.poll() if self._process is not None else None
        ended = "" if code is None else f" (exit code {code})" if code >= 0 else f" (signal {-code})"
        lines = "\n".join(list(self._lines)[-_LINES_SHOWN:])
        return f"{what}{ended}; the last lines of its log:\n{lines}"
