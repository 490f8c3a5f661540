#!/usr/bin/env python3
"""Counts test cases.

report.py CASES.tsv               prints the failures, then "N passed, N failed"; exit 1 on a failure or on no case
report.py --bazel EVENTS.json RC  reads Bazel's build events, prints a line "PASS|FAIL<TAB>name" per test case
"""
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ET


def xml_cases(label, path):
    """(passed, name) of every case in one test.xml; a skipped case is neither."""
    for suite in ET.parse(path).getroot().iter("testsuite"):
        for case in suite.findall("testcase"):
            if case.find("skipped") is not None or case.get("status") == "notrun":
                continue
            name = f"{label} {case.get('classname', suite.get('name'))}.{case.get('name')}"
            yield case.find("failure") is None and case.find("error") is None, name


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
                        xml_files[key] = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
            elif "testSummary" in ident and "testSummary" in event:
                overall[ident["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
            elif "targetCompleted" in ident:
                # Skipped: not for this machine (CUDA's tests without nvcc).
                skipped = event.get("aborted", {}).get("reason") == "SKIPPED"
                if not skipped and not event.get("completed", {}).get("success"):
                    broken.add(ident["targetCompleted"]["label"])
    failed_labels = set()
    for (label, _, _), path in sorted(xml_files.items(), key=lambda item: str(item[0])):
        try:
            found = list(xml_cases(label, path))
        except (OSError, ET.ParseError) as error:
            found = [(False, f"{label} (unreadable log: {error})")]
        for passed, name in found:
            if not passed:
                failed_labels.add(label)
            yield passed, name
    # A target that failed as a whole (crash, time-out, build error) without a case that says so.
    for label, status in sorted(overall.items()):
        if status not in ("PASSED", "FLAKY") and label not in failed_labels:
            failed_labels.add(label)
            yield False, f"{label} ({status})"
    for label in sorted(broken - failed_labels):
        failed_labels.add(label)
        yield False, f"{label} (did not build)"
    if exit_code != 0 and not failed_labels:
        yield False, f"bazel test (exit code {exit_code})"


def summarize(path):
    passed, failures = 0, []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                verdict, _, name = line.rstrip("\n").partition("\t")
                if verdict == "PASS":
                    passed += 1
                else:
                    failures.append(name)
    for name in failures:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or not passed else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--bazel":
        try:
            found = list(bazel_cases(sys.argv[2], int(sys.argv[3])))
        except (OSError, ValueError) as error:
            found = [(False, f"bazel test (no build events: {error})")]
        for passed, name in found:
            print(f"{'PASS' if passed else 'FAIL'}\t{name}")
        return 0
    if len(sys.argv) == 2:
        return summarize(sys.argv[1])
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
