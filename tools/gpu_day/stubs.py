#!/usr/bin/env python3
"""Stand-ins of a rehearsal for programs that only a GPU's machine has: stubs.py NAME ARGUMENTS..."""
import json
import os
import sys
import time

GPU = {"name": "Stand-in GPU", "driver_version": "580.0", "memory.total": "1024 MiB", "memory.used": "0", "clocks.sm": "345 MHz",
       "clocks.mem": "3201 MHz", "clocks.max.sm": "1980 MHz", "power.limit": "700.00 W", "power.draw": "100.00 W",
       "clocks_event_reasons.active": "0x0000000000000001"}


def nvidia_smi(args):
    query = next((arg.partition("=")[2].split(",") for arg in args if arg.startswith("--query-gpu=")), None)
    if query is None:
        print("| NVIDIA-SMI 580.0    Driver Version: 580.0    CUDA Version: 13.0     |")
        return
    period = float(args[args.index("-lms") + 1]) / 1e3 if "-lms" in args else 0
    while True:
        now = time.strftime("%Y/%m/%d %H:%M:%S.000")
        print(", ".join(now if name == "timestamp" else GPU[name] for name in query), flush=True)
        if not period:
            return
        time.sleep(period)


def command_behind(args, with_values):
    """The program that a tool's arguments end with: behind flags, some of which take a word."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] in with_values else 1
    return args[at:]


def compute_sanitizer(args):
    command = command_behind(args, {"--tool", "--print-limit", "--error-exitcode"})
    print("========= COMPUTE-SANITIZER", flush=True)
    status = os.spawnvp(os.P_WAIT, command[0], command)
    print("========= ERROR SUMMARY: 0 errors")
    sys.exit(status)


def ncu(args):
    command = command_behind(args, {"--clock-control", "--section", "--page", "--nvtx-include", "--launch-skip", "--launch-count",
                                    "--kernel-name"})
    if not os.access(command[0], os.X_OK):
        sys.exit(f"there is no {command[0]}")
    print('"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"')
    for name, unit, value in (("Duration", "ns", "12,345"), ("DRAM Throughput", "%", "81.2"), ("Achieved Occupancy", "%", "24.9")):
        print(f'"0","void StandIn(int)","Section","{name}","{unit}","{value}"')


def torch_ops(_):
    for name in sys.stdin.read().splitlines():
        print(json.dumps({"name": name, "peer": "stand-in", "us": 1.0}), flush=True)


PROGRAMS = {"nvidia-smi": nvidia_smi, "compute-sanitizer": compute_sanitizer, "ncu": ncu, "torch-ops": torch_ops}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
