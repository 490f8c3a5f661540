"""day.jsonl: a line for each event, which is on the disk before the day goes on.

Events are {"t", "item", "status": start|ok|fail|timeout|skipped, "seconds", "data"}; an item's measurements and decisions are
{"item", "row"} in between. The first event is of the item "day": the machine.
"""
import json
import os
import sys
import threading
import time

MOST_BEFORE_S = 600  # that unpacking takes; a larger difference is a clock that was set
ENDS = ("ok", "fail", "timeout", "skipped")


def read(path):
    """The lines of a file. A line that a kill or a full disk has cut off is left out."""
    lines = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("item"), str):
                lines.append(line)
    return lines


def encoded(line):
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


class Journal:
    """The file of one call. The lines of the call that is resumed, `earlier`, come first."""

    def __init__(self, path, begun, earlier=()):
        # From here on the clock may be set: only the time before this call is by the wall clock, which may already be wrong.
        before = time.time() - begun
        self._start = time.monotonic() - (before if 0 <= before <= MOST_BEFORE_S else 0)
        self.lines, self._unwritten, self._lock = list(earlier), b"", threading.Lock()
        # The path may be the path of the resumed call, whose lines are always there.
        partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
        with open(partial, "wb") as file:
            file.write(b"".join(map(encoded, self.lines)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def seconds(self):
        return time.monotonic() - self._start

    def event(self, item, status, seconds=0.0, data=None):
        self._append({"t": round(self.seconds(), 2), "item": item, "status": status, "seconds": round(seconds, 2), "data": data or {}})

    def row(self, item, row):
        self._append({"item": item, "row": row})

    def _append(self, line):
        """Never raises OSError: on a full disk the day goes on, and what the disk did not take is written before the next line."""
        with self._lock:
            self.lines.append(line)
            self._unwritten += encoded(line)
            try:
                while self._unwritten:
                    self._unwritten = self._unwritten[os.write(self._fd, self._unwritten):]
                os.fsync(self._fd)
            except OSError as error:
                print(f"day.jsonl: {error}", file=sys.stderr)


def statuses(lines):
    """The last status of each item that a line names."""
    return {line["item"]: line["status"] for line in lines if "status" in line and line["item"] != "day"}
