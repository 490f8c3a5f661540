"""Somnus beside transformers on checkpoints of real size with random weights (model_check.py)."""
import json
import subprocess

import events

REAL = ("--device", "cuda", "--shapes", "qwen3-0.6b", "llama3-8b-4-layers")
REHEARSED = ("--device", "cpu", "--shapes", "tiny-qwen3", "tiny-llama", "--tokens", "3")


def run(kit):
    if not kit.torch_python:
        raise events.Skipped("no Python of this machine has torch and transformers")
    with kit.open_log("model.transformers") as log:
        process = subprocess.Popen([kit.torch_python, kit.path("tools", "gpu_day", "model_check.py"), *kit.pick(REAL, REHEARSED)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        wrong = []
        for text in process.stdout:
            row = json.loads(text)
            events.row(**row)
            wrong += row.get("wrong", [])
    if process.wait() != 0 or wrong:
        raise events.Failed("; ".join(wrong) or f"model_check.py ended with {process.returncode}")
