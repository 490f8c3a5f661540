"""compute-sanitizer over the smallest case of each kernel: races in shared memory first, then accesses out of bounds."""
import os
import re
import shutil

import events
import gtest
import logs
import programs

# Tool, seconds, flags: some tests call CUDA in ways that must fail.
TOOLS = (("racecheck", 52, ()), ("memcheck", 35, ("--report-api-errors=no",)))
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
    failures = []
    for tool, seconds, flags in TOOLS:
        command = [sanitizer, "--tool", tool, *flags, "--print-limit", "20", "--error-exitcode", "9", kit.path(programs.TOGETHER),
                   f"--gtest_filter={kit.pick(SMALL, 'ArgMaxTest.Small*')}"]
        limit = kit.limit(seconds)
        done = gtest.run(kit, f"races.{tool}", command, limit, tool=tool)
        text = logs.text(kit.log(f"races.{tool}"))
        if any(words in text for words in REFUSED):
            raise events.Skipped(f"compute-sanitizer does not work on this machine: {text.strip().splitlines()[-1][:200]}")
        found = SUMMARY.findall(text)
        summary = found[-1] if found else "no summary"
        events.row(name=tool, tests=len(done.verdicts), summary=summary, exit=done.status)
        why = done.why(limit)
        failures += [f"{tool}: {why}; {summary}"] if why else []
    gtest.must_be_none(failures)
