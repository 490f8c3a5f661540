"""Where level 1 keeps the weights, --backup, through the whole cluster."""
import os
import tempfile
import unittest

from cluster.harness import Cluster, expected, tiny

MODEL = "llama-uneven"
CASES = [case for case in expected(MODEL) if not case["ambiguous"]]


class Backup(unittest.TestCase):
    def sleep(self, cluster):
        """Sleeps at level 1; the weights' bytes over both ranks that a copy holds."""
        response = cluster.request("POST", "/sleep?level=1", port=cluster.admin_port)
        self.assertEqual(response.status, 200, response.text)
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
                self.assertEqual([cluster.tokens(case["prompt"], max_tokens=8) for case in CASES], tokens)
            self.assertEqual(cluster.stop(), 0)
        self.assertEqual(backups[0], backups[1])
        return backups[0], weights

    def test_in_host_memory(self):
        for policy in ("auto", "retain", "release"):
            with self.subTest(policy):
                backup, weights = self.round(f"--backup={policy}")
                self.assertEqual(backup, weights)

    def test_compressed(self):
        backup, weights = self.round("--backup=compress")
        self.assertLess(backup, weights * 3 // 4)
        self.assertGreater(backup, 0)

    def test_in_a_file_without_a_name(self):
        with tempfile.TemporaryDirectory() as folder:
            backup, weights = self.round("--backup=file", f"--spill-dir={folder}")
            self.assertEqual(backup, weights)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
