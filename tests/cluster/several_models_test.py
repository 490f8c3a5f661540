"""Several models on one device, through the whole cluster: a request wakes the named model, answers stay exact, and the memory
of two models is never resident where there is memory for one model."""
import concurrent.futures
import functools
import json
import tempfile
import threading
import unittest

from cluster.harness import Cluster, alive, expected, tiny, wait_until
from cluster.harness.other_weights import second_checkpoint
from cluster.poison_test import FaultyCluster

MODELS = {"test-model": "llama-uneven", "qwen": "qwen3", "rope": "llama-rope3"}
CASES = {name: next(case for case in expected(model) if not case["ambiguous"]) for name, model in MODELS.items()}
# A model has a KV cache, and about a megabyte for weights and workspace, by two workers. A single model fits.
KV_BYTES = 32 << 20
# Caches of a fixed size; elastic_kv_test.py has elastic caches.
FLAGS = ("--dtype=float32", f"--kv-cache-memory-bytes={KV_BYTES}", "--workers=local:1", "--max-model-len=512",
         "--no-elastic-kv-cache")

COUNTERS = ("vllm:iteration_tokens_total_sum", "vllm:num_preemptions_total", "somnus:kv_tokens_kept_total",
            "somnus:kv_blocks_kept_total")
# The target makes turns as short as turns get, a tenth of a second: less than a long answer takes.
TURNS = ("--residency-policy=slo", "--model-tpot-target=20ms")
# So that a model has more to do than fits into a turn, and every computed token is counted once.
ONE_BY_ONE = ("--max-num-seqs=1", "--no-enable-prefix-caching")


def start(*flags):
    named = [f"--model={name}={tiny(model)}" for name, model in MODELS.items() if name != "test-model"]
    return Cluster(tiny(MODELS["test-model"]), *named, *FLAGS, *flags, workers=0)


@functools.lru_cache(maxsize=None)
def budget_for_one(*flags):
    """Memory for a single model, as measured where nothing bounds the models."""
    with start(*flags) as cluster:
        cards = cluster.request("GET", "/v1/models").json["data"]
        assert {card["state"] for card in cards} == {"awake"}, cards
        for name, case in CASES.items():
            assert cluster.tokens(case["prompt"], model=name, ignore_eos=case["ignore_eos"]) == case["tokens"], name
        most = max(cluster.metric("somnus:resident_bytes", model_name=name) for name in MODELS)
        assert cluster.stop() == 0
        return int(most * 1.5)


class SeveralModelsTest(unittest.TestCase):
    def setUp(self):
        self.cluster = None

    def serve(self, *flags):
        self.cluster = start(*flags)
        self.addCleanup(self.cluster.__exit__)

    def admin(self, target, method="POST"):
        return self.cluster.request(method, target, port=self.cluster.admin_port)

    def states(self):
        return {card["id"]: card["state"] for card in self.cluster.request("GET", "/v1/models").json["data"]}

    def resident(self, name):
        return self.cluster.metric("somnus:resident_bytes", model_name=name)

    def assert_exact(self, name):
        case = CASES[name]
        self.assertEqual(self.cluster.tokens(case["prompt"], model=name, ignore_eos=case["ignore_eos"]), case["tokens"], name)

    def test_a_request_wakes_the_model_that_it_names(self):
        budget = budget_for_one()
        self.serve(f"--device-memory-budget={budget}")
        for name in [*MODELS, *MODELS]:
            self.assert_exact(name)
            self.assertEqual(self.states()[name], "awake")
            self.assertLessEqual(sum(self.resident(one) for one in MODELS), budget)
        self.assertEqual(self.cluster.request("POST", "/v1/completions", {"model": "fourth", "prompt": "a"}).status, 404)
        self.assertEqual(self.cluster.health(), 200, "each would be woken")
        self.assertGreaterEqual(self.cluster.metric("somnus:model_switch_seconds_count", phase="total"), 5)
        self.assertEqual(self.cluster.stop(), 0)

    def total(self, metric, **labels):
        return self.cluster.metric(metric, **labels) or 0

    def answers_of_two_models(self, count):
        """`count` long answers of each of two models at once, which have to take turns. Every answer is the undisturbed
        answer; returns how many tokens there were to compute."""
        requests = [(name, [1 + number, 2, 3, 4]) for number in range(count) for name in ("test-model", "qwen")]
        wanted = [self.cluster.tokens(prompt, model=name, max_tokens=480, ignore_eos=True) for name, prompt in requests]
        self.assertEqual({len(tokens) for tokens in wanted}, {480})
        self.before = {metric: self.total(metric) for metric in COUNTERS}
        found = [None] * len(requests)

        def client(index):
            name, prompt = requests[index]
            found[index] = self.cluster.tokens(prompt, model=name, max_tokens=480, ignore_eos=True)
        threads = [threading.Thread(target=client, args=(index,)) for index in range(len(requests))]
        # The model that is awake has begun when the other model is asked for: then the turn is over, and preempted.
        for thread in threads[1::2]:
            thread.start()
        wait_until(lambda: self.total("vllm:num_requests_running", model_name="qwen") > 0
                   or not any(thread.is_alive() for thread in threads[1::2]), 30, "a running request")
        for thread in threads[::2]:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, wanted)
        # The last token of each is not computed.
        return sum(len(prompt) + 480 - 1 for _, prompt in requests)

    def grown(self, metric):
        return self.total(metric) - self.before[metric]

    def test_what_is_preempted_computes_nothing_again(self):
        self.serve(f"--device-memory-budget={budget_for_one(*ONE_BY_ONE)}", *TURNS, *ONE_BY_ONE)
        for count in (2, 4, 8, 16):  # more and more, until a turn ends in the middle of an answer
            tokens = self.answers_of_two_models(count)
            self.assertEqual(self.grown("vllm:iteration_tokens_total_sum"), tokens)
            self.assertEqual(self.grown("vllm:num_preemptions_total"), 0)
            if self.grown("somnus:kv_tokens_kept_total") > 0:
                break
        self.assertGreater(self.total("somnus:residency_decisions_total", action="preempt"), 0)
        self.assertGreater(self.grown("somnus:kv_tokens_kept_total"), 0)
        self.assertGreater(self.grown("somnus:kv_blocks_kept_total"), 0)
        self.assertEqual(self.total("somnus:kv_host_blocks_used"), 0, "it was given back")
        self.assertEqual(self.total("somnus:host_bytes", tag="kv_cache"), 0)
        self.assertEqual(self.cluster.stop(), 0)

    def test_the_next_model_is_prefetched_where_no_backup_has_room(self):
        self.serve(f"--device-memory-budget={budget_for_one(*ONE_BY_ONE)}", "--host-memory-budget=1",
                   *TURNS, *ONE_BY_ONE)
        self.answers_of_two_models(4)
        self.assertGreater(self.total("somnus:residency_decisions_total", action="prefetch"), 0)
        self.assertEqual(self.total("somnus:host_bytes"), 0)
        self.assertEqual(self.total("somnus:kv_blocks_kept_total"), 0)
        self.assertEqual(self.cluster.stop(), 0)

    def test_backups_stay_within_the_hosts_budget(self):
        budget = budget_for_one()
        # Three models of the same size, two with the same weights.
        other = second_checkpoint(type(self), tiny(MODELS["qwen"]))
        paths = {"test-model": tiny(MODELS["qwen"]), "swapped": other, "twin": tiny(MODELS["qwen"])}

        def serve(*flags):
            named = [f"--model={name}={path}" for name, path in paths.items() if name != "test-model"]
            self.cluster = Cluster(paths["test-model"], *named, *FLAGS, *flags, workers=0)
            self.addCleanup(self.cluster.__exit__)

        def answer(name):
            return self.cluster.tokens(CASES["qwen"]["prompt"], model=name, ignore_eos=True)
        serve()
        weights = {self.cluster.metric("somnus:resident_bytes", model_name=name, tag="weights") for name in paths}
        self.assertEqual(len(weights), 1, "their backups are of one size")
        wanted = {name: answer(name) for name in paths}
        self.assertNotEqual(wanted["swapped"], wanted["twin"])
        self.assertEqual(self.cluster.stop(), 0)
        size = weights.pop()
        room = int(1.5 * size)
        serve(f"--device-memory-budget={budget}", f"--host-memory-budget={room}")

        def levels():
            models = json.loads(self.cluster.cli("models", "--json").stdout)["models"]
            return {model["model"]: (model["state"], model["sleep_level"]) for model in models}
        last = holder = None  # of the backup
        most, over = [0], threading.Event()

        def watch():
            while not over.is_set():
                most[0] = max(most[0], self.total("somnus:host_bytes"))
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            # In turn each model is the model that was used longest ago, which has lost the backup; in the end the model
            # with the backup wakes, which gives no room before.
            for name in [*paths, *paths, *paths, "swapped", "twin", "swapped"]:
                self.assertEqual(answer(name), wanted[name], name)
                if last is not None:
                    holder = None if name == holder else last
                    state = {one: ("awake", 0) if one == name else ("asleep", 1 if one == holder else 2) for one in paths}
                    wait_until(lambda state=state: levels() == state, 30, lambda: f"{name} after {last}: {levels()}")
                    self.assertEqual(self.total("somnus:host_bytes"), 0 if holder is None else size)
                    if holder is not None:
                        self.assertEqual(self.total("somnus:host_bytes", model_name=holder, tag="weights"), size)
                last = name
        finally:
            over.set()
            watching.join()
        self.assertLessEqual(most[0], room)
        self.assertGreater(self.total("somnus:residency_decisions_total", action="drop_backup", reason="host_memory"), 0)
        self.assertEqual(self.cluster.stop(), 0)

    def write(self, text):
        """The name of a file with that text, which is there until the test's end."""
        file = tempfile.NamedTemporaryFile("w", suffix=".textproto")
        self.addCleanup(file.close)
        file.write(text)
        file.flush()
        return file.name

    def test_models_of_a_file_have_flags_of_their_own(self):
        config = self.write(f"""
            flags: "--max-model-len=512"
            flags: "--dtype=bfloat16"
            models {{ name: "qwen" path: "{tiny('qwen3')}" workers: "local:2" max_model_len: 256 }}
            models {{ name: "rope" path: "{tiny('llama-rope3')}" priority: -2 flags: "--no-enable-prefix-caching"
                      served_model_name: "org/rope" served_model_name: "knot" }}
        """)
        self.cluster = Cluster(tiny(MODELS["test-model"]), f"--config={config}", "--dtype=float32",
                               f"--kv-cache-memory-bytes={KV_BYTES}", workers=1)
        self.addCleanup(self.cluster.__exit__)
        cards = self.cluster.request("GET", "/v1/models").json["data"]
        self.assertEqual([(card["id"], card["max_model_len"]) for card in cards],
                         [("test-model", 512), ("qwen", 256), ("rope", 512), ("org/rope", 512), ("knot", 512)])
        self.assertEqual(len(self.cluster.worker_pids()), 4, "one, two, one")
        for name in MODELS:
            self.assert_exact(name)
        self.assertEqual(json.loads(self.cluster.cli("models", "--json").stdout)["models"][2]["priority"], -2)
        case = CASES["rope"]
        for alias in ("org/rope", "knot"):
            reply = self.cluster.request("POST", "/v1/completions", {"model": alias, "prompt": case["prompt"], "temperature": 0})
            self.assertEqual((reply.status, reply.json["model"]), (200, "rope"))
            self.assertEqual(self.cluster.tokens(case["prompt"], model=alias, ignore_eos=case["ignore_eos"]), case["tokens"])
            self.assertEqual(self.cluster.request("GET", f"/v1/models/{alias}").json["root"], "rope")
            self.assertEqual(self.cluster.cli("sleep", f"--model={alias}").returncode, 0)
            self.assertEqual(self.states()["rope"], "asleep")
            self.assertEqual(self.admin(f"/is_sleeping?model={alias}", "GET").json, {"is_sleeping": True})
            self.assertEqual(self.admin(f"/wake_up?model={alias}").status, 200)
            self.assertEqual(set(self.states().values()), {"awake"})
        self.assertEqual(self.cluster.stop(), 0)

    def test_a_mistake_in_a_file_ends_the_start(self):
        config = self.write('models { name: "a" path: "x" }\nmodels {\n name: "b" path: "y"\n dtype: "int4"\n}\n')
        with Cluster(tiny(MODELS["test-model"]), f"--config={config}", workers=1, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(60), 2)
            self.assertIn(f"coordinator: --config: {config}:4: dtype: 'int4' is not one of auto, ", cluster.log())

    def test_commands_name_the_model(self):
        self.serve()
        cli = self.cluster.cli

        def listed():
            return {model["model"]: model for model in json.loads(cli("models", "--json").stdout)["models"]}
        for command in ("sleep", "wake-up", "pause", "resume", "reload-weights", "roll", "reset-prefix-cache"):
            done = cli(command, check=False)
            self.assertEqual(done.returncode, 1, command)
            self.assertRegex(done.stderr, r"^error: .*several models are served \(test-model, qwen, rope\).*\n$", command)
        self.assertIn("freed", cli("sleep", "--level=2", "--model=qwen").stdout)
        self.assertEqual([(name, model["state"], model["sleep_level"]) for name, model in listed().items()],
                         [("test-model", "awake", 0), ("qwen", "asleep", 2), ("rope", "awake", 0)])
        self.assertLess(listed()["qwen"]["resident_bytes"], listed()["rope"]["resident_bytes"] / 10)
        for command in ("models", "status"):
            lines = [line.split() for line in cli(command).stdout.splitlines()]
            self.assertIn(["qwen", "asleep", "(level", "2)"], [line[:4] for line in lines], command)
            self.assertIn(["rope", "awake"], [line[:2] for line in lines], command)
        self.assertIn("model     rope\n", cli("status", "--model=rope").stdout)
        self.assertEqual(json.loads(cli("status", "--json", "--model=qwen").stdout)["sleep_level"], 2)
        done = cli("generate", "--model=qwen", "a", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.endswith("wake it with: somnus wake-up --model=qwen\n"), done.stderr)
        self.assertNotEqual(cli("generate", "--model=rope", "--max-tokens=3", "a").stdout, "", "it serves")
        self.assertIn("mapped", cli("wake-up", "--model=qwen").stdout)
        cli("pause", "--model=rope")
        self.assertTrue(listed()["rope"]["paused"])
        cli("resume", "--model=rope")
        self.assertIn("version 2", cli("reload-weights", "--model=rope").stdout)
        self.assertEqual(cli("reset-prefix-cache", "--running", "--model=rope").stdout, "the prefix cache is empty\n")
        self.assertIn("does not exist", cli("sleep", "--model=x", check=False).stderr)
        self.assert_exact("rope")
        top = cli("top", "--count=2", "--interval=0.1").stdout
        self.assertEqual(top.count("3 models"), 2, top)
        self.assertEqual(self.cluster.stop(), 0)

    def test_faults_in_the_middle_of_a_switch(self):
        """A rank dies while the model falls asleep for the other model, or wakes up in place of the other, or finds no memory."""
        first, other = "test-model", "qwen"
        budget = budget_for_one()
        faulty = FaultyCluster("", f"--model={other}={tiny(MODELS[other])}", *FLAGS, f"--device-memory-budget={budget}",
                               model=tiny(MODELS[first]), workers=0)
        self.addCleanup(faulty.__exit__)
        self.cluster, faults = faulty.cluster, faulty.faults
        seen, most, over = set(), [0], threading.Event()

        def watch():
            while not over.is_set():
                most[0] = max(most[0], self.total("somnus:resident_bytes"))
                seen.update(self.cluster.worker_pids())
        watching = threading.Thread(target=watch)
        watching.start()
        self.addCleanup(watching.join)
        self.addCleanup(over.set)

        def strike(moment, action, times=1):
            line = faults.set_moment(moment, action, times)
            self.assert_exact(other)
            self.assertEqual(faults.strikes(line), times, f"{moment} {action}")

        def strike_its_commit():
            # The other model has begun to wake up: the next Commit is that of the wake-up.
            begun = faults.set_moment("create#1", "wait@0")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asking = pool.submit(self.assert_exact, other)
                faults.wait_for(begun)
                line = faults.set_moment("Commit", "kill@0")
                asking.result()
            self.assertEqual(faults.strikes(line), 1)
        for case in (lambda: strike("Commit", "kill@0"), lambda: strike("Commit", "kill@0", 2), strike_its_commit,
                     lambda: strike("access#1", "kill@0"), lambda: strike("create#1", "fail@0")):
            self.assert_exact(first)
            wait_until(lambda: self.states() == {first: "awake", other: "asleep"}, 30, lambda: str(self.states()))
            case()
            faults.set("")
            for name in (first, other):
                self.assert_exact(name)
        wait_until(lambda: len(self.cluster.worker_pids()) == 2, 30, "one worker for each")
        over.set()
        watching.join()
        self.assertLessEqual(most[0], budget)
        self.assertEqual(self.cluster.stop(), 0)
        self.assertEqual([pid for pid in seen if alive(pid)], [])
