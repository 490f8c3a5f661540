"""Runs gpu_bench and tells each row as soon as written."""
import json
import subprocess

import events


def rows_of(kit, name, *flags):
    """The rows that gpu_bench measures with the given flags, each told as it comes; events.Failed when gpu_bench ends with an
    error."""
    command = [kit.path("tools", "bench", "gpu_bench"), *flags, "--json-lines", "-"]
    found, end = [], {}
    with kit.open_log(name) as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace",
                                   env=kit.environment(), cwd=kit.root)
        for text in process.stdout:
            log.write(text)
            try:
                row = json.loads(text)
            except ValueError:
                continue
            if row.get("part") == "end":
                end = row
            else:
                found.append(row)
                events.row(**row)
    if end.get("not_measured"):
        events.data(not_measured=end["not_measured"])
    if process.wait() != 0:
        raise events.Failed(f"gpu_bench {' '.join(flags)}: exit {process.returncode}: {end.get('error', 'see the log')}")
    if not found:
        raise events.Failed(f"gpu_bench {' '.join(flags)}: no row was measured")
    return found
