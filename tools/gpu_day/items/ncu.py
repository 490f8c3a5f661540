"""Nsight Compute: the kernels of a decode step at batch 1, and prefill's attention."""
import csv
import subprocess

import events
from items import races

SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats")
SHOWN = {"Duration": "us", "DRAM Throughput": "dram_percent", "Compute (SM) Throughput": "sm_percent",
         "Achieved Occupancy": "occupancy_percent", "Warp Cycles Per Issued Instruction": "cycles_per_issue"}
REFUSED = ("LibraryNotLoaded", "ERR_NVGPUCTRPERM", "Failed to initialize the profiler", "No kernels were profiled")
TO_US = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3}


def kernels(text):
    """{launch: {"kernel", and SHOWN's}} of what ncu --csv --page details prints."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found = {}
    for row in csv.DictReader(lines):
        one = found.setdefault(row["ID"], {"kernel": row["Kernel Name"].split("(")[0][-60:]})
        key = SHOWN.get(row["Metric Name"])
        if key is not None:
            value = float(row["Metric Value"].replace(",", ""))
            one[key] = value * TO_US.get(row["Metric Unit"], 1.0) if key == "us" else value
    return found


def profile(kit, name, flags, command):
    tool = races.find_tool("ncu")
    if tool is None:
        raise events.Skipped("there is no ncu")
    sections = [word for section in SECTIONS for word in ("--section", section)]
    done = subprocess.run([tool, "--clock-control", "none", *sections, "--csv", "--page", "details", *flags, *command], text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                          env=kit.environment(), cwd=kit.root, check=False)
    with kit.open_log(f"ncu.{name}") as file:
        file.write(done.stdout)
    if any(words in done.stdout for words in REFUSED):
        raise events.Skipped(f"ncu does not work on this machine: {done.stdout.strip().splitlines()[-1][:200]}")
    found = kernels(done.stdout)
    for one in found.values():
        events.row(name=name, **one)
    if done.returncode != 0 or not found:
        raise events.Failed(f"{name}: ncu ended with {done.returncode}, {len(found)} kernels")


def run(kit):
    bench = kit.path("tools", "bench", "gpu_bench")
    model = f"--model={kit.path('tools', 'bench', 'shapes', 'qwen3-8b')}"
    # "step" is a range of worker/runner. Without graphs a step of 36 layers has some 440 launches, and the first step is
    # the prompt's: 2,000 launches later decode steps run.
    profile(kit, "decode", ["--nvtx", "--nvtx-include", "step/", "--launch-skip", "2000", "--launch-count", "13"],
            [bench, "--parts=model", model, "--batches=1", "--prompt-tokens=64", "--new-tokens=8", "--enforce-eager"])
    profile(kit, "prefill", ["--kernel-name", "regex:PrefillKernel", "--launch-count", "1"],
            [bench, "--parts=kernels", "--only", "paged attention, 1 x 2048 tokens, 2048 new"])
