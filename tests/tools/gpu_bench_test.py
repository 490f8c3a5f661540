"""gpu_bench over the emulator: rows are whole lines of JSON as soon as measured, and the rows are known."""
import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from cluster.harness import BIN, ROOT

GPU_BENCH = os.path.join(BIN, "tests", "cuda", "gpu_bench_emulated")
LINEAR_SHAPES = ("qkv [256, 48]", "out [48, 128]", "up [224, 48]", "down [48, 112]", "head [512, 48]")
ATTENTION = ("1 x 64 tokens, 1 new", "4 x 32 tokens, 1 new", "1 x 64 tokens, 16 new", "2 x 32 tokens, 32 new")
KERNELS = [*(f"linear {shape}, {rows} rows" for shape in LINEAR_SHAPES for rows in (1, 8, 64)),
           *(name for rows in (1, 32) for name in (f"add + RMSNorm, {rows} x 48", f"SiLU * up, {rows} x 112")),
           *(f"paged attention, {case}" for case in ATTENTION),
           "arg max, 1 x 512", "sample (top-k 50, top-p 0.9), 1 x 512"]
CHUNKS = [f"8 MiB in pieces of {size} MiB, {threads}, {when}" for size, all_threads in
          ((2, ("1 thread", "4 threads")), (4, ("1 thread", "4 threads")), (8, ("1 thread",)))
          for threads in all_threads for when in ("at once", "after a pause")]
ROWS = {"ceilings": ["copies"], "kernels": KERNELS, "model": ["graphs", "decode, batch 1", "decode, batch 2", "prefill, 32 tokens"],
        "sleep": ["first", "second", "one-second"], "load": ["first", "second"], "chunks": CHUNKS}
PIPE_BYTES = 4096


class GpuBench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "rows.jsonl")

    def bench(self, *flags, code=0):
        done = subprocess.run([GPU_BENCH, *flags], cwd=ROOT, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def lines(self):
        with open(self.file, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.endswith("\n"), "the last line is cut")
        return [json.loads(line) for line in text.splitlines()]

    def names(self, lines):
        return [(line["part"], line["name"]) for line in lines if line["part"] != "end"]

    def wait_for_a_line(self, process):
        while not (os.path.exists(self.file) and os.path.getsize(self.file)):
            self.assertIsNone(process.poll(), "it ended without a row")
            time.sleep(0.01)

    def test_each_row_of_each_part_is_a_line(self):
        printed = self.bench("--json-lines", self.file).stdout
        lines = self.lines()
        self.assertEqual(self.names(lines), [(part, name) for part, names in ROWS.items() for name in names])
        *rows, end = lines
        self.assertEqual(end, {"part": "end", "model": "qwen3", "rows": len(rows), "not_measured": []})
        for row in rows:
            self.assertEqual(row["model"], "qwen3")
            numbers = [value for value in row.values() if isinstance(value, (int, float))]
            self.assertGreaterEqual(len(numbers), 3, row)
            self.assertTrue(all(value >= 0 for value in numbers), row)
            if row["part"] in ("kernels", "chunks"):
                self.assertIn(row["name"], printed)
            if row["name"].startswith(("linear", "paged attention")):
                self.assertGreater(row["copies"], 1, "an op would find its bytes in a cache")

    def test_a_killed_run_leaves_whole_lines(self):
        with subprocess.Popen([GPU_BENCH, "--json-lines", self.file], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:
            self.wait_for_a_line(process)
            process.send_signal(signal.SIGKILL)
            printed = process.communicate()[0].decode()
        self.assertTrue(printed.endswith("\n"), "rows of text are cut where stdout's buffer was full")
        names = self.names(self.lines())
        self.assertEqual(names, [(part, name) for part, names in ROWS.items() for name in names][:len(names)])

    def test_rows_come_while_it_runs(self):
        read_end, write_end = os.pipe()
        # The pipe holds less than all rows, so that the benchmark cannot end before rows are read.
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with open(read_end, "rb", buffering=0) as rows, subprocess.Popen(
                [GPU_BENCH, "--parts=kernels,chunks", "--json-lines=-"], cwd=ROOT, stdout=write_end,
                stderr=subprocess.DEVNULL) as process:
            os.close(write_end)
            line = b""
            while not line.endswith(b"\n"):
                line += rows.read(1)
            self.assertIsNone(process.poll())
            rest = rows.read()
            self.assertEqual(process.wait(), 0)
        lines = [json.loads(text) for text in (line + rest).splitlines()]
        self.assertGreater(len(line + rest), PIPE_BYTES)
        self.assertEqual(self.names(lines), [(part, name) for part in ("ceilings", "kernels", "chunks") for name in ROWS[part]])

    def test_lines_on_stdout_are_alone_there(self):
        done = self.bench("--parts=load", "--json-lines=-")  # loading a model logs
        self.assertEqual(self.names(map(json.loads, done.stdout.splitlines())),
                         [("ceilings", "copies"), ("load", "first"), ("load", "second")])
        self.assertIn("second load: ", done.stderr)

    def test_only_selects_rows_of_ops(self):
        self.bench("--parts=kernels,load", "--only", r"(qkv|head) .*, (1|8) rows$|sample", "--json-lines", self.file)
        wanted = [name for name in KERNELS if name.startswith(("linear qkv", "linear head")) and not name.endswith("64 rows")
                  or name.startswith("sample")]
        self.assertEqual(self.names(self.lines()), [("ceilings", "copies"), *(("kernels", name) for name in wanted),
                                                    ("load", "first"), ("load", "second")])
        self.bench("--parts=chunks", "--only=4 MiB, 4", "--json-lines", self.file)  # appended
        self.assertEqual(self.names(self.lines())[-2:], [("chunks", name) for name in CHUNKS if "4 MiB, 4" in name])

    def test_seconds_end_it_between_rows(self):
        printed = self.bench("--seconds=0.001", "--json-lines", self.file).stdout
        *rows, end = self.lines()
        everything = [(part, name) for part, names in ROWS.items() for name in names]
        self.assertEqual(self.names(rows) + [tuple(name.split(": ", 1)) for name in end["not_measured"]], everything)
        self.assertEqual(end["rows"], len(rows))
        self.assertIn("load: second", end["not_measured"])
        self.assertIn("load: second", printed.splitlines()[-1])

    def test_what_is_wrong_is_named(self):
        for flag, message in (("--only=(", "--only: '(' is no regular expression: Unmatched"), ("--only=[z-a]", "is no regular expression"),
                              ("--seconds=0", "--seconds: '0' is not"), ("--seconds=soon", "--seconds: 'soon' is not"),
                              ("--parts=kernel", "is not some of ceilings,kernels,model,sleep,load,chunks"),
                              ("--json=rows", "--json")):
            with self.subTest(flag=flag):
                self.assertIn(message, self.bench(flag, code=2).stderr)
        self.assertIn("--only: no row has a name with 'lineal'", self.bench("--parts=kernels", "--only=lineal", code=1).stderr)
        self.assertIn("cannot open /no/such/rows: No such file", self.bench("--json-lines=/no/such/rows", code=1).stderr)
        self.assertIn("cannot write /dev/full: No space left", self.bench("--parts=ceilings", "--json-lines=/dev/full", code=1).stderr)

    def test_an_error_is_in_the_last_line(self):
        error = self.bench("--parts=chunks", "--chunk-sweep-bytes=2GiB", "--json-lines", self.file, code=1).stderr
        self.assertIn("--chunk-sweep-bytes: 2147483648 bytes are more than the device has left: ", error)
        self.assertIn(self.lines()[-1]["error"], error)
