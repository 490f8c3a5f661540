"""Slurm's real daemons on this machine: munged, slurmctld, and one slurmd per node, for a test to use and to end.

The nodes are called 127.0.0.1 and 127.0.0.2, names that are addresses of this machine. The daemons listen on new ports and live
in one folder, and every process is found again by SLURM_CONF in the environment. Needs root and Debian's packages slurmctld,
slurmd, slurm-client and munge (tools/setup.sh tests).
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile

from cluster.harness import alive, free_ports, wait_until

NODES = ("127.0.0.1", "127.0.0.2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
START_S = 20

CONF = """ClusterName=somnus-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
GresTypes=gpu
ReturnToService=2
KillWait=5
SlurmdTimeout=3
MessageTimeout=3
TCPTimeout=1
"""


def why_not():
    """Why Slurm cannot run here; None where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)}); as root, tools/setup.sh tests installs it"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    try:
        socket.gethostbyname(short_host_name())
    except OSError:
        return "this machine's own name does not resolve, which Slurm's daemons need"
    return None


def short_host_name():
    return socket.gethostname().split(".")[0]


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


class Slurm:
    """A cluster of two nodes. Use as a context manager; leaving the context ends every process of the cluster."""

    def __init__(self):
        # munged wants every folder above the socket to be closed to other users, and jobs must reach the rest.
        self.folder = tempfile.mkdtemp(prefix="somnus_slurm_")
        os.chmod(self.folder, 0o755)
        self.conf = os.path.join(self.folder, "slurm.conf")
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith("SLURM")},
                            "SLURM_CONF": self.conf}
        self.daemons = {}

    def __enter__(self):
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
                        f"--socket={self.folder}/munge/socket", f"--pid-file={self.folder}/munged.pid",
                        f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munge.seed")
            wait_until(lambda: os.path.exists(f"{self.folder}/munge/socket"), START_S, "munged listens")
            self._start("slurmctld", "-D", "-c")
            for node in NODES:
                self.start_node(node)
            wait_until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == str(len(NODES)), START_S,
                       lambda: f"{len(NODES)} idle nodes: {self.run('sinfo', check=False)}\n{self.logs()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for _ in range(100):  # a daemon that is ending may start one more process
            found = self.processes()
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for daemon in self.daemons.values():
                daemon.poll()
            if not found:
                break
        for daemon in self.daemons.values():
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _configure(self):
        ports = free_ports(1 + len(NODES))
        for name in ["munge", "state", *(f"spool-{node}" for node in NODES)]:
            os.mkdir(os.path.join(self.folder, name), 0o755)
        with open(os.open(f"{self.folder}/munge.key", os.O_WRONLY | os.O_CREAT, 0o400), "wb") as key:
            key.write(os.urandom(128))
        host, cpus = short_host_name(), os.cpu_count()
        lines = [CONF.format(folder=self.folder, host=host, port=ports[0])]
        for node, port in zip(NODES, ports[1:]):
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 "
                         "Gres=gpu:1 State=UNKNOWN\n")
        with open(os.path.join(self.folder, "gres.conf"), "w", encoding="ascii") as file:
            # Slurm hands the devices out and opens none.
            file.writelines(f"NodeName={node} Name=gpu File={device}\n" for node, device in zip(NODES, ("/dev/null", "/dev/zero")))
        lines.append(f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n")
        with open(self.conf, "w", encoding="ascii") as file:
            file.writelines(lines)

    def _start(self, program, *flags, name=None):
        with open(os.path.join(self.folder, f"{name or program}.out"), "ab") as out:
            self.daemons[name or program] = subprocess.Popen([program, *flags], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                             env=self.environment, start_new_session=True, cwd=self.folder)

    def start_node(self, node):
        self._start("slurmd", "-D", "-c", "-N", node, name=node)

    def kill_node(self, node):
        """Ends the node's daemon, steps and tasks as a power cut does."""
        tasks = [pid for pid in self.processes() if self.node_of(pid) == node]
        steps = {parent_of(pid) for pid in tasks} & set(self.steps())
        self.daemons[node].kill()
        self.daemons[node].wait()
        for pid in [*steps, *tasks]:
            os.kill(pid, signal.SIGKILL)

    def variable(self, pid, name):
        """A variable of a process's environment; empty where the variable is not set or the process has ended."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
        except OSError:
            return ""
        return variables.get(name.encode(), b"").decode()

    def node_of(self, pid):
        """The node that a task runs on; empty for any other process."""
        return self.variable(pid, "SLURMD_NODENAME")

    def processes(self):
        """All live processes of this cluster: daemons, steps and tasks."""
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0") and alive(int(name)):
                        found.append(int(name))
            except OSError:
                pass  # the process has ended meanwhile
        return found

    def steps(self):
        """The processes that watch over a job's steps, the batch script among them, until the step is over."""
        found = []
        for pid in self.processes():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if file.read().startswith(b"slurmstepd"):
                        found.append(pid)
            except OSError:
                pass  # the process has ended meanwhile
        return found

    def run(self, *command, check=True):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.environment, cwd=self.folder,
                              stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
        return done.stdout

    def submit(self, script, *args, flags=(), environment=None):
        """The id of the new job."""
        exports = "".join(f",{name}={value}" for name, value in (environment or {}).items())
        return int(self.run("sbatch", "--parsable", f"--export=ALL{exports}", *flags, script, *args))

    def job(self, job):
        """The fields of a job that scontrol tells, by name: JobState, Reason, Restarts, ExitCode, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", str(job))))

    def wait_for_state(self, job, *states, timeout=60):
        wait_until(lambda: self.job(job)["JobState"] in states, timeout,
                   lambda: f"job {job} is {' or '.join(states)}: {self.job(job)}\n{self.logs()}")

    def logs(self):
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                    texts.append(f"== {name}\n{file.read()[-4000:]}")
        return "\n".join(texts)
