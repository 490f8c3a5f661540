"""The programs, and the shared libraries that the programs need, in a folder that can be moved."""
import glob
import os
import re
import shutil
import subprocess

PROGRAMS = ("coordinator/coordinator", "worker/worker", "tools/somnus", "tools/bench/serving_bench")
# Part of every system that can run the programs: the C library, and the libraries that a GPU's driver or pip brings.
_OF_THE_SYSTEM = re.compile(r"^(?:libc|libm|libdl|librt|libpthread|libresolv|ld-linux.*|libcuda|libcublas.*|libnccl)\.so")
_VERSION = re.compile(r"\bGLIBC_(\d+)\.(\d+)")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL).stdout


def libraries_of(program):
    """The paths of the shared libraries that the loader finds, without the system's libraries."""
    found = {}
    for line in output("ldd", program).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not _OF_THE_SYSTEM.match(name):
            path = rest.split(" (")[0]
            if path == "not found":
                raise SystemExit(f"error: {program} needs {name}, which is not there")
            found[name] = path
    return found


def stage(source, target, with_libraries):
    """Copies the programs from the folder `source`, stripped; with_libraries: to run where only the C library is, with
    target/lib, where the loader looks first, and the licences of the libraries in target/licenses."""
    found = {}
    for program in PROGRAMS:
        path = os.path.join(source, program)
        if not os.path.exists(path):
            raise SystemExit(f"error: there is no {path}")
        copy(path, os.path.join(target, program), 0o755)
        if with_libraries:
            found.update(libraries_of(path))
            # RPATH and not RUNPATH: RPATH holds for the libraries' own libraries, too.
            libraries = os.path.join("$ORIGIN", os.path.relpath("lib", os.path.dirname(program)))
            output("patchelf", "--force-rpath", "--set-rpath", libraries, os.path.join(target, program))
    for name, path in sorted(found.items()):
        copy(path, os.path.join(target, "lib", name), 0o644)
    copy_licences(sorted(found.values()), os.path.join(target, "licenses"))


def copy(source, target, mode):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)
    output("strip", "--strip-unneeded", target)
    os.chmod(target, mode)


def copy_licences(libraries, target):
    """Of the Debian packages that have the libraries."""
    spellings = {}  # as a package may list a file: through a link, or without the /usr that /lib leads to
    for library in libraries:
        real = os.path.realpath(library)
        spellings.update(dict.fromkeys((real.removeprefix("/usr"), real, library), library))
    # Fails where it does not know one of the spellings, and prints what it knows: "PACKAGE:MACHINE: PATH".
    listed = subprocess.run(["dpkg-query", "-S", *spellings], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                            stdin=subprocess.DEVNULL, text=True).stdout if spellings else ""
    owners = {spellings[path]: owner for owner, path in re.findall(r"(?m)^([^:,]+)[^/]*: (/.*)$", listed) if path in spellings}
    for library in libraries:
        if library not in owners:
            raise SystemExit(f"error: no Debian package has {library}, so its licence is not known")
        os.makedirs(target, exist_ok=True)
        shutil.copyfile(f"/usr/share/doc/{owners[library]}/copyright", os.path.join(target, f"{owners[library]}.txt"))


def needed_glibc(folder):
    """The newest version of the C library that a file below the folder asks for, as (2, 36)."""
    versions = {(2, 17)}
    for path in glob.glob(os.path.join(folder, "**", "*"), recursive=True):
        if os.path.isfile(path) and (os.access(path, os.X_OK) or ".so" in os.path.basename(path)):
            versions.update((int(major), int(minor)) for major, minor in _VERSION.findall(output("objdump", "-p", path)))
    return max(versions)
