#!/usr/bin/env python3
"""Writes tests/data/perplexity_qwen2.json: what tiny/qwen2 makes of a few texts, computed in float64 from its file.

    python3 tests/data/make_perplexity_golden.py

Needs nothing beside Python. The texts are drawn from the model itself, so that their perplexity is that of its own
distributions and whatever damages these makes it larger. Its own arithmetic is compared with what transformers has computed
in float64 (tiny/qwen2/expected.json) before anything is written. The file is a run as tools/bench/perplexity.py saves one,
with the texts' token ids beside it.
"""
import json
import math
import operator
import os
import random
import sys

DATA = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(DATA)), "tools", "bench"))
import perplexity  # noqa: E402

sys.path.insert(0, os.path.dirname(DATA))
from f32_tensors import read_f32  # noqa: E402

MODEL = "qwen2"
OUT = os.path.join(DATA, f"perplexity_{MODEL}.json")
NUM_TEXTS, TOKENS, SEED = 4, 64, 20
# The tolerance of log-probabilities: transformers has frequencies of rotary embeddings in float32 with every other type.
TOLERANCE = 1e-4


def rows(tensor):
    (count, width), numbers = tensor
    return [numbers[row * width:(row + 1) * width] for row in range(count)]


def times(matrix, x, bias=None):
    y = [sum(map(operator.mul, row, x)) for row in matrix]
    return y if bias is None else list(map(operator.add, y, bias))


class Qwen2:
    """One sequence through the model, token by token."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        tensors = read_f32(os.path.join(folder, "model.safetensors"))
        self.matrices = {name: rows(tensor) for name, tensor in tensors.items() if len(tensor[0]) == 2}
        self.vectors = {name: tensor[1] for name, tensor in tensors.items() if len(tensor[0]) == 1}
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_dim = self.config["hidden_size"] // self.heads
        self.restart()

    def restart(self):
        self.position = 0
        self.cache = [([], []) for _ in range(self.config["num_hidden_layers"])]

    def norm(self, x, name):
        scale = 1 / math.sqrt(sum(map(operator.mul, x, x)) / len(x) + self.config["rms_norm_eps"])
        return [value * scale * weight for value, weight in zip(x, self.vectors[name])]

    def linear(self, x, name):
        return times(self.matrices[name + ".weight"], x, self.vectors.get(name + ".bias"))

    def rotate(self, head):
        half, out = self.head_dim // 2, list(head)
        for i in range(half):
            angle = self.position * self.config["rope_theta"] ** (-i / half)
            cos, sin = math.cos(angle), math.sin(angle)
            out[i], out[i + half] = head[i] * cos - head[i + half] * sin, head[i + half] * cos + head[i] * sin
        return out

    def attend(self, q, keys, values):
        scores = [sum(map(operator.mul, q, key)) / math.sqrt(self.head_dim) for key in keys]
        shares = [math.exp(score - max(scores)) for score in scores]
        return [sum(map(operator.mul, shares, column)) / sum(shares) for column in zip(*values)]

    def attention(self, x, layer, prefix):
        def cut(name):
            y = self.linear(x, prefix + name)
            return [y[at:at + self.head_dim] for at in range(0, len(y), self.head_dim)]
        keys, values = self.cache[layer]
        keys.append([self.rotate(head) for head in cut("k_proj")])
        values.append(cut("v_proj"))
        mixed = []
        for head, q in enumerate(cut("q_proj")):
            kv = head // (self.heads // self.kv_heads)
            mixed += self.attend(self.rotate(q), [key[kv] for key in keys], [value[kv] for value in values])
        return self.linear(mixed, prefix + "o_proj")

    def mlp(self, x, prefix):
        gate, up = self.linear(x, prefix + "gate_proj"), self.linear(x, prefix + "up_proj")
        return self.linear([g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)], prefix + "down_proj")

    def next(self, token):
        """Log-probabilities of the token that follows."""
        x = self.matrices["model.embed_tokens.weight"][token]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            y = self.attention(self.norm(x, prefix + "input_layernorm.weight"), layer, prefix + "self_attn.")
            x = list(map(operator.add, x, y))
            y = self.mlp(self.norm(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp.")
            x = list(map(operator.add, x, y))
        self.position += 1
        logits = times(self.matrices["model.embed_tokens.weight"], self.norm(x, "model.norm.weight"))  # tied
        total = max(logits) + math.log(sum(math.exp(logit - max(logits)) for logit in logits))
        return [logit - total for logit in logits]


def check(model, folder):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    worst = 0.0
    for case in cases:
        model.restart()
        prompt = case["prompt"]
        for token, following, reference in zip(prompt, prompt[1:], case["prompt_logprobs"][1:]):
            worst = max(worst, abs(model.next(token)[following] - reference))
    if worst > TOLERANCE:
        sys.exit(f"log-probabilities are {worst:.2e} from those of transformers")
    print(f"log-probabilities are within {worst:.1e} of those of transformers")


def draw_text(model, rng):
    """Token ids, and what perplexity.py's server would answer of them."""
    model.restart()
    text, answer = [rng.randrange(model.config["vocab_size"])], [None]
    while len(text) < TOKENS:
        logprobs = model.next(text[-1])
        text.append(rng.choices(range(len(logprobs)), [math.exp(value) for value in logprobs])[0])
        best = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])[:perplexity.TOP]
        answer.append({token: {"logprob": round(logprobs[token], 5)} for token in {*best, text[-1]}})
    return text, answer


def main():
    folder = os.path.join(DATA, "tiny", MODEL)
    model, rng = Qwen2(folder), random.Random(SEED)
    check(model, folder)
    texts, run = [], []
    for _ in range(NUM_TEXTS):
        text, answer = draw_text(model, rng)
        texts.append(text)
        run += perplexity.positions(text, answer)
    golden = {"model": MODEL, "perplexity": round(perplexity.perplexity(run)[0], 5), "texts": texts, "positions": run}
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    print(f"{OUT}: perplexity {golden['perplexity']} of {len(run)} positions")


if __name__ == "__main__":
    main()
