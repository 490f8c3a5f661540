"""sleep_bench: the JSON and the picture, with the smallest memory and model."""
import json
import os
import statistics
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from cluster.harness import BIN, SMOLLM2, tiny

SLEEP_BENCH = os.path.join(BIN, "tools", "bench", "sleep_bench")
ROUNDS = 1
MIB = 1 << 20
WEIGHTS, KV = 4 * MIB, 8 * MIB
# The phases of a sleep and a wake-up of the allocator.
TRANSITIONS = ("first sleep", "wake-up", "second sleep", "second wake-up", "sleep, all discarded", "wake-up, all discarded")
SVG = "{http://www.w3.org/2000/svg}"


class SleepBench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {**os.environ, "SOMNUS_MODEL": os.path.join(self.folder, "nothing")}  # that --model is without the flag

    def bench(self, *flags):
        """The printed JSON of the bench, and the picture."""
        picture = os.path.join(self.folder, "phases.svg")
        done = subprocess.run([SLEEP_BENCH, "--json", f"--svg={picture}", f"--rounds={ROUNDS}", "--threads=2", *flags], text=True,
                              capture_output=True, timeout=300, stdin=subprocess.DEVNULL, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), xml.etree.ElementTree.parse(picture).getroot()

    def assert_numbers_agree(self, found, picture, rounds):
        """For every measurement: a number for each round, medians, ratios to the floors, and a bar for each phase.
        `rounds`: of each phase."""
        self.assertEqual(set(found), {"floors", "phases", "quantities", "threads", "machine"})
        self.assertEqual(found["threads"], 2)
        self.assertEqual(len(found["machine"]), 2, "before and after")
        self.assertEqual(set(found["floors"]), {f"{name}_bytes_per_s" for name in ("fault", "copy", "release", "disk_write", "disk_read")})
        for name in ("fault", "copy", "release"):
            self.assertEqual([speed > 0 for speed in found["floors"][f"{name}_bytes_per_s"]], [True] * ROUNDS)
        for phase in found["phases"]:
            name = (phase["section"], phase["name"])
            self.assertEqual(len(phase["seconds"]), rounds, name)
            self.assertAlmostEqual(phase["median_seconds"], statistics.median(phase["seconds"]), delta=1e-12)
            self.assertEqual("ratio_to_floor" in phase, "floor_seconds" in phase, name)
            if "floor_seconds" in phase:
                self.assertEqual(len(phase["floor_seconds"]), rounds, name)
                ratios = [seconds / floor for seconds, floor in zip(phase["seconds"], phase["floor_seconds"])]
                self.assertAlmostEqual(phase["ratio_to_floor"], statistics.median(ratios), delta=1e-9 * max(ratios))
        for quantity in found["quantities"]:
            self.assertAlmostEqual(quantity["median"], statistics.median(quantity["values"]), delta=1e-9 * max(quantity["values"]))
        bars = picture.findall(f".//{SVG}rect")
        marks = picture.findall(f".//{SVG}line")
        self.assertEqual(len(bars), len(found["phases"]))
        self.assertEqual(len(marks), sum("floor_seconds" in phase for phase in found["phases"]))
        texts = [text.text for text in picture.findall(f".//{SVG}text")]
        self.assertEqual([name for phase in found["phases"] for name in (phase["section"], phase["name"]) if name not in texts], [])

    @staticmethod
    def by_section(found):
        sections = {}
        for phase in found["phases"]:
            sections.setdefault(phase["section"], {})[phase["name"]] = phase
        return sections

    def test_the_allocator_alone(self):
        found, picture = self.bench(f"--weights-bytes={WEIGHTS}", f"--kv-bytes={KV}", f"--spill-dir={self.folder}")
        self.assert_numbers_agree(found, picture, ROUNDS)
        floors = {name: found["floors"][f"{name}_bytes_per_s"] for name in ("fault", "copy", "release", "disk_write", "disk_read")}
        self.assertEqual({len(speeds) for speeds in floors.values()}, {ROUNDS})
        self.assertEqual([name for name, speeds in floors.items() if min(speeds) <= 0], [])
        sections = self.by_section(found)
        policies = [section.removeprefix("allocator, backup ") for section in sections]
        self.assertIn(policies, (["retain", "release", "file", "compress"], ["retain", "release", "file"]))  # as in the build
        for policy, phases in zip(policies, sections.values()):
            self.assert_phases_of_the_allocator(policy, phases, floors)

    def test_nothing_is_measured_where_nobody_wants_it(self):
        found, _ = self.bench(f"--model={tiny('qwen3')}", "--no-engine", "--no-allocator")
        self.assertEqual((found["phases"], found["quantities"], found["floors"]), ([], [], {}))

    def assert_phases_of_the_allocator(self, policy, phases, floors):
        parts = {"sleep": (": backup", ": release"), "wake": (": restore",)}
        names = [name + part for name in TRANSITIONS for part in ("", *parts["sleep" if "sleep" in name else "wake"])]
        self.assertEqual(list(phases), names, policy)
        for name in TRANSITIONS:
            self.assertEqual(phases[name]["bytes"], WEIGHTS + KV, (policy, name))
            self.assertEqual("floor_seconds" in phases[name], "wake" in name, (policy, name))
            if "sleep" in name:
                release = phases[f"{name}: release"]
                self.assertEqual(release["bytes"], WEIGHTS + KV)
                self.assert_floor(release, [(WEIGHTS + KV) / speed for speed in floors["release"]])
                continue
            # All memory is faulted in, and then the weights are copied there, or read from the disk.
            source = floors["disk_read" if policy == "file" else "copy"]
            fetch = [0 if "discarded" in name else WEIGHTS / speed for speed in source]
            self.assert_floor(phases[name], [(WEIGHTS + KV) / fault + more for fault, more in zip(floors["fault"], fetch)])
        moved = {name: phases[name]["bytes"] for name in phases if name.endswith((": backup", ": restore"))}
        self.assertEqual([name for name in moved if "discarded" in name and moved[name] != 0], [])
        if policy == "retain":
            self.assertEqual((moved["first sleep: backup"], moved["second sleep: backup"]), (WEIGHTS, 0))

    def assert_floor(self, phase, floors):
        self.assertEqual(len(phase["floor_seconds"]), len(floors))
        for found, floor in zip(phase["floor_seconds"], floors):
            self.assertAlmostEqual(found, floor, delta=1e-9 * floor)

    def test_an_engine_that_computes_weights_as_stored(self):
        if not os.path.exists(SMOLLM2):
            self.skipTest(f"there is no model at {SMOLLM2}")
        done = subprocess.run([SLEEP_BENCH, "--json", "--rounds=1", "--threads=2", "--no-allocator", "--no-switches", "--no-backups",
                               f"--model={SMOLLM2}", "--workers=1", "--serve-flags=--kv-cache-memory-bytes=16MiB --max-model-len=512"],
                              text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--dequantize", done.stderr, "why an update of weights is left out")
        names = [phase["name"] for phase in json.loads(done.stdout)["phases"]]
        self.assertIn("first token, second", names)
        self.assertEqual([name for name in names if name.startswith("weight update")], [])

    def test_a_whole_engine(self):
        model = tiny("qwen3")
        found, picture = self.bench("--no-allocator", f"--model={model}", "--workers=1", "--turns=1", f"--spill-dir={self.folder}",
                                    "--serve-flags=--kv-cache-memory-bytes=16MiB --max-model-len=512 --dtype=float32")
        self.assert_numbers_agree(found, picture, ROUNDS)
        sections = self.by_section(found)
        engine, switches, prefetch, *backups = sections
        self.assertEqual(engine, "engine, 1 worker")
        self.assertEqual(switches, "two models, memory for one, 1 worker")
        self.assertEqual(prefetch, "two models, memory for one, no host memory, 1 worker")
        self.assert_phases_of_switches(sections[switches])
        self.assertEqual(list(sections[prefetch]), ["checkpoint read by the wake-up, from the disk",
                                                    "read after a prefetch behind the other model"])
        for phase in sections[prefetch].values():
            self.assertGreater(min(phase["seconds"]), 0, "the wake-up has read it")
        self.assertEqual(backups, [f"engine, backup {name}" for name in ("retain", "release", "file", "compress", "file, --spill-dir")])
        phases = sections[engine]
        quantities = {quantity["name"]: quantity for quantity in found["quantities"] if quantity["section"] == engine}
        self.assertEqual(len(quantities["memory under all tags"]["values"]), ROUNDS)
        self.assert_phases_of_the_engine(phases, quantities, found["floors"])
        for backup in backups:
            self.assertEqual(list(sections[backup]), [
                "cold start", "first token, never slept", "first sleep", "first wake-up", "second sleep", "second sleep: release",
                "second sleep: beside the ranks", "wake-up", "wake-up: copy", "wake-up: read", "first token after it"])
        copies = {backup: sections[backup]["wake-up: copy"]["median_seconds"] > 0 for backup in backups}
        reads = {backup: sections[backup]["wake-up: read"]["median_seconds"] > 0 for backup in backups}
        self.assertTrue(copies["engine, backup retain"])
        self.assertEqual([backup for backup in backups if reads[backup]], ["engine, backup file"], "the checkpoint is read there alone")

    def assert_adds_up(self, phases, whole, parts):
        for seconds, *of_it in zip(phases[whole]["seconds"], *(phases[part]["seconds"] for part in parts)):
            self.assertAlmostEqual(seconds, sum(of_it), delta=1e-9)

    def assert_phases_of_switches(self, phases):
        whole, parts = "request until its model is awake", ["of it the other model's sleep", "of it the wake-up", "of it decisions"]
        self.assertEqual(list(phases), ["request to first token, with a switch", whole, *parts])
        self.assert_adds_up(phases, whole, parts)
        for part in parts[:2]:  # both are in each switch
            self.assertGreater(min(phases[part]["seconds"]), 0, part)

    def assert_phases_of_the_engine(self, phases, quantities, floors):
        for name in ("cold start, to the first token", "first token, never slept", "weights read again, awake"):
            self.assertIn(name, phases)
        for update in ("weight update, in messages", "weight update, in messages to the workers", "weight update, in shared memory"):
            parts = [f"{update}: {part}" for part in ("begin", "tensors", "finish")]
            self.assert_adds_up(phases, update, parts)
            self.assertEqual([phases[name]["bytes"] for name in parts], [0, phases[update]["bytes"], 0])
        for transition, parts in (("sleep", ("prepare", "commit", "release")), ("wake-up", ("prepare", "map", "commit"))):
            for turn in ("first", "second", "level 2"):
                self.assertIn(f"first token, {turn}", phases)
                whole = f"{transition}, {turn}"
                self.assert_adds_up(phases, whole, [f"{whole}: {part}" for part in ("prepare", "commit", "beside the ranks")])
                self.assertEqual([part for part in parts if f"{transition}, {turn}: {part}" not in phases], [])
        self.assertIn("wake-up, level 2: read", phases)
        self.assertNotIn("wake-up, first: read", phases)
        for index in range(ROUNDS):
            size, weights = (1e6 * quantities[name]["values"][index] for name in ("memory under all tags", "of it weights"))
            fault, copy, release = (floors[f"{name}_bytes_per_s"][index] for name in ("fault", "copy", "release"))
            for turn in ("first", "second", "level 2"):
                self.assertAlmostEqual(phases[f"first token, {turn}"]["floor_seconds"][index],
                                       phases["first token, never slept"]["seconds"][index], delta=1e-9)
                # No more than all memory moves, and no less than the memory that neither level keeps.
                for transition, speed in (("sleep", release), ("wake-up", fault)):
                    floor = phases[f"{transition}, {turn}"]["floor_seconds"][index]
                    self.assertGreater(floor, (size - weights) / speed / 2)
                    self.assertLess(floor, 1.5 * (size / speed + weights / copy))
        self.assertEqual(phases["sleep, first"]["bytes"], phases["wake-up, first"]["bytes"])
        self.assertGreater(phases["weight update, in messages"]["bytes"], 0)

    def test_a_model_that_is_not_there(self):
        done = subprocess.run([SLEEP_BENCH, "--json", "--no-allocator", "--rounds=1", f"--model={self.folder}/nothing"], text=True,
                              capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "(?m)^sleep_bench: .+")
