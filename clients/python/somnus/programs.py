"""Finds the programs: coordinator, worker, and the command line `somnus`."""
import os
import shutil
import sys
from typing import Dict, List, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE_THE_PACKAGE = os.path.join(_HERE, "_programs")  # of a wheel
_SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _of_the_path() -> Optional[str]:
    """The folder of a `somnus` that an installation has put into PATH: <folder>/tools/somnus."""
    found = shutil.which("somnus")
    return os.path.dirname(os.path.dirname(os.path.realpath(found))) if found else None


def folder() -> str:
    """The folder that has coordinator/coordinator, worker/worker and tools/somnus: the folder that SOMNUS_BIN names, else the
    first that has the programs of the wheel's, that of PATH's `somnus`, and the source tree's bazel-bin. FileNotFoundError."""
    named = os.environ.get("SOMNUS_BIN")
    places: List[Optional[str]] = [named] if named else [
        BESIDE_THE_PACKAGE, _of_the_path(), os.path.join(_SOURCE_TREE, "bazel-bin")]
    for place in places:
        if place and os.access(os.path.join(place, "coordinator", "coordinator"), os.X_OK):
            return os.path.abspath(place)
    looked = ", ".join(place for place in places if place)
    raise FileNotFoundError(f"there is no coordinator/coordinator in {looked}: install the wheel `somnus`, or name the folder of "
                            "the programs by SOMNUS_BIN")


def environment() -> Dict[str, str]:
    """Variables of the programs alone: where pip has put CUDA's libraries (`pip install 'somnus[cuda]'`)."""
    site_packages = os.path.dirname(_HERE)
    if "SOMNUS_LIBRARY_PATH" in os.environ or not os.path.isdir(os.path.join(site_packages, "nvidia")):
        return {}
    return {"SOMNUS_LIBRARY_PATH": site_packages}


def main() -> None:
    """The command `somnus` of the wheel: becomes the program, in the place of this process."""
    try:
        program = os.path.join(folder(), "tools", "somnus")
        os.execve(program, ["somnus", *sys.argv[1:]], {**os.environ, **environment()})
    except OSError as error:
        sys.exit(f"error: {error}")
