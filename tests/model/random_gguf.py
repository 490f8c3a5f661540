#!/usr/bin/env python3
"""Writes small GGUF models of every block type, each with the results of transformers from the same dequantized weights.

    random_gguf.py OUT [COUNT] [SEED]
    bazel-bin/tests/model/golden_cli OUT/*

Needs torch, transformers 5 and gguf, whose dequantization is the reference. Shapes, heads, ties, biases and rope vary; block
types are mixed within a file, as in real files. Every fourth model is cut into files of nine tensors.
"""
import json
import math
import pathlib
import random
import sys

import gguf
import numpy as np
import torch
from random_checkpoints import draw, expect
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,)}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{suffix}"


def config_of(kind, rng):
    kv = rng.choice([1, 2, 4])
    heads = kv * rng.choice([1, 2, 4])  # transformers requires that the heads divide hidden_size
    parameters = {"rope_type": "default", "rope_theta": rng.choice([10000.0, 500.0, 1e6])}
    if kind == "llama" and rng.random() < 0.5:
        parameters |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 32}
    elif rng.random() < 0.4:
        parameters |= {"rope_type": "linear", "factor": 2.0}
    # K-quants have blocks of 256, so some rows must be that long.
    hidden = rng.choice([32, 64, 256])
    common = dict(vocab_size=rng.choice([70, 131]), hidden_size=hidden, intermediate_size=rng.choice([32, 96, 256]), num_hidden_layers=2,
                  num_attention_heads=heads, num_key_value_heads=kv, head_dim=rng.choice([32, 64]), max_position_embeddings=128,
                  rms_norm_eps=1e-5, tie_word_embeddings=rng.random() < 0.5, rope_parameters=parameters)
    if kind == "llama":
        return LlamaConfig(attention_bias=rng.random() < 0.3, **common)
    return Qwen2Config(**common) if kind == "qwen2" else Qwen3Config(**common)


def quantize(values, name, seed):
    """(stored bytes, the values of the bytes)"""
    kind = gguf.GGMLQuantizationType[name]
    if name in SCALES:  # the package only decodes such types: random blocks with scales of a suitable size
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, 256, size=(values.size // elements, size), dtype=np.uint8)
        fit = 1.0 / math.sqrt(values.shape[-1]) / {"Q2_K": 15, "Q3_K": 60, "Q4_K": 300, "Q5_K": 600, "Q6_K": 1500, "IQ4_NL": 70}[name]
        for offset in SCALES[name]:
            blocks[:, offset:offset + 2] = (rng.normal(size=len(blocks)) * fit).astype(np.float16).view(np.uint8).reshape(-1, 2)
        data = blocks.reshape(*values.shape[:-1], -1)
    else:
        data = gguf.quants.quantize(values, kind)
    return data, gguf.quants.dequantize(data, kind).astype(np.float32).reshape(values.shape)


def permute(data, heads):
    return data.reshape(heads, 2, len(data) // heads // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)


def rope_factors(rope, head_dim):
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        length, low, high, factor = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
        smooth = min(1.0, max(0.0, (length / wavelength - low) / (high - low)))
        out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def make(folder, kind, seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    config = config_of(kind, rng)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().double()
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", kind, split_max_tensors=9 if seed % 4 == 3 else 0)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, config.head_dim))
    weights = {}
    for number, (key, tensor) in enumerate(model.state_dict().items()):
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = draw(key, tensor, generator).float().numpy()
        types = [t for t in TYPES if values.shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[t]][0] == 0]
        chosen = rng.choice(types[::-1][:5] if rng.random() < 0.5 else types) if values.ndim == 2 else "F32"
        data, exact = quantize(values, chosen, seed * 1000 + number)
        weights[key] = torch.from_numpy(exact.copy()).double()
        if kind == "llama" and (".q_proj." in key or ".k_proj." in key):
            data = permute(data, config.num_attention_heads if ".q_proj." in key else config.num_key_value_heads)
        writer.add_tensor(gguf_name(key), np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType[chosen])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert not missing or missing == ["lm_head.weight"], missing
    model.tie_weights()
    prompts = [[int(t) for t in torch.randint(0, config.vocab_size, (n,), generator=generator)] for n in (1, 19, 70)]
    cases = [expect(model, prompt, 16) for prompt in prompts]
    (folder / "expected.json").write_text(json.dumps({"model": folder.name, "cases": cases}))


def main():
    root = pathlib.Path(sys.argv[1])
    count, first = int(sys.argv[2]) if len(sys.argv) > 2 else 24, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        kind = ("llama", "qwen2", "qwen3")[seed % 3]
        make(root / f"{kind}-{seed}", kind, seed)


if __name__ == "__main__":
    main()
