"""Runs an item under its budget and writes the item's rows into the journal."""
import ctypes
import json
import os
import signal
import subprocess
import threading

import events
import logs

GRACE_S = 5  # from TERM to KILL, for an item beyond the budget
OVERRUN = (124, 137, -signal.SIGKILL)
PR_SET_PDEATHSIG = 1
# The worker's warning begins so (kernels/cuda/cuda_device.cc), unless SOMNUS_CUDA_DISABLE turns cuBLASLt off.
OWN_KERNELS = "there is no cuBLASLt"


def die_with_parent():
    """Asks the kernel to send TERM to the item, which ends its servers, when this process ends, also when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_session(session):
    """Kills the processes of a session. Some have process groups of their own, as the programs of timeout(1) do."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == session:
                os.kill(int(name), signal.SIGKILL)
        except OSError:  # the process has ended, or is another user's
            continue


class ItemRun:
    """One run of an item: relays rows to the journal, and gathers the data of the end."""

    def __init__(self, item, journal, log, environment):
        self.item, self.journal, self.data = item, journal, {}
        self._log = log
        command = ["timeout", "-k", str(GRACE_S), str(item.seconds), *item.words()]
        with logs.Log(log) as errors:
            # The item has a separate session, so that wait() ends the processes that the item leaves behind.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment,
                                             start_new_session=True, preexec_fn=die_with_parent)
        self._reader = threading.Thread(target=self._relay, daemon=True)
        self._reader.start()

    def stop(self):
        """Ends the item. A signal handler may call this."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self):
        """The item's status at the end."""
        code = self._process.wait()
        end_session(self._process.pid)
        self._reader.join(GRACE_S)
        if code in OVERRUN:
            return "timeout"
        if code == events.SKIPPED_STATUS:
            return "skipped"
        if code != 0:
            self.data.setdefault("reason", f"exit status {code}: {last_line(self._log)}")
        return "ok" if code == 0 else "fail"

    def _relay(self):
        for text in self._process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if "row" in line:
                self.journal.row(self.item.name, line["row"])
            self.data.update(line.get("data", {}))


def last_line(log):
    lines = [line.strip() for line in logs.text(log).splitlines() if line.strip()]
    return lines[-1][-300:] if lines else ""


def logs_with_own_kernels(folder, item):
    """Names of the item's logs in which cuBLASLt was wanted and not found."""
    found = []
    for name in sorted(os.listdir(folder)):
        if not name.startswith(f"{item.name}."):
            continue
        if OWN_KERNELS in logs.text(os.path.join(folder, name)):
            found.append(name)
    return found


def run_item(item, journal, folder, environment, began=None):
    """Runs the item to the end, and returns (status, data). `began` gets the ItemRun, so that a signal can stop it."""
    run = ItemRun(item, journal, os.path.join(folder, f"{item.name}.log"), environment)
    if began is not None:
        began(run)
    status = run.wait()
    unwanted = logs_with_own_kernels(folder, item) if status == "ok" else []
    if unwanted:
        status, run.data["reason"] = "fail", f"Somnus's own kernels made all products, since no cuBLASLt was found ({', '.join(unwanted)})"
    return status, run.data
