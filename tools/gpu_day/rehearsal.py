#!/usr/bin/env python3
"""Lays out a folder like a bundle for a rehearsal: the emulator's programs, and stand-ins for programs that only a GPU's
machine has.

Usage: rehearsal.py REPOSITORY BINARIES FOLDER
FOLDER/stubs, which goes first into PATH, has nvidia-smi, compute-sanitizer and ncu.
"""
import json
import os
import shutil
import stat
import sys

import programs

STUBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stubs.py")


def emulated(path):
    """The emulator's variant of a GPU's test program (tools/bazel/cuda.bzl)."""
    return "tests/cuda/gpu_tests_emulated" if path == programs.TOGETHER else path.replace("_gpu_test", "_test")


# For each program of a bundle that a rehearsal runs, the emulator's program in its place.
PROGRAMS = {
    "coordinator/coordinator": "coordinator/coordinator",
    "tools/somnus": "tools/somnus",
    "worker/worker": "tests/cuda/emulated_worker",
    "tools/bench/gpu_bench": "tests/cuda/gpu_bench_emulated",
    **{program.path: emulated(program.path) for listed in programs.ITEMS.values() for program in listed if program.rehearsed},
}
DATA = ("tests/data", "tools/bench/shapes", "tools/bench/peers", "tools/gpu_day")


def stand_in(path):
    """A program that runs stubs.py under its own name."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!{sys.executable}\nimport os, sys\n"
                   f"os.execv(sys.executable, [sys.executable, {STUBS!r}, {os.path.basename(path)!r}, *sys.argv[1:]])\n")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def link(source, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(os.path.abspath(source), path)


def lay_out(repository, binaries, folder):
    missing = [name for name in PROGRAMS.values() if not os.path.exists(os.path.join(binaries, name))]
    for name, built in PROGRAMS.items():
        if built not in missing:
            link(os.path.join(binaries, built), os.path.join(folder, name))
    for name in DATA:
        link(os.path.join(repository, name), os.path.join(folder, name))
    for name in ("nvidia-smi", "compute-sanitizer", "ncu"):
        stand_in(os.path.join(folder, "stubs", name))
    with open(os.path.join(folder, "commit.txt"), "w", encoding="ascii") as file:
        file.write("rehearsal\n")
    return missing


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    shutil.rmtree(sys.argv[3], ignore_errors=True)
    absent = lay_out(*sys.argv[1:])
    if absent:
        print(json.dumps({"not built": absent}), file=sys.stderr)
