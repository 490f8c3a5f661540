#!/usr/bin/env python3
"""Runs every tests/**/*_test.py with unittest: one line per case, results appended to a file for tests/report.py.

Usage: run_suites.py [--results CASES.tsv] [-k TEXT] [--jobs N] [FILE_test.py ...]
Binaries come from bazel-bin (SOMNUS_BIN names another folder), the real model from SOMNUS_MODEL.
--jobs files run at once, each in a separate process: most cases wait for servers that start. Each has a separate /dev/shm,
since cases look at the names there, and since servers count the memory of the machine there; where this user may mount none, a
file runs after the other.
--attempts 2: files of which some case failed run again, one after the other, with these cases alone. A case that passes then has
the verdict FLAKY (report.py). Where more than MOST_AGAIN files failed, nothing runs again: that is no chance.
"""
import argparse
import concurrent.futures
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# The longest case takes a minute; a case that hangs fails, and the run goes on.
CASE_LIMIT_S = 600
MOST_AGAIN = 5
# Files that take longer than the length of the text suggests, the longest first.
LONG = ("cuda/barriers_test.py", "cluster/hanging_files_test.py", "cluster/liveness_test.py", "cluster/recovery_test.py",
        "cluster/smollm2_test.py", "tools/gpu_day_test.py", "cluster/poison_test.py", "cluster/slurm_test.py", "cluster/pages_test.py",
        "cluster/emulated_cpu_test.py", "cluster/emulated_gpu_test.py", "cluster/accuracy_test.py", "cuda/gpu_tests_test.py",
        "tools/package_test.py",
        "cluster/models_on_a_budget_test.py", "cluster/several_models_adoption_test.py")


def end_case(*_):
    raise TimeoutError(f"the case took longer than {CASE_LIMIT_S} s")


class LineResult(unittest.TestResult):
    """Prints a case at the end of the case, and keeps the verdict."""

    def __init__(self, file):
        super().__init__()
        self.file, self.verdicts, self.started = file, [], 0.0

    def startTest(self, test):
        super().startTest(test)
        self.started, self.bad = time.monotonic(), []
        signal.alarm(CASE_LIMIT_S)

    def name_of(self, test):
        return test.id() if not hasattr(test, "case_name") else f"{type(test).__name__}.{test.case_name}"

    def _bad(self, test, error):
        self.bad.append(self._exc_info_to_string(error, test))

    def addFailure(self, test, err):
        self._bad(test, err)

    def addError(self, test, err):
        if isinstance(test, unittest.TestCase):
            self._bad(test, err)
        else:  # setUpClass or setUpModule: the cases below never start
            self._write("FAIL", str(test), 0.0, self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.bad.append(f"{subtest}\n{self._exc_info_to_string(err, test)}")

    def addSkip(self, test, reason):
        print(f"skip {self.name_of(test)}: {reason}", flush=True)
        self.bad = None

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)
        if self.bad is not None:
            self._write("FAIL" if self.bad else "PASS", self.name_of(test), time.monotonic() - self.started, "".join(self.bad))

    def _write(self, verdict, name, seconds, text):
        print(f"{'ok  ' if verdict == 'PASS' else 'FAIL'} {name} ({seconds:.1f} s)", flush=True)
        if text:
            print(text, flush=True)
        self.verdicts.append(verdict)
        if self.file:
            self.file.write(f"{verdict}\t{name}\n")
            self.file.flush()


def load(path):
    """The suite of a file, as module <folder>.<file>."""
    name = os.path.relpath(path, HERE)[:-len(".py")].replace(os.sep, ".")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def cases_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


# Ends with the command that follows, in a separate mount namespace.
OWN_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")


def can_mount():
    try:
        return subprocess.run([*OWN_SHM, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def run_in_process(path, slot, args, cases=()):
    """A file, or some cases of the file, in a separate process; prints the output at the end. Returns a verdict by name."""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv", encoding="utf-8") as results:
        command = [*OWN_SHM, sys.executable, os.path.abspath(__file__), "-k", args.k, "--jobs=1", "--results", results.name]
        command += [f"--case={case}" for case in cases] + [path]
        # The harness gives each slot separate ports.
        env = {**os.environ, "SOMNUS_TEST_SLOT": f"{slot}/{args.jobs}"}
        process = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        text = process.stdout.decode("utf-8", errors="replace")
        print(f"== {os.path.relpath(path, HERE)}\n{text}", end="", flush=True)
        lines = [line.rstrip("\n").split("\t", 1) for line in results]
    verdicts = {name: verdict for verdict, name in lines}
    if process.returncode not in (0, 1):
        verdicts[f"{os.path.relpath(path, HERE)} ended with {process.returncode}"] = "FAIL"
    return verdicts


def run_again(path, before, args):
    """The verdicts of a file after the failed cases ran once more; the whole file, where a failure is no case's."""
    failed = [name for name, verdict in before.items() if verdict == "FAIL"]
    print(f"== again: {', '.join(failed)}", flush=True)
    again = run_in_process(path, 0, args, failed)
    if not set(failed) <= set(again):
        again = run_in_process(path, 0, args)
    if not again or "FAIL" in again.values():
        return {**before, **again}
    return {**before, **again, **{name: "FLAKY" for name in failed}}


def expected_time(path):
    """A sort key: the time that a file takes, as far as known."""
    name = os.path.relpath(path, HERE)
    return (len(LONG) - LONG.index(name) if name in LONG else 0), os.path.getsize(path)


def run_at_once(files, args):
    """All files, `args.jobs` at once."""
    slots = list(range(args.jobs))

    def run(path):
        slot = slots.pop()
        try:
            return run_in_process(path, slot, args)
        finally:
            slots.append(slot)

    # Files with more text tend to take longer. The longest begin first, so that all slots end at about the same time.
    files = sorted(files, key=expected_time, reverse=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        verdicts = dict(zip(files, pool.map(run, files)))
    failed = [path for path in files if "FAIL" in verdicts[path].values()]
    if len(failed) <= MOST_AGAIN and args.attempts > 1:
        verdicts.update((path, run_again(path, verdicts[path], args)) for path in failed)
        failed = [path for path in failed if "FAIL" in verdicts[path].values()]
    if args.results:
        with open(args.results, "a", encoding="utf-8") as file:
            file.writelines(f"{verdict}\t{name}\n" for path in files for name, verdict in verdicts[path].items())
    print(f"{len(files) - len(failed)} files passed, {len(failed)} failed", flush=True)
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results")
    parser.add_argument("-k", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--case", action="append", help="only the case of this whole name; may be repeated")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    files = [os.path.abspath(name) for name in args.files] or sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(HERE) for name in names if name.endswith("_test.py"))
    if args.jobs > 1 and can_mount():
        sys.exit(0 if run_at_once(files, args) else 1)
    sys.path[:0] = [HERE]
    signal.signal(signal.SIGALRM, end_case)
    file = open(args.results, "a", encoding="utf-8") if args.results else None
    result = LineResult(file)
    for path in files:
        try:
            suite = load(path)
        except Exception as error:  # a suite that does not load is a failed case, not the end of the others
            result._write("FAIL", os.path.relpath(path, HERE), 0.0, f"{type(error).__name__}: {error}\n")
            continue
        unittest.TestSuite(case for case in cases_of(suite)
                           if args.k in case.id() and (not args.case or result.name_of(case) in args.case)).run(result)
    passed = result.verdicts.count("PASS")
    print(f"{passed} passed, {len(result.verdicts) - passed} failed", flush=True)
    sys.exit(0 if passed == len(result.verdicts) else 1)


if __name__ == "__main__":
    main()
