"""tools/deploy/slurm/somnus.sbatch under Slurm's real daemons, two nodes on this machine."""
import os
import signal
import unittest

from cluster.harness import BIN, ROOT, Cluster, expected, free_ports, slurm_daemons, tiny, wait_until

SBATCH = os.path.join(ROOT, "tools", "deploy", "slurm", "somnus.sbatch")
MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
SERVING_S = 60


class Job(Cluster):
    """A job that runs the script, one worker on each node. The client is Cluster's."""

    def __init__(self, slurm):
        self.slurm = slurm
        self.port, self.admin_port, self.grpc_port = free_ports(3)
        self.name = "test-model"
        self.output = os.path.join(slurm.folder, f"job-{self.port}.log")
        home = os.environ.get("SOMNUS_HOME", BIN)
        self.id = slurm.submit(SBATCH, tiny(MODEL), f"--served-model-name={self.name}", "--dtype=float32", "--no-async-scheduling",
                               f"--port={self.port}", f"--admin-port={self.admin_port}", f"--grpc-port={self.grpc_port}", "--control-port=0",
                               flags=("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--overcommit", f"--output={self.output}"),
                               environment={"SOMNUS_HOME": home, "SOMNUS_MIN_RUN_S": 0})

    def __exit__(self, *_):
        self.slurm.run("scancel", str(self.id), check=False)
        wait_until(lambda: not self.slurm.steps(), 60, lambda: f"the job is gone: {self.state()}")

    def log(self):
        with open(self.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def state(self):
        return self.slurm.job(self.id)

    def wait_serving(self):
        wait_until(lambda: self.health() == 200, SERVING_S, lambda: f"the job serves: {self.state()}\n{self.log()}\n{self.slurm.logs()}")

    def begin_now(self):
        """A job that was queued again starts after two minutes; this one after a few seconds. A node refuses a job in the
        second in which the node has ended it."""
        self.slurm.wait_for_state(self.id, "PENDING")
        wait_until(lambda: not self.slurm.steps(), 30, "all steps are over")
        self.slurm.run("scontrol", "update", f"JobId={self.id}", "StartTime=now+3")

    def tasks(self, program):
        """The pids of a program in the job, and the node that each runs on."""
        found = {}
        for pid in self.slurm.processes():
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == program:
                    found[pid] = self.slurm.node_of(pid)
            except OSError:
                pass  # the job has ended meanwhile
        return found

    def stream(self, action=lambda: None):
        """The text of a stream and its finish reasons; action() runs in the middle."""
        stream = self.open_stream(CASE["prompt"], max_tokens=450)
        events = stream.events()
        first = next(events)
        action()
        choices = [event["choices"][0] for event in [first, *events] if event.get("choices")]
        return "".join(choice["text"] for choice in choices), [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@unittest.skipIf(slurm_daemons.why_not(), slurm_daemons.why_not())
class SlurmJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.slurm = cls.enterClassContext(slurm_daemons.Slurm())

    def start(self):
        """A job that serves; gone once the test is over."""
        job = self.enterContext(Job(self.slurm))
        job.wait_serving()
        return job

    def test_serves_drains_before_its_time_limit_and_is_queued_again(self):
        job = self.start()
        port = 20000 + job.id % 10000
        self.assertIn(f"coordinator 127.0.0.1:{port} from SLURM_JOB_NODELIST, world size 2 from SOMNUS_WORLD_SIZE", job.log())
        for rank in (0, 1):
            self.assertRegex(job.log(), rf"{rank}: .*coordinator 127.0.0.1:{port} from SLURM_JOB_NODELIST, rank {rank} from SLURM_PROCID")
        self.assertEqual(sorted(job.tasks("worker").values()), sorted(slurm_daemons.NODES))
        # The GPUs, which Slurm only believes in, are the workers'.
        self.assertEqual([self.slurm.variable(pid, "CUDA_VISIBLE_DEVICES") for pid in job.tasks("worker")], ["0", "0"])
        self.assertEqual([self.slurm.variable(pid, "CUDA_VISIBLE_DEVICES") for pid in job.tasks("coordinator")], [""])
        self.assertEqual(job.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

        # The signal that Slurm itself sends two minutes before the end.
        undisturbed = job.stream()
        self.assertEqual(undisturbed[1], ["length"])
        self.assertEqual(job.stream(lambda: self.slurm.run("scancel", "--signal=USR1", "--batch", str(job.id))), undisturbed)
        job.begin_now()
        self.assertEqual(job.state()["Restarts"], "1")
        job.wait_serving()

        # scancel ends the job for good, and open requests end first.
        self.assertEqual(job.stream(lambda: self.slurm.run("scancel", str(job.id))), undisturbed)
        self.slurm.wait_for_state(job.id, "CANCELLED")
        wait_until(lambda: not job.tasks("worker") and not job.tasks("coordinator"), 30, "all have left")
        self.assertIn("the coordinator has ended with exit code 0", job.log())

    def test_a_job_that_loses_a_node_is_queued_again(self):
        job = self.start()
        self.slurm.kill_node(slurm_daemons.NODES[1])
        wait_until(lambda: job.state()["Restarts"] == "1", 90, lambda: f"queued again: {job.state()}\n{job.log()}")
        self.slurm.start_node(slurm_daemons.NODES[1])
        job.begin_now()
        job.wait_serving()
        self.assertEqual(job.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_a_worker_that_dies_is_replaced(self):
        job = self.start()
        victim, survivor = sorted(job.tasks("worker"), key=self.slurm.node_of, reverse=True)
        undisturbed = job.stream()
        self.assertEqual(job.stream(lambda: os.kill(victim, signal.SIGKILL)), undisturbed, job.log())
        self.assertEqual(job.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
        workers = job.tasks("worker")
        self.assertIn(survivor, workers)
        self.assertNotIn(victim, workers)
        self.assertEqual(sorted(workers.values()), sorted(slurm_daemons.NODES))
        self.assertEqual(job.state()["Restarts"], "0")
