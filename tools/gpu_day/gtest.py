"""Runs a GoogleTest binary; each test's verdict is a row as soon as the test ends."""
import re
import subprocess

import events

VERDICT = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] (\w+/?\w*\.\w+(?:/\w+)?)[^(]*\((\d+) ms\)")
GRACE_S = 2  # from TERM to KILL, for a program beyond its limit
OVERRUN = (124, 137, -9)  # of timeout(1)


def run(kit, log, command, seconds, **fields):
    """(verdict by test, exit status) of a program that may run for so many seconds. `fields` are part of each row."""
    verdicts = {}
    limited = ["timeout", "-k", str(GRACE_S), str(kit.limit(seconds)), *command]
    with kit.open_log(log) as file:
        process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env=kit.environment(), cwd=kit.root)
        try:
            for line in process.stdout:
                file.write(line)
                found = VERDICT.search(line)
                if found and found[2] not in verdicts:
                    verdicts[found[2]] = found[1]
                    events.row(test=found[2], verdict=found[1].lower(), ms=int(found[3]), **fields)
            return verdicts, process.wait()
        except BaseException:  # TERM ends the item: timeout(1) then ends the program and the program's processes
            process.terminate()
            process.wait()
            raise


def failures(verdicts, status, program):
    """What must not be in a run of a programs.Program: [] or one text."""
    failed = [name for name, verdict in verdicts.items() if verdict == "FAILED"]
    if status in OVERRUN:
        why = f"over the limit of {program.seconds:g} s"
    elif failed or status != 0:
        why = f"exit status {status}"
    elif "OK" not in verdicts.values():
        why = "no test ran"
    else:
        return []
    return [f"{program.name}: {why}, {len(failed)} of {len(verdicts)} tests failed{': ' if failed else ''}{', '.join(failed[:10])}"]


def must_be_none(found):
    if found:
        raise events.Failed("; ".join(found))
