"""The counting of test cases: what failed, what did not build, and what was left out on purpose."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402


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
        self.assertEqual(sorted(self.cases(events, 1)), [(False, "//a:broken_test (did not build)"),
                                                         (False, "//a:gone_test (did not build)"), (False, "//a:slow_test (TIMEOUT)")])

    def test_an_exit_code_that_nothing_explains_is_a_failure(self):
        self.assertEqual(self.cases([], 2), [(False, "bazel test (exit code 2)")])


if __name__ == "__main__":
    unittest.main()
