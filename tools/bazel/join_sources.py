#!/usr/bin/env python3
"""Prints C++ files as one source: join_sources.py [--tests] FILE...

Errors and failures name the files and lines of the originals. With --tests, each file's unnamed namespaces get a namespace of the
file's name around them, so that two tests may each have a helper of the same name.
"""
import os
import re
import sys


def original(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def in_own_namespace(path, text):
    name = os.path.splitext(os.path.basename(path))[0]
    text = re.sub(r"^namespace \{$", f"namespace {name} {{ namespace {{", text, flags=re.MULTILINE)
    return re.sub(r"^\}  // namespace$", "}}", text, flags=re.MULTILINE)


# GCC takes the files that #line names for headers, and warns of every coroutine there: its frame holds local types.
DIAGNOSTICS = '#pragma GCC diagnostic ignored "-Wsubobject-linkage"'


if __name__ == "__main__":
    print(DIAGNOSTICS)
    tests = sys.argv[1] == "--tests"
    for path in sys.argv[1 + tests:]:
        text = original(path)
        print(f'#line 1 "{path}"\n{in_own_namespace(path, text) if tests else text}')
