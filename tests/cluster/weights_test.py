"""Weights of a served cluster are replaced: from another checkpoint, and by tensors that a client sends. Updates may come out
of order: a second update while the first is open, messages without a beginning, an end too many."""
import concurrent.futures
import os
import queue
import socket
import time

from cluster.harness import served_weights, tiny, wait_until
from cluster.harness.other_weights import tensors_of
from cluster.harness.served_weights import DEADLINE_S, MODEL, PROMPTS, DirectUpdate, RelayedUpdate, chunks_of, grpc


def setUpModule():
    global pb
    pb = served_weights.generate_stubs()


class Weights(served_weights.ServedWeights):
    def test_a_reload_gives_the_other_checkpoints_tokens(self):
        version = self.status().weights_version
        said = self.cluster.cli("reload-weights", self.other).stdout
        self.assertIn(f"version {version + 1} of the weights", said)
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assertEqual(self.status().weights_source, self.other)
        answer = self.cluster.request("POST", "/v1/completions", {"model": self.cluster.name, "prompt": "a", "max_tokens": 2})
        self.assertEqual(answer.headers["X-Weight-Version"], str(version + 1))
        self.assertEqual(self.cluster.request("GET", "/server_info").json["weight_version"], version + 1)
        self.assertEqual(self.cluster.metric("somnus:weights_version"), version + 1)
        self.assertEqual({rank.weights_version for rank in self.status().ranks}, {version + 1})
        self.assertEqual(self.admin("/reload_weights?weight_version=77").json["weight_version"], 77)
        self.assertEqual(self.tokens(), self.other_tokens, "the same checkpoint once more")
        reply = self.cluster.request("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": tiny(MODEL)}},
                                     port=self.cluster.admin_port)
        self.assertEqual(reply.json, {"results": [None, None]})
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_what_cannot_be_read_changes_nothing(self):
        version = self.status().weights_version
        for path in ("/nowhere", tiny("qwen3")):
            with self.assertRaises(grpc.RpcError) as caught:
                self.reload(path)
            self.assertIn(caught.exception.code(), (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION))
        self.assertEqual(self.status().weights_version, version)
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_a_level_2_sleep_before_a_reload(self):
        self.assertEqual(self.admin("/sleep?level=2").status, 200)
        self.assertEqual(self.admin(f"/reload_weights?path={self.other}").status, 409, "their memory is not mapped")
        woken = self.admin("/wake_up?tags=weights&load_weights=false").json
        self.assertEqual(woken["tag_states"]["weights"], {"state": "stale", "changed": True})
        self.assertEqual(self.admin(f"/reload_weights?path={self.other}").status, 200)
        self.assertEqual(self.status().state, pb.ENGINE_STATE_ASLEEP, "the cache sleeps")
        self.assertEqual(self.admin("/wake_up?tags=kv_cache").json["status"], "awake")
        self.assertEqual(self.tokens(), self.other_tokens)

    def test_requests_that_are_open(self):
        for mode in ("wait", "abort", "keep"):
            with self.subTest(mode=mode):
                stream = self.cluster.open_stream(PROMPTS[0], max_tokens=400, return_token_ids=True)
                events = stream.events()
                next(events)
                self.assertEqual(self.admin(f"/reload_weights?path={self.other}&mode={mode}").status, 200)
                reasons = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
                stream.close()
                # On a fast machine the stream may have ended before the call came.
                self.assertIn(reasons[-1], ("abort", "length") if mode == "abort" else ("length",))
                self.assertEqual(self.tokens(), self.other_tokens, "no block of the old weights is cached")
                self.reload(tiny(MODEL))

    def test_an_update_gives_the_other_checkpoints_tokens(self):
        version = self.status().weights_version
        reply = self.update(self.chunks(self.other))
        self.assertEqual(reply.weights_version, version + 1)
        self.assertEqual(reply.num_tensors, len(list(tensors_of(self.other))))
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assertTrue(self.status().weights_source.startswith("update "))
        # The embeddings are the same in both.
        self.update(self.chunks(tiny(MODEL), lambda name: ".layers." in name))
        self.assertEqual(self.tokens(), self.first_tokens)

    def test_an_update_that_breaks_leaves_stale_weights(self):
        some = [message for message in self.chunks(self.other)][:4]
        self.assert_code(grpc.StatusCode.CANCELLED, self.update, iter(some), False)
        self.assert_stale()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.cluster.tokens, PROMPTS[0], ignore_eos=True)
            wait_until(lambda: self.status().num_requests_waiting == 1, 30, "the request waits")
            self.reload(self.other)
            self.assertEqual(waiting.result(DEADLINE_S), self.other_tokens[0])
        self.assertEqual(self.tokens(), self.other_tokens)

    def test_a_tensor_that_the_model_has_not(self):
        version = self.status().weights_version
        for wrong in ("name", "shape", "dtype"):
            messages = list(self.chunks(self.other))
            chunk = messages[1].chunk
            if wrong == "name":
                chunk.name = "model.layers.9.mlp.nonsense.weight"
            elif wrong == "shape":
                chunk.shape.append(7)
            else:
                chunk.dtype = 0
            self.assertIn(chunk.name, self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.update, iter(messages)))
            self.assertEqual(self.status().weights_version, version, "nothing was written yet")
            self.assertEqual(self.tokens(), self.first_tokens)
        messages = list(self.chunks(self.other))
        # Messages that go on with a tensor have no name, nor has the last message.
        chunks = [message.chunk for message in messages[1:] if message.chunk.name]
        begin = pb.UpdateWeightsRequest.Begin()
        for chunk in chunks:
            begin.tensors.add(name=chunk.name, dtype=chunk.dtype, shape=chunk.shape)
        begin.tensors[-1].name = "model.layers.9.mlp.nonsense.weight"
        with self.subTest("announced"):
            message = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.update,
                                       iter([pb.UpdateWeightsRequest(begin=begin), *messages[1:]]))
            self.assertIn("nonsense", message)
            self.assertEqual(self.tokens(), self.first_tokens)
        messages[2].chunk.name = "model.layers.9.mlp.nonsense.weight"
        self.assertIn("nonsense", self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.update, iter(messages)))
        self.assert_stale()

    def test_a_direct_update_gives_the_other_checkpoints_tokens(self):
        version = self.status().weights_version
        with DirectUpdate(self.control) as update:
            self.assertEqual([port.rank for port in update.ports], [0, 1])
            replies = [update.send(rank, chunks_of(self.other)) for rank in (0, 1)]
            self.assertEqual(replies[0], replies[1])
            self.assertEqual(self.status().weights_version, 0, "nothing is served yet")
            done = update.finish(replies[0])
        self.assertEqual((done.weights_version, done.num_tensors), (version + 1, len(list(tensors_of(self.other)))))
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assertEqual({rank.weights_version for rank in self.status().ranks}, {version + 1})

    def test_ranks_that_got_different_tensors_do_not_serve_together(self):
        with DirectUpdate(self.control) as update:
            replies = [update.send(rank, chunks_of(folder)) for rank, folder in enumerate((self.other, tiny(MODEL)))]
            self.assertNotEqual(replies[0].checksum, replies[1].checksum)
            self.assert_code(grpc.StatusCode.DATA_LOSS, lambda: update.finish(replies[0]))
        self.assert_stale()

    def test_a_rank_that_dies_in_a_direct_update(self):
        with DirectUpdate(self.control) as update, concurrent.futures.ThreadPoolExecutor() as pool:
            done, sent = queue.SimpleQueue(), queue.SimpleQueue()

            def some_chunks():
                for number, chunk in enumerate(chunks_of(self.other)):
                    if number == 4:
                        sent.put(number)
                        done.get()
                    yield chunk
            try:
                survivor = pool.submit(update.send, 0, some_chunks())
                sent.get(timeout=DEADLINE_S)
                self.kill_a_worker()
                with self.assertRaises(grpc.RpcError):
                    survivor.result(DEADLINE_S)  # the new epoch has ended the stream
            finally:
                done.put(None)
            with self.assertRaises(grpc.RpcError):
                update.finish(None)
        self.assert_stale()

    def test_a_direct_update_that_is_given_up_closes_the_ports(self):
        with DirectUpdate(self.control) as update:
            update.send(0, chunks_of(self.other))
        wait_until(lambda: self.status().state == pb.ENGINE_STATE_ASLEEP, 30, "the server has noticed")
        self.assert_stale()
        wait_until(lambda: not os.path.exists(update.ports[0].address.removeprefix("unix:")), 30, "the port has closed")
        self.assert_code(grpc.StatusCode.UNAVAILABLE, lambda: update.send(0, chunks_of(self.other)))

    def test_a_rank_that_is_lost_after_an_update(self):
        self.update(self.chunks(self.other))
        self.kill_a_worker()
        self.assert_stale()
        version = self.reload()
        self.assertEqual(self.tokens(), self.first_tokens, "the checkpoint that was read last")
        self.update(self.chunks(self.other))
        self.assertEqual(self.status().weights_version, version + 1)
        self.assertEqual(self.tokens(), self.other_tokens)

    def test_a_rank_that_is_lost_after_a_reload(self):
        version = self.reload(self.other)
        self.kill_a_worker()
        self.assertEqual(self.tokens(), self.other_tokens, "the newcomer reads what the others have")
        self.assertEqual({rank.weights_version for rank in self.status().ranks}, {version})

    def test_no_rank_reads_the_old_checkpoint_after_an_update(self):
        self.update(self.chunks(self.other))
        self.admin("/sleep?level=1")
        self.admin("/wake_up")
        self.assertEqual(self.tokens(), self.other_tokens, "the backup is of the new ones")
        refused = self.admin("/sleep?level=2")
        self.assertEqual(refused.status, 409, refused.text)
        self.assertIn("force", refused.json["error"]["message"])
        self.assertEqual(self.tokens(), self.other_tokens)
        self.assertEqual(self.admin("/sleep?level=2&force=true").status, 200)
        self.assertEqual(self.admin("/wake_up").json["tag_states"]["weights"]["state"], "stale")
        self.assert_stale()
        self.update(self.chunks(self.other))
        self.assertEqual(self.tokens(), self.other_tokens)
        self.admin("/sleep?level=1")
        self.kill_a_worker()
        self.assertEqual(self.admin("/wake_up").json["tag_states"]["weights"]["state"], "stale", "one rank has no backup")
        self.assert_stale()

    def begin_half(self):
        """An update with the other checkpoint's tensors that has begun, and the messages that are left."""
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
        # Messages after the first finish count for nothing.
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
