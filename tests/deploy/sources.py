"""The sources with which the files of tools/deploy are compared: flags as --help prints them, routes, defaults."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "tools", "deploy")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def seconds(text):
    """45s, 1m15s, 2min, or a plain number of seconds."""
    parts = re.findall(r"([0-9.]+)\s*(ms|min|[smh])?", str(text))
    return sum(float(number) * UNITS[unit or "s"] for number, unit in parts)


def flags():
    """{"coordinator": {name: help}, "worker": ...}, from the blocks that the flags' unit test compares with --help."""
    found = {}
    for block in re.findall(r"```text\nusage: (.*?)```", read("docs", "flags.md"), re.DOTALL):
        rows = re.split(r"\n  (?=--)", block)
        found[block.split()[0]] = {re.match(r"--([\w-]+)", row).group(1): " ".join(row.split()) for row in rows[1:]}
    return found


def longest_end_s():
    """The time from --shutdown-timeout until a coordinator that hangs at the end exits by itself."""
    return float(re.search(r"kStopPatience = absl::Seconds\((\d+)\)", read("coordinator", "main.cc")).group(1))


def default_port(flag):
    return int(re.search(r"\(default: (\d+)", flags()["coordinator"][flag]).group(1))


def routes():
    return set(re.findall(r'\{Route::\w+, "([^"]+)"', read("coordinator", "http", "routes.cc")))


def flags_of(args):
    """{"--host": "0.0.0.0", ...} of a command line."""
    return {arg.partition("=")[0][2:]: arg.partition("=")[2] for arg in args if arg.startswith("--")}
