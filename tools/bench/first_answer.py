#!/usr/bin/env python3
"""Measures the time from a package to the first answer, as a new user has it: in a bare Debian without a network, the package is
installed, and `somnus run MODEL PROMPT` starts a server, answers and ends.

Usage: first_answer.py ARTIFACT MODEL [--release bookworm] [--rounds 3] [--prompt TEXT]
ARTIFACT is a wheel, a tarball or a Debian package of tools/package.sh; MODEL a GGUF file or a folder. It needs root and
debootstrap (tools/setup.sh tests). The system lies in memory, so that no disk is measured, and is a new one in each round; copies
into it are not counted. Prints each answer, then medians and ranges in seconds, of the steps and of their sum.
"""
import argparse
import os
import shlex
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "package"))
import bare_system  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("model")
    parser.add_argument("--release", default="bookworm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", default="Tell me the capital of France.")
    return parser.parse_args()


def main():
    args = parse()
    model = f"/tmp/{os.path.basename(args.model.rstrip('/'))}"
    command = f"somnus run {shlex.quote(model)} {shlex.quote(args.prompt)} --temperature=0 --max-tokens=64"
    rounds = []
    try:
        root = bare_system.made(args.release)
        for _ in range(args.rounds):
            done, steps = bare_system.install_and_run(root, args.artifact, command, [args.model])
            if done.returncode != 0:
                raise SystemExit(f"error: {done.stdout[-2000:]}")
            print(done.stdout.rstrip().split("\n")[-1])
            rounds.append(steps)
    except bare_system.Impossible as error:
        raise SystemExit(f"error: {error}") from error
    for name, seconds in [*((steps[0][0], [took for _, took in steps]) for steps in zip(*rounds)),
                          ("all", [sum(took for _, took in steps) for steps in rounds])]:
        print(f"{name:34} {statistics.median(seconds):6.2f} s ({min(seconds):.2f}..{max(seconds):.2f})")


if __name__ == "__main__":
    main()
