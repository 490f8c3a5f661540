"""What clients see of a whole cluster over HTTP: waits with a reason, requests that count, pages that are kept away."""
import gzip
import http.client
import json
import unittest

from cluster.harness import Cluster, tiny, wait_until


class Waiting(unittest.TestCase):
    def lines(self, stream, count):
        return [stream.answer.readline().decode().strip() for _ in range(count)]

    def test_a_sleeping_server_says_at_once_why_a_stream_waits(self):
        with Cluster(tiny("qwen3"), "--sleep-arrivals=queue", workers=2) as cluster:
            cluster.admin("/sleep?level=1")
            stream = cluster.open_stream([5, 6, 7], max_tokens=4)
            self.assertEqual(stream.status, 200)
            self.assertEqual(self.lines(stream, 2), [": waiting: The engine is asleep; requests wait until it is woken.", ""])
            cluster.admin("/wake_up")
            self.assertEqual(len([event for event in stream.events() if event["choices"]]), 4)
            stream.close()

    def test_requests_whose_clients_leave_are_counted(self):
        with Cluster(tiny("qwen3"), "--sleep-arrivals=queue", workers=1) as cluster:
            def aborted():
                return cluster.metric("vllm:request_success_total", finished_reason="abort") or 0
            running = cluster.open_stream([5, 6, 7], max_tokens=100, n=2, temperature=1)
            next(iter(running.events()))
            cluster.admin("/sleep?level=1")
            waiting = cluster.open_stream([5, 6, 7])
            running.drop()
            waiting.drop()
            whole = cluster.connection(cluster.port)
            whole.request("POST", "/v1/completions", json.dumps({"prompt": [5, 6, 7], "max_tokens": 4}),
                          {"Content-Type": "application/json"})
            cluster.wait_waiting(1)
            whole.close()
            wait_until(lambda: aborted() == 4, 60, lambda: f"{aborted()} requests count as aborted, not 4")
            cluster.admin("/wake_up")
            cluster.wait_idle()
            self.assertEqual(aborted(), 4)


class Pages(unittest.TestCase):
    def test_a_page_reads_what_the_flags_allow_and_commands_nothing(self):
        page = {"Origin": "https://chat.example"}
        with Cluster(tiny("qwen3"), '--allowed-origins=["https://chat.example"]', "--admin-allowed-hosts=gpu.example",
                     "--enable-request-id-headers", workers=1) as cluster:
            answer = cluster.request("GET", "/v1/models", headers=page)
            self.assertEqual(answer.headers["Access-Control-Allow-Origin"], "https://chat.example")
            self.assertRegex(answer.headers["X-Request-Id"], "^[0-9a-f]{32}$")
            preflight = cluster.request("OPTIONS", "/v1/completions", headers={**page, "Access-Control-Request-Method": "POST"})
            self.assertEqual(preflight.status, 200)
            for headers, status in ((page, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Host": "evil.example"}, 403),
                                    ({"Host": "gpu.example:8001"}, 200)):
                answer = cluster.request("POST", "/sleep", headers=headers, port=cluster.admin_port)
                self.assertEqual(answer.status, status, headers)
            cluster.admin("/wake_up")
            # As a probe comes by a pod's address, or anything else in front.
            probe = cluster.request("GET", "/readyz", headers={"Host": "evil.example"}, port=cluster.admin_port)
            self.assertEqual(probe.status, 200)
            body = gzip.compress(json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode())
            answer = cluster.request("POST", "/v1/completions", body, {"Content-Type": "application/json",
                                                                       "Content-Encoding": "gzip"})
            self.assertEqual(answer.json["usage"]["completion_tokens"], 3)
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port)
            connection.request("HEAD", "/v1/models")
            head = connection.getresponse()
            self.assertEqual((head.status, head.read()), (200, b""))
            self.assertGreater(int(head.headers["Content-Length"]), 100)
            connection.close()


if __name__ == "__main__":
    unittest.main()
