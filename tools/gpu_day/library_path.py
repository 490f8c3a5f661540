#!/usr/bin/env python3
"""Finds where pip has put NVIDIA's libraries, and a Python that has PyTorch.

As a script the file prints the value for SOMNUS_LIBRARY_PATH: the value that is set, or else every site-packages folder of the
machine's Pythons that has libcublasLt or libnccl in nvidia/*/lib. Prints nothing where there is none.
"""
import glob
import json
import os
import shutil
import subprocess
import sys

VARIABLE = "SOMNUS_LIBRARY_PATH"
LIBRARIES = ("libcublasLt.so.*", "libnccl.so.*")
FOLDERS = "import json, site, sys; print(json.dumps([*site.getsitepackages(), site.getusersitepackages(), *sys.path]))"


def pythons():
    """The machine's Pythons, first the Pythons that the shell would take."""
    found = [shutil.which("python3"), shutil.which("python"), sys.executable]
    if os.environ.get("VIRTUAL_ENV"):
        found.insert(0, os.path.join(os.environ["VIRTUAL_ENV"], "bin", "python3"))
    found += sorted(glob.glob("/opt/*/.venv/bin/python3") + glob.glob("/opt/*/bin/python3"))
    # Links are not resolved: two links to one program belong to two environments.
    return list(dict.fromkeys(path for path in found if path and os.access(path, os.X_OK)))


def answer(python, code, timeout=60):
    """The output of `python -c code`, or None when the command fails."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def site_folders(python):
    text = answer(python, FOLDERS)
    folders = json.loads(text) if text else []
    return list(dict.fromkeys(os.path.abspath(folder) for folder in folders if folder and os.path.isdir(folder)))


def has_libraries(folder):
    return any(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", name)) for name in LIBRARIES)


def library_path():
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    folders = [folder for python in pythons() for folder in site_folders(python)]
    # A colon separates the folders of the variable.
    return ":".join(dict.fromkeys(folder for folder in folders if ":" not in folder and has_libraries(folder)))


def python_with(*modules):
    """The first Python that has all the modules, or None. The modules are not imported, which takes seconds."""
    code = f"import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in {modules!r}))"
    return next((python for python in pythons() if answer(python, code) is not None), None)


if __name__ == "__main__":
    print(library_path())
