"""Runs a GoogleTest binary; each test's verdict is a row as soon as the test ends."""
import dataclasses
import re
import subprocess

import events

VERDICT = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] (\w+/?\w*\.\w+(?:/\w+)?)[^(]*\((\d+) ms\)")
BEGUN = re.compile(r"\[ RUN      \] (\S+)")
GRACE_S = 2  # from TERM to KILL, for a program beyond its limit
OVERRUN = (124, 137, -9)  # of timeout(1)


@dataclasses.dataclass
class Run:
    """What is known of a run of a program."""
    verdicts: dict  # by test
    status: int = 0  # at the end, as timeout(1) tells
    running: str = ""  # the test that had begun and not ended
    last_line: str = ""

    def why(self, seconds):
        """What must not be; nothing when tests ran and none failed."""
        failed = [name for name, verdict in self.verdicts.items() if verdict == "FAILED"]
        counts = f"{len(failed)} of {len(self.verdicts)} tests failed{': ' if failed else ''}{', '.join(failed[:10])}"
        place = f" in {self.running}" if self.running else ""
        if self.status in OVERRUN:
            return f"over the limit of {seconds:g} s{place}, {counts}"
        if failed:
            return counts
        if self.status != 0:
            return f"exit status {self.status}{place}: {self.last_line}"
        return "" if "OK" in self.verdicts.values() else f"no test ran, {len(self.verdicts)} were skipped"


def run(kit, log, command, seconds, **fields):
    """The Run of a program that may take so many seconds. `fields` are part of each row."""
    done = Run({})
    limited = ["timeout", "-k", str(GRACE_S), str(seconds), *command]
    with kit.open_log(log) as file:
        process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env=kit.environment(), cwd=kit.root)
        try:
            for line in process.stdout:
                file.write(line)
                done.last_line = line.strip()[-200:] or done.last_line
                begun, found = BEGUN.match(line), VERDICT.search(line)
                done.running = begun[1] if begun else done.running
                if found and found[2] not in done.verdicts:
                    done.verdicts[found[2]], done.running = found[1], ""
                    events.row(test=found[2], verdict=found[1].lower(), ms=int(found[3]), **fields)
            done.status = process.wait()
        except BaseException:  # TERM ends the item: timeout(1) then ends the program and the program's processes
            process.terminate()
            process.wait()
            raise
    return done


def must_be_none(found):
    if found:
        raise events.Failed("; ".join(found))
