"""The examples of sleep in vLLM's documentation (docs/features/sleep_mode.md of its repository, in November 2026): offline, a step of
reinforcement learning, tags, and a server. The calls have vLLM's names, arguments, defaults and order. Between an example and what
runs here are three replacements: the import, the program's name, and the model's."""
import json
import os
import unittest

from cluster.harness import ROOT, tiny
from cluster.harness.page_blocks import Machine

REPLACED = (("from vllm import", "from somnus import"), ("vllm serve", "somnus serve"), ("Qwen/Qwen3-0.6B", tiny("llama-uneven")))

# Texts are greedy, so that equal ones mean that the weights are back.
BEFORE = """
from vllm import LLM, SamplingParams

def text():
    return llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text

llm = LLM("Qwen/Qwen3-0.6B", enable_sleep_mode=True)
before = text()
"""
AFTER = """
assert text() == before
print("the same text")
"""
PROGRAMS = {
    "offline": """
llm.sleep(level=1)
llm.wake_up()
""",
    "reinforcement learning": """
llm.sleep(level=2)
llm.wake_up(tags=["weights"])
llm.collective_rpc("reload_weights")
llm.wake_up(tags=["kv_cache"])
""",
    "tags": """
llm.sleep(tags=["kv_cache"])
llm.wake_up(tags=["kv_cache"])
llm.sleep(tags=["weights"])
llm.wake_up(tags=["weights"])
""",
}

SERVER = """
VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-0.6B \\
  --enable-sleep-mode \\
  --port 8000
"""
IS_SLEEPING = "curl -sf http://localhost:8000/is_sleeping"
# After each call: whether the server sleeps.
CALLS = (
    ("curl -sf -X POST 'http://localhost:8000/sleep?level=1'", True),
    ("curl -sf -X POST 'http://localhost:8000/wake_up'", False),
    ("curl -sf -X POST 'http://localhost:8000/sleep?level=2'", True),
    ("curl -sf -X POST 'http://localhost:8000/wake_up?tags=weights'", True),
    ("curl -sf -X POST 'http://localhost:8000/collective_rpc' -H 'Content-Type: application/json' "
     "-d '{\"method\":\"reload_weights\"}'", True),
    ("curl -sf -X POST 'http://localhost:8000/wake_up?tags=kv_cache'", False),
)
COMPLETION = ("curl -sf http://localhost:8000/v1/completions -H 'Content-Type: application/json' "
              "-d '{\"prompt\": \"The capital of France is\", \"temperature\": 0}'")


def ours(text):
    for theirs, here in REPLACED:
        text = text.replace(theirs, here)
    return text


class Examples(unittest.TestCase):
    def test_offline_reinforcement_learning_tags(self):
        """A request to an engine that sleeps would wait for ever: each program ends awake."""
        with Machine() as machine:
            for name, calls in PROGRAMS.items():
                with self.subTest(name):
                    text = ours(BEFORE + calls + "assert not llm.is_sleeping()\n" + AFTER)
                    said = machine.run("python", text, PYTHONPATH=os.path.join(ROOT, "clients", "python"))
                    self.assertEqual(said, "the same text\n")

    def test_a_server_that_sleeps_and_serves_on_one_port(self):
        with Machine() as machine:
            machine.serve(ours(SERVER))

            def text():
                return json.loads(machine.run("bash", COMPLETION))["choices"][0]["text"]
            before = text()
            for call, sleeping in CALLS:
                machine.run("bash", call)
                self.assertEqual(json.loads(machine.run("bash", IS_SLEEPING)), {"is_sleeping": sleeping}, call)
            self.assertEqual(text(), before)
