#!/usr/bin/env python3
"""Makes tests/data/packed: tiny checkpoints with packed weights, one for each layout that is read. Needs numpy alone.

Each folder is a Llama of one layer as its quantizer would have written it: config.json with a quantization_config and
model.safetensors. The small numbers, zero points and scales are drawn at random, packed by the functions below, and
values.safetensors has what they mean, scale * (number - zero point) in float32, of every eighth row of two matrices. So the
reader's own code decides nothing here.

Usage: make_packed_goldens.py [output folder] (the same bytes every time)
"""
import json
import pathlib
import struct
import sys

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 2, 1, 32, 48
LAYER = "model.layers.0."
MATRICES = {"self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
CHECKED = ("self_attn.k_proj", "mlp.down_proj")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
NAMES = {np.dtype("float32"): "F32", np.dtype("float16"): "F16", np.dtype("int32"): "I32", np.dtype("int8"): "I8",
         np.dtype("int64"): "I64"}


class Bf16(np.ndarray):
    """uint16 words that are bfloat16."""


class Fp8(np.ndarray):
    """uint8 bytes that are e4m3 floats."""


def bf16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(Bf16)


def save(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        dtype = "BF16" if isinstance(values, Bf16) else "F8_E4M3" if isinstance(values, Fp8) else NAMES[values.dtype]
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def words(numbers, bits, order=None):
    """[n, m] small numbers to [n, m / per word] int32, the first in the lowest bits; `order`: which of a word comes first."""
    per_word = 32 // bits
    grouped = numbers.astype(np.uint64).reshape(numbers.shape[0], -1, per_word)
    out = np.zeros(grouped.shape[:2], np.uint64)
    for place in range(per_word):
        out |= grouped[:, :, order[place] if order else place] << np.uint64(bits * place)
    return out.astype(np.uint32).view(np.int32)


def draw_scales(rng, shape, bits):
    """Such that weights have a deviation of about 0.15."""
    return (rng.uniform(0.5, 1.5, shape) * (0.035 if bits == 4 else 0.0022)).astype(np.float16)


def expand(values, groups_of_columns):
    """[rows, groups] to [rows, columns]."""
    return values[:, groups_of_columns]


def gptq(rng, shape, bits, group, sym, v2=False, act_order=False):
    rows, cols = shape
    group = cols if group == -1 else group
    groups = -(-cols // group)
    of_column = np.arange(cols) // group
    if act_order:
        of_column = rng.permutation(of_column)
    middle = 1 << (bits - 1)
    numbers = rng.integers(0, 1 << bits, shape)
    zeros = np.full((rows, groups), middle) if sym else rng.integers(1, 1 << bits, (rows, groups))
    scales = draw_scales(rng, (rows, groups), bits)
    parts = {"qweight": words(numbers, bits).T, "qzeros": words((zeros - (0 if v2 else 1)).T, bits), "scales": scales.T,
             "g_idx": of_column.astype(np.int32)}
    return parts, expand(scales.astype(np.float32), of_column) * (numbers - expand(zeros, of_column)).astype(np.float32)


def awq(rng, shape, group):
    rows, cols = shape
    groups = -(-cols // group)
    of_column = np.arange(cols) // group
    numbers, zeros = rng.integers(0, 16, shape), rng.integers(0, 16, (rows, groups))
    scales = draw_scales(rng, (rows, groups), 4)
    parts = {"qweight": words(numbers.T, 4, AWQ_ORDER), "qzeros": words(zeros.T, 4, AWQ_ORDER), "scales": scales.T}
    return parts, expand(scales.astype(np.float32), of_column) * (numbers - expand(zeros, of_column)).astype(np.float32)


def compressed_pack(rng, shape, bits, group, sym):
    """Signed numbers, stored with half of their range added."""
    rows, cols = shape
    groups = -(-cols // group)
    of_column = np.arange(cols) // group
    middle = 1 << (bits - 1)
    numbers = rng.integers(-middle, middle, shape)
    zeros = np.zeros((rows, groups), np.int64) if sym else rng.integers(-middle, middle, (rows, groups))
    scales = draw_scales(rng, (rows, groups), bits)
    parts = {"weight_packed": words(numbers + middle, bits), "weight_scale": bf16(scales), "weight_shape": np.array(shape, np.int64)}
    scales = (np.asarray(parts["weight_scale"]).astype(np.uint32) << 16).view(np.float32)
    if not sym:
        parts["weight_zero_point"] = words((zeros + middle).T, bits).T
    return parts, expand(scales, of_column) * (numbers - expand(zeros, of_column)).astype(np.float32)


def compressed_int8(rng, shape):
    """Scales that no half has."""
    numbers, scales = rng.integers(-128, 128, shape), draw_scales(rng, (shape[0], 1), 8).astype(np.float32) * np.float32(1.0003)
    return {"weight": numbers.astype(np.int8), "weight_scale": scales}, scales * numbers.astype(np.float32)


def float8(bits):
    """The number of a byte: a sign, four bits of exponent (7 is that of 1), three of fraction."""
    bits = bits.astype(np.int64)
    exponent, fraction = bits >> 3 & 15, bits & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0 ** -6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(bits & 128, -value, value).astype(np.float32)


def fp8(rng, shape, scales):
    """`scales`: "one", "rows" or "blocks" of 32 x 32."""
    rows, cols = shape
    # Up to 1.875 and no NaN.
    numbers = (rng.integers(0, 64, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)
    if scales == "blocks":
        scale = rng.uniform(0.1, 0.3, (-(-rows // 32), -(-cols // 32))).astype(np.float32)
        full = np.repeat(np.repeat(scale, 32, 0), 32, 1)[:rows, :cols]
        return {"weight": numbers.view(Fp8), "weight_scale_inv": scale}, full * float8(numbers)
    scale = rng.uniform(0.1, 0.3, (rows, 1) if scales == "rows" else ()).astype(np.float32)
    return {"weight": numbers.view(Fp8), "weight_scale": np.asarray(scale)}, scale * float8(numbers)


def gptq_config(bits, group, sym, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": False, **more}


def compressed_config(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": weights}}}


CHECKPOINTS = {
    "gptq4": (gptq_config(4, 32, True), lambda rng, shape: gptq(rng, shape, 4, 32, True)),
    "gptq4-zeros": (gptq_config(4, 64, False), lambda rng, shape: gptq(rng, shape, 4, 64, False)),
    "gptq4-order": (gptq_config(4, 32, False, desc_act=True), lambda rng, shape: gptq(rng, shape, 4, 32, False, act_order=True)),
    "gptq8": (gptq_config(8, -1, True), lambda rng, shape: gptq(rng, shape, 8, -1, True)),
    "gptq8-zeros-v2": (gptq_config(8, 32, False, checkpoint_format="gptq_v2"),
                       lambda rng, shape: gptq(rng, shape, 8, 32, False, v2=True)),
    "awq4": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
             lambda rng, shape: awq(rng, shape, 32)),
    "compressed4": (compressed_config("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True),
                    lambda rng, shape: compressed_pack(rng, shape, 4, 32, True)),
    "compressed4-zeros": (
        compressed_config("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
        lambda rng, shape: compressed_pack(rng, shape, 4, 32, False)),
    "compressed-int8": (compressed_config("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
                        compressed_int8),
    "compressed-fp8": (compressed_config("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True),
                       lambda rng, shape: fp8(rng, shape, "rows")),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, lambda rng, shape: fp8(rng, shape, "one")),
    "fp8-blocks": ({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [32, 32]},
                   lambda rng, shape: fp8(rng, shape, "blocks")),
}


def write(folder, quantization, make, rng):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
              "torch_dtype": "bfloat16", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors, values = {}, {}
    for name in ("model.embed_tokens", "lm_head"):
        tensors[name + ".weight"] = bf16(rng.normal(size=(VOCAB, HIDDEN)) * 3 / np.sqrt(HIDDEN))
    for name in ("model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"):
        tensors[name + ".weight"] = bf16(1 + 0.25 * rng.normal(size=HIDDEN))
    for name, shape in MATRICES.items():
        parts, full = make(rng, shape)
        assert full.shape == shape and full.dtype == np.float32
        tensors |= {f"{LAYER}{name}.{part}": value for part, value in parts.items()}
        if name in CHECKED:
            values[f"{LAYER}{name}.weight"] = full[::8]
    save(folder / "model.safetensors", tensors)
    save(folder / "values.safetensors", values)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent / "packed")
    for seed, (name, (quantization, make)) in enumerate(CHECKPOINTS.items()):
        write(root / name, quantization, make, np.random.default_rng(500 + seed))


if __name__ == "__main__":
    main()
