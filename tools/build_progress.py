#!/usr/bin/env python3
"""Runs `bazel build` or `bazel test` with little noise: build_progress.py BAZEL ARGUMENTS...

On a terminal one line shows the progress and moves; elsewhere a line is written every 30 seconds. All other output of Bazel
goes into a log file: when Bazel fails, the log is printed as a whole, stays, and is named; otherwise it is removed. The exit
code is Bazel's.
"""
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

INTERVAL_S = 30
BAZEL_INTERRUPTED = 8
COUNTS = re.compile(r"^\[([\d,]+) / ([\d,]+)\] (?:\[[^]]*\] )?([^;]*)")
PROGRESS = re.compile(r"^(\[[\d,]+ / [\d,]+\]|Loading:|Analyzing:)")


class Progress:
    """The display while Bazel works. `write` takes text; `clock` returns seconds; `columns` is 0 without a terminal."""

    def __init__(self, write, columns, clock=time.monotonic):
        self._write, self._columns, self._clock = write, columns, clock
        self._started = self._written = clock()
        self._text = "starting"

    def see(self, line):
        """Takes a progress line of Bazel's."""
        counts = COUNTS.match(line)
        if counts:
            done, total, what = counts.groups()
            self._text = f"{done} of {total}: {what.strip()}"
        else:
            self._text = line.rstrip(": \n")
        self.tick()

    def tick(self):
        """Shows the time that has passed; without a terminal only once every INTERVAL_S."""
        now = self._clock()
        minutes, seconds = divmod(int(now - self._started), 60)
        line = f"   {minutes}:{seconds:02d}  {self._text}"
        if self._columns:
            self._write(f"\r\033[K{line[:self._columns - 1]}")
        elif now - self._written >= INTERVAL_S:
            self._written = now
            self._write(line + "\n")

    def clear(self):
        if self._columns:
            self._write("\r\033[K")


def lines_of(process, on_idle):
    """The lines of the process's output; calls on_idle() each second without one."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    pending = b""
    while True:
        if not selector.select(timeout=1):
            on_idle()
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        *whole, pending = (pending + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if not piece:
            if pending:
                yield pending
            return


def write_stderr(text):
    sys.stderr.write(text)
    sys.stderr.flush()


def main(command):
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    progress = Progress(write_stderr, columns)
    # Bazel itself gets a terminal's Ctrl-C, and ends in its own way.
    signal.signal(signal.SIGINT, lambda *_: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    with tempfile.NamedTemporaryFile("wb", buffering=0, prefix="somnus-build.", suffix=".log", delete=False) as log:
        for line in lines_of(process, progress.tick):
            text = line.decode("utf-8", errors="replace")
            if PROGRESS.match(text):
                progress.see(text)
            else:
                log.write(line)
    code = process.wait()
    progress.clear()
    if code not in (0, BAZEL_INTERRUPTED):
        with open(log.name, encoding="utf-8", errors="replace") as written:
            shutil.copyfileobj(written, sys.stderr)
        write_stderr(f"error: Bazel failed with exit code {code}; the output above is in {log.name}\n")
        return code
    os.unlink(log.name)
    if code == BAZEL_INTERRUPTED:
        write_stderr("error: the build was interrupted\n")
    return code


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
