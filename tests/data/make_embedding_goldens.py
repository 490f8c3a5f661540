#!/usr/bin/env python3
"""Writes tests/data/embedding_goldens.json: what transformers computes as the final hidden states of tiny checkpoints.

Needs torch, transformers and safetensors:  make_embedding_goldens.py
For prompts of tests/data/tiny/*/expected.json: the last token's state, the first token's, and the mean of all, from the
stored weights in float64, before any normalization.
"""
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("llama-uneven", "qwen2", "opt")
MOST_TOKENS = 120


def rounded(row):
    return [float(f"{x:.8g}") for x in row.tolist()]


def case_of(model, prompt):
    with torch.no_grad():
        states = model.base_model(torch.tensor([prompt])).last_hidden_state[0]
    return {"prompt": prompt, "last": rounded(states[-1]), "cls": rounded(states[0]), "mean": rounded(states.mean(0))}


def main():
    goldens = {}
    for name in MODELS:
        folder = HERE / "tiny" / name
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        cases = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["cases"]
        goldens[name] = [case_of(model, case["prompt"]) for case in cases if len(case["prompt"]) <= MOST_TOKENS]
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]"
             for name, cases in goldens.items()]
    (HERE / "embedding_goldens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
