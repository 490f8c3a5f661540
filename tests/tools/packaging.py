"""What tests of tools/package.sh share: a run of the script, and what it needs."""
import os
import runpy
import shutil
import subprocess
import unittest

from cluster.harness import ROOT

SCRIPT = os.path.join(ROOT, "tools", "package.sh")
PROGRAMS = runpy.run_path(os.path.join(ROOT, "tools", "package", "programs.py"))["PROGRAMS"]
NEEDED = ("patchelf", "strip", "protoc", "grpc_python_plugin", "dpkg-deb", "dpkg-shlibdeps")


def skip_where_nothing_is_packaged():
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise unittest.SkipTest(f"{', '.join(missing)}: not installed: tools/setup.sh packages tests")


def package(source, out, *kinds, script=SCRIPT, umask=-1, **environment):
    subprocess.run([script, "--bin", source, "--out", out, *kinds], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   umask=umask, env={**os.environ, **environment})
