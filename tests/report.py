#!/usr/bin/env python3
"""Counts test cases.

report.py CASES.tsv               prints the failures, then "N passed, N failed"; exit 1 on a failure or on no case
report.py --bazel EVENTS.json RC  reads Bazel's build events, prints a line "PASS|FAIL|FLAKY<TAB>name" per test case

FLAKY: the case failed, and passed when it ran again. Such a case counts as passed, and is named: somebody has to mend it. More
than MOST_FLAKY of them are no chance: the exit code is 1 then.
"""
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ET

MOST_FLAKY = 3


def xml_cases(label, path):
    """(passed, name) of every case in one test.xml; a skipped case is neither."""
    for suite in ET.parse(path).getroot().iter("testsuite"):
        for case in suite.findall("testcase"):
            if case.find("skipped") is not None or case.get("status") == "notrun":
                continue
            name = f"{label} {case.get('classname', suite.get('name'))}.{case.get('name')}"
            yield case.find("failure") is None and case.find("error") is None, name


def attempts_of(label, paths):
    """(verdict, name) of the cases of one target, which ran once or more: the last run decides."""
    runs = []
    for path in paths:
        try:
            runs.append({name: passed for passed, name in xml_cases(label, path)})
        except (OSError, ET.ParseError) as error:
            runs.append({f"{label} (unreadable log: {error})": False})
    failed_before = {name for run in runs[:-1] for name, passed in run.items() if not passed}
    for name, passed in runs[-1].items():
        yield ("FLAKY" if name in failed_before else "PASS") if passed else "FAIL", name
    # A run that ended before it had a verdict for each case, by a crash for example.
    for name in sorted(failed_before - set(runs[-1])):
        yield "FLAKY", name


def bazel_cases(events_path, exit_code):
    xml_files, overall, broken = {}, {}, set()
    with open(events_path, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            ident = event["id"]
            if "testResult" in ident and "testResult" in event:
                for output in event["testResult"].get("testActionOutput", []):
                    if output["name"] == "test.xml":
                        key = (ident["testResult"]["label"], ident["testResult"].get("shard"), ident["testResult"].get("run"))
                        xml_files.setdefault(key, []).append(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
            elif "testSummary" in ident and "testSummary" in event:
                overall[ident["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
            elif "targetCompleted" in ident:
                # Skipped: not for this machine (CUDA's tests without nvcc).
                skipped = event.get("aborted", {}).get("reason") == "SKIPPED"
                if not skipped and not event.get("completed", {}).get("success"):
                    broken.add(ident["targetCompleted"]["label"])
    failed_labels = set()
    for (label, _, _), paths in sorted(xml_files.items(), key=lambda item: str(item[0])):
        for verdict, name in attempts_of(label, paths):
            if verdict == "FAIL":
                failed_labels.add(label)
            yield verdict, name
    # A target that failed as a whole (crash, time-out, build error) without a case that says so.
    for label, status in sorted(overall.items()):
        if status not in ("PASSED", "FLAKY") and label not in failed_labels:
            failed_labels.add(label)
            yield "FAIL", f"{label} ({status})"
    for label in sorted(broken - failed_labels):
        failed_labels.add(label)
        yield "FAIL", f"{label} (did not build)"
    if exit_code != 0 and not failed_labels:
        yield "FAIL", f"bazel test (exit code {exit_code})"


def summarize(path):
    passed, failures, flaky = 0, [], []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                verdict, _, name = line.rstrip("\n").partition("\t")
                if verdict in ("PASS", "FLAKY"):
                    passed += 1
                    if verdict == "FLAKY":
                        flaky.append(name)
                else:
                    failures.append(name)
    for name in flaky:
        print(f"FLAKY {name} (failed, and passed when it ran again)")
    for name in failures:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or not passed or len(flaky) > MOST_FLAKY else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--bazel":
        try:
            found = list(bazel_cases(sys.argv[2], int(sys.argv[3])))
        except (OSError, ValueError) as error:
            found = [("FAIL", f"bazel test (no build events: {error})")]
        for verdict, name in found:
            print(f"{verdict}\t{name}")
        return 0
    if len(sys.argv) == 2:
        return summarize(sys.argv[1])
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
