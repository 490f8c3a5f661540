#!/usr/bin/env python3
"""Keeps Bazel's disk cache within a bound: trim_cache.py FOLDER GIB

Bazel itself never removes anything from the cache. Where the caches of FOLDER (one for each toolchain: disk_cache in env.sh)
have more than GIB, the files that were not used for the longest time are removed until three quarters of that are left, so that
not every build has files to remove. A file was last used when it was last read, as far as the file system notes that (relatime:
once a day), or else written. A build that misses a file makes it again. Other files in FOLDER are not looked at, and files that
cannot be removed stay. Says how much was removed, and nothing where nothing was.
"""
import argparse
import glob
import os
import sys

GIB = 1 << 30
KEPT_SHARE = 0.75
CACHE_NAME = "[0-9a-f]" * 16


def files_in(folder):
    """(last use in seconds, bytes, path) of each file in the folder's caches; files that vanish meanwhile are passed over."""
    for cache in glob.glob(os.path.join(glob.escape(folder), CACHE_NAME)):
        for directory, _, names in os.walk(cache):
            for name in names:
                path = os.path.join(directory, name)
                try:
                    info = os.lstat(path)
                except OSError:
                    continue
                yield max(info.st_atime, info.st_mtime), info.st_size, path


def trim(folder, limit):
    """Removes files where the caches of `folder` have more than `limit` bytes. Returns the bytes removed."""
    files = sorted(files_in(folder))
    left = total = sum(size for _, size, _ in files)
    if total <= limit:
        return 0
    for _, size, path in files:
        if left <= limit * KEPT_SHARE:
            break
        try:
            os.unlink(path)
        except OSError:
            continue
        left -= size
    return total - left


def main():
    parser = argparse.ArgumentParser(description="Keeps Bazel's disk cache within a bound.")
    parser.add_argument("folder")
    parser.add_argument("gib", type=float)
    args = parser.parse_args()
    removed = trim(args.folder, args.gib * GIB)
    if removed:
        print(f"== {args.folder}: removed {removed / GIB:.1f} GiB that were not used lately (limit: {args.gib:g} GiB)",
              file=sys.stderr)


if __name__ == "__main__":
    main()
