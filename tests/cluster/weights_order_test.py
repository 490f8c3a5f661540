"""Updates of the weights that come out of order: a second one while the first is open, none that has begun, an end too many."""
import concurrent.futures
import socket
import time
import unittest

from cluster import served_weights
from cluster.harness import tiny, wait_until
from cluster.served_weights import DEADLINE_S, MODEL, PROMPTS, DirectUpdate, RelayedUpdate, chunks_of, grpc


def setUpModule():
    global pb
    pb = served_weights.generate_stubs()


class OrderOfUpdates(served_weights.ServedWeights):
    def begin_half(self):
        """An update with the other checkpoint's tensors that has begun, and what is left of it."""
        messages = list(self.chunks(self.other))
        update = RelayedUpdate(self.control, *messages[:len(messages) // 2])
        self.addCleanup(update.call.cancel)
        wait_until(lambda: self.status().weights_version == 0, 30, "it has begun")
        return update, messages[len(messages) // 2:]

    def assert_answer_is_of_its_version(self, response, tokens):
        """`tokens`: by version."""
        self.assertEqual(response.status, 200, response.text)
        self.assertEqual(response.json["choices"][0]["token_ids"], tokens[int(response.headers["X-Weight-Version"])])

    def test_a_second_update_waits_until_the_first_has_ended(self):
        version = self.status().weights_version
        first, rest = self.begin_half()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            body = {"model": self.cluster.name, "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 32, "ignore_eos": True,
                    "return_token_ids": True}
            answer = pool.submit(self.cluster.request, "POST", "/v1/completions", body)
            wait_until(lambda: self.status().num_requests_waiting == 1, 30, "the request waits")
            second = pool.submit(self.update, self.chunks(tiny(MODEL)))
            time.sleep(0.3)
            self.assertFalse(second.done())
            self.assertFalse(first.call.done(), "the second one does not end it")
            first.send(*rest)
            self.assertEqual(first.finish().weights_version, version + 1)
            self.assertEqual(second.result(DEADLINE_S).weights_version, version + 2)
            self.assert_answer_is_of_its_version(answer.result(DEADLINE_S),
                                                 {version + 1: self.other_tokens[0], version + 2: self.first_tokens[0]})
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_a_second_update_to_the_workers_waits_too(self):
        version = self.status().weights_version
        first, rest = self.begin_half()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            begun = pool.submit(DirectUpdate, self.control)
            time.sleep(0.3)
            self.assertFalse(begun.done(), "it has no ports yet")
            first.send(*rest)
            self.assertEqual(first.finish().weights_version, version + 1)
            with begun.result(DEADLINE_S) as update:
                replies = [update.send(rank, chunks_of(tiny(MODEL))) for rank in (0, 1)]
                self.assertEqual(update.finish(replies[0]).weights_version, version + 2)
                with self.assertRaises(StopIteration):
                    update.finish(replies[0])
        self.assertEqual(self.status().weights_version, version + 2)
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_whoever_waits_in_vain_for_another_update_changes_nothing(self):
        version = self.status().weights_version
        first, rest = self.begin_half()
        second = RelayedUpdate(self.control, *self.chunks(tiny(MODEL)), timeout=0.5)
        self.assert_code(grpc.StatusCode.DEADLINE_EXCEEDED, second.finish)
        third = RelayedUpdate(self.control, *self.chunks(tiny(MODEL)))
        self.assertEqual(self.status().weights_version, 0)
        third.call.cancel()
        # These come after it on the same connection, so the server knows of it then.
        self.assertEqual([self.status().weights_version for _ in range(10)], [0] * 10)
        first.send(*rest)
        self.assertEqual(first.finish().weights_version, version + 1)
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assertEqual(self.status().weights_version, version + 1)
        self.assertEqual(self.update(self.chunks(tiny(MODEL))).weights_version, version + 2)
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_updates_out_of_order(self):
        version = self.status().weights_version
        begin, *chunks = self.chunks(self.other)
        finish = pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())
        for name, messages in (("chunk", chunks), ("finish", [finish]), ("empty", [pb.UpdateWeightsRequest()]), ("nothing", [])):
            with self.subTest(name):
                self.assertIn("begin", self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.update, messages, False))
                status = self.status()
                self.assertEqual((status.state, status.weights_version), (pb.ENGINE_STATE_AWAKE, version), "nothing has changed")
        self.assertEqual(self.tokens(), self.first_tokens)
        # What comes after the first finish counts for nothing.
        self.assertEqual(self.update([begin, *chunks, finish, *chunks[:1], finish], False).weights_version, version + 1)
        self.assertEqual(self.status().weights_version, version + 1)
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.update, [begin, *chunks, begin])
        self.assert_stale()
        self.assertEqual(self.update(self.chunks(tiny(MODEL))).weights_version, version + 2, "and another one may begin")
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_an_operator_ends_an_update_that_hangs(self):
        update, _ = self.begin_half()
        call = self.status().lifecycle_call
        self.assertEqual(call.name, "update_weights")
        self.assertIn("(gRPC)", call.client)
        self.assertIn("abort-call", self.cluster.cli("status").stdout)
        self.assertIn("ended", self.cluster.cli("abort-call").stdout)
        with self.assertRaises(grpc.RpcError) as caught:
            update.call.result(DEADLINE_S)
        self.assertIn(caught.exception.code(), (grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED))
        self.assert_stale()
        self.assertEqual(self.admin("/abort_call").status, 409, "none is under way")
        self.reload(self.other)
        self.assertEqual(self.tokens(), self.other_tokens)

    def test_a_call_whose_client_has_left_is_not_carried_out(self):
        version = self.status().weights_version
        update, rest = self.begin_half()
        for target in ("/sleep?level=2&force=true", "/pause", f"/reload_weights?path={tiny(MODEL)}"):
            with socket.create_connection(("127.0.0.1", self.cluster.admin_port)) as client:
                client.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
                wait_until(lambda: self.status().lifecycle_call.num_waiting == 1, 30, "it waits for its turn")
            wait_until(lambda: self.status().lifecycle_call.num_waiting == 0, 30, "it has gone with its client")
        late = self.control.Sleep.future(pb.SleepRequest(level=2, force=True), timeout=DEADLINE_S)
        wait_until(lambda: self.status().lifecycle_call.num_waiting == 1, 30, "it waits for its turn")
        late.cancel()
        wait_until(lambda: self.status().lifecycle_call.num_waiting == 0, 30, "it has gone with its client")
        update.send(*rest)
        self.assertEqual(update.finish().weights_version, version + 1)
        self.assertEqual(self.tokens(), self.other_tokens)

    def test_idle_updates_lock_nobody_out(self):
        idle = [RelayedUpdate(self.control) for _ in range(24)]
        for update in idle:
            self.addCleanup(update.call.cancel)
        for target in ("/pause", "/resume", "/sleep", "/wake_up"):
            self.assertEqual(self.admin(target).status, 200, target)
        self.control.Sleep(pb.SleepRequest(level=1), timeout=DEADLINE_S)
        self.control.WakeUp(pb.WakeUpRequest(), timeout=DEADLINE_S)
        self.assertEqual(self.tokens(), self.first_tokens)


if __name__ == "__main__":
    unittest.main()
