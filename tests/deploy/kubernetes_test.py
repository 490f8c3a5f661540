"""The Kubernetes manifests parse, and agree with flags, routes, default ports and times of the programs."""
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import unittest

import yaml

from deploy.sources import DEPLOY, default_port, flags, flags_of, longest_end_s, routes, seconds

FOLDER = os.path.join(DEPLOY, "kubernetes")
FILES = ("deployment.yaml", "leaderworkerset.yaml")
# The kinds that the manifests use, by group and version: the answer of an API server to kubectl.
KINDS = {"v1": ("Service",), "apps/v1": ("Deployment",), "networking.k8s.io/v1": ("NetworkPolicy",),
         "leaderworkerset.x-k8s.io/v1": ("LeaderWorkerSet",)}
# The coordinator gives remote workers up to 2 s to leave, and then closes the listeners.
WORKERS_LEAVE_S = 7


def documents(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def named(items):
    return {item["name"]: item for item in items}


def pods(name):
    """(labels, spec) of every pod template of a file."""
    for document in documents(name):
        spec = document["spec"]
        if document["kind"] == "Deployment":
            yield spec["template"]["metadata"]["labels"], spec["template"]["spec"]
        elif document["kind"] == "LeaderWorkerSet":
            for template in ("leaderTemplate", "workerTemplate"):
                yield (spec["leaderWorkerTemplate"][template]["metadata"]["labels"],
                       spec["leaderWorkerTemplate"][template]["spec"])


def containers():
    for name in FILES:
        for _, pod in pods(name):
            for container in pod["containers"]:
                yield f"{name}: {container['name']}", pod, container


def program(container):
    return "worker" if container.get("command") == ["/opt/somnus/worker/worker"] else "coordinator"


class Manifests(unittest.TestCase):
    def test_documents_are_whole(self):
        for name in FILES:
            for document in documents(name):
                with self.subTest(file=name, kind=document["kind"]):
                    self.assertIn(document["kind"], KINDS[document["apiVersion"]])
                    self.assertRegex(document["metadata"]["name"], r"^[a-z][a-z0-9-]*$")

    def test_flags_exist(self):
        for where, _, container in containers():
            with self.subTest(where):
                known = flags()[program(container)]
                self.assertEqual([flag for flag in flags_of(container["args"]) if flag not in known], [])

    def test_variables_in_arguments_are_set(self):
        for where, _, container in containers():
            with self.subTest(where):
                names = set(named(container.get("env", []))) - {"SOMNUS_CLUSTER_SECRET"}  # which the programs read
                self.assertEqual(names, {part.partition(")")[0] for arg in container["args"] for part in arg.split("$(")[1:]})

    def test_processes_of_several_pods_know_each_other(self):
        for where, _, container in containers():
            if "leaderworkerset" not in where:
                continue
            with self.subTest(where):
                self.assertIn("SOMNUS_CLUSTER_SECRET", named(container["env"]))

    def test_probes_ask_routes_at_ports_that_are_open(self):
        for where, _, container in containers():
            ports = named(container["ports"])
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                with self.subTest(where, probe=probe):
                    if program(container) == "worker":
                        if probe == "livenessProbe":
                            self.assertEqual(container[probe]["grpc"], {"port": ports["health"]["containerPort"]})
                        else:
                            self.assertNotIn(probe, container)
                        continue
                    get = container[probe]["httpGet"]
                    self.assertIn(get["path"], routes())
                    self.assertEqual(get["path"], "/readyz" if probe == "readinessProbe" else "/livez")
                    self.assertEqual(ports[get["port"]]["containerPort"], default_port("port"))

    def test_ports_are_the_defaults(self):
        expected = {"http": default_port("port"), "grpc": default_port("grpc-port"), "cluster": default_port("cluster-port")}
        for where, _, container in containers():
            with self.subTest(where):
                given = flags_of(container["args"])
                self.assertFalse({"port", "grpc-port", "cluster-port"} & set(given))
                for port in container["ports"]:
                    if port["name"] in ("worker", "health"):
                        flag = {"worker": "listen", "health": "health-listen"}[port["name"]]
                        self.assertEqual(given[flag], f"0.0.0.0:{port['containerPort']}")
                        # Worker 0 shares the pod's ports with the coordinator.
                        self.assertNotIn(port["containerPort"], [default_port(name) for name in (
                            "port", "admin-port", "grpc-port", "control-port", "cluster-port")])
                    else:
                        self.assertEqual(port["containerPort"], expected[port["name"]])

    def test_there_is_time_to_drain(self):
        for name in FILES:
            own = [(pod, container) for where, pod, container in containers() if where.startswith(name)]
            coordinator = next(container for _, container in own if program(container) == "coordinator")
            given = flags_of(coordinator["args"])
            drain = (seconds(coordinator["lifecycle"]["preStop"]["exec"]["command"][1]) + seconds(given["shutdown-timeout"])
                     + (longest_end_s() if given.get("workers", "").startswith("local") else WORKERS_LEAVE_S))
            for pod, container in own:
                patience = drain
                if program(container) == "worker":
                    patience = seconds(flags_of(container["args"])["term-grace"])
                    self.assertGreater(patience, drain, name)
                self.assertGreater(pod["terminationGracePeriodSeconds"], patience, name)

    def test_containers_may_do_little(self):
        for where, pod, container in containers():
            with self.subTest(where):
                self.assertFalse(pod["automountServiceAccountToken"])
                self.assertFalse(pod["enableServiceLinks"])
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertGreater(pod["securityContext"]["runAsUser"], 0)
                self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                "capabilities": {"drop": ["ALL"]}})
                self.assertIn("memory", container["resources"]["limits"])
                self.assertEqual(container["resources"]["limits"]["memory"], container["resources"]["requests"]["memory"])

    def test_volumes_are_there_and_bounded(self):
        for where, pod, container in containers():
            with self.subTest(where):
                volumes = named(pod["volumes"])
                mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
                self.assertEqual(mounts["/dev/shm"]["emptyDir"]["medium"], "Memory")
                for path in ("/dev/shm", "/tmp"):
                    self.assertIn("sizeLimit", mounts[path]["emptyDir"])
                self.assertTrue(mounts["/models"]["persistentVolumeClaim"]["readOnly"])

    def test_services_select_the_coordinator(self):
        for name in FILES:
            for service in (document for document in documents(name) if document["kind"] == "Service"):
                chosen = [pod for labels, pod in pods(name) if service["spec"]["selector"].items() <= labels.items()]
                self.assertEqual(len(chosen), 1, name)
                ports = named(named(chosen[0]["containers"])["coordinator"]["ports"])
                for port in service["spec"]["ports"]:
                    self.assertEqual(port["port"], ports[port["targetPort"]]["containerPort"])

    def test_workers_ports_are_the_groups_alone(self):
        public = {default_port("port"), default_port("grpc-port")}
        for name in FILES:
            policies = [document["spec"] for document in documents(name) if document["kind"] == "NetworkPolicy"]
            for labels, _ in pods(name):
                selected = [policy for policy in policies if policy["podSelector"]["matchLabels"].items() <= labels.items()]
                self.assertTrue(selected, name)
                for policy in selected:
                    self.assertEqual(policy["policyTypes"], ["Ingress"])
                    for rule in policy["ingress"]:
                        if "from" in rule:
                            self.assertEqual(rule["from"], [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "somnus"}}}])
                        else:
                            self.assertLessEqual({port["port"] for port in rule["ports"]}, public)
                            self.assertNotEqual(labels.get("role"), "worker")

    def test_a_newcomer_takes_a_lost_workers_place(self):
        spec = next(document["spec"] for document in documents("leaderworkerset.yaml") if document["kind"] == "LeaderWorkerSet")
        self.assertEqual(spec["leaderWorkerTemplate"]["restartPolicy"], "None")
        self.assertEqual(spec["startupPolicy"], "LeaderCreated")
        leader = named(spec["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"])
        self.assertEqual(set(leader), {"coordinator", "worker"})
        self.assertEqual(flags_of(leader["coordinator"]["args"])["workers"], "auto")
        self.assertEqual(spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"], [leader["worker"]])


class Discovery(http.server.BaseHTTPRequestHandler):
    """Tells kubectl which kinds there are, and nothing else."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if path == "/api":
            answer = {"kind": "APIVersions", "versions": ["v1"]}
        elif path == "/apis":
            answer = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": name.split("/")[0], "versions": [{"groupVersion": name, "version": "v1"}],
                 "preferredVersion": {"groupVersion": name, "version": "v1"}} for name in KINDS if "/" in name]}
        elif version in KINDS:
            answer = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [
                {"name": kind.lower() + "s", "singularName": kind.lower(), "namespaced": True, "kind": kind,
                 "verbs": ["create", "get"]} for kind in KINDS[version]]}
        else:
            answer = None
        body = json.dumps(answer or {}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed")
class Kubectl(unittest.TestCase):
    def test_it_takes_the_manifests(self):
        """--dry-run=client, which asks an API server for kinds; the test plays the server."""
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Discovery) as server, tempfile.TemporaryDirectory() as home:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                for name in FILES:
                    done = subprocess.run(
                        ["kubectl", f"--server=http://127.0.0.1:{server.server_port}", f"--cache-dir={home}/cache", "create",
                         "--dry-run=client", "--validate=false", "-o", "name", "-f", os.path.join(FOLDER, name)],
                        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                        env={"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.devnull, "NO_PROXY": "*"})
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(len(done.stdout.splitlines()), len(documents(name)), done.stdout)
            finally:
                server.shutdown()
