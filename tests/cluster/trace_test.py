"""GET /trace of a served engine: the steps of a completion, the other uses of the engine's time, and every decision that the
metrics count."""
import collections
import unittest

from cluster.harness import Cluster, tiny
from cluster.speculation_test import ACCEPTED, DRAFTS
from cluster.swap_test import REQUESTS, SWAPPING, TIGHT, answers, cluster_of, together

MODEL = "qwen3"
PROMPT = [(37 * i + 3) % 500 for i in range(40)]
TOKENS = 12


def trace(cluster):
    """The steps in which something was computed, and the names of spans that are no steps."""
    answer = cluster.request("GET", "/trace?seconds=3600", port=cluster.admin_port)
    if answer.status != 200:
        raise AssertionError(f"HTTP {answer.status}: {answer.text}")
    events = [event for event in answer.json["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if "step_id" in event.get("args", {})]
    others = [event["name"] for event in events if event not in steps]
    return steps, others


class Trace(unittest.TestCase):
    def completion(self, cluster):
        """The steps of one completion with that prompt, and how many of its tokens the prefix cache had."""
        before = len(trace(cluster)[0])
        usage = cluster.complete(PROMPT, max_tokens=TOKENS, ignore_eos=True)["usage"]
        cluster.wait_idle()
        steps = [step for step in trace(cluster)[0][before:] if step["name"] != "free"]
        self.assertEqual([step["name"] for step in steps], ["prefill"] + (TOKENS - 1) * ["decode"])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual([step["args"]["cached_tokens"] for step in steps], [cached] + (TOKENS - 1) * [0])
        self.assertEqual([step["args"]["tokens"] for step in steps], [len(PROMPT) - cached] + (TOKENS - 1) * [1])
        for earlier, later in zip(steps, steps[1:]):
            self.assertGreaterEqual(later["ts"] + later["dur"], earlier["ts"] + earlier["dur"])
        return cached

    def test_a_completions_steps_and_what_came_between(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            self.assertEqual(self.completion(cluster), 0)
            self.assertEqual(self.completion(cluster), 32)
            for path in ("/sleep?level=1", "/wake_up"):
                cluster.admin(path)
            self.assertEqual([name for name in trace(cluster)[1] if name != "self_check"], ["sleep", "wake_up"])
            self.assertEqual(cluster.request("GET", "/trace").status, 404)

    def preempted_and_then_repeated(self, cluster):
        """Requests that all wait before the first begins, so that not all fit, and one request twice, so that its blocks are
        cached."""
        cluster.admin("/pause")
        asked = together(cluster)
        choices = sum(request.get("n", 1) for request in REQUESTS)
        cluster.wait_waiting(choices)
        cluster.admin("/resume")
        asked.join()
        for _ in range(2):
            answers(cluster, REQUESTS[0])
        cluster.wait_idle()

    def test_decisions_add_up_to_the_metrics(self):
        with cluster_of(TIGHT, SWAPPING, *DRAFTS) as cluster:
            self.preempted_and_then_repeated(cluster)
            told = collections.Counter()
            for step in trace(cluster)[0]:
                args = step["args"]
                for mode in ("swap", "recompute"):
                    told.update({("preempted", cause, mode): count for cause, count in args[f"preempted_by_{mode}"].items()})
                told.update({("declined", reason): count for reason, count in args["swaps_declined"].items()})
                told.update({name: args[name] for name in ("watermark_refusals", "cached_tokens", "accepted_draft_tokens",
                                                           "swapped_out_blocks")})
            counted = {("preempted", cause, mode): cluster.metric("somnus:preemptions_total", cause=cause, mode=mode)
                       for cause in ("no_blocks", "priority", "reset", "failure") for mode in ("swap", "recompute")}
            counted.update({("declined", reason): cluster.metric("somnus:swaps_declined_total", reason=reason)
                            for reason in ("host_full", "host_memory", "step_full", "price")})
            counted.update({"watermark_refusals": cluster.metric("somnus:watermark_refusals_total"),
                            "cached_tokens": cluster.metric("vllm:prefix_cache_hits_total"),
                            "accepted_draft_tokens": cluster.metric(ACCEPTED),
                            "swapped_out_blocks": cluster.metric("somnus:swapped_blocks_total", direction="out")})
            self.assertEqual({name: told[name] for name in counted}, counted)
            for name in (("preempted", "no_blocks", "swap"), "accepted_draft_tokens", "cached_tokens"):
                self.assertGreater(told[name], 0, name)
