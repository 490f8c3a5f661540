"""The access log and the traces of a served engine, with a collector of the test that speaks OTLP over HTTP."""
import http.server
import json
import os
import tempfile
import threading
import unittest

from cluster.harness import Cluster, free_ports, grpc, stubs, tiny, wait_until

MODEL = "qwen3"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = [(37 * i + 3) % 500 for i in range(40)]


class Collector:
    """Takes spans at /v1/traces; while `status` is not 200 all spans are refused."""

    def __init__(self, port=0):
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.lock:
                    status = collector.status
                    if status == 200:
                        collector.messages.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.lock, self.status, self.messages = threading.Lock(), 200, []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def spans(self):
        """All spans so far, each with the attributes as a dictionary."""
        with self.lock:
            messages = list(self.messages)
        spans = []
        for _, _, message in messages:
            for resource in message["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        values = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
                        spans.append({**span, "attributes": values})
        return spans

    def wait_for(self, count):
        wait_until(lambda: len(self.spans()) >= count, 60, lambda: f"{count} spans: {self.spans()}")
        return self.spans()


def lines_of(path):
    with open(path, encoding="ascii") as file:
        return [json.loads(line) for line in file.read().splitlines()]


class Traces(unittest.TestCase):
    def test_a_request_is_a_span_with_its_phases_within_its_clients_trace(self):
        with Collector() as collector, Cluster(tiny(MODEL), f"--otlp-traces-endpoint=http://127.0.0.1:{collector.port}",
                                               env={"OTEL_SERVICE_NAME": "chat"}) as cluster:
            header = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "congo=t61, rojo=1", "X-Request-Id": "mine"}
            body = {"model": cluster.name, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
            self.assertEqual(cluster.request("POST", "/v1/completions", body, header).status, 200)
            spans = {span["name"]: span for span in collector.wait_for(4)}
            self.assertEqual(set(spans), {"llm_request", "queue", "prefill", "decode"})
            request = spans["llm_request"]
            self.assertEqual((request["traceId"], request["parentSpanId"], request["kind"]), (TRACE, PARENT, 2))
            self.assertEqual({span["traceState"] for span in spans.values()}, {"congo=t61,rojo=1"})
            for name in ("queue", "prefill", "decode"):
                self.assertEqual((spans[name]["traceId"], spans[name]["parentSpanId"]), (TRACE, request["spanId"]))
                self.assertGreaterEqual(int(spans[name]["startTimeUnixNano"]), int(request["startTimeUnixNano"]))
                self.assertLessEqual(int(spans[name]["endTimeUnixNano"]), int(request["endTimeUnixNano"]))
            self.assertEqual(spans["prefill"]["startTimeUnixNano"], spans["queue"]["endTimeUnixNano"])
            self.assertEqual(spans["decode"]["startTimeUnixNano"], spans["prefill"]["endTimeUnixNano"])
            values = request["attributes"]
            self.assertEqual((values["gen_ai.usage.prompt_tokens"], values["gen_ai.usage.completion_tokens"]), ("40", "5"))
            self.assertEqual((values["gen_ai.request.id"], values["gen_ai.request.model"]), ("cmpl-mine", cluster.name))
            self.assertEqual(values["http.route"], "/v1/completions")
            path, content_type, message = collector.messages[0]
            self.assertEqual((path, content_type), ("/v1/traces", "application/json"))
            service = message["resourceSpans"][0]["resource"]["attributes"][0]
            self.assertEqual(service, {"key": "service.name", "value": {"stringValue": "chat"}})
            self.assertEqual(cluster.metric("somnus:trace_spans_exported_total"), 4)

    def test_a_collector_that_is_away_changes_no_answer_and_gets_what_waits_later(self):
        port, = free_ports(1)
        endpoint = f"--otlp-traces-endpoint=http://127.0.0.1:{port}/v1/traces"
        with Cluster(tiny(MODEL), endpoint, "--otlp-traces-queue=16") as cluster:
            for _ in range(8):
                cluster.complete(PROMPT, max_tokens=2)
            wait_until(lambda: cluster.metric("somnus:trace_exports_failed_total") > 0, 60, "a failed message")
            self.assertEqual(cluster.metric("somnus:trace_spans_dropped_total", reason="queue_full"), 16)
            with Collector(port) as collector:
                self.assertEqual(len(collector.wait_for(16)), 16)
                cluster.complete(PROMPT, max_tokens=2)
                self.assertEqual(cluster.stop(), 0)
                self.assertEqual(len(collector.spans()), 20, "the end sends what waits")

    @unittest.skipIf(grpc is None, "no grpcio")
    def test_grpc_has_the_same(self):
        stubs.generate("model", "inference")
        from proto import inference_pb2 as pb, inference_pb2_grpc as rpc
        with tempfile.TemporaryDirectory() as folder, Collector() as collector:
            path = os.path.join(folder, "access.log")
            endpoint = f"--otlp-traces-endpoint=http://127.0.0.1:{collector.port}"
            with Cluster(tiny(MODEL), endpoint, f"--access-log={path}") as cluster:
                with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
                    request = pb.GenerateRequest(request_id="a\nb", token_ids=pb.TokenIds(ids=PROMPT),
                                                 sampling=pb.SamplingParams(max_tokens=3))
                    call = rpc.InferenceServiceStub(channel).Generate(
                        request, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "congo=t61")), timeout=60)
                    self.assertTrue(list(call))
                spans = collector.wait_for(4)
                self.assertEqual({span["traceId"] for span in spans}, {TRACE})
                root, = [span for span in spans if span["name"] == "llm_request"]
                self.assertEqual(root["traceState"], "congo=t61")
                self.assertEqual(root["attributes"]["rpc.grpc.status_code"], "0")
                wait_until(lambda: any(line["protocol"] == "grpc" for line in lines_of(path)), 30, "the line of the call")
                line, = [line for line in lines_of(path) if line["protocol"] == "grpc"]
                self.assertEqual((line["response_id"], line["status"], line["prompt_tokens"]), ("a\nb", 0, 40))


class AccessLog(unittest.TestCase):
    def test_each_request_is_a_line_of_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "access.log")
            with Cluster(tiny(MODEL), f"--access-log={path}", "--admin-api-key=secret") as cluster:
                key = {"Authorization": "Bearer secret"}
                cluster.complete(PROMPT, max_tokens=4, ignore_eos=True)
                answer = cluster.complete(PROMPT, max_tokens=4, ignore_eos=True)
                self.assertEqual(cluster.request("POST", "/v1/completions", {"prompt": []}, {"X-Request-Id": "bad"}).status, 400)
                self.assertEqual(cluster.request("GET", "/no/such/path?api_key=secret").status, 404)
                cluster.request("POST", "/pause", headers=key, port=cluster.admin_port)
                cluster.open_stream(PROMPT, max_tokens=400).drop()
                wait_until(lambda: 499 in [line["status"] for line in lines_of(path)], 60, "the line of a client that has left")
                self.assertEqual(cluster.stop(), 0)
            lines = lines_of(path)
            first, again = [line for line in lines if line["route"] == "/v1/completions" and line["status"] == 200][:2]
            self.assertEqual((again["method"], again["protocol"], again["listener"]), ("POST", "http", "clients"))
            self.assertEqual((again["response_id"], again["finish_reason"]), (answer["id"], "length"))
            self.assertEqual(again["model"], cluster.name)
            self.assertEqual((again["prompt_tokens"], again["completion_tokens"], again["cached_tokens"]), (40, 4, 32))
            self.assertEqual(first["cached_tokens"], 0)
            self.assertTrue(0 <= again["ttft_seconds"] <= again["duration_seconds"])
            left, = [line for line in lines if line["status"] == 499]
            self.assertEqual((left["prompt_tokens"], left["completion_tokens"], left["finish_reason"]), (40, 0, "abort"))
            bad, = [line for line in lines if line["request_id"] == "bad"]
            self.assertEqual((bad["status"], bad["prompt_tokens"]), (400, None))
            unknown, = [line for line in lines if line["status"] == 404]
            self.assertIsNone(unknown["route"])
            pause, = [line for line in lines if line["route"] == "/pause"]
            self.assertEqual((pause["listener"], pause["status"]), ("operators", 200))
            self.assertNotIn("prompt_tokens", pause)
            with open(path, encoding="ascii") as file:
                self.assertNotIn("secret", file.read())
            self.assertFalse([line for line in lines if line["route"] == "/health"])
