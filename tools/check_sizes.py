#!/usr/bin/env python3
"""Fails on a file above 400 lines and on a function above 60.

Reads the C++, CUDA and Python sources of every room. A function's lines run from its signature to its last brace. The
check does not parse the grammar: a function is a block after parentheses at the level of a namespace or a class, as
clang-format lays it out. OPEN lists what is above a limit and is to be cut: an entry that is no longer above one is an
error, too, so the list only shrinks. Usage: tools/check_sizes.py [REPOSITORY]
"""
import ast
import os
import re
import sys

MAX_FILE = 400
MAX_FUNCTION = 60
ROOMS = ("base", "proto", "allocator", "kernels", "checkpoint", "worker", "coordinator", "tools", "tests")
CPP = (".h", ".cc", ".cu", ".cuh")

# "path" of a file, or "path:function": above a limit today.
OPEN = set()

NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
OUTER = re.compile(r"\b(namespace|class|struct|union|enum)\b")
NAME = re.compile(r"([~\w:]+|operator\s*\S+?)\s*\(")


def blank(match):
    """White space of the same lines."""
    return "\n" * match.group().count("\n") or " "


def without_parentheses(text):
    while True:
        shorter = re.sub(r"\([^()]*\)", "", text)
        if shorter == text:
            return text
        text = shorter


def is_function(header):
    """Whether a block after this text is a function's body."""
    flat = without_parentheses(re.sub(r"operator\s*(\(\)|[^\s(]+)", "operator", header))
    return "(" in header and "=" not in flat and not OUTER.search(re.sub(r"<[^<>]*>", "", flat))


def cpp_functions(text):
    """(name, first line, last line) of each function."""
    code = DIRECTIVE.sub(blank, NOISE.sub(blank, text))
    stack, header, header_line, line, inside = [], "", 1, 1, 0
    for at, char in enumerate(code):
        if char == "\n":
            line += 1
        if char == "{":
            # Braces that initialize come directly after a name, inside a signature.
            kind = "init" if at > 0 and not code[at - 1].isspace() else "block"
            if kind == "block" and not inside and is_function(header):
                kind = "function"
            name = NAME.search(header.strip())
            stack.append((kind, name.group(1) if name else "?", header_line))
            inside += kind == "function"
            header = header if kind == "init" else ""
        elif char == "}":
            if not stack:
                continue
            kind, name, first = stack.pop()
            if kind == "function":
                inside -= 1
                yield name, first, line
            header = header if kind == "init" else ""
        elif char == ";":
            header = ""
        else:
            if not header.strip() and not char.isspace():
                header, header_line = "", line
            header += char


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def sources(root):
    for room in ROOMS:
        for folder, subfolders, names in os.walk(os.path.join(root, room)):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "bazel-")))
            for name in sorted(names):
                if name.endswith(CPP) or name.endswith(".py"):
                    yield os.path.relpath(os.path.join(folder, name), root)


def findings(root):
    """(key, message) of all that is above a limit; the key is what OPEN would hold."""
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        lines = len(text.splitlines())
        if lines > MAX_FILE:
            yield path, f"{path}: {lines} lines; a file has up to {MAX_FILE}"
        try:
            functions = list(python_functions(text) if path.endswith(".py") else cpp_functions(text))
        except SyntaxError as error:
            yield f"{path}:", f"{path}:{error.lineno}: {error.msg}"
            continue
        for name, first, last in functions:
            if last - first + 1 > MAX_FUNCTION:
                yield f"{path}:{name}", f"{path}:{first}: {name} has {last - first + 1} lines; a function has up to {MAX_FUNCTION}"


def problems(root):
    """What to print: nothing where all is well."""
    found = dict(findings(root))
    bad = [message for key, message in found.items() if key not in OPEN]
    stale = sorted(OPEN - found.keys())
    return bad + [f"{key}: no longer above a limit; take it out of OPEN in tools/check_sizes.py" for key in stale]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.isdir(os.path.join(root, "proto")):
        sys.exit(f"error: {root} is not the repository")
    bad = problems(root)
    for line in bad:
        print(line)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
