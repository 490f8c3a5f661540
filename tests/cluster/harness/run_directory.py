"""A run directory, the servers that use the directory in turn, and the workers that these servers leave."""
import os
import shutil
import signal
import tempfile

from cluster.harness import Cluster, alive, wait_until

SOON_S = 120  # for work of a moment, on a machine that is busy with other suites, too


def pids(cluster):
    """By rank, of one replica."""
    return {rank["rank"]: rank["pid"] for rank in cluster.status()["ranks"]}


def status(cluster):
    """Also of a server that does not answer yet."""
    try:
        return cluster.status()
    except AssertionError:
        return {"state": ""}


def kill(cluster):
    cluster.process.kill()
    cluster.process.wait()


class RunDirectory:
    """A new run directory, and the clusters that used it; the end kills all processes that are left.

    Every server gets `flags` and `env` and serves `model`.
    """

    def __init__(self, model, *flags, workers=2, env=None):
        self.model, self.flags, self.num_workers, self.env = model, flags, workers, env
        self.parent = tempfile.mkdtemp(prefix="somnus_adoption_")
        self.path = os.path.join(self.parent, "run")
        self.clusters = []
        self.workers = set()

    def start(self, *flags, model=None, workers=None, wait=True):
        cluster = Cluster(model or self.model, f"--run-dir={self.path}", *self.flags, *flags,
                          workers=workers or self.num_workers, wait=False, env=self.env)
        self.clusters.append(cluster)
        if wait:
            cluster.wait_ready()
            self.workers.update(rank["pid"] for rank in cluster.status()["ranks"])
        return cluster

    def start_asleep(self, *flags):
        cluster = self.start(*flags, wait=False)
        wait_until(lambda: status(cluster)["state"] == "ENGINE_STATE_ASLEEP", SOON_S, cluster.log)
        return cluster

    def close(self):
        for cluster in self.clusters:
            cluster.__exit__()
        for pid in self.workers:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        # A worker that took the place of such a worker may still write during its end.
        wait_until(self._is_removed, SOON_S, f"{self.parent} can be removed")

    def _is_removed(self):
        shutil.rmtree(self.parent, ignore_errors=True)
        return not os.path.exists(self.parent)
