"""The files of tools/deploy/monitoring: promtool takes the rules, and a real Prometheus that scrapes real servers finds data for
every query of our dashboard and of vLLM's dashboards (tests/data/vllm_dashboards.json)."""
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import Cluster, free_ports, tiny, wait_until  # noqa: E402
from deploy.sources import DEPLOY, ROOT, read  # noqa: E402
from deploy.vllm_queries import ABSENT, NO_LOOKUPS, expressions, is_absent, vllm_queries  # noqa: E402

FOLDER = os.path.join(DEPLOY, "monitoring")
RULES = os.path.join(FOLDER, "somnus.rules.yml")
CASES = os.path.join(ROOT, "tests", "deploy", "alert_cases.yml")
CACHE = os.environ.get("SOMNUS_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "somnus")
PATH = os.pathsep.join((os.environ["PATH"], os.path.join(CACHE, "prometheus", "usr", "bin")))  # as tools/setup.sh unpacks it
PROMETHEUS, PROMTOOL = shutil.which("prometheus", path=PATH), shutil.which("promtool", path=PATH)
WITHOUT = "prometheus is not there: tools/setup.sh tests"
WINDOW = "1m"
PATIENCE_S = 60
METRIC = re.compile(r"\b((?:vllm|somnus):\w+|process_\w+|http_request\w+)")
PARTS = re.compile(r"_(bucket|sum|count)$")
# Every second request: the prefix cache and prompt lookup have something to find. Each of the other prompts comes four times, and
# evicts blocks later on.
PROMPT = [5, 6, 7, 8] * 12
ONE = "test-model"
SEVERAL_FLAGS = ("--dtype=float32", "--kv-cache-memory-bytes=32MiB", "--max-model-len=256", "--workers=local:1",
                 "--device-memory-budget=48MiB", "--no-elastic-kv-cache")
# What vLLM's dashboards show of options: adapters, and a KV cache so small that blocks are evicted.
ONE_FLAGS = ("--dtype=float32", "--data-parallel-size=2", "--num-speculative-tokens=2", "--enable-lora", "--kv-cache-metrics",
             "--kv-cache-metrics-sample=1", "--kv-cache-memory-bytes=1MiB")


def dashboard():
    return json.loads(read("tools", "deploy", "monitoring", "somnus_dashboard.json"))


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries_of_the_dashboard():
    """(panel, query) with values for the variables of the dashboard."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    found += [("annotation", one["expr"]) for one in dashboard()["annotations"]["list"]]
    return [(title, re.sub(r"\$(job|instance|model_name)\b", ".+", expr.replace("$__rate_interval", WINDOW))) for title, expr in found]


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = os.path.join(ROOT, "coordinator", "metrics")
        sources = "".join(read("coordinator", "metrics", name) for name in os.listdir(folder) if name.endswith((".cc", ".h")))
        cls.known = set(re.findall(r'"(?:vllm:|somnus:)?(\w+)"', sources))

    def test_every_metric_is_one_of_ours(self):
        named = set(METRIC.findall(read("tools", "deploy", "monitoring", "somnus.rules.yml")))
        named |= {name for _, expr in queries_of_the_dashboard() for name in METRIC.findall(expr)}
        self.assertGreater(len(named), 50)
        self.assertEqual(sorted(name for name in named if PARTS.sub("", name.partition(":")[2] or name) not in self.known), [])

    def test_what_is_left_out_of_vllms_dashboards_is_not_here(self):
        left_out = {name for _, expression in expressions() if is_absent(expression) for name in METRIC.findall(expression)}
        here = [name for name in left_out if PARTS.sub("", name.partition(":")[2]) in self.known and NO_LOOKUPS not in name]
        self.assertEqual(here, [])
        self.assertEqual([start for start in ABSENT if f"vllm:{start}" not in "".join(text for _, text in expressions())], [])
        self.assertGreater(len(expressions()) - sum(is_absent(text) for _, text in expressions()), 200)

    def test_legends_name_labels_that_the_query_keeps(self):
        wrong = []
        for panel in panels():
            for target in panel["targets"]:
                kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target["expr"]))))
                wrong += [(panel["title"], label) for label in re.findall(r"{{(\w+)}}", target["legendFormat"]) if label not in kept]
        self.assertEqual(wrong, [])

    def test_panels_have_places_and_names_of_their_own(self):
        everything = dashboard()["panels"]
        self.assertEqual(len({panel["id"] for panel in everything}), len(everything))
        titles = [panel["title"] for panel in panels()]
        self.assertEqual(sorted(set(titles)), sorted(titles))
        taken = set()
        for panel in everything:
            place = panel["gridPos"]
            cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertFalse(taken & cells, panel["title"])
            taken |= cells

    def test_every_alert_says_who_should_act_and_how_and_has_a_case(self):
        rules, cases = read("tools", "deploy", "monitoring", "somnus.rules.yml"), read("tests", "deploy", "alert_cases.yml")
        alerts = re.split(r"\n      - alert: ", rules)[1:]
        self.assertGreater(len(alerts), 10)
        for alert in alerts:
            name = alert.split()[0]
            self.assertRegex(alert, r"severity: (page|ticket)\b", name)
            self.assertIn("summary:", alert, name)
            self.assertIn("action:", alert, name)
            self.assertRegex(cases, rf'alertname(="|: ){name}\b')


@unittest.skipUnless(PROMTOOL, WITHOUT)
class Promtool(unittest.TestCase):
    def promtool(self, *args):
        done = subprocess.run([PROMTOOL, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_it_takes_the_rules_and_the_configuration(self):
        self.promtool("check", "rules", RULES)
        self.promtool("check", "config", os.path.join(FOLDER, "prometheus.yml"))

    def test_each_alert_fires_when_it_should_and_only_then(self):
        self.promtool("test", "rules", CASES)


class Prometheus:
    """A Prometheus on a free port, with our rules. A context manager."""

    def __init__(self, folder, targets):
        self.port, = free_ports(1)
        config = read("tools", "deploy", "monitoring", "prometheus.yml").replace("somnus.rules.yml", RULES)
        config = config.replace("15s", "1s").replace('"127.0.0.1:8000"', ", ".join(f'"127.0.0.1:{port}"' for port in targets))
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        self._log = os.path.join(folder, "log")
        command = [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={os.path.join(folder, 'data')}",
                   f"--web.listen-address=127.0.0.1:{self.port}"]
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        wait_until(lambda: self._process.poll() is not None or self.answers("/-/ready"), PATIENCE_S, self.log)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def log(self):
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def answers(self, path):
        try:
            return self.get(path) is not None
        except (OSError, urllib.error.URLError):
            return False

    def get(self, path, **fields):
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read()

    def api(self, path, **fields):
        try:
            return json.loads(self.get(f"/api/v1/{path}", **fields))["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{fields}: {error.read().decode()}") from error

    def has_data(self, query):
        """Whether the query gives a number now; AssertionError where the query is none."""
        values = [float(one["value"][1]) for one in self.api("query", query=query)["result"]]
        return any(math.isfinite(value) for value in values)


class Traffic:
    """Short requests for some models, one by one, until the context ends."""

    def __init__(self, cluster, models):
        self._cluster, self._models, self._over = cluster, models, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        for number in itertools.count():
            if self._over.is_set():
                return
            for model in self._models:
                prompt = PROMPT if number % 2 else [number // 8 % 90 + 9] * len(PROMPT)
                body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 64, "ignore_eos": True}
                try:
                    response = self._cluster.request("POST", "/v1/completions", body)
                    error = "" if response.status == 200 else response.text
                except OSError as failed:
                    error = repr(failed)
                self.errors += [error] if error else []
            self._over.wait(0.1)


@unittest.skipUnless(PROMETHEUS, WITHOUT)
class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A server with replicas and a server with several models, with requests all the time; then a request whose time is
        over, sleeps, and a worker that is killed."""
        with contextlib.ExitStack() as stack:
            model = tiny("llama-uneven")
            one = stack.enter_context(Cluster(model, *ONE_FLAGS, workers=1))
            several = stack.enter_context(Cluster(model, f"--model=other={tiny('qwen3')}", *SEVERAL_FLAGS, workers=0))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            cls.prometheus = stack.enter_context(Prometheus(folder, [one.port, several.port]))
            cls.traffic = [stack.enter_context(Traffic(one, [ONE])), stack.enter_context(Traffic(several, [ONE, "other"]))]
            cls.addClassCleanup(stack.pop_all().close)
        cls.wait_for("sum(vllm:generation_tokens_total) > 0")
        late = one.request("POST", "/v1/completions", {"model": ONE, "prompt": PROMPT, "max_tokens": 500, "ignore_eos": True},
                           headers={"X-Request-Timeout": "0.001"})
        assert late.status == 504, late.text
        cls.instance = f"127.0.0.1:{one.port}"
        of_one = f'{{instance="{cls.instance}"}}'
        for count in (1, 2):  # each is seen: a counter's first value is no increase
            one.admin("/sleep?level=1")
            one.admin("/wake_up")
            cls.wait_for(f"sum(somnus:wake_ups_total{of_one}) == {count}")
        os.kill(one.worker_pids()[0], signal.SIGKILL)
        cls.wait_for(f"sum(somnus:recoveries_total{of_one}) == 1")

    @classmethod
    def wait_for(cls, query):
        wait_until(lambda: cls.prometheus.has_data(query), PATIENCE_S, query)

    def assert_data(self, queries):
        waiting = list(queries)

        def all_have():
            waiting[:] = [one for one in waiting if not self.prometheus.has_data(one[1])]
            return not waiting
        wait_until(all_have, PATIENCE_S, lambda: f"no data for {waiting}", poll=1)

    def test_every_panel_of_the_dashboard_has_data(self):
        self.assert_data(queries_of_the_dashboard())

    def test_every_query_of_vllms_dashboards_has_data(self):
        self.assert_data(vllm_queries(WINDOW, ONE, self.instance))
        self.assertEqual(self.prometheus.api("label/model_name/values"), sorted([ONE, "other"]))

    def test_rules_are_evaluated_and_the_loss_is_told(self):
        def rules():
            return [rule for group in self.prometheus.api("rules")["groups"] for rule in group["rules"]]
        wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), PATIENCE_S, lambda: str(rules()))

        def firing():
            return {alert["labels"]["alertname"] for alert in self.prometheus.api("alerts")["alerts"] if alert["state"] == "firing"}
        wait_until(lambda: "SomnusWorkerLost" in firing(), PATIENCE_S, lambda: str(firing()))
        self.assertEqual(firing(), {"SomnusWorkerLost"})

    def test_no_request_noticed(self):
        self.assertEqual([error for traffic in self.traffic for error in traffic.errors], [])


if __name__ == "__main__":
    unittest.main()
