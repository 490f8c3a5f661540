#!/usr/bin/env python3
"""Prints C++ test files as one source: join_tests.py FILE...

Each file's unnamed namespaces get a namespace of the file's name around them, so that two files may each have a helper of the
same name. Errors and failures name the files and lines of the tests.
"""
import os
import re
import sys


def joined(path):
    name = os.path.splitext(os.path.basename(path))[0]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"^namespace \{$", f"namespace {name} {{ namespace {{", text, flags=re.MULTILINE)
    text = re.sub(r"^\}  // namespace$", "}}", text, flags=re.MULTILINE)
    return f'#line 1 "{path}"\n{text}'


if __name__ == "__main__":
    print("\n".join(joined(path) for path in sys.argv[1:]))
