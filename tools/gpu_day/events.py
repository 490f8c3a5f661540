"""The lines of JSON by which an item tells day.py, over standard output, the item's measurements and decisions."""
import json

SKIPPED_STATUS = 77  # the exit status of an item that cannot run on this machine


class Failed(Exception):
    """A condition of the item does not hold."""


class Skipped(Exception):
    """The machine lacks something that the item needs."""


def row(**fields):
    """A measurement or a verdict."""
    print(json.dumps({"row": fields}), flush=True)


def data(**fields):
    """Fields of the line with which the item ends."""
    print(json.dumps({"data": fields}), flush=True)
