"""Generates the package somnus.v1 from the repository's proto/, and takes the version from base/version.h."""
import os
import re
import subprocess
import sys
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTOS = ("model", "inference", "prefixes", "transition", "weights", "control")
IMPORT = re.compile(r'^import "proto/', re.MULTILINE)


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


class BuildPy(build_py):
    def run(self):
        super().run()
        # Files at somnus/v1 become modules somnus.v1.*: proto/ would become a package `proto`, whose name is taken.
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "somnus", "v1"))
            paths = [f"somnus/v1/{name}.proto" for name in PROTOS]
            for name, path in zip(PROTOS, paths):
                with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                    file.write(IMPORT.sub('import "somnus/v1/', read("proto", f"{name}.proto")))
            subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", folder, f"--python_out={self.build_lib}",
                            f"--grpc_python_out={self.build_lib}", *paths], check=True, stdin=subprocess.DEVNULL)
        with open(os.path.join(self.build_lib, "somnus", "v1", "__init__.py"), "w", encoding="utf-8"):
            pass


setup(version=re.search(r'kVersion\[\] = "([^"]+)"', read("base", "version.h")).group(1), cmdclass={"build_py": BuildPy})
