#!/usr/bin/env python3
"""Builds from nothing and prints where the time goes: build_profile.py [--cuda] [--slowest N] [BAZEL TARGETS]

Without targets the script builds the targets of the quickstart. Nothing that was built before is used or touched: the build has
an output folder of its own, which is removed, and no disk cache. The seconds of a folder or a file are the elapsed times of its
actions, of which as many run at once as there are jobs: elapsed times are meaningful on a quiet machine only. The CPU seconds
are meaningful on any machine.
"""
import argparse
import collections
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUICKSTART = ["//coordinator", "//worker", "//tools:somnus"]
ACTION = re.compile(r"(?:Compiling|Linking|nvcc|Executing genrule) (\S+)")


def actions(path):
    """(seconds, name) of every action of a Bazel profile, slowest first."""
    opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        events = json.load(file)["traceEvents"]
    found = [(event["dur"] / 1e6, event["name"]) for event in events
             if event.get("cat") == "action processing" and ACTION.match(event["name"])]
    return sorted(found, reverse=True)


def folder_of(name):
    """The folder that an action's time is counted for."""
    target = ACTION.match(name)[1].lstrip("/").replace(":", "/")
    return os.path.dirname(target) or "."


def report(found, wall, cpu, slowest):
    lines = [f"{wall:8.1f} s  wall", f"{cpu:8.1f} s  CPU (user and system) of all actions", ""]
    folders = collections.Counter()
    for seconds, name in found:
        folders[folder_of(name)] += seconds
    lines += [f"{seconds:8.1f} s  {folder}/" for folder, seconds in folders.most_common()] + [""]
    lines += [f"{seconds:8.1f} s  {name}" for seconds, name in found[:slowest]]
    return "\n".join(lines)


def children_seconds(pid):
    """CPU seconds of the children of a process that have ended, and of theirs."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="with CUDA's kernels, where nvcc is")
    parser.add_argument("--slowest", type=int, default=25, metavar="N", help="how many actions are listed")
    parser.add_argument("targets", nargs="*", default=QUICKSTART)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="somnus-build-profile.") as folder:
        profile = os.path.join(folder, "profile.gz")
        environment = {**os.environ, "SOMNUS_CUDA": str(int(args.cuda)), "SOMNUS_DISK_CACHE": "off",
                       "SOMNUS_BAZEL_STARTUP": f"--output_base={folder}/output",
                       "SOMNUS_BAZEL_FLAGS": os.environ.get("SOMNUS_BAZEL_FLAGS", "")}

        def bazel(command, *arguments, **options):
            script = f"source {ROOT}/tools/env.sh; run_bazel {command} \"$@\""
            return subprocess.run(["bash", "-c", script, "bash", *arguments], env=environment, check=False, text=True, **options)

        try:
            pid = int(bazel("info", "server_pid", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
            before, start = children_seconds(pid), time.monotonic()
            code = bazel("build", f"--profile={profile}", *args.targets).returncode
            wall, cpu = time.monotonic() - start, children_seconds(pid) - before
            if code == 0:
                print(report(actions(profile), wall, cpu, args.slowest))
        finally:
            bazel("shutdown")
            # Bazel makes the folders read-only.
            subprocess.run(["chmod", "-R", "u+w", folder], check=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
