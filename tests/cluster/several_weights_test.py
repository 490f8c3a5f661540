"""Weights of one of several models are replaced while another model serves: a trainer's weights step by step, and the fate of
weights that no file has."""
import threading
import unittest

from cluster.harness import Cluster, expected, grpc, stubs, tiny, wait_until
from cluster.harness.other_weights import second_checkpoint, tensors_of

# Two models of the same files: a model that is trained, and a model that serves.
MODEL = "llama-uneven"
PROMPTS = [case["prompt"] for case in expected(MODEL) if not case["ambiguous"]][:3]
DEADLINE_S = 60
FLAGS = ("--dtype=float32", f"--kv-cache-memory-bytes={32 << 20}", "--workers=local:1", "--max-model-len=512",
         "--no-elastic-kv-cache")


def setUpModule():
    stubs.generate("transition", "weights", "control")
    global pb, rpc, weights_pb
    from proto import control_pb2 as pb, control_pb2_grpc as rpc, weights_pb2 as weights_pb


class SeveralWeights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.other = second_checkpoint(cls, tiny(MODEL))
        with Cluster(tiny(MODEL), f"--model=other={cls.other}", *FLAGS, workers=0) as cluster:
            cls.old_tokens, cls.new_tokens = (
                [cluster.tokens(prompt, model=name, ignore_eos=True) for prompt in PROMPTS] for name in ("test-model", "other"))
            cls.bytes_of_one = max(cluster.metric("somnus:resident_bytes", model_name=name) for name in ("test-model", "other"))
        assert cls.old_tokens != cls.new_tokens

    def serve(self, *flags):
        self.cluster = Cluster(tiny(MODEL), f"--model=trained={tiny(MODEL)}", *FLAGS,
                               f"--device-memory-budget={int(self.bytes_of_one * 1.5)}", *flags, workers=0)
        self.addCleanup(self.cluster.__exit__)
        channel = grpc.insecure_channel(f"127.0.0.1:{self.cluster.control_port}")
        self.addCleanup(channel.close)
        self.control = rpc.ControlServiceStub(channel)

    def admin(self, target, method="POST"):
        return self.cluster.request(method, target, port=self.cluster.admin_port)

    def assert_tokens(self, name, tokens):
        self.assertEqual([self.cluster.tokens(prompt, model=name, ignore_eos=True) for prompt in PROMPTS], tokens, name)

    def update(self, finishes=True):
        def messages():
            yield pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin(model="trained"))
            for name, shape, data in tensors_of(self.other):
                yield pb.UpdateWeightsRequest(chunk=weights_pb.WeightChunk(
                    name=name, dtype=weights_pb.WEIGHT_DTYPE_FLOAT32, shape=shape, data=data))
            if finishes:
                yield pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())
        return self.control.UpdateWeights(messages(), timeout=DEADLINE_S)

    def resident(self, name):
        return self.cluster.metric("somnus:resident_bytes", model_name=name)

    def test_a_trainers_step_beside_a_model_that_serves(self):
        self.serve()
        self.assert_tokens("trained", self.old_tokens)
        self.assert_tokens("test-model", self.old_tokens)
        self.assertEqual(self.admin("/sleep?model=trained&level=2").status, 200)
        waiting = threading.Thread(target=self.assert_tokens, args=("trained", self.new_tokens))
        waiting.start()
        self.assert_tokens("test-model", self.old_tokens)
        woken = self.admin("/wake_up?model=trained&tags=weights&load_weights=false")
        self.assertEqual(woken.status, 200, woken.text)
        self.assert_tokens("test-model", self.old_tokens)
        version = self.update().weights_version
        self.assertEqual(version, 2)
        self.assertTrue(self.admin("/is_sleeping?model=trained", "GET").json["is_sleeping"])
        self.assert_tokens("test-model", self.old_tokens)
        self.assertGreater(self.resident("trained"), 0, "it is held")
        self.assertLessEqual(self.resident("trained") + self.resident("test-model"), self.bytes_of_one * 1.5)
        woken = self.admin("/wake_up?model=trained&tags=kv_cache")
        self.assertEqual(woken.status, 200, woken.text)
        waiting.join(DEADLINE_S)
        self.assertFalse(waiting.is_alive())
        for _ in range(2):  # the update's weights outlive the sleeps for the other model
            self.assert_tokens("trained", self.new_tokens)
            self.assert_tokens("test-model", self.old_tokens)
        self.assertEqual(self.cluster.stop(), 0)

    def test_a_model_that_sleeps_for_another_one_is_reloaded(self):
        self.serve()
        self.assert_tokens("trained", self.old_tokens)
        self.assert_tokens("test-model", self.old_tokens)
        reply = self.admin(f"/reload_weights?model=trained&path={self.other}")
        self.assertEqual(reply.status, 200, reply.text)
        self.assert_tokens("test-model", self.old_tokens)
        self.assert_tokens("trained", self.new_tokens)
        self.assertEqual(self.cluster.stop(), 0)

    def test_weights_that_no_file_has_are_not_lost_where_no_backup_has_room(self):
        self.serve("--host-memory-budget=1")
        self.update()
        self.assert_tokens("trained", self.new_tokens)
        waiting = threading.Thread(target=self.assert_tokens, args=("test-model", self.old_tokens))
        waiting.start()
        wait_until(lambda: (self.cluster.metric("somnus:residency_decisions_total", model_name="trained", action="stay",
                                                reason="only_copy") or 0) > 0, DEADLINE_S, "the decision")
        self.assert_tokens("trained", self.new_tokens)
        self.assertEqual(self.admin(f"/reload_weights?model=trained&path={self.other}").status, 200)
        waiting.join(DEADLINE_S)  # a file has the weights now
        self.assertFalse(waiting.is_alive())
        self.assert_tokens("trained", self.new_tokens)
        self.assertEqual(self.cluster.stop(), 0)

    def test_stale_weights_give_their_memory_to_the_other_model(self):
        self.serve()
        with self.assertRaises(grpc.RpcError):
            self.update(finishes=False)
        health = self.cluster.request("GET", "/health")
        self.assertEqual(health.status, 503)
        self.assert_tokens("test-model", self.old_tokens)
        self.assertEqual(self.resident("trained") or 0, 0)
        self.assertEqual(self.admin("/reload_weights?model=trained").status, 200)
        self.assert_tokens("trained", self.old_tokens)
        self.assert_tokens("test-model", self.old_tokens)
        self.assertEqual(self.cluster.stop(), 0)
