"""compute-sanitizer over the smallest case of each kernel: races in shared memory first, then accesses out of bounds."""
import os
import re
import shutil

import events
import gtest

TOOLS = (("racecheck", ()), ("memcheck", ("--report-api-errors=no",)))  # some tests call CUDA in ways that must fail
SMALL = "*Small*"
REFUSED = ("Device not supported", "Unable to find injection library", "Internal Sanitizer Error")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def find_tool(name):
    return shutil.which(name) or next((path for path in [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", name)]
                                       if os.access(path, os.X_OK)), None)


def run(kit):
    sanitizer = find_tool("compute-sanitizer")
    if sanitizer is None:
        raise events.Skipped("there is no compute-sanitizer")
    program = kit.path("tests", "cuda", "gpu_tests")
    failures = []
    for tool, flags in TOOLS:
        command = [sanitizer, "--tool", tool, *flags, "--print-limit", "20", "--error-exitcode", "9", program,
                   f"--gtest_filter={kit.pick(SMALL, 'ArgMaxTest.Small*')}"]
        verdicts, status = gtest.run(kit, f"races.{tool}", command, tool=tool)
        with open(kit.log(f"races.{tool}"), encoding="utf-8", errors="replace") as file:
            text = file.read()
        if any(words in text for words in REFUSED):
            raise events.Skipped(f"compute-sanitizer does not work on this machine: {text.strip().splitlines()[-1][:200]}")
        found = SUMMARY.findall(text)
        events.row(name=tool, tests=len(verdicts), summary=found[-1] if found else "none", exit=status)
        if status != 0 or not verdicts:
            failures.append(f"{tool}: exit {status}, {len(verdicts)} tests, {found[-1] if found else 'no summary'}")
    if failures:
        raise events.Failed("; ".join(failures))
