"""A server that does not serve says so. The state has a line that tells the state, the cause, the beginning and the way out,
the same in /readyz, `somnus status`, the log and gRPC; /livez says whether a restart helps. With several models each line of
the log about a model names the model."""
import json
import os
import re
import signal
import unittest

from cluster.harness import Cluster, alive, children, expected, free_ports, grpc, tiny, wait_until
from cluster.harness.served_weights import RelayedUpdate, chunks_of, generate_stubs
from cluster.several_models_test import CASES, MODELS, start

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 60
pb, rpc = None, None
LINE = re.compile(r"^(?P<what>.+?[.]) Why: (?P<why>.+)[.] Since: (?P<since>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)[.] Way out: (?P<way_out>.+)[.]$")
# Lines of a server with several models that are about the server as a whole, or about all models.
OF_THE_SERVER = (r"serving .* on http", r"the API: ", r"pages: ", r"to talk: ", r"stopping", r"--[a-z-]+: ", r"The model is loading", r"all threads that serve give signs of life")


def setUpModule():
    global pb, rpc
    pb = generate_stubs()
    from proto import control_pb2_grpc as rpc


class StateLines(unittest.TestCase):
    def cluster_of(self, *flags, **options):
        cluster = Cluster(tiny(MODEL), "--dtype=float32", *flags, **options)
        self.addCleanup(cluster.__exit__)
        return cluster

    @staticmethod
    def status(cluster):
        """Also for a failed engine, for which the command ends with exit code 1."""
        return json.loads(cluster.cli("status", "--json", check=False).stdout)

    def readyz(self, cluster, **where):
        response = cluster.request("GET", "/readyz", **where)
        return response.json["error"]["message"] if response.status == 503 else ""

    def assert_alike(self, cluster, pattern, model=None):
        """The line of a state that lasts, which all show."""
        line = self.readyz(cluster)
        self.assertEqual(self.readyz(cluster, port=cluster.admin_port), line)
        # A restart is the way out of a failure alone.
        alive = {cluster.request("GET", "/livez", port=port).status for port in (cluster.port, cluster.admin_port)}
        self.assertEqual(alive, {503 if "has failed" in line else 200})
        self.assertEqual(cluster.cli("status", "--ready", check=False).returncode, 1)
        parts = LINE.match(line)
        self.assertIsNotNone(parts, line)
        self.assertRegex(line, pattern)
        status = self.status(cluster)
        self.assertEqual((status["not_ready_reason"], status["state_report"]["line"]), (line, line))
        self.assertEqual({key: status["state_report"][key] for key in ("what", "why", "way_out")},
                         {key: parts[key] for key in ("what", "why", "way_out")})
        self.assertIn(f"why       {line}\n", cluster.cli("status", check=False).stdout)
        wait_until(lambda: re.search(rf" [IWE] \[coordinator\] {re.escape(line)}\n", cluster.log()), PATIENCE_S,
                   lambda: f"{line} in the log:\n{cluster.log()}")
        return parts

    def assert_serves(self, cluster):
        wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/readyz 200")
        status = cluster.status()
        self.assertEqual((status["not_ready_reason"], status.get("state_report")), ("", None))
        self.assertNotIn("why", cluster.cli("status").stdout.split())

    def test_while_it_waits_for_workers(self):
        port, = free_ports(1)
        cluster = self.cluster_of("--workers=remote:2", f"--cluster-port={port}", workers=0, wait=False)
        wait_until(lambda: cluster.health() == 503, PATIENCE_S, "it listens")
        parts = self.assert_alike(cluster, r"^The model is loading: 0 of 2 workers have come\. ")
        self.assertEqual(parts["way_out"], f"the missing workers, started with --coordinator=HOST:{port} of this host")
        refused = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": [37]})
        self.assertEqual((refused.status, refused.json["error"]["message"]), (503, parts.string))
        self.assertEqual(cluster.stop(), 0)

    def test_failed(self):
        cluster = self.cluster_of("--stay-after-failure", "--max-recoveries=0", workers=2)
        workers = cluster.worker_pids()
        victim = workers[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: self.status(cluster)["state"] == "ENGINE_STATE_FAILED", PATIENCE_S, "it has failed")
        parts = self.assert_alike(cluster, r"^The engine has failed\. Why: ")
        self.assertEqual([pid for pid in workers if alive(pid)], [], "workers of a failed engine hold nothing")
        self.assertIn(str(victim), parts["why"])
        self.assertEqual(parts["way_out"], "somnus revive starts new workers")
        refused = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": [37]})
        self.assertEqual((refused.status, refused.json["error"]["message"]), (503, parts.string))
        cluster.cli("revive")
        self.assert_serves(cluster)
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_an_update_under_way_and_given_up(self):
        cluster = self.cluster_of(workers=2)
        with grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}") as channel:
            chunks = chunks_of(tiny(MODEL))
            begin = pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin())
            update = RelayedUpdate(rpc.ControlServiceStub(channel), begin, pb.UpdateWeightsRequest(chunk=next(chunks)))
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_WAKING", PATIENCE_S, "the update has begun")
            parts = self.assert_alike(cluster, r"^The weights are being replaced; .* Why: an operator has called update_weights\. ")
            self.assertEqual(parts["way_out"], "it ends by itself; somnus abort-call gives it up")
            cluster.cli("abort-call")
            # A server that waits for the client's next message can only cancel the call.
            self.assertIn(update.call.exception(PATIENCE_S).code(), (grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED))
            update.send(None)
        parts = self.assert_alike(cluster, r"^The weights are stale; requests wait until others have been brought\. Why: ")
        # The call may end with an epoch, if not every worker has begun the update.
        self.assertRegex(parts["why"], r"^update_weights: an operator has ended the call|^the last change of the weights has not ended")
        self.assertEqual(parts["way_out"], "somnus reload-weights, or an update")
        cluster.cli("reload-weights")
        self.assert_serves(cluster)
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])


class SeveralModels(unittest.TestCase):
    def test_each_line_about_a_model_names_the_model(self):
        with start("--log-level=debug") as cluster:
            victim = next(pid for pid in children(cluster.process.pid)
                          if b"--log-name=qwen" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0"))
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: "qwen: the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
            self.assertRegex(cluster.log(), rf"\[coordinator\] qwen: the group was lost: .*{victim}")
            for name in MODELS:
                cluster.request("POST", f"/sleep?model={name}", port=cluster.admin_port)
                line = cluster.request("GET", f"/readyz?model={name}").json["error"]["message"]
                self.assertRegex(line, rf"^{name}: The engine is asleep .* Way out: somnus wake-up --model={name}\.$")
                wait_until(lambda: f"I [coordinator] {line}\n" in cluster.log(), PATIENCE_S, cluster.log)  # pylint: disable=cell-var-from-loop
                cluster.request("POST", f"/wake_up?model={name}", port=cluster.admin_port)
                self.assertEqual(cluster.tokens(CASES[name]["prompt"], model=name, ignore_eos=CASES[name]["ignore_eos"]),
                                 CASES[name]["tokens"])
            self.assertEqual(cluster.stop(), 0)
            for name in MODELS:
                self.assertIn(f"[coordinator] {name}: KV cache: ", cluster.log())
                self.assertIn(f"[{name}: worker 0] leaving", cluster.log())
            begins = "|".join([rf"{name}: " for name in MODELS] + list(OF_THE_SERVER))
            lines = re.findall(r"^\S+ \S+ [DIWE] \[coordinator\] (.*)$", cluster.log(), re.MULTILINE)
            self.assertGreater(len(lines), 20)
            self.assertEqual([line for line in lines if not re.match(begins, line)], [])
