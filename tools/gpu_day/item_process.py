#!/usr/bin/env python3
"""One item in a separate process: `item_process.py NAME` runs items/NAME.py's run(kit).

The standard output is for day.py: JSON lines of events.py. Standard error is the item's log.
"""
import importlib
import signal
import sys

import events
import kits


def main(name):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are ended on the way out
    try:
        importlib.import_module(f"items.{name}").run(kits.current())
    except events.Failed as failure:
        events.data(reason=str(failure))
        return 1
    except events.Skipped as reason:
        events.data(reason=str(reason))
        return events.SKIPPED_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
