#!/usr/bin/env python3
"""The device day: runs the table's items in turn within a time, and leaves four files under --out.

day.jsonl (every event at once), day.md (its tables, rewritten after each item), clocks.csv, logs.tar.xz. tools/gpu_day.sh calls it.
A disk that is full, even from the start, ends no item: the files lack what had no room, and the page is printed.
"""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

import day_page
import journal
import kits
import library_path
import logs
import machine
import runner
import table as tables

SECONDS = 540


def arguments(argv, table):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="the bundle, unpacked, or a rehearsal's")
    parser.add_argument("--out", required=True, help="the folder of the four files")
    parser.add_argument("--seconds", type=float, help="of the whole day (540; of a rehearsal ten times that); an item starts only "
                        "if its budget is left of them")
    parser.add_argument("--items", help="only these, separated by commas")
    parser.add_argument("--resume", metavar="DAY.JSONL", help="of an earlier call: run what has not ended in it")
    parser.add_argument("--begun", type=float, default=time.time(), help="when the day began, as date +%%s has it")
    parser.add_argument("--rehearse", action="store_true", help="in small sizes, for the emulator")
    args = parser.parse_args(argv)
    try:
        args.table = tables.named(table, args.items.split(",")) if args.items else list(table)
        args.earlier = journal.read(args.resume) if args.resume else []
        os.makedirs(args.out, exist_ok=True)
    except (OSError, ValueError) as error:
        if not isinstance(error, OSError) or error.errno not in journal.NO_ROOM:
            parser.error(str(error))
    if args.resume:
        args.table = tables.unfinished(args.table, args.earlier)
    if args.rehearse:
        args.table = tables.rehearsed(args.table)
    args.seconds = args.seconds or SECONDS * (kits.REHEARSAL_FACTOR if args.rehearse else 1)
    return args


class Day:
    """One call: the items, the files, and the time that is left."""

    def __init__(self, args, scratch):
        self.args, self.ended_by = args, None
        folder = os.path.join(scratch, "logs")
        os.makedirs(folder)
        self.kit = kits.Kit(root=os.path.abspath(args.root), logs=folder, scratch=scratch, rehearse=args.rehearse,
                            library_path=library_path.library_path(), torch_python=library_path.python_with("torch", "transformers") or "")
        self.environment = {**os.environ, **self.kit.variables(), kits.VARIABLE: self.kit.text(), "PYTHONUNBUFFERED": "1"}
        self.journal = journal.Journal(self.file("day.jsonl"), args.begun, args.earlier)
        self._run = None

    def file(self, name):
        return os.path.join(self.args.out, name)

    def end(self, number, _frame):
        """A signal ends the item that runs, and lets no other start."""
        self.ended_by = signal.Signals(number).name
        if self._run is not None:
            self._run.stop()

    def run(self):
        """Whether no item failed."""
        self.journal.event("day", "start", data=machine.facts(self.kit.root, self.kit))
        self.write_page()
        clocks = machine.Clocks(self.file("clocks.csv"), resumed=bool(self.args.earlier))
        try:
            good = all([self.run_item(item) for item in self.args.table])
        finally:
            clocks.stop()
            self.replace("logs.tar.xz", logs.pack(self.kit.logs))
        return good

    def run_item(self, item):
        left = self.args.seconds - self.journal.seconds()
        reason = f"ended by {self.ended_by}" if self.ended_by else f"{max(left, 0):.0f} s are left, {item.seconds:g} are needed"
        if self.ended_by or left < item.seconds:
            self.journal.event(item.name, "skipped", data={"reason": reason})
            self.write_page()
            return True
        self.journal.event(item.name, "start", data={"budget": item.seconds, "what": item.what})
        self.write_page()  # names the item, should the day be cut off in it
        began = time.monotonic()
        status, data = runner.run_item(item, self.journal, self.kit.logs, self.environment, self.began)
        self._run = None
        if self.ended_by and status != "ok":
            status, data["reason"] = "interrupted", f"ended by {self.ended_by}: --resume runs the item again"
        elif status == "timeout":
            data.setdefault("reason", f"over its budget of {item.seconds:g} s")
        self.journal.event(item.name, status, time.monotonic() - began, data)
        self.write_page()
        if status in ("fail", "timeout", "interrupted"):
            self.replace("logs.tar.xz", logs.pack(self.kit.logs))
        return status in ("ok", "skipped")

    def began(self, run):
        self._run = run
        if self.ended_by:  # the signal came between the check and the start
            run.stop()

    def write_page(self):
        self.replace("day.md", day_page.text(self.journal.lines).encode())

    def replace(self, name, contents):
        """Writes a file of --out in one step, so that a kill or a full disk leaves the file before."""
        partial = self.file(f".{name}")
        try:
            with open(partial, "wb") as file:
                file.write(contents)
            os.replace(partial, self.file(name))
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)
            if os.path.exists(partial):
                os.unlink(partial)


def make_scratch(out):
    """A folder for logs and models. The module tempfile alone would refuse a folder in which a test file finds no room."""
    for folder in filter(None, (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", out)):
        try:
            return tempfile.mkdtemp(prefix="gpu_day_", dir=folder)
        except OSError as error:
            print(f"{folder}: {error}", file=sys.stderr)
    sys.exit("error: no folder for logs and models can be made: set TMPDIR")


def main(argv=None, table=tables.ITEMS):
    args = arguments(argv, table)
    scratch = make_scratch(args.out)
    day = Day(args, scratch)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, day.end)
    try:
        good = day.run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(day_page.printed(day.journal.lines), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
