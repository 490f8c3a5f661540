#!/usr/bin/env python3
"""Measures what the operations page costs the server: start-up, speed, processor time and memory, with the page closed
and with ten pages open, in turns. Beside it an idle second server runs all the time: in the state "elsewhere" the pages look at
the second server. The clients of the pages then take the same time of the same cores, and open / elsewhere is the cost of the
watched server.

Usage: console_cost.py MODEL [--pages 10] [--rounds 5] [--seconds 10] [--concurrency 8] [--json FILE] [-- SERVER FLAG ...]
A page is a client with the requests of the page, over one connection: the files once, then GET /status of operators' listener,
and again a second after each answer (coordinator/console/page/operations.js). No browser runs: on the same cores a browser
would take processor time from the server. The pages are one separate process.

For each round and state, in turns: a start with the pages already open, from exec to /health 200; then
--seconds without requests, and --seconds of --concurrency streams without an end. Prints medians and ranges, and the
ratios of the rounds, open to the others: seconds to be ready, processor seconds of the coordinator alone per idle
second, tokens per second and the coordinator's processor microseconds per token, and the memory (PSS) of the
coordinator and of all processes at the end.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from speculation import BIN, free_port, spread  # noqa: E402

PAGE_INTERVAL_S = 1.0  # INTERVAL_MS of operations.js
POLL_S = 0.003
LIMIT_S = 300
STATES = ("closed", "elsewhere", "open")
PATHS = re.compile(r'(?:href|src)="(console/[\w./-]+)"')
IMPORTS = re.compile(r'from "\./([\w.-]+)"')


def page(port):
    """Looks for ever, as an open page does."""
    connection, files = None, None
    while True:
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            if files is None:
                files = load_files(connection)
            get(connection, "/status")
        except (OSError, http.client.HTTPException):
            connection = None
        time.sleep(PAGE_INTERVAL_S)


def load_files(connection):
    """The files of the page, which a browser keeps."""
    waiting, seen = PATHS.findall(get(connection, "/", "text/html")), set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [f"console/{name}" for name in IMPORTS.findall(get(connection, f"/{path}"))]
    return seen


def get(connection, path, accept="*/*"):
    connection.request("GET", path, headers={"Accept": accept, "Cache-Control": "no-cache"})
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise http.client.HTTPException(f"GET {path}: {answer.status}")
    return text


def open_pages(port, count):
    """A process with so many pages."""
    command = [sys.executable, os.path.abspath(__file__), "--be-pages", str(port), str(count)]
    pages = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    pages.stdout.readline()  # the pages look
    return pages


class Server:
    def __init__(self, args, port, admin_port):
        self.port, began = port, time.monotonic()
        self.process = subprocess.Popen(
            [os.path.join(BIN, "tools", "somnus"), "serve", args.model, f"--port={port}", f"--admin-port={admin_port}",
             "--grpc-port=0", "--control-port=0", *args.flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() - began > LIMIT_S:
                raise SystemExit("error: the server did not start")
            time.sleep(POLL_S)
        self.ready_s = time.monotonic() - began
        self.family = family_of(self.process.pid)
        self.coordinator = next(pid for pid in self.family if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "coordinator")

    def healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            return bool(get(connection, "/health") or True)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def family_of(root):
    """A process, and all that descend from it."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parents[int(pid)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = [root]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return family


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            total += int(re.search(r"(?m)^Pss:\s+(\d+)", file.read()).group(1))
    return total / 1024


def stream(port, ends, counts):
    """Reads streams until the event, and counts their tokens: a chunk each."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True})
    while not ends.is_set():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        for line in answer:
            counts.append(time.monotonic()) if line.startswith(b"data: {") else None
            if ends.is_set():
                break
        connection.close()


def load(server, args):
    """(tokens per second, processor microseconds of the coordinator per token) under streams."""
    ends, counts = threading.Event(), []
    threads = [threading.Thread(target=stream, args=(server.port, ends, counts)) for _ in range(args.concurrency)]
    for thread in threads:
        thread.start()
    time.sleep(1)  # all streams have begun
    began, cpu = time.monotonic(), processor_seconds(server.coordinator)
    time.sleep(args.seconds)
    passed, cpu = time.monotonic() - began, processor_seconds(server.coordinator) - cpu
    tokens = sum(began <= moment < began + passed for moment in list(counts))
    ends.set()
    for thread in threads:
        thread.join()
    return tokens / passed, 1e6 * cpu / max(1, tokens)


def idle(server, seconds):
    began, cpu = time.monotonic(), processor_seconds(server.coordinator)
    time.sleep(seconds)
    return (processor_seconds(server.coordinator) - cpu) / (time.monotonic() - began)


def run(args, state, idle_admin_port):
    port, admin_port = free_port(), free_port()
    watched = {"closed": None, "elsewhere": idle_admin_port, "open": admin_port}[state]
    watchers = open_pages(watched, args.pages) if watched else None
    try:
        server = Server(args, port, admin_port)
        try:
            result = {"ready_s": server.ready_s, "idle_cores": idle(server, args.seconds)}
            result["tokens_per_s"], result["us_per_token"] = load(server, args)
            result["coordinator_mib"] = memory_mib([server.coordinator])
            result["all_mib"] = memory_mib(server.family)
            return result
        finally:
            server.stop()
    finally:
        if watchers:
            watchers.terminate()
            watchers.wait()


def report(results):
    print(f"{'':16}" + "".join(f"{state:>28}" for state in STATES))
    for key in results["open"][0]:
        columns = []
        for state in STATES:
            values = [one[key] for one in results[state]]
            columns.append(f"{statistics.median(values):.3f} ({min(values):.3f}..{max(values):.3f})")
        print(f"{key:16}" + "".join(f"{column:>28}" for column in columns))
        for state in STATES[:-1]:
            ratios = [new[key] / old[key] for new, old in zip(results["open"], results[state]) if old[key] > 0]
            print(f"  {'open / ' + state:20}{spread(ratios) if ratios else 'takes no time'}")


def main():
    if sys.argv[1:2] == ["--be-pages"]:
        port, count = map(int, sys.argv[2:])
        for _ in range(count):
            threading.Thread(target=page, args=(port,), daemon=True).start()
        print("looking", flush=True)
        signal.pause()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", metavar="FILE", help="also writes all results there")
    parser.add_argument("flags", nargs="*", metavar="SERVER FLAG", help="behind --")
    args = parser.parse_args()
    results = {state: [] for state in STATES}
    idle_admin_port = free_port()
    second = Server(args, free_port(), idle_admin_port)
    try:
        for attempt in range(args.rounds):
            for state in STATES if attempt % 2 else STATES[::-1]:
                results[state].append(run(args, state, idle_admin_port))
    finally:
        second.stop()
    report(results)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
