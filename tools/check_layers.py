#!/usr/bin/env python3
"""Fails on a dependency that the rooms do not allow (docs/architecture.md, "Rooms"), and on two classes of one name.

Reads every #include of our own headers and every label in the BUILD.bazel files (visibility lists aside) and
compares the room of the file with the room that it names. Usage: tools/check_layers.py [REPOSITORY]
"""
import ast
import os
import re
import sys

# Room (the longest prefix counts) -> the rooms on which it may depend besides itself and base, which all rooms may use. A name
# with a dot is one file, any other is a folder.
ARROWS = {
    "base": [],
    "proto": [],
    "allocator": [],
    "kernels": [],
    "checkpoint": ["proto"],
    "worker": ["proto", "checkpoint", "kernels", "allocator"],
    # Text to token ids and back, and chat templates.
    "text": ["checkpoint"],
    # A language of its own, independent of models.
    "text/jinja": [],
    # The texts that models write: tool calls and reasoning. Only templates say how a model writes.
    "text/tools": ["text/jinja"],
    "coordinator": ["proto", "checkpoint", "text"],
    # A request consists of values alone.
    "coordinator/request": [],
    # Grammars and tokens: of requests only the constraint.
    "coordinator/structured": ["proto", "coordinator/request", "text/tokenizer"],
    # Policies do no I/O and see no device, but only requests, blocks and steps.
    "coordinator/scheduler": ["proto", "coordinator/block_manager", "coordinator/request"],
    "coordinator/block_manager": [],
    # Values that say which tags sleep, in which state an engine is, and why.
    "coordinator/residency": ["proto"],
    # The engine and everything below know neither clients nor the command line.
    "coordinator/executor": ["proto", "coordinator/block_manager", "coordinator/residency"],
    "coordinator/engine": ["proto", "coordinator/block_manager", "coordinator/executor", "coordinator/request",
                           "coordinator/residency", "coordinator/scheduler"],
    "coordinator/adapters": ["coordinator/engine", "coordinator/request", "coordinator/residency"],
    "coordinator/metrics": ["proto", "coordinator/block_manager", "coordinator/engine", "coordinator/request"],
    # Several engines behind one queue, without knowledge of processes or clients.
    "coordinator/replicas": ["coordinator/block_manager", "coordinator/engine", "coordinator/executor", "coordinator/request",
                             "coordinator/residency", "coordinator/scheduler"],
    # Several models that share devices: one Engine each, and the policy that says which is awake.
    "coordinator/several_models": ["proto", "coordinator/engine", "coordinator/request", "coordinator/residency"],
    # HTTP messages, from which the rooms of clients' and operators' requests are built; the server stands on all.
    "coordinator/http": ["proto", "coordinator/residency"],
    "coordinator/openai": ["proto", "checkpoint", "text", "coordinator/adapters", "coordinator/engine", "coordinator/http", "coordinator/metrics",
                           "coordinator/request", "coordinator/residency", "coordinator/structured"],
    # OpenAI's Responses API, which stands on the chat route.
    "coordinator/responses": ["proto", "checkpoint", "text", "coordinator/engine", "coordinator/http", "coordinator/openai",
                              "coordinator/request"],
    # Anthropic's API in front of the chat route.
    "coordinator/messages": ["text", "coordinator/http", "coordinator/openai"],
    # Routes that speak of token ids, which stand on the completion route and the chat route.
    "coordinator/token_routes": ["proto", "checkpoint", "text", "coordinator/engine", "coordinator/http", "coordinator/openai",
                                 "coordinator/request", "coordinator/structured"],
    "coordinator/operators": ["proto", "coordinator/adapters", "coordinator/engine", "coordinator/http", "coordinator/metrics", "coordinator/openai",
                              "coordinator/residency"],
    # The calls of all gRPC services: keys, errors, and the loop of a Generate call.
    "coordinator/grpc/calls": ["proto", "coordinator/engine", "coordinator/http", "coordinator/metrics", "coordinator/openai",
                               "coordinator/records", "coordinator/residency"],
    # The protocol of gateways that drive engines.
    "coordinator/grpc/gateway": ["proto", "checkpoint", "coordinator/engine", "coordinator/grpc/calls", "coordinator/http",
                                 "coordinator/metrics", "coordinator/openai", "coordinator/operators", "coordinator/records",
                                 "coordinator/residency"],
    "coordinator/grpc": ["proto", "coordinator/adapters", "coordinator/engine", "coordinator/grpc/calls", "coordinator/grpc/gateway", "coordinator/http",
                         "coordinator/metrics", "coordinator/openai", "coordinator/operators", "coordinator/records",
                         "coordinator/residency"],
    # Pages for browsers, and the responses that carry them.
    "coordinator/console": ["coordinator/http"],
    "coordinator/http_server": ["proto", "coordinator/console", "coordinator/adapters", "coordinator/engine", "coordinator/http", "coordinator/messages",
                                "coordinator/metrics", "coordinator/openai", "coordinator/operators", "coordinator/records",
                                "coordinator/residency", "coordinator/responses", "coordinator/token_routes"],
    # The records of requests: the access log.
    "coordinator/records": ["coordinator/request"],
    # Spans of requests, and the collector that gets the spans.
    "coordinator/traces": ["coordinator/records", "coordinator/request"],
    "coordinator/flags": ["proto", "checkpoint", "coordinator/engine", "coordinator/http", "coordinator/metrics",
                          "coordinator/request", "coordinator/scheduler", "coordinator/several_models", "coordinator/structured",
                          "coordinator/traces"],
    "coordinator/membership": ["proto"],
    "coordinator/group": ["proto", "checkpoint", "coordinator/block_manager", "coordinator/executor", "coordinator/flags",
                          "coordinator/membership", "coordinator/residency"],
    "tools": ["proto"],
    # The facts and abilities of a machine: for benchmarks and the doctor.
    "tools/probe": [],
    # Benchmarks run kernels, the model, the scheduler and the trace of its steps in process, beside served models.
    "tools/bench": ["proto", "checkpoint", "kernels", "worker", "allocator", "tools/http", "tools/cli", "tools/probe", "coordinator/request",
                    "coordinator/scheduler", "coordinator/block_manager", "coordinator/metrics", "coordinator/structured", "text/tokenizer"],
    # The choices that a worker would make on this host, by the worker's own rules.
    "tools/doctor": ["checkpoint", "kernels", "worker", "allocator", "tools/probe"],
    # The command line asks servers, and the doctor.
    "tools/cli": ["proto", "checkpoint", "tools/http", "tools/doctor"],
    # Policies alone, in virtual time.
    "tools/simulator": ["proto", "coordinator/request", "coordinator/scheduler", "coordinator/block_manager",
                        "coordinator/several_models", "coordinator/replicas"],
}
ROOMS = ("base", "proto", "allocator", "kernels", "checkpoint", "text", "worker", "coordinator", "tools", "tests")
SOURCES = (".h", ".cc", ".cu", ".cuh")
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
CLASS = re.compile(r"^(?:class|struct|enum class) (\w+)(?: final)?(?: : [^{;]*)? \{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def room_of(folder):
    """The longest row of ARROWS that holds `folder`, or None."""
    while folder:
        if folder in ARROWS:
            return folder
        folder = os.path.dirname(folder)
    return None


def allowed(folder, target):
    """Whether a file in `folder` may know `target`, a file or folder relative to the repository."""
    room = room_of(folder)
    if room is None or target.split("/")[0] not in ROOMS:
        return True
    top = room.split("/")[0]
    # All rooms may use our Bazel rules, and a room may use its own headers.
    if target.startswith("tools/bazel/") or room_of(target if "." not in target else os.path.dirname(target)) == room:
        return True
    for known in ["base", *ARROWS[room]]:
        if target == known or ("." not in os.path.basename(known) and (target + "/").startswith(known + "/")):
            return True
    # The parts of a room may depend on each other, except parts that have a separate row.
    return room == top and target.split("/")[0] == top


def includes(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


def labels(path):
    """(line, label) of every string that names a target in a BUILD file, outside visibility and load()."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("visibility", "default_visibility"):
            skipped.update(id(inner) for inner in ast.walk(node))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load":
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            if node.value.startswith("//"):
                yield node.lineno, node.value


def label_target(label):
    return label[2:].split(":")[0]


def violations(root):
    for top in ROOMS:
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "bazel-"))]
            here = os.path.relpath(folder, root)
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(SOURCES):
                    found = list(includes(path))
                elif name in ("BUILD.bazel", "BUILD"):
                    found = [(line, label_target(label)) for line, label in labels(path)]
                else:
                    continue
                for line, target in found:
                    if not allowed(here, target):
                        yield f"{here}/{name}:{line}: {room_of(here)} may not know {target}"


def headers(root):
    """The product's headers: tests and tools may name their own classes as they like."""
    for top in ROOMS:
        if top in ("tests", "tools"):
            continue
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "bazel-"))]
            for name in sorted(names):
                # The emulator stands in for CUDA, by CUDA's names.
                if name.endswith((".h", ".cuh")) and os.path.basename(folder) != "emulator":
                    yield os.path.join(folder, name)


def shared_names(root):
    """Two classes of one name in one namespace: a binary with both behaves as if only one existed."""
    seen = {}
    for path in headers(root):
        here = os.path.relpath(path, root)
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        namespace = NAMESPACE.search(text)
        for match in CLASS.finditer(text):
            key = (namespace.group(1) if namespace else "", match.group(1))
            first = seen.setdefault(key, here)
            if first != here:
                yield f"{here}:{text.count(chr(10), 0, match.start()) + 1}: {first} has a class {match.group(1)}, too"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.isdir(os.path.join(root, "proto")):
        sys.exit(f"error: {root} is not the repository")
    bad = [*violations(root), *shared_names(root)]
    for line in bad:
        print(line)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
