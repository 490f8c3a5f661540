"""Where level 1 keeps the weights, --backup, through the whole cluster."""
import os
import shutil
import tempfile
import unittest

from cluster.harness import SMOLLM2, Cluster, expected, grpc, stubs, tiny
from cluster.harness.other_weights import second_checkpoint, swapped_layers, tensors_of
from cluster.sleep_cycles_test import holdings

MODEL = "llama-uneven"
CASES = [case for case in expected(MODEL) if not case["ambiguous"]]


def setUpModule():
    stubs.generate("transition", "weights", "control")
    global pb, rpc, weights_pb
    from proto import control_pb2 as pb, control_pb2_grpc as rpc, weights_pb2 as weights_pb


class Backup(unittest.TestCase):
    def assert_the_engine_knows(self, cluster):
        """The bytes that the ranks hold, resident and on the host: the engine has these numbers from the ranks' transitions."""
        ranks = cluster.status()["ranks"]
        for metric, field in (("somnus:resident_bytes", "bytes_by_tag"), ("somnus:host_bytes", "host_bytes_by_tag")):
            for tag in ("weights", "kv_cache", "workspace"):
                self.assertEqual(cluster.metric(metric, tag=tag), sum(int(rank[field].get(tag, 0)) for rank in ranks), (metric, tag))

    def sleep(self, cluster):
        """Sleeps at level 1; the weights' bytes over both ranks that a copy holds."""
        response = cluster.request("POST", "/sleep?level=1", port=cluster.admin_port)
        self.assertEqual(response.status, 200, response.text)
        self.assert_the_engine_knows(cluster)
        ranks = cluster.status()["ranks"]
        self.assertEqual({int(rank["bytes_by_tag"].get(tag, 0)) for rank in ranks for tag in ("weights", "kv_cache")}, {0})
        return sum(rank["tags"]["weights"]["backed_up_bytes"] for rank in response.json["ranks"])

    def round(self, *flags):
        """Serves, sleeps and wakes twice; the bytes of the backups, and of the weights."""
        with Cluster(tiny(MODEL), "--dtype=bfloat16", *flags, workers=2) as cluster:
            tokens = [cluster.tokens(case["prompt"], max_tokens=8) for case in CASES]
            weights = sum(int(rank["bytes_by_tag"]["weights"]) for rank in cluster.status()["ranks"])
            backups = []
            for _ in range(2):
                backups.append(self.sleep(cluster))
                self.assertIn("mapped", cluster.cli("wake-up").stdout)
                self.assert_the_engine_knows(cluster)
                self.assertEqual([cluster.tokens(case["prompt"], max_tokens=8) for case in CASES], tokens)
            self.assertEqual(cluster.stop(), 0)
        self.assertEqual(backups[0], backups[1])
        return backups[0], weights

    def test_compressed(self):
        backup, weights = self.round("--backup=compress")
        self.assertLess(backup, weights * 3 // 4)
        self.assertGreater(backup, 0)


class CheckpointBackup(unittest.TestCase):
    """--backup=file without a --spill-dir: the checkpoint's own files are the backup."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = shutil.copytree(tiny(MODEL), os.path.join(folder.name, "private", "model"))
        self.file = os.path.join(self.model, "model.safetensors")

    def serve(self, model, *flags):
        cluster = Cluster(model, "--backup=file", "--kv-cache-memory-bytes=64MiB", *flags, workers=2)
        self.addCleanup(cluster.__exit__)
        return cluster

    def admin(self, cluster, target, status=200):
        response = cluster.request("POST", target, port=cluster.admin_port)
        self.assertEqual(response.status, status, response.text)
        return response.json

    def tokens(self, cluster):
        return [cluster.tokens(case["prompt"], max_tokens=8) for case in CASES]

    def sleep(self, cluster):
        """Sleeps at level 1. Of weights, over both ranks: the bytes that were freed, backed up, in host memory and in files."""
        weights = [rank["tags"]["weights"] for rank in self.admin(cluster, "/sleep?level=1")["ranks"]]
        return [sum(rank[name] for rank in weights) for name in ("freed_bytes", "backed_up_bytes", "host_bytes", "file_bytes")]

    def file_bytes(self, cluster):
        """The bytes of weights, over both ranks, as in the status."""
        return sum(int(rank["file_bytes_by_tag"]["weights"]) for rank in cluster.status()["ranks"])

    def touch(self):
        info = os.stat(self.file)
        os.utime(self.file, ns=(info.st_atime_ns, info.st_mtime_ns + 10 ** 9))

    def assert_lost(self, cluster):
        """No wake-up succeeds: the answer names the file without the folder, and everything stays unchanged."""
        for target in ("/wake_up", "/wake_up?tags=weights", "/wake_up?load_weights=false"):
            response = cluster.request("POST", target, port=cluster.admin_port)
            self.assertGreaterEqual(response.status, 400, response.text)
            self.assertIn("model.safetensors", response.json["error"]["message"])
            self.assertIn("level 2", response.json["error"]["message"])
            self.assertNotIn("private", response.text)
            status = cluster.status()
            self.assertEqual((status["state"], status["sleep_level"]), ("ENGINE_STATE_ASLEEP", 1))
            self.assertEqual({int(rank["bytes_by_tag"]["weights"]) for rank in status["ranks"]}, {0})

    def test_the_weights_take_no_memory_while_they_sleep(self):
        cluster = self.serve(SMOLLM2, "--wake-self-check")
        wanted = cluster.tokens("The capital of France is")
        for _ in range(2):
            weights = sum(int(rank["bytes_by_tag"]["weights"]) for rank in cluster.status()["ranks"])
            awake = sum(holdings(pid)["pss_kib"] for pid in cluster.worker_pids()) * 1024
            self.assertEqual(self.sleep(cluster), [weights, weights, 0, weights])
            self.assertEqual(self.file_bytes(cluster), weights)
            self.assertRegex(cluster.cli("status").stdout, r"(?m)^backups   0\.0 MiB of host memory, \S+ MiB of files$")
            asleep = sum(holdings(pid)["pss_kib"] for pid in cluster.worker_pids()) * 1024
            self.assertGreater(awake - asleep, 0.9 * weights)
            self.admin(cluster, "/wake_up")
            self.assertEqual(self.file_bytes(cluster), 0)
            self.assertEqual(cluster.tokens("The capital of France is"), wanted)
        self.assertEqual(cluster.stop(), 0)

    def test_another_checkpoint_in_its_place(self):
        other = swapped_layers(self.model, os.path.join(os.path.dirname(self.model), "other"))
        with Cluster(other, "--dtype=bfloat16", workers=2) as cluster:
            wanted = self.tokens(cluster)
        cluster = self.serve(self.model, "--dtype=bfloat16")
        self.assertNotEqual(self.tokens(cluster), wanted)
        self.sleep(cluster)
        os.replace(os.path.join(other, "model.safetensors"), self.file)
        self.assert_lost(cluster)
        self.admin(cluster, "/sleep?level=2")
        self.assertGreaterEqual(cluster.request("POST", "/wake_up", port=cluster.admin_port).status, 400)
        self.admin(cluster, "/wake_up?load_weights=false")
        cluster.cli("reload-weights")
        self.assertEqual(self.tokens(cluster), wanted)
        self.sleep(cluster)
        self.admin(cluster, "/wake_up")
        self.assertEqual(self.tokens(cluster), wanted)
        self.assertEqual(cluster.stop(), 0)

    def update(self, cluster, folder):
        """Sends the checkpoint's tensors."""
        def messages():
            yield pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin())
            for name, shape, data in tensors_of(folder):
                chunk = weights_pb.WeightChunk(name=name, dtype=weights_pb.WEIGHT_DTYPE_FLOAT32, shape=shape, data=data)
                yield pb.UpdateWeightsRequest(chunk=chunk)
            yield pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())

        with grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}") as channel:
            rpc.ControlServiceStub(channel).UpdateWeights(messages(), timeout=60)

    def test_weights_of_an_update_survive_the_sleep(self):
        other = second_checkpoint(type(self), self.model)
        with Cluster(other, "--dtype=bfloat16", workers=2) as cluster:
            wanted = self.tokens(cluster)
        cluster = self.serve(self.model, "--dtype=bfloat16")
        first = self.tokens(cluster)
        self.update(cluster, other)
        self.assertEqual(self.tokens(cluster), wanted)
        freed, backed_up, in_memory, in_files = self.sleep(cluster)
        self.assertEqual((backed_up, in_files), (in_memory, 0))
        self.assertEqual(backed_up, freed)
        self.touch()  # changed or lost files do not matter
        self.admin(cluster, "/wake_up")
        self.assertEqual(self.tokens(cluster), wanted)
        cluster.cli("reload-weights")
        self.assertEqual(self.tokens(cluster), first)
        freed, _, in_memory, in_files = self.sleep(cluster)
        self.assertEqual((in_memory, in_files), (0, freed))
        self.admin(cluster, "/wake_up")
        self.assertEqual(self.tokens(cluster), first)
        self.assertEqual(cluster.stop(), 0)
