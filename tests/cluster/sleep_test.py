"""Sleep and wake-up through the whole cluster, by the command line and over HTTP."""
import os
import tempfile
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until

MODEL = "llama-uneven"
CASES = [case for case in expected(MODEL) if not case["ambiguous"]]


def resident(status):
    """Resident bytes over all ranks, by tag."""
    total = {}
    for rank in status["ranks"]:
        for tag, count in rank["bytes_by_tag"].items():
            total[tag] = total.get(tag, 0) + int(count)
    return total


class Sleep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def tearDown(self):
        self.cluster.cli("wake-up", check=False)
        wait_until(lambda: self.cluster.health() == 200, 30, "awake again")

    def assert_tokens(self):
        for case in CASES:
            self.assertEqual(self.cluster.tokens(case["prompt"], ignore_eos=case["ignore_eos"]), case["tokens"], case["name"])

    def test_levels_free_memory_and_wake_to_the_same_tokens(self):
        for level in (1, 2, 1):
            with self.subTest(level=level):
                self.assert_tokens()
                awake = resident(self.cluster.status())
                self.assertGreater(awake["weights"], 0)
                self.assertGreater(awake["kv_cache"], 0)
                self.assertIn("freed", self.cluster.cli("sleep", "--level", str(level)).stdout)
                status = self.cluster.status()
                self.assertEqual((status["state"], status["sleep_level"]), ("ENGINE_STATE_ASLEEP", level))
                self.assertEqual({tag: count for tag, count in resident(status).items() if count}, {})
                self.assertEqual(self.cluster.health(), 503)
                self.assertIn("mapped", self.cluster.cli("wake-up").stdout)
                self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")
                self.assertEqual(resident(self.cluster.status()), awake)
                self.assert_tokens()

    def test_what_is_not_understood_is_refused_and_nothing_sleeps(self):
        response = self.cluster.request("POST", "/sleep", {"tags": ["brain"]}, port=self.cluster.admin_port)
        self.assertEqual((response.status, response.json["error"]["param"]), (400, "tags"))
        for wrong in (("--tagged", "kv_cache"), ("--level", "3")):
            done = self.cluster.cli("sleep", *wrong, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(wrong[0], done.stderr)
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")
        self.assertEqual(self.cluster.health(), 200)

    def test_asleep_is_live_but_not_ready(self):
        self.cluster.cli("sleep")
        for port in (self.cluster.port, self.cluster.admin_port):
            self.assertEqual(self.cluster.request("GET", "/livez", port=port).status, 200)
            ready = self.cluster.request("GET", "/readyz", port=port)
            self.assertEqual(ready.status, 503)
            self.assertRegex(ready.json["error"]["message"], r"^The engine is asleep at level 1 \(kv_cache, weights, workspace\); requests "
                             r"wait until it is woken\. Why: an operator has called sleep\. Since: .*Z\. Way out: somnus wake-up\.$")
        self.assertIn("asleep", self.cluster.status()["not_ready_reason"])
        self.cluster.cli("wake-up")
        self.assertEqual(self.cluster.request("GET", "/readyz").status, 200)
        self.assertEqual(self.cluster.status()["not_ready_reason"], "")



class Replies(unittest.TestCase):
    """The report of /sleep and /wake_up on every rank, beside the ranks' own status and the metrics."""

    TAGS = ("weights", "kv_cache", "workspace")
    BYTES = ("freed_bytes", "backed_up_bytes", "discarded_bytes", "mapped_bytes", "resident_bytes", "host_bytes", "file_bytes",
             "sleeping_bytes")
    PHASES = ("prepare", "commit", "copy", "map", "release", "read")

    def serve(self, *flags):
        self.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--kv-cache-memory-bytes=16MiB", *flags, workers=2)
        self.addCleanup(self.cluster.__exit__)
        self.awake = [{tag: int(rank["bytes_by_tag"][tag]) for tag in self.TAGS} for rank in self.cluster.status()["ranks"]]
        self.assertEqual([tag for rank in self.awake for tag in self.TAGS if rank[tag] == 0], [])

    def call(self, target):
        response = self.cluster.request("POST", target, port=self.cluster.admin_port)
        self.assertEqual(response.status, 200, response.text)
        reply = response.json
        self.assertEqual([(rank["replica"], rank["rank"]) for rank in reply["ranks"]], [(0, 0), (0, 1)])
        for rank in reply["ranks"]:
            self.assertEqual(set(rank["tags"]), set(self.TAGS))
            for tag in self.TAGS:
                self.assertEqual(set(rank["tags"][tag]), set(self.BYTES))
            seconds = rank["seconds"]
            self.assertEqual(set(seconds), set(self.PHASES))
            self.assertLessEqual(seconds["prepare"] + seconds["commit"], reply["seconds"])
            self.assertLessEqual(sum(seconds[part] for part in ("copy", "map", "release", "read")),
                                 2 * (seconds["prepare"] + seconds["commit"]), "they are parts, of which two may overlap")
        self.assert_the_others_say_so(reply)
        return reply

    def assert_the_others_say_so(self, reply):
        """The sums over the ranks are the totals of the reply, of the metrics and of the ranks' status."""
        def total(field):
            sums = {tag: sum(rank["tags"][tag][field] for rank in reply["ranks"]) for tag in self.TAGS}
            return {tag: count for tag, count in sums.items() if count}
        self.assertEqual(total("mapped_bytes" if "mapped_bytes" in reply else "freed_bytes"),
                         reply["mapped_bytes"] if "mapped_bytes" in reply else reply["freed_bytes"])
        status = self.cluster.status()["ranks"]
        for field, metric, by_tag in (("resident_bytes", "somnus:resident_bytes", "bytes_by_tag"),
                                      ("host_bytes", "somnus:host_bytes", "host_bytes_by_tag"),
                                      ("file_bytes", None, "file_bytes_by_tag")):
            for tag in self.TAGS:
                if metric is not None:
                    self.assertEqual(self.cluster.metric(metric, tag=tag), total(field).get(tag, 0), (metric, tag))
                self.assertEqual([int(rank[by_tag].get(tag, 0)) for rank in status],
                                 [rank["tags"][tag][field] for rank in reply["ranks"]], (by_tag, tag))

    def assert_tags(self, reply, **expected):
        """`expected`, by tag: the bytes that are not 0, as a function of the bytes that the tag has while the engine is awake."""
        for rank, awake in zip(reply["ranks"], self.awake):
            for tag in self.TAGS:
                found = {field: count for field, count in rank["tags"][tag].items() if count}
                wanted = {field: count for field, count in expected[tag](awake[tag]).items() if count}
                self.assertEqual(found, wanted, (rank["rank"], tag))

    @staticmethod
    def discarded(count):
        return {"freed_bytes": count, "discarded_bytes": count, "sleeping_bytes": count}

    @staticmethod
    def kept_by_the_host(count):
        return {"freed_bytes": count, "sleeping_bytes": count, "backed_up_bytes": count, "host_bytes": count}

    @staticmethod
    def woken(count):
        return {"mapped_bytes": count, "resident_bytes": count}

    @staticmethod
    def slept_before(count):
        return {"sleeping_bytes": count}

    @staticmethod
    def stayed(count):
        return {"resident_bytes": count}

    def assert_woken(self, reply, reads=False, held=lambda count: {}):
        """`held`: a function from the weights' bytes to the bytes that a backup still has."""
        self.assert_tags(reply, weights=lambda count: {**self.woken(count), **held(count)}, kv_cache=self.woken, workspace=self.woken)
        for rank in reply["ranks"]:
            self.assertGreater(rank["seconds"]["map"], 0)
            self.assertEqual(rank["seconds"]["release"], 0)
            self.assertEqual(rank["seconds"]["read"] > 0, reads, "a checkpoint is read where the weights were discarded")
        self.assertEqual({(state["state"], state["changed"]) for state in reply["tag_states"].values()}, {("resident", True)})

    def assert_levels(self, backup):
        """A round of each level. `backup`: a function from the weights' bytes to the bytes in host memory and in files."""
        def kept(count):
            held = backup(count)
            return {"freed_bytes": count, "sleeping_bytes": count, "backed_up_bytes": sum(held.values()), **held}

        reply = self.call("/sleep?level=1")
        self.assert_tags(reply, weights=kept, kv_cache=self.discarded, workspace=self.discarded)
        for rank in reply["ranks"]:
            self.assertEqual((rank["seconds"]["map"], rank["seconds"]["read"]), (0, 0))
            self.assertGreater(rank["seconds"]["release"], 0)
        self.assertEqual({tag: state["state"] for tag, state in reply["tag_states"].items()},
                         {"weights": "backed_up", "kv_cache": "discarded", "workspace": "discarded"})
        # Deeper: the backup is given up, and nothing is freed any more.
        reply = self.call("/sleep?level=2")
        self.assert_tags(reply, weights=lambda count: {"discarded_bytes": count, "sleeping_bytes": count},
                         kv_cache=self.slept_before, workspace=self.slept_before)
        self.assertEqual({tag: (state["state"], state["changed"]) for tag, state in reply["tag_states"].items()},
                         {"weights": ("discarded", True), "kv_cache": ("discarded", False), "workspace": ("discarded", False)})
        self.assert_woken(self.call("/wake_up"), reads=True)
        reply = self.call("/sleep?level=2")
        self.assert_tags(reply, weights=self.discarded, kv_cache=self.discarded, workspace=self.discarded)
        self.assert_woken(self.call("/wake_up"), reads=True)

    def test_weights_that_keep_their_pages(self):
        self.serve("--backup=release")
        self.assert_levels(lambda count: {"host_bytes": count})
        self.call("/sleep?level=1")
        self.assert_woken(self.call("/wake_up"))
        self.assert_tokens()

    def test_weights_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.serve("--backup=file", f"--spill-dir={folder}")
            self.assert_levels(lambda count: {"file_bytes": count})
            self.call("/sleep?level=1")
            self.assert_woken(self.call("/wake_up"), held=lambda count: {"file_bytes": count})
            self.assertEqual(os.listdir(folder), [], "the file has no name")
            self.assert_tokens()

    def test_weights_in_the_checkpoint(self):
        self.serve("--backup=file")
        self.assert_levels(lambda count: {"file_bytes": count})
        self.call("/sleep?level=1")
        self.assert_woken(self.call("/wake_up"), reads=True)
        self.assert_tokens()

    def test_a_backup_that_stays(self):
        self.serve("--backup=retain")

        for _ in range(2):
            reply = self.call("/sleep?level=1")
            self.assert_tags(reply, weights=self.kept_by_the_host, kv_cache=self.discarded, workspace=self.discarded)
            reply = self.call("/wake_up")
            self.assert_woken(reply, held=lambda count: {"host_bytes": count})
            self.assertEqual([rank["seconds"]["copy"] > 0 for rank in reply["ranks"]], [True, True])
        reply = self.call("/sleep?level=2")
        self.assert_tags(reply, weights=self.discarded, kv_cache=self.discarded, workspace=self.discarded)
        self.assert_woken(self.call("/wake_up"), reads=True)
        self.assert_tokens()

    def test_one_tag_at_a_time(self):
        self.serve("--backup=release")
        reply = self.call("/sleep?level=2&tags=kv_cache")
        self.assert_tags(reply, weights=self.stayed, kv_cache=self.discarded, workspace=self.stayed)
        reply = self.call("/sleep?level=1&tags=weights")
        self.assert_tags(reply, weights=self.kept_by_the_host, kv_cache=self.slept_before, workspace=self.discarded)
        reply = self.call("/wake_up?tags=weights")
        self.assert_tags(reply, weights=self.woken, kv_cache=self.slept_before, workspace=self.slept_before)
        reply = self.call("/wake_up?tags=kv_cache")
        self.assert_tags(reply, weights=self.stayed, kv_cache=self.woken, workspace=self.woken)
        self.assert_tokens()

    def assert_tokens(self):
        for case in CASES:
            self.assertEqual(self.cluster.tokens(case["prompt"], ignore_eos=case["ignore_eos"]), case["tokens"], case["name"])
        self.assertEqual(self.cluster.stop(), 0)
