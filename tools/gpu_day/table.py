"""The items of a device day in their order, and the choice of items that a call runs."""
import dataclasses
import os
import sys

import journal

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    seconds: float  # the item's budget
    what: str
    command: tuple = ()  # empty: that of items/NAME.py

    def words(self):
        return list(self.command) or [sys.executable, os.path.join(HERE, "item_process.py"), self.name]


ITEMS = (
    Item("env", 8, "ceilings of copies on the device and over the bus"),
    Item("alive", 25, "a served 0.6B shape: the same tokens twice, eager, and with parts turned off"),
    Item("kernels", 75, "the GPU's tests, the most valuable first"),
    Item("model", 45, "checkpoints of real size beside transformers"),
    Item("decode", 65, "decode and prefill of the 8B and the 0.6B shape"),
    Item("sleep", 50, "sleep and wake-up of the 8B shape; memory in pieces of five sizes"),
    Item("served", 70, "a served 8B shape: sleep in mid-stream, kept KV blocks, a killed worker"),
    Item("ops", 45, "every op beside PyTorch"),
    Item("races", 90, "compute-sanitizer: racecheck, memcheck"),
    Item("ncu", 35, "Nsight Compute: a decode step's kernels, prefill's attention"),
    Item("ranks", 25, "collectives of ranks and processes that share the GPU"),
)


REHEARSAL_FACTOR = 10  # of budgets: the emulator's machine may be slow and busy, and a rehearsal's times mean nothing


def rehearsed(table):
    return [dataclasses.replace(item, seconds=item.seconds * REHEARSAL_FACTOR) for item in table]


def named(table, names):
    """The items of the given names, in the table's order; ValueError for an unknown name."""
    unknown = [name for name in names if name not in {item.name for item in table}]
    if unknown:
        raise ValueError(f"there is no item {', '.join(unknown)}: the items are {', '.join(item.name for item in table)}")
    return [item for item in table if item.name in names]


def unfinished(table, lines):
    """The items that have not ended, the longest-wanted first: items that never started, then items that the end of a call has cut off."""
    status = journal.statuses(lines)
    waiting = [item for item in table if status.get(item.name, "skipped") == "skipped"]
    return waiting + [item for item in table if status.get(item.name) == "start"]
