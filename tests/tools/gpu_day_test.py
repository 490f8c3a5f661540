"""tools/gpu_day.sh: the files that a device day leaves behind, after every kind of end; and the whole day over the emulator."""
import errno
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

from cluster.harness import BIN, ROOT, alive, wait_until

SCRIPT = os.path.join(ROOT, "tools", "gpu_day.sh")
FOLDER = os.path.join(ROOT, "tools", "gpu_day")
FILES = ["clocks.csv", "day.jsonl", "day.md", "logs.tar.xz"]
ITEMS = ["env", "alive", "kernels", "runner", "served", "model", "decode", "sleep", "backups", "races", "ops", "ncu", "memory", "ranks"]
EMULATED = [os.path.join(BIN, "tests", "cuda", name) for name in
            ("gpu_tests_emulated", "gpu_bench_emulated", "emulated_worker", "all_reduce_test", "process_memory_test", "runner_test", "tune_test")]
# A day of other items: [[name, budget, Python code], ...].
OTHER_DAY = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import day, table
items = [table.Item(name, seconds, name, (sys.executable, "-c", code)) for name, seconds, code in json.loads(sys.argv[2])]
sys.exit(day.main(sys.argv[3:], items))
"""
GOOD = 'print(\'{"row": {"name": "a", "us": 1.5}}\\n{"data": {"count": 1}}\')'
WAITS = "import os, time; print('{\"row\": {\"pid\": %d}}' % os.getpid(), flush=True); time.sleep(600)"
# Warnings of kernels/cuda/cuda_device.cc.
NO_LIBRARY = "there is no cuBLASLt: libcublasLt.so.13: cannot open: Somnus's own kernels make all matrix products, those of many rows more slowly"
TURNED_OFF = "SOMNUS_CUDA_DISABLE turns cuBLASLt off: Somnus's own kernels make all matrix products, those of many rows more slowly"


def says(text):
    return f"import sys; print({text!r}, file=sys.stderr)"


def read(path):
    """The lines of a day.jsonl, each of which must be whole."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.endswith("\n"), text[-200:]
    return [json.loads(line) for line in text.splitlines()]


def ends(lines):
    return [(line["item"], line["status"]) for line in lines if line.get("status", "start") != "start"]


def starts(lines):
    return [line["item"] for line in lines if line.get("status") == "start" and line["item"] != "day"]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out")
        self.environment = {**os.environ, "TMPDIR": self.folder}  # a killed day leaves its scratch folder there

    def module(self, name):
        """A module of the day."""
        sys.path.insert(0, FOLDER)
        self.addCleanup(sys.path.remove, FOLDER)
        return importlib.import_module(name)

    def program(self, path, text):
        """A shell script."""
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)

    def assert_files(self):
        self.assertEqual(sorted(os.listdir(self.out)), FILES)

    def assert_forms(self, lines):
        """Every line is an event or a row; the first tells of the machine."""
        for line in lines:
            if "row" in line:
                self.assertEqual(set(line), {"item", "row"}, line)
                self.assertIsInstance(line["row"], dict)
            else:
                self.assertEqual(set(line), {"t", "item", "status", "seconds", "data"}, line)
                self.assertIn(line["status"], ("start", "ok", "fail", "timeout", "interrupted", "skipped"))
        self.assertEqual((lines[0]["item"], lines[0]["status"]), ("day", "start"))
        self.assertLessEqual({"commit", "date", "gpu", "cublaslt", "cpus", "host_memory_bytes"}, set(lines[0]["data"]))


class OtherDays(Folder):
    def command(self, items, *flags):
        return [sys.executable, "-c", OTHER_DAY, FOLDER, json.dumps(items), "--root", self.folder, "--out", self.out, *flags]

    def day(self, items, *flags):
        """(exit status, the lines, stdout)."""
        done = subprocess.run(self.command(items, *flags), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env=self.environment)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        lines = read(os.path.join(self.out, "day.jsonl"))
        self.assert_forms(lines)
        self.assert_files()
        with open(os.path.join(self.out, "day.md"), encoding="utf-8") as page:
            self.assertEqual(done.stdout, page.read() + "\n")  # the last thing on stdout
        return done.returncode, lines, done.stdout

    def test_an_item_that_overruns_or_fails_ends_and_the_rest_goes_on(self):
        status, lines, page = self.day([["good", 30, GOOD], ["slow", 1, WAITS], ["bad", 30, "print(1 / 0)"],
                                        ["lacks", 30, "import sys; print('{\"data\": {\"reason\": \"no tool\"}}'); sys.exit(77)"],
                                        ["last", 30, GOOD]])
        self.assertEqual(ends(lines), [("good", "ok"), ("slow", "timeout"), ("bad", "fail"), ("lacks", "skipped"), ("last", "ok")])
        self.assertEqual(status, 1)
        data = {line["item"]: line["data"] for line in lines if "data" in line}
        self.assertEqual(data["good"], {"count": 1})
        self.assertEqual(data["slow"]["reason"], "over its budget of 1 s")
        self.assertIn("ZeroDivisionError", data["bad"]["reason"])
        self.assertEqual(data["lacks"]["reason"], "no tool")
        self.assertEqual([line["row"] for line in lines if line["item"] == "good" and "row" in line], [{"name": "a", "us": 1.5}])
        slow, = [line["row"]["pid"] for line in lines if line["item"] == "slow" and "row" in line]
        self.assertFalse(alive(slow))
        self.assertIn("| bad | fail |", page)
        with tarfile.open(os.path.join(self.out, "logs.tar.xz")) as archive:
            self.assertIn("ZeroDivisionError", archive.extractfile("logs/bad.log").read().decode())

    def test_an_item_starts_only_with_its_budget_left(self):
        status, lines, _ = self.day([["long", 1000, GOOD], ["short", 30, GOOD]], "--seconds", "500")
        self.assertEqual(ends(lines), [("long", "skipped"), ("short", "ok")])
        self.assertEqual(starts(lines), ["short"])
        self.assertEqual(status, 0)
        self.assertRegex(lines[1]["data"]["reason"], r"^\d+ s are left, 1000 are needed$")

    def test_only_the_named_items_run(self):
        _, lines, _ = self.day([["a", 30, GOOD], ["b", 30, GOOD], ["c", 30, GOOD]], "--items", "c,a")
        self.assertEqual(ends(lines), [("a", "ok"), ("c", "ok")])
        wrong = subprocess.run(self.command([["a", 30, GOOD]], "--items", "d"), capture_output=True, text=True, timeout=60)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("there is no item d: the items are a", wrong.stderr)

    def test_products_by_own_kernels_fail_an_item_unless_it_asked_for_them(self):
        _, lines, page = self.day([["found", 30, GOOD], ["missing", 30, says(NO_LIBRARY)], ["after", 30, GOOD],
                                   ["asked", 30, says(TURNED_OFF)]])
        self.assertEqual(ends(lines), [("found", "ok"), ("missing", "fail"), ("after", "ok"), ("asked", "ok")])
        self.assertIn("no cuBLASLt was found (missing.log)", page)
        with open(os.path.join(ROOT, "kernels", "cuda", "cuda_device.cc"), encoding="utf-8") as source:
            self.assertIn("Somnus's own kernels make all matrix products", source.read())
        with open(os.path.join(ROOT, "kernels", "cuda", "cublaslt_api.cc"), encoding="utf-8") as source:
            self.assertIn('"there is no cuBLASLt: "', source.read())

    def test_a_killed_day_leaves_whole_lines_and_is_resumed(self):
        marker = os.path.join(self.folder, "again")
        # Waits in the first call alone.
        waits = f"import os\nif os.path.exists({marker!r}): raise SystemExit\n{WAITS}"
        items = [["first", 30, GOOD], ["long", 1000, GOOD], ["cut", 30, waits], ["never", 30, GOOD], ["neither", 30, GOOD]]
        path = os.path.join(self.out, "day.jsonl")
        process = subprocess.Popen(self.command(items, "--seconds", "500"), stdout=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def item_pid():
            # A line that is being written has no end yet.
            lines = open(path, encoding="utf-8").read().split("\n")[:-1] if os.path.exists(path) else []
            return next((line["row"]["pid"] for line in map(json.loads, lines) if line["item"] == "cut" and "row" in line), None)
        pid = wait_until(item_pid, 60, "a row of the item that waits")
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = read(path)
        self.assert_forms(lines)
        self.assertEqual(ends(lines), [("first", "ok"), ("long", "skipped")])
        self.assertEqual(starts(lines), ["first", "cut"])
        with open(os.path.join(self.out, "day.md"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("| first | ok |", page)
        self.assertIn("| cut | not ended |", page)
        wait_until(lambda: not alive(pid), 30, "the killed day's item to end")

        with open(marker, "w", encoding="ascii"):
            pass
        status, resumed, page = self.day(items, "--resume", path, "--seconds", "5000")
        self.assertEqual(resumed[:len(lines)], lines)
        rest = resumed[len(lines):]
        self.assert_forms(rest)
        # The job that has waited for longest is first; the job that a call's end has cut off is last.
        self.assertEqual(ends(rest), [("long", "ok"), ("never", "ok"), ("neither", "ok"), ("cut", "ok")])
        self.assertEqual(status, 0)
        self.assertIn("| first | ok |", page)
        self.assertIn("| cut | ok |", page)

    def test_a_signal_ends_the_item_and_writes_everything(self):
        process = subprocess.Popen(self.command([["waits", 300, WAITS], ["next", 30, GOOD]]), stdout=subprocess.DEVNULL)
        path = os.path.join(self.out, "day.jsonl")
        wait_until(lambda: os.path.exists(path) and '"pid"' in open(path, encoding="utf-8").read(), 60, "the item to run")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 1)
        lines = read(path)
        self.assertEqual(ends(lines), [("waits", "interrupted"), ("next", "skipped")])
        self.assertEqual([line["data"]["reason"] for line in lines if line.get("status") in ("interrupted", "skipped")],
                         ["ended by SIGTERM: --resume runs the item again", "ended by SIGTERM"])
        self.assert_files()
        # An item that was interrupted has no result: it runs again, behind the items that have waited for longer.
        status, resumed, page = self.day([["waits", 300, GOOD], ["next", 30, GOOD]], "--resume", path)
        self.assertEqual(ends(resumed[len(lines):]), [("next", "ok"), ("waits", "ok")])
        self.assertEqual(status, 0)
        self.assertIn("| waits | ok |", page)

    def test_an_item_over_its_budget_does_not_run_again(self):
        self.day([["slow", 1, WAITS], ["next", 30, GOOD]])
        path = os.path.join(self.out, "day.jsonl")
        before = read(path)
        _, lines, page = self.day([["slow", 1, GOOD], ["next", 30, GOOD]], "--resume", path)
        self.assertEqual(ends(lines[len(before):]), [])
        self.assertIn("| slow | timeout |", page)

    def test_a_full_disk_ends_no_item_and_the_page_is_printed(self):
        rows = "for i in range(200): print('{\"row\": {\"name\": \"a row that fills the disk\", \"us\": %d}}' % i, flush=True)"
        done = subprocess.run(self.command([["fills", 30, rows], ["after", 30, GOOD]]), capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, env=self.environment,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("day.jsonl: ", done.stderr)
        self.assertIn("| fills | ok |", done.stdout)
        self.assertIn("| after | ok |", done.stdout)
        self.assertEqual(os.path.getsize(os.path.join(self.out, "day.jsonl")), 4096)

    def test_a_disk_that_is_full_from_the_start_ends_no_item(self):
        done = subprocess.run(self.command([["first", 30, GOOD], ["after", 30, GOOD]]), capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, env=self.environment,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("day.jsonl", "day.md", "clocks.csv"):
            self.assertIn(f"{name}: ", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertIn("| first | ok |", done.stdout)
        self.assertIn("| after | ok |", done.stdout)

    def test_a_disk_that_gets_room_again_has_every_line(self):
        journal = self.module("journal")
        with mock.patch("os.write", side_effect=OSError(errno.ENOSPC, "No space left on device")), mock.patch("sys.stderr"):
            one = journal.Journal(os.path.join(self.out, "day.jsonl"), 0, [{"item": "day", "status": "start"}])
            one.row("a", {"us": 1})
            self.assertEqual(os.listdir(self.out), [])
        one.row("a", {"us": 2})
        one.row("a", {"us": 3})
        self.assertEqual(read(os.path.join(self.out, "day.jsonl")),
                         [{"item": "day", "status": "start"}, *({"item": "a", "row": {"us": us}} for us in (1, 2, 3))])

    def test_a_full_disk_takes_nothing_from_the_file_that_is_resumed(self):
        journal = self.module("journal")
        path = os.path.join(self.out, "day.jsonl")
        earlier = [{"item": "day", "status": "start"}, {"item": "a", "row": {"us": 1}}]
        journal.Journal(path, 0, earlier)
        with mock.patch("os.write", side_effect=OSError(errno.ENOSPC, "No space left on device")), mock.patch("sys.stderr"):
            journal.Journal(path, 0, journal.read(path)).row("a", {"us": 2})
        self.assertEqual(read(path), earlier)

    def test_a_folder_that_cannot_be_is_refused(self):
        with open(os.path.join(self.folder, "file"), "w", encoding="ascii"):
            pass
        self.out = os.path.join(self.folder, "file", "out")
        done = subprocess.run(self.command([["a", 30, GOOD]]), capture_output=True, text=True, timeout=60, env=self.environment)
        self.assertEqual(done.returncode, 2)
        self.assertIn("error: [Errno 20] Not a directory", done.stderr)

    def test_a_program_over_its_limit_leaves_time_for_the_programs_behind(self):
        item = """
import os, sys
sys.path.insert(0, sys.argv[1])
import events, kits, programs
all_of_them = [programs.Program(os.path.join(sys.argv[2], name), seconds) for name, seconds in
               (("hangs", 1), ("good", 10), ("crashes", 10), ("missing", 10), ("lacks", 10))]
try:
    programs.run_all(kits.Kit(root=sys.argv[2], logs=sys.argv[2], scratch=sys.argv[2]), "kernels", all_of_them, 44)
except events.Failed as failure:
    print(failure)
"""
        child = os.path.join(self.folder, "child")
        self.program("hangs", f"""echo '[ RUN      ] A.One
[       OK ] A.One (5 ms)
[ RUN      ] A.Two'
sleep 600 & echo $! >{child}
trap '' TERM
wait; sleep 600""")
        self.program("good", "echo '[       OK ] B.One (5 ms)'")
        self.program("crashes", "echo '[ RUN      ] C.One'; echo no device; exit 3")
        self.program("lacks", "echo '[  SKIPPED ] D.One (0 ms)'")
        done = subprocess.run([sys.executable, "-c", item, FOLDER, self.folder], capture_output=True, text=True, timeout=60,
                              env={**self.environment, "LC_ALL": "C"})
        self.assertEqual(done.returncode, 0, done.stderr)
        *rows, failure = done.stdout.splitlines()
        # Of 44 s the programs behind keep 40, and an end by KILL takes 2.
        failure = re.sub(r"limit of (1(\.\d)?|2) s", "limit of 2 s", failure)
        self.assertEqual([(row["test"], row["program"]) for row in (json.loads(line)["row"] for line in rows)],
                         [("A.One", "hangs"), ("B.One", "good"), ("D.One", "lacks")])
        self.assertEqual(failure, "; ".join((
            "hangs: over the limit of 2 s in A.Two, 0 of 1 tests failed", "crashes: exit status 3 in C.One: no device",
            f"missing: exit status 127: timeout: failed to run command '{self.folder}/missing': No such file or directory",
            "lacks: no test ran, 1 were skipped")))
        with open(child, encoding="ascii") as file:
            pid = int(file.read())
        wait_until(lambda: not alive(pid), 30, "the program's child to end")

    def test_nothing_of_an_item_is_left(self):
        """Programs under timeout(1) have a process group of their own."""
        code = """
import os, subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=False, process_group=0)
print('{"row": {"pid": %d}}' % child.pid, flush=True)
"""
        _, lines, _ = self.day([["leaves", 30, code]])
        self.assertEqual(ends(lines), [("leaves", "ok")])
        pid, = [line["row"]["pid"] for line in lines if "row" in line]
        wait_until(lambda: not alive(pid), 30, "what the item has left to end")

    def test_a_clock_that_is_set_changes_no_budget(self):
        journal = self.module("journal")
        now = 1.8e9
        for begun, least in ((now - 20, 20), (now + 5000, 0), (0, 0)):
            with self.subTest(begun=begun), mock.patch("time.time", return_value=now) as clock:
                one = journal.Journal(os.path.join(self.folder, "day.jsonl"), begun)
                clock.return_value = now + 1e6
                self.assertGreaterEqual(one.seconds(), least)
                self.assertLess(one.seconds(), least + 60)

    def test_a_long_page_is_whole_in_its_file_and_its_beginning_is_printed(self):
        code = ("import json\nfor count in range(400):\n    print(json.dumps({'row': {'name': f'op of {count} rows', 'us': 13.5, "
                "'peer': 'matmul', 'torch_us': 15.0, 'ratio': 1.1}}))")
        done = subprocess.run(self.command([["ops", 30, code]]), capture_output=True, text=True, timeout=120, env=self.environment)
        with open(os.path.join(self.out, "day.md"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("| op of 399 rows | 13.5 | matmul | 15.0 | 1.10 |", page)
        self.assertLess(len(done.stdout), 12000)
        begun, _, rest = done.stdout.rpartition("\n\n... ")
        self.assertEqual(rest, "the rest is in day.md\n\n")
        self.assertTrue(page.startswith(begun + "\n"), "the last line that is printed is whole")

    def test_the_page_says_what_an_item_has_not_measured(self):
        code = f"{GOOD}; print('{{\"data\": {{\"not_measured\": [\"model: decode, batch 8\"], \"torch\": \"no PyTorch\"}}}}')"
        _, _, page = self.day([["ops", 30, code]])
        self.assertRegex(page, r"\| ops \| ok \| [\d.]+ \| no PyTorch; no time was left for model: decode, batch 8 \|")

    def test_the_page_sets_numbers_beside_the_h100s(self):
        rows = [{"part": "model", "name": "decode, batch 1", "model": "qwen3-8b", "batch": 1, "tokens_per_second": 210.5, "step_ms": 4.75,
                 "of_copy_bandwidth": 0.75},
                {"part": "model", "name": "prefill, 4096 tokens", "model": "qwen3-8b", "tokens": 4096, "seconds": 0.1149},
                {"part": "sleep", "name": "second", "model": "qwen3-8b", "sleep_seconds": 0.12, "wake_seconds": 0.55,
                 "released_bytes": 995, "held_bytes": 1000},
                {"part": "kernels", "name": "linear qkv [6144, 4096], 1 rows", "us": 13.5, "gbps": 3730, "of_copy": 0.87, "tflops": 3.7},
                {"part": "kernels", "name": "linear qkv [6144, 4096], 2048 rows", "us": 136, "gbps": 600, "of_copy": 0.14, "tflops": 758},
                {"part": "kernels", "name": "paged attention, 32 x 4096 tokens, 1 new", "us": 150, "gbps": 3580, "of_copy": 0.83, "tflops": 14},
                {"name": "linear qkv [6144, 4096], 1 rows", "us": 13.5, "peer": "matmul", "torch_us": 15.0, "ratio": 1.111},
                {"test": "Gemv.IsExact", "verdict": "failed", "ms": 5}]
        code = "\n".join(f"print('''{json.dumps({'row': row})}''')" for row in rows)
        _, _, page = self.day([["ops", 30, code]])
        for line in ("| 8B, batch 1 | 6.17 ms, 0.83 | 4.6-4.9 ms, 0.73-0.77 | 4.75 ms, 0.75 |",
                     "| prefill of 4,096, 8B | 115 ms | 112-118 ms | 115 ms |",
                     "| wake of 16.4 GB at once | 392-455 ms | 480-600 ms (KV cache of 110 GB) | 550 ms |",
                     "| qwen3-8b | 210.50 (0.75) (H100: 162 (0.83)) |", "| second | 120 ms | 550 ms | 99.50 % |",
                     "| qkv [6144, 4096] | 13.5 us, 0.87 (H100: 18.6 us, 0.91) |", "136 us, 758 TFLOP/s (H100: 762 TFLOP/s)",
                     "| 32 x 4096 tokens, 1 new | 150 us, 0.83 | 201 us, 0.90 |",
                     "| linear qkv [6144, 4096], 1 rows | 13.5 | matmul | 15.0 | 1.11 |", "ops: Gemv.IsExact",
                     "| 0.6B, batch 1 | 1.05 ms, 0.40 | 0.92-0.98 ms, 0.29-0.31 | not measured |"):
            self.assertIn(line, page)


class Docs(Folder):
    def test_the_page_about_gpus_has_the_items_and_budgets(self):
        with open(os.path.join(ROOT, "docs", "gpu_verification.md"), encoding="utf-8") as file:
            listed = re.findall(r"^\| `(\w+)` \| (\d+) \|", file.read(), re.MULTILINE)
        self.assertEqual(listed, [(item.name, str(item.seconds)) for item in self.module("table").ITEMS])
        self.assertEqual([name for name, _ in listed], ITEMS)


class Packs(Folder):
    def pack(self, *flags):
        return subprocess.run([SCRIPT, "--pack", os.path.join(self.folder, "pack"), "--from", os.path.join(self.folder, "kit"), *flags],
                              capture_output=True, text=True, timeout=120)

    def test_more_than_may_travel_is_refused(self):
        kit = os.path.join(self.folder, "kit")
        os.makedirs(kit)
        with open(os.path.join(kit, "noise"), "wb") as file:
            file.write(os.urandom(3 << 20))
        done = self.pack("--limit-mib", "2")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "error: the pack has 3.0 MiB, more than the 2 that may travel (--limit-mib)\n")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "pack")))
        done = self.pack()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "pack"))), ["day.tar.xz", "gpu_day.sh"])

    def test_the_clone_travels_too(self):
        clone = os.path.join(self.folder, "clone")
        os.makedirs(os.path.join(clone, "tools"))
        subprocess.run(["cp", SCRIPT, os.path.join(clone, "tools")], check=True)
        subprocess.run(["git", "init", "-q", clone], check=True)
        kit = os.path.join(self.folder, "kit")
        os.makedirs(kit)
        with open(os.path.join(kit, "noise"), "wb") as file:
            file.write(os.urandom(3 << 20))
        command = [os.path.join(clone, "tools", "gpu_day.sh"), "--pack", os.path.join(self.folder, "pack"), "--from", kit]
        for size, status in ((61 << 20, 1), (50 << 20, 0)):
            with self.subTest(size=size):
                with open(os.path.join(clone, "large"), "wb") as file:
                    file.truncate(size)
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertEqual("more than the 2 that may travel" in done.stderr, status == 1, done.stderr)

    def test_a_pack_runs_elsewhere(self):
        """Without programs every item fails or is skipped, and says so. A folder without room is no obstacle: another one is taken."""
        tools = os.path.join(self.folder, "kit", "tools")
        os.makedirs(tools)
        subprocess.run(["cp", "-r", FOLDER, tools], check=True)
        self.assertEqual(self.pack().returncode, 0)
        pack = os.path.join(self.folder, "pack")
        done = subprocess.run([os.path.join(pack, "gpu_day.sh"), "--bundle", os.path.join(pack, "day.tar.xz"), "--out", self.out,
                               "--items", "env,ranks"], capture_output=True, text=True, timeout=120, cwd="/",
                              env={**os.environ, "TMPDIR": os.path.join(self.folder, "nowhere")})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assert_files()
        lines = read(os.path.join(self.out, "day.jsonl"))
        self.assert_forms(lines)
        self.assertEqual(ends(lines), [("env", "fail"), ("ranks", "fail")])

    def test_wrong_arguments(self):
        for args in ((), ("--pack",), ("--bundle",), ("--no-such-flag",)):
            with self.subTest(args=args):
                done = subprocess.run([SCRIPT, *args], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 2)
                self.assertIn("Usage" if not args else "gpu_day.sh --pack DIR", done.stderr)


class LibraryPath(Folder):
    """Where pip has put cuBLASLt, for all scripts that run on a GPU."""

    def setUp(self):
        super().setUp()
        self.packages = os.path.join(self.folder, "packages")
        os.makedirs(os.path.join(self.packages, "nvidia", "cu13", "lib"))
        self.environment.pop("SOMNUS_LIBRARY_PATH", None)
        self.environment["PYTHONPATH"] = self.packages

    def found(self, **more):
        done = subprocess.run([sys.executable, os.path.join(FOLDER, "library_path.py")], capture_output=True, text=True, timeout=60,
                              env={**self.environment, **more}, check=True)
        return done.stdout.strip().split(":")

    def put_library(self):
        with open(os.path.join(self.packages, "nvidia", "cu13", "lib", "libcublasLt.so.13"), "w", encoding="ascii"):
            pass

    def test_folders_of_a_python_that_have_the_library(self):
        self.assertNotIn(self.packages, self.found())
        self.put_library()
        self.assertIn(self.packages, self.found())
        self.assertEqual(self.found(SOMNUS_LIBRARY_PATH="/given"), ["/given"])

    def test_every_script_passes_it_on(self):
        self.put_library()
        self.program("stubs/nvidia-smi", "echo GPU")
        self.environment["PATH"] = os.path.join(self.folder, "stubs") + ":" + os.environ["PATH"]
        seen = os.path.join(self.folder, "seen")
        for program in ("tests/one_gpu_test", "tests/cuda/gpu_tests", "tools/bench/gpu_bench"):
            self.program(program, f'echo "$SOMNUS_LIBRARY_PATH" >>{seen}')
        os.makedirs(os.path.join(self.folder, "tools", "gpu_day"))
        for name in ("gpu_day/library_path.py", "bench/gpu_bench.sh", "gpu_check.sh"):
            subprocess.run(["cp", os.path.join(ROOT, "tools", name), os.path.join(self.folder, "tools", name)], check=True)
        for name, text in (("commit.txt", "none\n"), ("gpu_tests.txt", "tests/cuda/gpu_tests\ntests/one_gpu_test\n"),
                           ("sanitized_tests.txt", "tests/one_gpu_test\n")):
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
                file.write(text)
        for command in (["tools/gpu_check.sh", "--binaries", self.folder, "--no-sanitizer"],
                        ["tools/bench/gpu_bench.sh", "--binaries", self.folder, "--out", self.out]):
            with self.subTest(command=command):
                done = subprocess.run([os.path.join(self.folder, command[0]), *command[1:]], capture_output=True, text=True, timeout=120,
                                      env=self.environment)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(seen, encoding="utf-8") as file:
                    lines = file.read().splitlines()
                self.assertGreater(len(lines), 0)
                self.assertEqual([line for line in lines if self.packages not in line.split(":")], [])
                os.unlink(seen)


@unittest.skipUnless(all(map(os.path.exists, EMULATED)), "the emulator's programs are not built")
class Rehearsal(Folder):
    def test_every_item_runs_over_the_emulator(self):
        done = subprocess.run([SCRIPT, "--rehearse", "--out", self.out], capture_output=True, text=True, timeout=580,
                              env={**os.environ, "SOMNUS_BIN": BIN})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_files()
        lines = read(os.path.join(self.out, "day.jsonl"))
        self.assert_forms(lines)
        found = dict(ends(lines))
        self.assertEqual(list(found), ITEMS)
        # Only model_check.py needs packages that the tests' environment may lack.
        self.assertEqual([name for name, status in found.items() if status != "ok" and name != "model"], [])
        self.assertIn(found["model"], ("ok", "skipped"))
        rows = {name: [line["row"] for line in lines if line["item"] == name and "row" in line] for name in ITEMS}
        self.assertEqual([name for name in ITEMS if not rows[name] and name != "model"], [])
        programs = {row["program"] for name in ITEMS for row in rows[name] if row.get("verdict") == "ok" and "program" in row}
        self.assertEqual(programs, {program.name for listed in self.module("programs").ITEMS.values() for program in listed
                                    if program.rehearsed})
        self.assertEqual([row["name"] for row in rows["backups"]],
                         [f"{backup}, {sleep}" for backup in ("retain", "release", "file", "compress") for sleep in ("first", "second")])
        self.assertEqual(lines[0]["data"]["gpu"]["name"], "Stand-in GPU")
        self.assertEqual([row["name"] for row in rows["alive"]], ["plain", "eager", "own-kernels", "no-programmatic-launch"])
        self.assertEqual([row["name"] for row in rows["served"]],
                         ["undisturbed", "sleep in mid-stream", "sleep that keeps KV blocks", "killed"])
        self.assertEqual(rows["served"][-1]["recoveries"], 1)
        self.assertTrue(all("ratio" in row for row in rows["ops"] if "peer" in row))
        with open(os.path.join(self.out, "clocks.csv"), encoding="ascii") as file:
            self.assertGreater(len(file.read().splitlines()), 10)
        self.assertIn("(a rehearsal: no number counts)", done.stdout)
        self.assertLess(len(done.stdout), 12000)


if __name__ == "__main__":
    unittest.main()
