"""simulator and scheduler_bench: the flags and the fields that scripts rely on, and the simulator's pictures."""
import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from cluster.harness import BIN

SIMULATOR = os.path.join(BIN, "tools", "simulator", "simulator")
SCHEDULER_BENCH = os.path.join(BIN, "tools", "bench", "scheduler_bench")
# The paper's Figures 2, 12 and 14, 15 and 18.
PICTURES = ("memory_waste", "latency_sharegpt", "latency_alpaca", "latency_alpaca_n2", "latency_alpaca_n4", "latency_alpaca_n6",
            "latency_alpaca_beams2", "latency_alpaca_beams4", "latency_alpaca_beams6", "sharing_sharegpt", "sharing_alpaca",
            "block_size")


class ProgramJson(unittest.TestCase):
    def run_program(self, *command):
        done = subprocess.run(command, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def simulate(self, *flags):
        found = json.loads(self.run_program(SIMULATOR, "--requests=60", "--json", *flags))
        for name in ("mean_normalized_latency_s", "kv_utilization", "simulated_s"):
            self.assertGreater(found[name], 0, name)
        for name in ("num_preemptions", "sharing_saved"):
            self.assertGreaterEqual(found[name], 0, name)
        self.assertLessEqual(found["kv_utilization"], 1)
        self.assertEqual(found["requests"], 60)
        return found

    def test_the_simulators_policies_and_traces(self):
        utilization = {}
        for policy in ("somnus", "orca-oracle", "orca-pow2", "orca-max", "fastertransformer"):
            for trace in ("sharegpt", "alpaca"):
                utilization[policy, trace] = self.simulate(f"--trace={trace}", f"--policy={policy}", "--rate", "4")["kv_utilization"]
        self.assertGreater(utilization["somnus", "sharegpt"], utilization["orca-oracle", "sharegpt"])
        self.assertGreater(utilization["orca-oracle", "sharegpt"], utilization["orca-max", "sharegpt"])

    def test_the_simulator_preempts_and_shares_as_the_server_does(self):
        full = ("--trace=sharegpt", "--policy=somnus", "--rate=20", "--kv-slots=4096")
        served = self.simulate(*full)
        self.assertGreater(served["num_swap_preemptions"], 0, "by default the cheaper way, which a copy is here")
        self.assertEqual(self.simulate(*full, "--preemption=auto"), served)
        recomputing = self.simulate(*full, "--preemption=recompute")
        self.assertEqual(recomputing["num_swap_preemptions"], 0)
        self.assertGreater(recomputing["num_preemptions"], 0)
        self.assertGreater(self.simulate("--trace=sharegpt", "--rate=2", "--n=4")["sharing_saved"], 0.1)

    def test_the_papers_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            numbers = self.run_program(SIMULATOR, f"--figures={folder}", "--figure-seconds=1")
            self.assertEqual(set(os.listdir(folder)), {f"{name}.svg" for name in PICTURES})
            for name in PICTURES:
                root = xml.etree.ElementTree.parse(os.path.join(folder, f"{name}.svg")).getroot()
                self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg", name)
        for policy in ("somnus", "orca-oracle", "orca-pow2", "orca-max", "fastertransformer"):
            self.assertIn(f"| {policy} |", numbers)

    def test_the_schedulers_costs(self):
        found = json.loads(self.run_program(SCHEDULER_BENCH, "--json", "--sequences=4", "--context=64", "--steps=2"))
        self.assertGreater(found["decode_step_us"], 0)
        self.assertEqual(set(found["ns_per_block_op"]), {"1000", "100000", "1000000"})
        for name, nanoseconds in found["ns_per_block_op"].items():
            self.assertGreater(nanoseconds, 0, name)
