"""The counting of test cases: failures, files that did not build, and cases left out on purpose."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402
import run_suites  # noqa: E402


def completed(label, **fields):
    return {"id": {"targetCompleted": {"label": label}}, **fields}


class BazelCases(unittest.TestCase):
    def cases(self, events, exit_code):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
            file.flush()
            return list(report.bazel_cases(file.name, exit_code))

    def test_a_target_for_other_machines_is_neither_passed_nor_failed(self):
        self.assertEqual(self.cases([completed("//a:cuda_test", aborted={"reason": "SKIPPED"})], 0), [])

    def test_what_did_not_build_or_ran_into_its_time_out_failed(self):
        events = [completed("//a:broken_test", completed={}), completed("//a:gone_test", aborted={"reason": "ANALYSIS_FAILURE"}),
                  completed("//a:slow_test", completed={"success": True}),
                  {"id": {"testSummary": {"label": "//a:slow_test"}}, "testSummary": {"overallStatus": "TIMEOUT"}}]
        self.assertEqual(sorted(self.cases(events, 1)), [("FAIL", "//a:broken_test (did not build)"),
                                                         ("FAIL", "//a:gone_test (did not build)"), ("FAIL", "//a:slow_test (TIMEOUT)")])

    def test_an_exit_code_that_nothing_explains_is_a_failure(self):
        self.assertEqual(self.cases([], 2), [("FAIL", "bazel test (exit code 2)")])

    def test_a_case_that_passes_when_it_runs_again_is_named(self):
        runs = []
        for failing in ("first", "second"):
            file = tempfile.NamedTemporaryFile("w", suffix=".xml")
            self.addCleanup(file.close)
            file.write("<testsuites><testsuite name='S'>" + "".join(
                f"<testcase name='{case}' classname='S'>{'<failure/>' if case == failing else ''}</testcase>"
                for case in ("first", "second", "third")) + "</testsuite></testsuites>")
            file.flush()
            runs.append({"id": {"testResult": {"label": "//a:b_test", "run": 1, "shard": 1, "attempt": len(runs) + 1}},
                         "testResult": {"testActionOutput": [{"name": "test.xml", "uri": f"file://{file.name}"}]}})
        self.assertEqual(self.cases(runs, 0), [("FLAKY", "//a:b_test S.first"), ("FAIL", "//a:b_test S.second"),
                                               ("PASS", "//a:b_test S.third")])


class LongFiles(unittest.TestCase):
    def test_each_file_that_begins_first_exists(self):
        missing = [name for name in run_suites.LONG if not os.path.exists(os.path.join(run_suites.HERE, name))]
        self.assertEqual(missing, [])


class Summary(unittest.TestCase):
    def summary(self, lines):
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file, io.StringIO() as out:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            with contextlib.redirect_stdout(out):
                code = report.summarize(file.name)
            return code, out.getvalue().splitlines()

    def test_a_flaky_case_counts_as_passed(self):
        self.assertEqual(self.summary(["PASS\ta", "FLAKY\tb"]), (0, ["FLAKY b (failed, and passed when it ran again)", "2 passed, 0 failed"]))
        self.assertEqual(self.summary(["FAIL\ta", "PASS\tb"]), (1, ["FAILED a", "1 passed, 1 failed"]))
        self.assertEqual(self.summary([])[0], 1)

    def test_many_flaky_cases_are_no_chance(self):
        self.assertEqual([self.summary(["FLAKY\ta"] * count)[0] for count in (3, 4)], [0, 1])


if __name__ == "__main__":
    unittest.main()
