"""--wake-self-check with real processes: weights that a wake-up brings back damaged are never served."""
import re
import threading
import unittest

from cluster.harness import expected
from cluster.poison_test import FaultyCluster

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
WAIT_S = 60


class SelfCheck(unittest.TestCase):
    def start(self, *flags):
        # Level 1 copies, so that there is something to damage.
        self.faulty = FaultyCluster("", "--kv-cache-memory-bytes=16MiB", "--backup=retain", "--wake-self-check", *flags)
        self.addCleanup(self.faulty.__exit__)
        self.cluster = self.faulty.cluster

    def post(self, target):
        return self.cluster.request("POST", target, port=self.cluster.admin_port, timeout=WAIT_S)

    def checks(self):
        """How many self-checks have ended how."""
        series = re.findall(r'(?m)^somnus:self_checks_total\{[^}]*result="([a-z]+)"[^}]*\} ([0-9]+)', self.cluster.request("GET", "/metrics").text)
        return {result: int(count) for result, count in series}

    def ask(self):
        return self.cluster.tokens(CASE["prompt"], max_tokens=8)

    def test_a_damaged_copy_is_given_up(self):
        self.start()
        tokens = self.ask()
        for level in (1, 2):
            self.assertEqual(self.post(f"/sleep?level={level}").status, 200)
            self.assertEqual(self.post("/wake_up").status, 200)
            self.assertEqual(self.ask(), tokens)
        for rank in range(2):
            self.assertEqual(self.post("/sleep?level=1").status, 200)
            line = self.faulty.faults.set_moment("restored", f"damage@{rank}")
            answers = []
            asking = threading.Thread(target=lambda: answers.append(self.ask()))
            asking.start()
            refused = self.post("/wake_up")
            self.assertEqual(self.faulty.faults.strikes(line), 1)
            self.assertEqual(refused.status, 500, refused.text)
            self.assertIn("version 1 of the weights", refused.text)
            now = self.cluster.status()
            self.assertEqual((now["state"], now["sleep_level"]), ("ENGINE_STATE_ASLEEP", 2))
            for each in now["ranks"]:
                self.assertEqual((each["state"], {tag: count for tag, count in each["bytes_by_tag"].items() if int(count)}), ("asleep", {}))
            self.assertEqual(answers, [], "the request waits")
            self.assertEqual(self.post("/wake_up").status, 200)
            asking.join(WAIT_S)
            self.assertEqual(answers, [tokens])
        self.assertEqual(self.checks(), {"taken": 1, "same": 4, "refused": 2})

    def test_requests_that_wake_it_get_their_answers(self):
        self.start("--sleep-arrivals=wake")
        tokens = self.ask()
        self.assertEqual(self.post("/sleep?level=1").status, 200)
        line = self.faulty.faults.set_moment("restored", "damage@1")
        self.assertEqual(self.ask(), tokens)
        self.assertEqual(self.faulty.faults.strikes(line), 1)
        self.assertEqual(self.checks(), {"taken": 1, "refused": 1, "same": 1})
