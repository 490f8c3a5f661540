"""Tiny LoRA adapters in PEFT's format, and checkpoints with an adapter merged into the weights."""
import json
import os
import random
import shutil
import struct

from f32_tensors import read_f32

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_f32(path, tensors):
    """`tensors`: {name: (shape, numbers)}."""
    header, data = {}, b""
    for name, (shape, numbers) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(numbers)]}
        data += struct.pack(f"<{len(numbers)}f", *numbers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_adapter(model, folder, rank=2, alpha=4, seed=1, modules=MODULES):
    """An adapter of random numbers for the float32 checkpoint `model`; returns {matrix: (A, B)}, row by row."""
    numbers = random.Random(seed)
    tensors, changes = {}, {}
    for name, (shape, _) in sorted(read_f32(os.path.join(model, "model.safetensors")).items()):
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] not in modules:
            continue
        a = [numbers.gauss(0, 0.2) for _ in range(rank * shape[1])]
        b = [numbers.gauss(0, 0.2) for _ in range(shape[0] * rank)]
        tensors[f"base_model.model.{module}.lora_A.weight"] = ([rank, shape[1]], a)
        tensors[f"base_model.model.{module}.lora_B.weight"] = ([shape[0], rank], b)
        changes[name] = (a, b)
    os.makedirs(folder)
    write_f32(os.path.join(folder, "adapter_model.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "target_modules": list(modules)}, file)
    return changes


def write_merged(model, folder, changes, rank=2, alpha=4):
    """The checkpoint `model` with the adapter of write_adapter merged."""
    shutil.copytree(model, folder)
    tensors = read_f32(os.path.join(model, "model.safetensors"))
    for name, (a, b) in changes.items():
        shape, weights = tensors[name]
        cols = shape[1]
        for row in range(shape[0]):
            for col in range(cols):
                change = sum(b[row * rank + r] * a[r * cols + col] for r in range(rank))
                weights[row * cols + col] += alpha / rank * change
    write_f32(os.path.join(folder, "model.safetensors"), tensors)
