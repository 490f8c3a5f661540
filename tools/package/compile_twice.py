#!/usr/bin/env python3
"""Compiles this checkout twice and compares every file that the compilers made: compile_twice.py [--package] [BAZEL TARGETS]

The two checkouts are copies in folders of other names and lengths. The second one has another umask, TMPDIR, time zone and locale,
and its sources are years older. Nothing that was built before is used or touched: each build has an output folder of its own and no
disk cache. Compared are objects, archives, programs and generated sources. Machine, compilers, libraries and user are the same.
Exit status 1: some file differs.
--package   the targets are the programs of tools/package.sh; each checkout packs its programs, and the packages are compared, too
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGETS = ["//tools:somnus"]
PROGRAMS = ["//coordinator", "//worker", "//tools:somnus", "//tools/bench:serving_bench"]
OLD = 1_000_000_000  # a time in 2001
SHOWN = 20


def files_below(folder):
    """The paths of what was built below a folder of outputs, without the lists of absolute paths that tests start with."""
    found = set()
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(".runfiles")]
        found.update(os.path.relpath(os.path.join(where, name), folder) for name in files if not name.endswith(".runfiles_manifest"))
    return found


def content(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def differences(first, second):
    """(how many files two folders have in common, what differs in lines of text)."""
    ours, others = files_below(first), files_below(second)
    lines = [f"only in one of both: {path}" for path in sorted(ours ^ others)]
    both = sorted(ours & others)
    return len(both), lines + [f"differs: {path}" for path in both if content(first, path) != content(second, path)]


class Checkout:
    """A copy of the sources, which builds as a person with this umask and these variables would."""

    def __init__(self, folder, umask, times, **environment):
        self.root, self.umask = os.path.join(folder, "somnus"), umask
        temporary = os.path.join(folder, "temporary")
        os.makedirs(temporary)
        self.environment = {**os.environ, "TMPDIR": temporary, "SOMNUS_DISK_CACHE": "off", **environment,
                            "SOMNUS_BAZEL_STARTUP": f"--output_base={folder}/output --max_idle_secs=60"}
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True).stdout
        for path in filter(None, listed.split("\0")):
            self.copy(path, times)

    def copy(self, path, times):
        source, target = os.path.join(ROOT, path), os.path.join(self.root, path)
        if not os.path.lexists(source):  # removed, and not yet committed
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(source, target, follow_symlinks=False)
        if not os.path.islink(target):
            os.chmod(target, os.stat(target).st_mode & ~self.umask)
        if times:
            os.utime(target, (times, times), follow_symlinks=False)

    def run(self, *command, **options):
        return subprocess.run(command, cwd=self.root, env=self.environment, umask=self.umask, check=False, stdin=subprocess.DEVNULL,
                              **options).returncode

    def bazel(self, *arguments, **options):
        return self.run("bash", "-c", 'source tools/env.sh; run_bazel "$@"', "bash", *arguments, **options)

    def package(self):
        """Into the folder `dist`."""
        return self.run("tools/package.sh", "--bin", "bazel-bin", "--out", "dist", stdout=subprocess.DEVNULL)

    def end(self):
        self.bazel("shutdown", stderr=subprocess.DEVNULL)
        # Bazel makes the folders read-only.
        subprocess.run(["chmod", "-R", "u+w", os.path.dirname(self.root)], check=False)


def report(what, first, second):
    """Prints the comparison of two folders; returns whether they are the same."""
    count, lines = differences(first, second)
    print(f"{what}: {count} files in both, {len(lines)} differ")
    for line in lines[:SHOWN] + ([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []):
        print(f"  {line}")
    return bool(count) and not lines


def compare(checkouts, targets, package):
    for checkout in checkouts:
        code = checkout.bazel("build", *targets) or (package and checkout.package())
        if code:
            return code
    first, second = (os.path.realpath(os.path.join(checkout.root, "bazel-bin")) for checkout in checkouts)
    same = report("compiled", first, second)
    if package:
        same = report("packed", *(os.path.join(checkout.root, "dist") for checkout in checkouts)) and same
    return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="store_true")
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET", help=f"default: {' '.join(TARGETS)}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="somnus-twice.") as folder:
        epoch = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], check=True, stdout=subprocess.PIPE, text=True).stdout
        common = {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", epoch.strip())}
        checkouts = []
        try:
            checkouts.append(Checkout(os.path.join(folder, "one"), 0o022, None, TZ="UTC", LC_ALL="C.UTF-8", **common))
            checkouts.append(Checkout(os.path.join(folder, "another-place", "of-a-longer-name"), 0o077, OLD, TZ="Asia/Tokyo",
                                      LC_ALL="C", **common))
            return compare(checkouts, (PROGRAMS if args.package else []) + args.targets or TARGETS, args.package)
        finally:
            for checkout in checkouts:
                checkout.end()


if __name__ == "__main__":
    sys.exit(main())
