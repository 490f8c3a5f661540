"""Faults of workers at chosen moments of a served cluster, and the checks after each fault."""
import dataclasses
import os
import re
import signal
import threading
import time

from cluster.harness import alive, children, wait_until
from cluster.harness.streams import Round

# Signals to a worker. The kernel's killer of processes sends SIGKILL, too.
FAULTS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "exit": signal.SIGTERM, "abort": signal.SIGABRT}
HEAL_S = 120
LIFECYCLE_S = 60
# Descriptors that come and go: connections of the clients, calls to workers.
FILES_SLACK = 6


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def session_of(pid):
    """The session of a running process; 0 for an ended process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return 0 if fields[0] in "ZX" else int(fields[3])
    except OSError:
        return 0


def processes_of_session(session):
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and session_of(int(name)) == session}


def shared_files():
    return {name for name in os.listdir("/dev/shm") if name.startswith("somnus")}


@dataclasses.dataclass
class Fault:
    kind: str
    rank: int
    pid: int
    time: float  # monotonic, when the signal was sent
    named_s: float = None  # of a hang: from then until the log has named rank and process

    def __str__(self):
        return f"{self.kind} of rank {self.rank} (pid {self.pid})"


class Chaos:
    """Strikes the workers of one cluster while it serves the same requests again and again."""

    def __init__(self, cluster, requests, rng):
        self.cluster, self.requests, self.rng = cluster, requests, rng
        self.faults = []  # of the moment under way
        self.shared_before = shared_files()
        self.socket_directory = self._socket_directory()
        # The answers of the undisturbed server, and how long prompts and the operators' calls take.
        calm = Round(cluster, requests)
        self.expected = calm.answers()
        self.num_tokens = len(calm.token_times)
        self.prefill_s = sorted(calm.token_times)[len(requests) // 2] - calm.started
        self.sleep_s = self._timed("/sleep?level=1")
        self.wake_s = self._timed("/wake_up")
        cluster.wait_idle()
        self.files = open_files(cluster.process.pid)

    def _socket_directory(self):
        """The folder of the cluster's Unix sockets, from a worker's command line."""
        with open(f"/proc/{self.cluster.worker_pids()[0]}/cmdline", encoding="utf-8") as file:
            return os.path.dirname(re.search(r"--coordinator=unix:([^\0]+)", file.read()).group(1))

    def _timed(self, target):
        start = time.monotonic()
        self.call(target)
        return time.monotonic() - start

    def call(self, target):
        """Makes one call of the operators' API; returns the status. A fault may end it with an error."""
        return self.cluster.request("POST", target, port=self.cluster.admin_port, timeout=HEAL_S).status

    def start_call(self, target):
        thread = threading.Thread(target=self.call, args=(target,), daemon=True)
        thread.start()
        return thread

    def pid_of(self, rank):
        """0 while nobody has the rank."""
        return self.cluster.status()["ranks"][rank]["pid"]

    def strike(self, kind, rank, pid=None):
        fault = Fault(kind, rank, pid or self.pid_of(rank), 0.0)
        if fault.pid <= 0:
            raise AssertionError(f"nobody has rank {rank}")  # a signal to process 0 would go to everybody
        fault.time = time.monotonic()
        os.kill(fault.pid, FAULTS[kind])
        self.faults.append(fault)
        if kind == "hang":
            threading.Thread(target=self._watch_log, args=(fault,), daemon=True).start()
        return fault

    def _watch_log(self, fault):
        """Sets fault.named_s as soon as the log names the process, which nothing has done before."""
        words = re.compile(rf"rank {fault.rank} \([^)]*\bpid {fault.pid}\)")
        try:
            wait_until(lambda: words.search(self.cluster.log()), HEAL_S, "the log names it", poll=0.02)
            fault.named_s = time.monotonic() - fault.time
        except (AssertionError, OSError):
            pass  # no member was named, or the cluster has ended

    # The moments. Each gets the round under way, and strikes once or twice.

    def at_prefill(self, _, kind, rank):
        pid = self.pid_of(rank)
        time.sleep(self.rng.uniform(0, self.prefill_s))
        self.strike(kind, rank, pid)

    def at_decode(self, round_, kind, rank):
        pid = self.pid_of(rank)
        self.wait_for_tokens(round_, 0.8)
        self.strike(kind, rank, pid)

    def at_falling_asleep(self, round_, kind, rank):
        pid = self.pid_of(rank)
        self.wait_for_tokens(round_, 0.5)
        call = self.start_call(f"/sleep?level={self.rng.choice((1, 2))}")
        time.sleep(self.rng.uniform(0, self.sleep_s))
        self.strike(kind, rank, pid)
        call.join(LIFECYCLE_S)

    def at_asleep(self, round_, kind, rank, level=None):
        level = level or self.rng.choice((1, 2))
        pid = self.pid_of(rank)
        self.wait_for_tokens(round_, 0.5)
        if self.call(f"/sleep?level={level}") != 200:
            raise AssertionError("the engine could not be put to sleep")
        epoch = self.epoch()
        self.strike(kind, rank, pid)
        wait_until(lambda: self.epoch() > epoch and self.state() == "ASLEEP", HEAL_S, "asleep again in a later epoch")
        self.check_asleep(level)

    def at_waking(self, round_, kind, rank):
        pid = self.pid_of(rank)
        self.wait_for_tokens(round_, 0.5)
        if self.call(f"/sleep?level={self.rng.choice((1, 2))}") != 200:
            raise AssertionError("the engine could not be put to sleep")
        call = self.start_call("/wake_up")
        time.sleep(self.rng.uniform(0, self.wake_s))
        self.strike(kind, rank, pid)
        call.join(LIFECYCLE_S)

    def at_load(self, round_, kind, rank):
        """The newcomer, too, is struck: at its start, load or join."""
        known = set(children(self.cluster.process.pid))
        self.at_decode(round_, "kill", rank)
        newcomer = wait_until(lambda: set(self.cluster.worker_pids()) - known, HEAL_S, "a newcomer").pop()
        time.sleep(self.rng.uniform(0, 0.6))
        if alive(newcomer):
            self.strike(kind, rank, newcomer)

    def at_recovery(self, round_, kind, rank):
        """Another rank is struck during the replacement of the first."""
        status = self.cluster.status()["ranks"]
        other = (rank + self.rng.randrange(1, len(status))) % len(status) if len(status) > 1 else rank
        self.at_decode(round_, "kill", rank)
        time.sleep(self.rng.uniform(0, 0.6))
        if alive(status[other]["pid"]):
            self.strike(kind, other, status[other]["pid"])

    def wait_for_tokens(self, round_, share):
        """Until a random number of tokens has come, up to this share of all tokens, or the round is over."""
        number = self.rng.randint(1, max(1, int(self.num_tokens * share)))
        wait_until(lambda: len(round_.token_times) >= number or round_.over(), HEAL_S, "tokens", poll=0.005)

    # The checks after a round.

    def run(self, moment, kind, rank, **arguments):
        """One round with one fault (`moment` is the name of a method); returns its seconds without a token, or None."""
        before = self.cluster.status()
        self.faults = []
        if moment == "prefill":
            self.call("/reset_prefix_cache")
        round_ = Round(self.cluster, self.requests)
        getattr(self, f"at_{moment}")(round_, kind, rank, **arguments)
        self.heal()
        round_.check(self.expected)
        self.check_status(before)
        self.check_metrics()
        self.check_leaks()
        awake_throughout = moment in ("prefill", "decode", "load", "recovery")
        return round_.stall_after(self.faults[-1].time) if awake_throughout and self.faults else None

    def state(self):
        return self.cluster.status()["state"].replace("ENGINE_STATE_", "")

    def epoch(self):
        return int(self.cluster.status()["epoch"])

    def heal(self):
        """Until the group is awake in an epoch in which no struck process takes part. Wakes a sleeping group."""
        def awake():
            status = self.cluster.status()
            if status["state"] == "ENGINE_STATE_ASLEEP":
                self.call("/wake_up")
                return False
            pids = {rank["pid"] for rank in status["ranks"]}
            return status["state"] == "ENGINE_STATE_AWAKE" and not pids & {fault.pid for fault in self.faults}
        wait_until(awake, HEAL_S, lambda: f"awake after {[str(fault) for fault in self.faults]}: {self.cluster.status()}")

    def check_asleep(self, level):
        status = self.cluster.status()
        resident = {tag: count for rank in status["ranks"] for tag, count in rank["bytes_by_tag"].items() if int(count)}
        if status["sleep_level"] != level or resident:
            raise AssertionError(f"level {status['sleep_level']} instead of {level}, resident {resident}")

    def check_status(self, before):
        status = self.cluster.status()
        problems = []
        if int(status["epoch"]) <= int(before["epoch"]):
            problems.append("the epoch has not grown")
        struck = {fault.pid for fault in self.faults}
        for old, rank in zip(before["ranks"], status["ranks"]):
            if not alive(rank["pid"]) or rank["state"] != "awake" or rank["error"]:
                problems.append(f"rank {rank['rank']} is {rank['state']}, error {rank['error']!r}")
            if old["pid"] not in struck and rank["pid"] != old["pid"]:
                problems.append(f"rank {rank['rank']} was replaced, though nothing had happened to it")
        if len({int(rank["weights_version"]) for rank in status["ranks"]} | {0}) != 2:
            problems.append("the ranks do not have one version of the weights")
        if problems:
            raise AssertionError(f"{problems}\n{[str(fault) for fault in self.faults]}\n{before}\n{status}")

    def check_metrics(self):
        status = self.cluster.status()
        wanted = {"somnus:group_epoch": int(status["epoch"]), "somnus:recoveries_total": int(status["num_recoveries"]),
                  "somnus:recovery_seconds_count": int(status["num_recoveries"])}
        found = {name: self.cluster.metric(name) for name in wanted}
        if found != wanted or not wanted["somnus:recoveries_total"]:
            raise AssertionError(f"metrics {found}, the status says {wanted}")

    def check_leaks(self):
        self.cluster.wait_idle()
        coordinator = self.cluster.process.pid
        workers = {rank["pid"] for rank in self.cluster.status()["ranks"]}
        wait_until(lambda: processes_of_session(coordinator) == {coordinator} | workers
                   and set(children(coordinator)) == workers, HEAL_S,
                   lambda: f"no process but {coordinator} and {workers}; there are {processes_of_session(coordinator)}, "
                           f"children {children(coordinator)}")
        stale = [name for name in os.listdir(self.socket_directory)
                 if name.startswith("worker-") and not any(str(pid) in name for pid in workers)]
        if stale or shared_files() - self.shared_before:
            raise AssertionError(f"files of workers that are gone: {stale}, {shared_files() - self.shared_before}")
        wait_until(lambda: open_files(coordinator) <= self.files + FILES_SLACK, HEAL_S,
                   lambda: f"{self.files} files open as at first; there are {open_files(coordinator)}")
