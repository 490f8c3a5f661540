"""day.jsonl: a line for each event, which is on the disk before the day goes on.

Events are {"t", "item", "status": start|ok|fail|timeout|interrupted|skipped, "seconds", "data"}; an item's measurements and decisions are
{"item", "row"} in between. The first event is of the item "day": the machine.
"""
import errno
import json
import os
import sys
import threading
import time

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk that is full, for all, for this user, or for this process
MOST_BEFORE_S = 600  # that unpacking takes; a larger difference is a clock that was set


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
        self.lines, self._path, self._lock = list(earlier), path, threading.Lock()
        self._fd, self._unwritten = None, b"".join(map(encoded, self.lines))
        with self._lock:
            self._write()

    def seconds(self):
        return time.monotonic() - self._start

    def event(self, item, status, seconds=0.0, data=None):
        self._append({"t": round(self.seconds(), 2), "item": item, "status": status, "seconds": round(seconds, 2), "data": data or {}})

    def row(self, item, row):
        self._append({"item": item, "row": row})

    def _append(self, line):
        with self._lock:
            self.lines.append(line)
            self._unwritten += encoded(line)
            self._write()

    def _write(self):
        """Never raises OSError: on a full disk the day goes on, and what the disk did not take is written before the next line."""
        try:
            if self._fd is None:
                self._fd, self._unwritten = create(self._path, self._unwritten), b""
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten):]
            os.fsync(self._fd)
        except OSError as error:
            print(f"day.jsonl: {error}", file=sys.stderr)


def create(path, contents):
    """A new file with the contents, in one step, and open for more: the path may be that of the resumed call, whose lines are
    always there."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    partial = os.path.join(folder, f".{name}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    try:
        while contents:
            contents = contents[os.write(fd, contents):]
        os.fsync(fd)
        os.replace(partial, path)
    except OSError:
        os.close(fd)
        os.unlink(partial)
        raise
    return fd


def statuses(lines):
    """The last status of each item that a line names."""
    return {line["item"]: line["status"] for line in lines if "status" in line and line["item"] != "day"}
