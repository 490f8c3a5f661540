"""The first line of a day: the commit, the GPU, the libraries, the host."""
import os
import re
import subprocess
import sys
import time

import runner

QUERY = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit")
# As Somnus opens it (kernels/cuda/cublaslt_api.cc over base/shared_library.h): the first of the files.
CUBLASLT = """
import ctypes, glob, os, sys
names = ["libcublasLt.so.13", "libcublasLt.so.12"]
files = [f"{folder}/{name}" for listed in sys.argv[1].split(":") if listed
         for folder in [listed, *sorted(glob.glob(glob.escape(listed) + "/nvidia/*/lib"))] for name in names]
for file in [file for file in files if os.path.isfile(file)] + names + [f"/usr/local/cuda/lib64/{name}" for name in names]:
    try:
        ctypes.CDLL(file)
    except OSError:
        continue
    with open("/proc/self/maps") as maps:
        print(next((line.split()[-1] for line in maps if "libcublasLt.so" in line), file))
    break
"""


def output(command, timeout=30):
    """Standard output, or nothing when the command fails or there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpu():
    """nvidia-smi's answers about the first GPU; {} without a GPU."""
    values = output(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]).splitlines()[:1]
    found = dict(zip(QUERY, (value.strip() for value in values[0].split(",")))) if values else {}
    version = re.search(r"CUDA Version: *([\d.]+)", output(["nvidia-smi"]))
    return {**found, "cuda": version[1]} if version and found else found


def host_memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def facts(root, kit):
    commit = ""
    if os.path.exists(os.path.join(root, "commit.txt")):
        with open(os.path.join(root, "commit.txt"), encoding="ascii") as file:
            commit = file.read().strip()
    return {"commit": commit, "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "gpu": gpu(),
            "cublaslt": output([sys.executable, "-c", CUBLASLT, kit.library_path]), "library_path": kit.library_path,
            "torch_python": kit.torch_python, "cpus": os.cpu_count(), "host_memory_bytes": host_memory_bytes(),
            "rehearsal": kit.rehearse}


class Clocks:
    """Writes the GPU's clocks, power and the reasons for low clocks twice a second, until stop()."""

    HEADER = b"timestamp, clocks.sm [MHz], power.draw [W], clocks_event_reasons.active\n"

    def __init__(self, path, resumed):
        self._process = None
        try:
            with open(path, "ab" if resumed else "wb", buffering=0) as file:
                if file.tell() == 0:
                    file.write(self.HEADER)
                self._process = subprocess.Popen(["nvidia-smi", "--query-gpu=timestamp,clocks.sm,power.draw,clocks_event_reasons.active",
                                                  "--format=csv,noheader", "-lms", "500"], stdin=subprocess.DEVNULL, stdout=file,
                                                 stderr=subprocess.DEVNULL, preexec_fn=runner.die_with_parent)
        except OSError as error:  # there is no nvidia-smi, or the disk is full
            print(f"clocks.csv: {error}", file=sys.stderr)

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
