"""Fair sharing among users, through the whole cluster: one floods the server, and another one's requests do not wait for it.
Only the order of completions is looked at, never a time."""
import collections
import threading
import unittest

from cluster.harness import Cluster, tiny, wait_until

FLOOD, LIGHT, SLOTS = 24, 3, 2
FIELDS = {"max_tokens": 300, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def prompt(number):
    return f"Write a line about the number {number}, and then"


def start(*flags):
    return Cluster(tiny("llama-uneven"), "--dtype=float32", *flags, workers=1)


def admin(cluster, path):
    response = cluster.request("POST", path, port=cluster.admin_port)
    assert response.status == 200, response.text


def wait_for_waiting(cluster, count):
    wait_until(lambda: cluster.status()["num_requests_waiting"] == count, 60,
               lambda: f"{count} requests wait: {cluster.status()['num_requests_waiting']} do")


class Round:
    """Requests of a user who floods, and behind them those of another one; all wait before the first one begins. Keeps the
    order in which they end."""

    def __init__(self, cluster, flood, light):
        self.order, self.tokens, self._lock, self._threads = [], {}, threading.Lock(), []
        self._cluster = cluster
        admin(cluster, "/pause")
        for number in range(FLOOD):
            self._begin("flood", number, *flood)
        wait_for_waiting(cluster, FLOOD)
        for number in range(FLOOD, FLOOD + LIGHT):
            self._begin("light", number, *light)
        wait_for_waiting(cluster, FLOOD + LIGHT)
        admin(cluster, "/resume")
        for thread in self._threads:
            thread.join()

    def _begin(self, user, number, fields, headers):
        def ask():
            body = {"model": self._cluster.name, "prompt": prompt(number), **FIELDS, **fields}
            response = self._cluster.request("POST", "/v1/completions", body, headers)
            with self._lock:
                self.order.append(user)
                self.tokens[number] = response.json["choices"][0]["token_ids"] if response.status == 200 else response.text
        self._threads.append(threading.Thread(target=ask))
        self._threads[-1].start()

    def flood_before_light(self):
        """How many requests of the flood ended before the last one of the others."""
        last = len(self.order) - 1 - self.order[::-1].index("light")
        return self.order[:last].count("flood")


class FairSharing(unittest.TestCase):
    def check(self, cluster, flood, light, most):
        round_ = Round(cluster, flood, light)
        self.assertLessEqual(round_.flood_before_light(), most)
        cluster.wait_idle()
        for number in range(FLOOD + LIGHT):
            self.assertEqual(round_.tokens[number], self.without.tokens[number], number)

    # As many of the flood as the light user has, what runs beside the last of these, and what ends so soon after it that the
    # two threads here see it the other way round.
    BOUND = LIGHT + SLOTS + 3

    @classmethod
    def setUpClass(cls):
        with start(f"--max-num-seqs={SLOTS}") as cluster:
            cls.without = Round(cluster, ({"user": "flood"}, {}), ({"user": "light"}, {}))

    def test_without_it_a_flood_comes_first(self):
        self.assertGreaterEqual(self.without.flood_before_light(), FLOOD - 3)

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
                status = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": prompt(number), "user": user,
                                                                     **FIELDS}).status
                with lock:
                    statuses.append((user, status))
            admin(cluster, "/pause")
            threads = [threading.Thread(target=ask, args=(number, "flood")) for number in range(12)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(statuses) == 8, 60, lambda: f"eight are refused: {statuses}")
            wait_for_waiting(cluster, 4)
            threads.append(threading.Thread(target=ask, args=(0, "light")))
            threads[-1].start()
            wait_for_waiting(cluster, 5)
            admin(cluster, "/resume")
            for thread in threads:
                thread.join()
            self.assertEqual(collections.Counter(statuses), {("flood", 200): 4, ("flood", 429): 8, ("light", 200): 1})
