"""The items of a device day in their order, and the choice of items that a call runs."""
import dataclasses
import os
import sys

import journal
import kits

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    seconds: float  # the item's budget
    what: str
    command: tuple = ()  # empty: that of items/NAME.py

    def words(self):
        return list(self.command) or [sys.executable, os.path.join(HERE, "item_process.py"), self.name]


# What no GPU has run yet comes first, then new numbers, then what has run before. What may leave a GPU in disorder is last.
ITEMS = (
    Item("env", 8, "ceilings of copies on the device and over the bus"),
    Item("alive", 25, "a served 0.6B shape: the same tokens twice, eager, and with parts turned off"),
    Item("kernels", 75, "the tests of kernels in one process, first those of kernels that no GPU has run"),
    Item("runner", 58, "the tests of the runner: graphs, masks, adapters, mixtures, drafts, sleep"),
    Item("served", 70, "a served 8B shape: sleep in mid-stream, kept KV blocks, a killed worker"),
    Item("model", 45, "checkpoints of real size beside transformers"),
    Item("decode", 65, "decode and prefill of the 8B and the 0.6B shape"),
    Item("sleep", 50, "sleep and wake-up of the 8B shape; memory in pieces of five sizes"),
    Item("backups", 30, "sleeps whose weights go to pinned memory, a file, or compressed: the same tokens afterwards"),
    Item("races", 90, "compute-sanitizer: racecheck, memcheck"),
    Item("ops", 45, "every op beside PyTorch"),
    Item("ncu", 35, "Nsight Compute: a decode step's kernels, prefill's attention"),
    Item("memory", 43, "the tests that count the device's memory, share it with a process, swap, or measure"),
    Item("ranks", 38, "collectives of ranks and processes that share the GPU, one of which is killed"),
)


def rehearsed(table):
    return [dataclasses.replace(item, seconds=item.seconds * kits.REHEARSAL_FACTOR) for item in table]


def named(table, names):
    """The items of the given names, in the table's order; ValueError for an unknown name."""
    unknown = [name for name in names if name not in {item.name for item in table}]
    if unknown:
        raise ValueError(f"there is no item {', '.join(unknown)}: the items are {', '.join(item.name for item in table)}")
    return [item for item in table if item.name in names]


def unfinished(table, lines):
    """The items that have not ended, the longest-wanted first: items that never started, then items that the end of a call has cut off,
    by a signal or by a kill."""
    status = journal.statuses(lines)
    waiting = [item for item in table if status.get(item.name, "skipped") == "skipped"]
    return waiting + [item for item in table if status.get(item.name) in ("start", "interrupted")]
