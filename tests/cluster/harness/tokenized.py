"""Tiny checkpoints of tests/data/variants with a tokenizer and room for longer texts: a server makes texts and answers in a
form from such a checkpoint. And a tokenizer that is damaged."""
import json
import os
import random
import shutil

from cluster.harness import ROOT, tiny
from cluster.harness.lora_files import write_f32
from f32_tensors import read_f32

VARIANTS = os.path.join(ROOT, "tests", "data", "variants")
TOKENIZER_OF = "qwen3"
VOCABULARY = 512  # of that tokenizer
POSITIONS = 512
OF_TOKENS = ("model.embed_tokens.weight", "lm_head.weight")  # matrices with a row for each token


MANY_TOKENS = 1_000_000  # of a tokenizer that takes longer to read than workers take to come


def cut_tokenizer(folder, num_tokens=MANY_TOKENS):
    """Replaces the checkpoint's tokenizer.json by the beginning of a tokenizer, whose missing end is seen late."""
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write('{"model": {"type": "BPE", "vocab": {' + "".join(f'"{number}": {number}, ' for number in range(num_tokens)))


def with_tokenizer(name, folder):
    """Writes the float32 variant `name` to the new `folder`, with the tokenizer of a tiny checkpoint. The tokens that the variant
    lacks get random rows. Returns the folder."""
    os.makedirs(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(os.path.join(tiny(TOKENIZER_OF), file), os.path.join(folder, file))
    with open(os.path.join(VARIANTS, name, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    tensors = read_f32(os.path.join(VARIANTS, name, "model.safetensors"))
    numbers = random.Random(name)
    for tensor in set(OF_TOKENS) & set(tensors):
        shape, values = tensors[tensor]
        deviation = (sum(value * value for value in values) / len(values)) ** 0.5
        values += [numbers.gauss(0, deviation) for _ in range((VOCABULARY - shape[0]) * shape[1])]
        tensors[tensor] = ([VOCABULARY, shape[1]], values)
    write_f32(os.path.join(folder, "model.safetensors"), tensors)
    return folder
