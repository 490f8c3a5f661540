"""Fair sharing among users, through the whole cluster: one user floods the server, and requests of a second user do not wait
for the flood. Only the order in which the server begins requests is looked at, never a time."""
import collections
import threading
import unittest

from cluster.harness import Cluster, tiny, wait_until
from cluster.harness.together import prompt
from cluster.trace_test import trace

FLOOD, LIGHT, SLOTS = 24, 3, 2
FIELDS = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
LENGTHS = {"flood": 20, "light": 33}  # of prompts, by which a step shows the user
BEGUN = {flood * LENGTHS["flood"] + light * LENGTHS["light"]: (flood, light) for flood in range(SLOTS + 1) for light in range(SLOTS + 1)}


def start(*flags):
    return Cluster(tiny("llama-uneven"), "--dtype=float32", "--no-enable-prefix-caching", *flags, workers=1)


class Round:
    """Requests of a user who floods, and behind these the requests of a second user; all wait before the first begins."""

    def __init__(self, cluster, flood, light):
        self.tokens, self._threads, self._cluster = {}, [], cluster
        steps_before = len(trace(cluster)[0])
        cluster.admin("/pause")
        for number in range(FLOOD):
            self._begin("flood", number, *flood)
        cluster.wait_waiting(FLOOD)
        for number in range(FLOOD, FLOOD + LIGHT):
            self._begin("light", number, *light)
        cluster.wait_waiting(FLOOD + LIGHT)
        cluster.admin("/resume")
        for thread in self._threads:
            thread.join()
        self._steps = trace(cluster)[0][steps_before:]

    def _begin(self, user, number, fields, headers):
        def ask():
            body = {"model": self._cluster.name, "prompt": prompt(number, LENGTHS[user]), **FIELDS, **fields}
            response = self._cluster.request("POST", "/v1/completions", body, headers)
            self.tokens[number] = response.json["choices"][0]["token_ids"] if response.status == 200 else response.text
        self._threads.append(threading.Thread(target=ask))
        self._threads[-1].start()

    def flood_before_light(self):
        """How many requests of the flood began before the last request of the light user, or in the same step."""
        flood = light = 0
        for step in sorted(self._steps, key=lambda step: step["ts"]):
            begun = BEGUN[step["args"]["tokens"] - step["args"]["decodes"]]
            flood, light = flood + begun[0], light + begun[1]
            if light == LIGHT:
                return flood
        raise AssertionError(f"{flood} of the flood and {light} of the others began")


class FairSharing(unittest.TestCase):
    def check(self, cluster, flood, light, most):
        round_ = Round(cluster, flood, light)
        self.assertLessEqual(round_.flood_before_light(), most)
        cluster.wait_idle()
        for number in range(FLOOD + LIGHT):
            self.assertEqual(round_.tokens[number], self.without.tokens[number], number)

    # As many requests of the flood as the light user has, and the requests that begin beside the last.
    BOUND = LIGHT + SLOTS

    @classmethod
    def setUpClass(cls):
        with start(f"--max-num-seqs={SLOTS}") as cluster:
            cls.without = Round(cluster, ({"user": "flood"}, {}), ({"user": "light"}, {}))

    def test_without_it_a_flood_comes_first(self):
        self.assertEqual(self.without.flood_before_light(), FLOOD)

    def test_users_by_the_field_or_by_their_key(self):
        with start("--fairness=user", f"--max-num-seqs={SLOTS}") as cluster:
            for flood, light in (({"user": "flood"}, {}), ({"user": "light"}, {})), (({}, {"Authorization": "Bearer one"}),
                                                                                    ({}, {"Authorization": "Bearer two"})):
                with self.subTest(light=light):
                    self.check(cluster, flood, light, self.BOUND)
            labels = cluster.request("GET", "/metrics").text
            self.assertNotIn("flood", labels, "users are no labels")

    def test_over_replicas(self):
        with start("--fairness=user", "--max-num-seqs=1", "--data-parallel-size=2") as cluster:
            self.check(cluster, ({"user": "flood"}, {}), ({"user": "light"}, {}), self.BOUND)

    def test_a_flood_leaves_room_in_the_queue(self):
        with start("--fairness=user", "--max-num-seqs=1", "--max-num-waiting=8") as cluster:
            statuses, lock = [], threading.Lock()

            def ask(number, user):
                status = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": prompt(number, 20), "user": user,
                                                                     **FIELDS}).status
                with lock:
                    statuses.append((user, status))
            cluster.admin("/pause")
            threads = [threading.Thread(target=ask, args=(number, "flood")) for number in range(12)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(statuses) == 8, 60, lambda: f"eight are refused: {statuses}")
            cluster.wait_waiting(4)
            threads.append(threading.Thread(target=ask, args=(0, "light")))
            threads[-1].start()
            cluster.wait_waiting(5)
            cluster.admin("/resume")
            for thread in threads:
                thread.join()
            self.assertEqual(collections.Counter(statuses), {("flood", 200): 4, ("flood", 429): 8, ("light", 200): 1})
