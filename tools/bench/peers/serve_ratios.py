#!/usr/bin/env python3
"""Reads what serve_compare.sh wrote and prints, per load and peer, the median ratio of output tokens per second.

Usage: serve_ratios.py DIR    (files NAME.ROUND.CONCURRENCY.INPUT.OUTPUT.json)
"""
import collections
import glob
import json
import os
import statistics
import sys

FAR_NS = 330  # as decode_bench: longer ping-pong round trips are between two parts of the chip, shorter ones within one


def far(result):
    """Placement of the two cores before and after: near, far, or None where it changed within the sample."""
    before, after = (result[key]["ping_pong_ns"] > FAR_NS for key in ("machine_before", "machine_after"))
    return before if before == after else None


def main():
    results = collections.defaultdict(dict)  # (load, round) -> name -> result
    for path in glob.glob(os.path.join(sys.argv[1], "*.json")):
        name, number, concurrency, input_len, output_len, _ = os.path.basename(path).rsplit(".", 5)
        with open(path, encoding="utf-8") as file:
            results[(int(concurrency), int(input_len), int(output_len)), int(number)][name] = json.load(file)
    loads = sorted({load for load, _ in results}, key=lambda load: (load[1:], load[0]))
    names = sorted({name for found in results.values() for name in found})
    print("| concurrency | in | out | " + " | ".join(f"{name} tok/s" for name in names) + " | "
          + " | ".join(f"ratio to {name} (min..max, pairs, dropped)" for name in names if name != "somnus") + " |")
    print("|" + "---|" * (3 + 2 * len(names) - 1))
    for load in loads:
        rounds = [found for (at, _), found in sorted(results.items()) if at == load]
        cells = []
        for name in names:
            rates = [found[name]["result"]["output_tokens_per_s"] for found in rounds if name in found]
            cells.append(f"{statistics.median(rates):.1f}" if rates else "-")
        for name in names:
            if name == "somnus":
                continue
            pairs = [(found["somnus"], found[name]) for found in rounds if name in found and "somnus" in found]
            kept = [(ours, theirs) for ours, theirs in pairs if far(ours) is not None and far(ours) == far(theirs)]
            ratios = [ours["result"]["output_tokens_per_s"] / theirs["result"]["output_tokens_per_s"] for ours, theirs in kept
                      if theirs["result"]["output_tokens_per_s"] > 0]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f}, {len(ratios)}, {len(pairs) - len(ratios)})"
                         if ratios else f"- (0 of {len(pairs)} pairs comparable)")
        print(f"| {load[0]} | {load[1]} | {load[2]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
