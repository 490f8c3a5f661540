"""Sleep and wake-up through the whole cluster, by the command line and over HTTP."""
import threading
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

    def test_open_request_goes_on_after_wake_up(self):
        prompt = CASES[0]["prompt"]
        expect = self.cluster.tokens(prompt, max_tokens=400, ignore_eos=True)
        for level in (1, 2):
            with self.subTest(level=level):
                stream = self.cluster.open_stream(prompt, max_tokens=400, return_token_ids=True)
                events = stream.events()
                tokens = list(next(events)["choices"][0]["token_ids"])
                # Over HTTP, since on a fast machine the stream might end before a command has started.
                slept = self.cluster.request("POST", f"/sleep?level={level}", port=self.cluster.admin_port)
                self.assertEqual(slept.status, 200)
                status = self.cluster.status()
                self.assertEqual(status["num_requests_running"] + status["num_requests_waiting"], 1, "it ended before the sleep")
                self.cluster.cli("wake-up")
                for event in events:
                    for choice in event["choices"]:
                        tokens += choice.get("token_ids") or []
                self.assertEqual(tokens, expect)

    def test_request_while_asleep_is_answered_after_wake_up(self):
        case = CASES[0]
        self.cluster.cli("sleep")
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.cluster.tokens(case["prompt"], ignore_eos=True)))
        asking.start()
        wait_until(lambda: self.cluster.status()["num_requests_waiting"] == 1, 30, "the request waits")
        self.assertEqual(answers, [])
        self.cluster.cli("wake-up")
        asking.join(60)
        self.assertEqual(answers, [case["tokens"]])

    def test_http_admin_routes(self):
        admin = self.cluster.admin_port
        self.assertEqual(self.cluster.request("GET", "/is_sleeping", port=admin).json, {"is_sleeping": False})
        self.assertEqual(self.cluster.request("POST", "/sleep?level=1", port=admin).status, 200)
        self.assertEqual(self.cluster.request("GET", "/is_sleeping", port=admin).json, {"is_sleeping": True})
        self.assertEqual(self.cluster.request("POST", "/wake_up", port=admin).status, 200)
        self.assert_tokens()

    def test_sleep_after_a_partial_wake_up_frees_what_is_resident(self):
        admin = self.cluster.admin_port
        awake = resident(self.cluster.status())
        self.assertEqual(self.cluster.request("POST", "/sleep?level=2", port=admin).json["freed_bytes"], awake)
        woken = self.cluster.request("POST", "/wake_up?tags=weights", port=admin).json
        self.assertEqual((woken["status"], woken["mapped_bytes"]), ("sleeping", {"weights": awake["weights"]}))
        again = self.cluster.request("POST", "/sleep?level=2", port=admin).json
        self.assertEqual((again["level"], again["freed_bytes"]), (2, {"weights": awake["weights"]}))
        self.assertEqual({tag: count for tag, count in resident(self.cluster.status()).items() if count}, {})
        self.assertEqual(self.cluster.request("POST", "/wake_up", port=admin).status, 200)
        self.assert_tokens()

    def test_what_is_not_understood_is_refused_and_nothing_sleeps(self):
        admin = self.cluster.admin_port
        for target, body, param in (("/sleep?tags=brain", None, "tags"), ("/sleep?level=1&deep=1", None, "deep"),
                                    ("/sleep", {"tags": ["brain"]}, "tags"), ("/wake_up?level=1", None, "level")):
            with self.subTest(target=target):
                response = self.cluster.request("POST", target, body, port=admin)
                self.assertEqual((response.status, response.json["error"]["param"]), (400, param))
        done = self.cluster.cli("sleep", "--tagged", "kv_cache", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--tagged", done.stderr)
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")
        self.assertEqual(self.cluster.health(), 200)

    def test_asleep_is_live_but_not_ready(self):
        self.cluster.cli("sleep")
        for port in (self.cluster.port, self.cluster.admin_port):
            self.assertEqual(self.cluster.request("GET", "/livez", port=port).status, 200)
            ready = self.cluster.request("GET", "/readyz", port=port)
            self.assertEqual((ready.status, ready.json["error"]["message"]),
                             (503, "The engine is asleep; requests wait until it is woken."))
        self.assertIn("asleep", self.cluster.status()["not_ready_reason"])
        self.cluster.cli("wake-up")
        self.assertEqual(self.cluster.request("GET", "/readyz").status, 200)
        self.assertEqual(self.cluster.status()["not_ready_reason"], "")

    def test_bad_level_is_refused_and_nothing_sleeps(self):
        done = self.cluster.cli("sleep", "--level", "3", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(self.cluster.request("POST", "/sleep?level=7", port=self.cluster.admin_port).status, 400)
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")

    def test_operators_routes_are_not_on_the_public_port(self):
        self.assertEqual(self.cluster.request("POST", "/sleep?level=1").status, 404)


if __name__ == "__main__":
    unittest.main()
