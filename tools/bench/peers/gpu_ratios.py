#!/usr/bin/env python3
"""Reads what gpu_compare.sh wrote, prints Somnus beside each peer, and writes comparison.json there.

Usage: gpu_ratios.py DIR    (files NAME.ROUND.json; kernels as gpu_bench writes them, in somnus-kernels.ROUND.jsonl and
flashinfer.ROUND.jsonl)
A ratio is of two results of one round; the table has the median of the rounds, and the least and the greatest.
"""
import collections
import glob
import json
import os
import re
import statistics
import sys

OURS, OUR_KERNELS, PEER_KERNELS = "somnus", "somnus-kernels", "flashinfer"
FILE = re.compile(r"([a-z0-9-]+)\.(\d+)\.jsonl?")


def load(folder):
    """{name: {round: contents}} of every result; of lines, the list of rows."""
    found = collections.defaultdict(dict)
    for path in sorted(glob.glob(os.path.join(folder, "*.json*"))):
        match = FILE.fullmatch(os.path.basename(path))
        if match:
            with open(path, encoding="utf-8") as file:
                rows = path.endswith("l")
                found[match.group(1)][int(match.group(2))] = [json.loads(line) for line in file] if rows else json.load(file)
    return found


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)} if values else None


def ratios(ours, theirs):
    """Ratios of the rounds that both have, as a spread."""
    return spread([ours[number] / theirs[number] for number in sorted(ours) if theirs.get(number)])


def text(values, digits=1):
    if values is None:
        return "-"
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}..{values['max']:.{digits}f}, {values['rounds']})"


def serving(found):
    """One row for each that ran the workload, Somnus first."""
    rates = {name: {number: run["result"]["output_tokens_per_s"] for number, run in runs.items()}
             for name, runs in found.items() if name not in (OUR_KERNELS, PEER_KERNELS)}
    rows = []
    for name in sorted(rates, key=lambda name: (name != OURS, name)):
        runs = list(found[name].values())
        rows.append({"name": name, "how": runs[0].get("how", "served"), "output_tokens": runs[0]["result"]["output_tokens"],
                     "failed_requests": sum(sum(run["result"].get("errors", {}).values()) for run in runs),
                     "seconds": spread([run["result"]["duration_s"] for run in runs]), "tokens_per_s": spread(list(rates[name].values())),
                     "ratio": None if name == OURS else ratios(rates.get(OURS, {}), rates[name])})
    return rows


def kernels(found):
    """One row for each case that flashinfer ran: microseconds, and theirs over ours."""
    def times(name):
        rows = collections.defaultdict(dict)
        for number, run in found.get(name, {}).items():
            for row in run:
                if row["part"] == "kernels":
                    rows[row["name"]][number] = row
        return rows
    ours, theirs = times(OUR_KERNELS), times(PEER_KERNELS)

    def column(rows, key):
        return {number: row[key] for number, row in rows.items()}
    return [{"name": name, "ours": {key: spread(list(column(ours[name], key).values())) for key in ("us", "gbps", "of_copy", "tflops")},
             "theirs": {key: spread(list(column(theirs[name], key).values())) for key in ("us", "gbps", "of_copy", "tflops")},
             "ratio": ratios(column(theirs[name], "us"), column(ours[name], "us"))}
            for name in theirs if name in ours]


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__)
    found = load(sys.argv[1])
    if not found:
        sys.exit(f"error: there are no results in {sys.argv[1]}")
    served, ops = serving(found), kernels(found)
    print("\n| | how | output tokens | failed requests | seconds | output tokens/s (min..max, rounds) | Somnus' over its (min..max, rounds) |")
    print("|---|---|---|---|---|---|---|")
    for row in served:
        ratio = "" if row["name"] == OURS else text(row["ratio"], 2)
        print(f"| {row['name']} | {row['how']} | {row['output_tokens']} | {row['failed_requests']} | {text(row['seconds'])} "
              f"| {text(row['tokens_per_s'])} | {ratio} |")
    if ops:
        print("\n| | us | GB/s | of copy | TFLOP/s | flashinfer us | GB/s | of copy | TFLOP/s | speed over flashinfer's (min..max, rounds) |")
        print("|---|---|---|---|---|---|---|---|---|---|")
    for row in ops:
        cells = [f"{side[key]['median']:.{digits}f}" for side in (row["ours"], row["theirs"])
                 for key, digits in (("us", 1), ("gbps", 1), ("of_copy", 2), ("tflops", 1))]
        print(f"| {row['name']} | {' | '.join(cells)} | {text(row['ratio'], 2)} |")
    with open(os.path.join(sys.argv[1], "comparison.json"), "w", encoding="utf-8") as file:
        json.dump({"serving": served, "kernels": ops}, file, indent=1)


if __name__ == "__main__":
    main()
