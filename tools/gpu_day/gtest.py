"""Runs a GoogleTest binary; each test's verdict is a row as soon as the test ends."""
import re
import subprocess

import events

VERDICT = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] (\w+/?\w*\.\w+(?:/\w+)?)[^(]*\((\d+) ms\)")


def run(kit, log, command, **fields):
    """(verdict by test, exit status). `fields` are part of each row."""
    verdicts = {}
    with open(kit.log(log), "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env=kit.environment(), cwd=kit.root)
        for line in process.stdout:
            file.write(line)
            file.flush()
            found = VERDICT.search(line)
            if found and found[2] not in verdicts:
                verdicts[found[2]] = found[1]
                events.row(test=found[2], verdict=found[1].lower(), ms=int(found[3]), **fields)
    return verdicts, process.wait()


def must_pass(verdicts, status, what):
    failed = [name for name, verdict in verdicts.items() if verdict == "FAILED"]
    if failed or status != 0:
        raise events.Failed(f"{what}: exit {status}, {len(failed)} of {len(verdicts)} tests failed: {', '.join(failed[:10])}")
    if not any(verdict == "OK" for verdict in verdicts.values()):
        raise events.Failed(f"{what}: no test ran")
