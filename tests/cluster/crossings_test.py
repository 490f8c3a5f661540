"""A table of crossings, over real processes: models with windows, with experts, with latent attention, with adapters and in stages,
each under every disturbance. The tokens, the log-probabilities and the texts are those of a server of the same model that has
no drafts, no prefix cache, room for all, and one request at a time.

A row of the table is a class: a subject, and a server for all of the cases. A column is a case of `Crossings`.
"""
import json
import os
import re
import signal
import tempfile
import unittest

from cluster.harness import Cluster, served_weights, tiny, wait_until
from cluster.harness.lora_files import MODULES, write_adapter
from cluster.harness.other_weights import read_file
from cluster.harness.run_directory import RunDirectory, pids
from cluster.harness.served_weights import DEADLINE_S, grpc
from cluster.harness.together import ANSWER_S, Together, complete, prompt
from cluster.harness.tokenized import with_tokenizer

ROOM_BYTES = 1 << 20
COMMON = ("--dtype=float32", "--threads-per-worker=1", "--max-num-seqs=16")
DISTURBED = ("--max-recoveries=1000", "--max-num-batched-tokens=64", "--num-speculative-tokens=4",
             "--no-drafts-must-pay", "--prompt-lookup-min=1", "--prompt-lookup-max=4", "--shutdown-timeout=10m")
GREEDY = {"temperature": 0, "ignore_eos": True, "logprobs": 1}
SAMPLED = {"temperature": 0.9, "ignore_eos": True, "logprobs": 0}
FORM = {"type": "object", "properties": {"name": {"enum": ["tree", "stone", "river"]},
                                         "seen": {"type": "array", "items": {"type": "boolean"}, "minItems": 25, "maxItems": 25}},
        "required": ["name", "seen"], "additionalProperties": False}
LONG = {"prompt": prompt(3, 90), "max_tokens": 300, **GREEDY}
REQUESTS = [
    LONG,
    {"prompt": prompt(5, 64), "max_tokens": 150, "seed": 17, **SAMPLED},
    {"prompt": LONG["prompt"] + [1, 2, 3], "max_tokens": 80, **GREEDY},
    {"prompt": prompt(7, 37), "max_tokens": 60, "n": 3, "seed": 5, **SAMPLED},
    {"prompt": prompt(9, 50), "max_tokens": 350, "temperature": 0.9, "seed": 8,
     "structured_outputs": {"json": FORM, "disable_any_whitespace": True}},
    {"prompt": prompt(11, 35), "max_tokens": 12, "n": 2, "use_beam_search": True, "temperature": 0, "ignore_eos": True},
]
FORMED = 4
BUSY_S = 180   # for a moment's work, on a machine that is busy with other suites, too
ATTEMPTS = 20  # a fast machine may have ended the requests before the disturbance came
DTYPES = {"F32": "WEIGHT_DTYPE_FLOAT32", "BF16": "WEIGHT_DTYPE_BFLOAT16", "F16": "WEIGHT_DTYPE_FLOAT16"}


def setUpModule():
    global pb, rpc
    pb = served_weights.generate_stubs()
    rpc = served_weights.rpc


def answers(cluster, body):
    return [(choice["token_ids"], choice["text"], choice["finish_reason"], choice["logprobs"]) for choice in complete(cluster, body)]


class Crossings:
    """The columns. A subclass is a row: the checkpoint, the flags of the subject, and the tensors of an update."""

    variant, flags, workers = "", (), 2
    subject = ()  # flags of the subject alone; {model} is the checkpoint
    preemption = "swap"
    adapted = ()  # the modules that an adapter changes; every second request names the adapter
    updated = ""  # a regular expression for names
    tight = 28    # blocks in which the longest request fits alone, and all requests together do not
    stages = 1    # of the subject. The answers that are wanted have one stage

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="somnus_crossings_")
        cls.addClassCleanup(folder.cleanup)
        cls.model = with_tokenizer(cls.variant, os.path.join(folder.name, "model")) if cls.variant else tiny("llama-uneven")
        names, more = ["test-model"], ()
        if cls.adapted:
            names, more = ["poet", "test-model"], ("--enable-lora", f"--lora-modules=poet={folder.name}/poet")
            write_adapter(cls.model, os.path.join(folder.name, "poet"), modules=cls.adapted)
        cls.requests = [{"model": names[i % len(names)], **body} for i, body in enumerate(REQUESTS)]
        common = (*COMMON, *cls.flags, *more)
        with Cluster(cls.model, *common, "--no-enable-prefix-caching", f"--kv-cache-memory-bytes={ROOM_BYTES}",
                     workers=cls.workers) as cluster:
            cls.wanted = [answers(cluster, body) for body in cls.requests]
            if cls.adapted and answers(cluster, LONG) == cls.wanted[0]:
                raise AssertionError("the adapter changes nothing")
            blocks = int(cluster.status()["total_blocks"]) + 1
        # A block of a stage has the layers of the stage alone.
        tight_bytes = ROOM_BYTES * (cls.tight + 1) // blocks // cls.stages
        cls.run_dir = RunDirectory(cls.model, *common, *DISTURBED, *[flag.format(model=cls.model) for flag in cls.subject],
                                   f"--preemption={cls.preemption}", f"--pipeline-parallel-size={cls.stages}",
                                   f"--kv-cache-memory-bytes={tight_bytes}", workers=cls.workers)
        cls.addClassCleanup(cls.run_dir.close)
        cls.cluster = cls.run_dir.start()

    def metric(self, name, **labels):
        return self.cluster.metric(name, **labels) or 0

    def assert_as_wanted(self):
        self.assertEqual(Together(self.cluster, self.requests, answers).join(), self.wanted)

    def disturbed(self, disturb, settle=lambda: None):
        """Calls disturb() in the middle of the requests, until some were open then; every answer is as wanted. Behind the answers,
        settle() waits for the end of the disturbance."""
        for _ in range(ATTEMPTS):
            before = self.metric("vllm:generation_tokens_total")
            asked = Together(self.cluster, self.requests, answers)
            wait_until(lambda: asked.ended() or self.metric("vllm:generation_tokens_total") > before + 100, BUSY_S, "tokens come",
                       poll=0.02)
            disturb()
            struck = not asked.ended()
            self.assertEqual(asked.join(), self.wanted)
            settle()
            if struck:
                return
        self.fail(f"the requests had ended before, in {ATTEMPTS} attempts")

    def kill(self, rank):
        """As disturbed() does, a worker is killed; the group is whole again when this returns."""
        lost = []

        def strike():
            lost.append(self.metric("somnus:recoveries_total"))
            os.kill(pids(self.cluster)[rank], signal.SIGKILL)

        def settle():
            wait_until(lambda: self.metric("somnus:recoveries_total") > lost[-1], BUSY_S, self.cluster.log)
            self.cluster.wait_ready()
            self.run_dir.workers.update(pids(self.cluster).values())
        self.disturbed(strike, settle)

    def test_preemption_and_drafts_and_a_form(self):
        value = json.loads(self.wanted[FORMED][0][1])
        self.assertEqual((sorted(value), len(value["seen"])), (["name", "seen"], 25))

        def counts():
            return [self.metric("somnus:preemptions_total", mode=self.preemption),
                    self.metric("vllm:spec_decode_num_accepted_tokens_total")]
        before = counts()
        for _ in range(ATTEMPTS):
            self.assert_as_wanted()
            if all(now > then for now, then in zip(counts(), before)):
                break
        else:
            self.fail(f"preemptions and accepted drafts: {before} before, {counts()} after {ATTEMPTS} rounds")
        self.cluster.wait_idle()

    def test_hits_of_the_prefix_cache(self):
        # A turn, and the next turn, which begins with the first turn and a part of the answer.
        turn = self.cluster.complete(LONG["prompt"], model=self.requests[0]["model"], max_tokens=40, ignore_eos=True)
        tokens = LONG["prompt"] + self.wanted[0][0][0]
        self.assertEqual(turn["choices"][0]["token_ids"], tokens[90:130])
        turn = self.cluster.complete(tokens[:120], model=self.requests[0]["model"], max_tokens=100, ignore_eos=True)
        self.assertEqual(turn["choices"][0]["token_ids"], tokens[120:220])
        self.assertEqual(turn["usage"]["prompt_tokens_details"]["cached_tokens"], 112)

    def test_killed_workers(self):
        for rank in (0, len(pids(self.cluster)) - 1):  # of the first stage, and of the last
            with self.subTest(rank=rank):
                self.kill(rank)

    def sleep_and_wake(self, level):
        self.cluster.admin(f"/sleep?level={level}&mode=keep")
        for rank in self.cluster.status()["ranks"]:
            self.assertEqual({tag: count for tag, count in rank["bytes_by_tag"].items() if int(count)}, {})
        self.cluster.admin("/wake_up")

    def test_sleeps(self):
        for level in (1, 2):
            with self.subTest(level=level):
                kept = self.metric("somnus:kv_blocks_kept_total")
                self.disturbed(lambda level=level: self.sleep_and_wake(level))
                keeps = level == 1 and "--keep-kv-on-sleep" in self.subject
                self.assertEqual(self.metric("somnus:kv_blocks_kept_total") > kept, keeps)

    def test_sleeps_by_tag(self):
        """The experts of a mixture belong to `weights`."""
        for tag, other in (("weights", "kv_cache"), ("kv_cache", "weights")):
            with self.subTest(tag=tag):
                self.cluster.wait_idle()
                before = [rank["bytes_by_tag"] for rank in self.cluster.status()["ranks"]]
                self.cluster.admin(f"/sleep?level=1&tags={tag}")
                for rank, had in zip(self.cluster.status()["ranks"], before):
                    now = rank["bytes_by_tag"]
                    self.assertGreater(int(had[tag]), 0)
                    self.assertEqual((int(now.get(tag, 0)), now[other]), (0, had[other]))
                self.cluster.admin(f"/wake_up?tags={tag}")
                self.assert_as_wanted()

    def test_a_reload(self):
        self.disturbed(lambda: self.cluster.admin("/reload_weights?mode=keep"))

    def update(self, chosen, change=lambda data: data):
        """Sends the tensors whose names are `chosen`, changed, while requests are kept. Returns the number of tensors."""
        header, data = read_file(os.path.join(self.model, "model.safetensors"))
        names = [name for name in header if name != "__metadata__" and re.search(chosen, name)]

        def messages():
            yield pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin(mode=pb.SLEEP_MODE_KEEP))
            for name in names:
                begin, end = header[name]["data_offsets"]
                chunk = served_weights.weights_pb.WeightChunk(name=name, shape=header[name]["shape"], data=change(data[begin:end]))
                chunk.dtype = getattr(served_weights.weights_pb, DTYPES[header[name]["dtype"]])
                yield pb.UpdateWeightsRequest(chunk=chunk)
            yield pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())
        with grpc.insecure_channel(f"127.0.0.1:{self.cluster.control_port}") as channel:
            reply = rpc.ControlServiceStub(channel).UpdateWeights(messages(), timeout=DEADLINE_S)
        self.assertEqual(reply.num_tensors, len(names))
        return len(names)

    def test_updates(self):
        def halves_swapped(data):
            half = len(data) // 8 * 4
            return data[half:] + data[:half]
        self.assertGreater(self.update(self.updated, halves_swapped), 0)
        self.assertNotEqual(answers(self.cluster, self.requests[0]), self.wanted[0])
        self.update(self.updated)
        self.assert_as_wanted()
        self.disturbed(lambda: self.update(""))
        self.cluster.admin("/reload_weights")  # else a worker that is killed could not get the weights again

    def test_a_coordinator_adopts_the_workers(self):
        known = pids(self.cluster)
        streams = [(self.cluster.open_stream(**{"ignore_eos": False, **body}, timeout=ANSWER_S), wanted)
                   for body, wanted in zip(self.requests, self.wanted) if "use_beam_search" not in body]
        self.cluster.process.send_signal(signal.SIGUSR1)
        for stream, wanted in streams:
            texts = [""] * len(wanted)
            for event in stream.events():
                self.assertNotIn("error", event, self.cluster.log())
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
            stream.close()
            self.assertEqual(texts, [choice[1] for choice in wanted])
        self.assertEqual(self.cluster.process.wait(BUSY_S), 0, self.cluster.log())
        type(self).cluster = self.run_dir.start()
        self.assertEqual(pids(self.cluster), known)
        self.assert_as_wanted()


class WindowsOfAllLayers(Crossings, unittest.TestCase):
    """Running sequences give blocks back, so that the longest fits into fewer than the tokens fill. Sleeps at level 1 keep the blocks."""

    variant, updated, tight, subject = "mistral-window", r"self_attn\.[qk]_proj", 10, ("--keep-kv-on-sleep",)

    def test_blocks_are_given_back(self):
        before = self.metric("somnus:kv_blocks_given_back_total")
        self.assert_as_wanted()
        self.assertGreater(self.metric("somnus:kv_blocks_given_back_total"), before)


class WindowsOfAllLayersAndADraftModel(Crossings, unittest.TestCase):
    """The model guesses for itself, and sequences that have no room are computed again."""

    variant, updated, tight, preemption = "mistral-window", r"self_attn\.[qk]_proj", 58, "recompute"
    subject = ("--speculative=draft", "--draft-model={model}")


class SomeWindowsAndAnAdapter(Crossings, unittest.TestCase):
    variant, updated, adapted, preemption = "gemma3", r"mlp\.gate_proj", MODULES, "recompute"


class ExpertsAndAnAdapter(Crossings, unittest.TestCase):
    """The workers divide the number of experts. Adapters change attention, and no experts. The load of the experts adds up to the
    computed tokens after each disturbance."""

    variant, updated = "qwen3-moe", r"experts\.[0-9]+\.up_proj"
    flags = ("--enable-expert-parallel", "--expert-load-metrics")
    adapted = ("q_proj", "v_proj", "o_proj")
    layers, experts_of_a_token = (0, 2), 3  # as in the checkpoint; layer 1 has no experts

    def tearDown(self):
        self.cluster.wait_idle()
        computed = self.metric("vllm:iteration_tokens_total_sum")
        self.assertGreater(computed, 0)
        self.assertEqual([self.metric("somnus:expert_tokens_total", layer=layer) for layer in self.layers],
                         [computed * self.experts_of_a_token] * len(self.layers))


class FusedExpertsInStages(Crossings, unittest.TestCase):
    """Windows and sinks beside the experts, which files and updates have in one tensor of a layer. A single worker computes the
    wanted answers; sleeps at level 1 keep the blocks."""

    variant, updated, workers, stages = "gpt-oss", r"experts\.(gate_up|down)_proj", 1, 2
    subject = ("--keep-kv-on-sleep",)


class LatentAttention(Crossings, unittest.TestCase):
    """Host memory has cached prefixes, too."""

    variant, updated, subject = "deepseek-v3", r"kv_b_proj", ("--prefix-cache-on-host=on",)

    def cached_on_host(self):
        self.cluster.wait_idle()
        return self.metric("somnus:kv_host_blocks_cached")

    def test_a_killed_worker_takes_cached_prefixes_of_host_memory_along(self):
        self.assert_as_wanted()
        self.assertGreater(self.cached_on_host(), 0)
        self.kill(0)
        self.assertEqual(self.cached_on_host(), self.metric("somnus:kv_host_blocks_used"))


class AnAdapterInStages(Crossings, unittest.TestCase):
    """Two stages of two workers."""

    updated, adapted, stages = r"self_attn\.o_proj", MODULES, 2
