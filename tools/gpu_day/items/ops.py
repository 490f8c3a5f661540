"""Every op of a layer, and right behind it PyTorch's of the same shapes."""
import json
import subprocess
import sys

import bench
import events

ONLY = "^linear .* (1|8|16|64|2048) rows$|^paged attention|^sample|^arg max"
SECONDS = 20  # after which gpu_bench begins no further op, so that PyTorch has time for the ops that were measured


def peer_command(kit):
    """The command of the peer: PyTorch, or in a rehearsal without PyTorch a stand-in; None without either."""
    script = kit.path("tools", "gpu_day", "torch_ops.py")
    if kit.torch_python:
        return [kit.torch_python, script, "--device", kit.pick("cuda", "cpu")]
    return [sys.executable, kit.path("tools", "gpu_day", "stubs.py"), "torch-ops"] if kit.rehearse else None


def run(kit):
    rows = bench.rows_of(kit, "ops.bench", "--parts=kernels", "--only", ONLY, f"--seconds={kit.limit(SECONDS)}",
                         *kit.pick((f"--model={kit.path('tools', 'bench', 'shapes', 'qwen3-8b')}",), ()))
    ours = {row["name"]: row["us"] for row in rows if row.get("part") == "kernels"}
    command = peer_command(kit)
    if command is None:
        events.data(torch="no Python of this machine has PyTorch")
        return
    with kit.open_log("ops.torch") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        process.stdin.write("\n".join(ours))
        process.stdin.close()
        compared = 0
        for text in process.stdout:
            row = json.loads(text)
            if "us" not in row:
                events.row(name=row["name"], peer=row["peer"], error=row["error"])
                continue
            compared += 1
            us = ours[row["name"]]
            events.row(name=row["name"], us=round(us, 2), peer=row["peer"], torch_us=round(row["us"], 2), ratio=round(row["us"] / us, 3))
    if process.wait() != 0 or not compared:
        raise events.Failed(f"PyTorch ended with {process.returncode}, {compared} ops compared")
