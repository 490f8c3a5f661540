#!/usr/bin/env python3
"""Makes tests/data/gguf: what the `gguf` Python package says about GGUF files. Needs: pip install gguf numpy.

quants.bin      for every block type: name (8 bytes, zero-padded), number of elements (uint32), number of bytes (uint32),
                the bytes of random blocks, and the float32 values that gguf.quants.dequantize gives for them.
llama-rope3.gguf, qwen3.gguf
                the tiny checkpoints of the same name, converted as llama.cpp's converter does: reversed dims, q and k
                rows permuted for llama, Llama 3's rope scaling as rope_freqs.weight, tokenizer as metadata.

Usage: make_gguf_goldens.py (writes beside itself; the same bytes every time)
"""
import json
import math
import pathlib
import struct

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "gguf"
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "MXFP4"]
# Where the half-precision scales of a block are.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "MXFP4": []}


def random_blocks(rng, name, count):
    """Random bytes are valid blocks, but random scales would be infinities and NaN now and then."""
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if name == "F16":
        values = np.concatenate([rng.normal(size=count - 6), [0.0, -0.0, 6e-8, -6.1e-5, 65504.0, np.inf]])
        return values.astype(np.float16).view(np.uint8)
    if name == "BF16":
        return (rng.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, size=(count // elements, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = (rng.normal(size=len(blocks)) * 0.01).astype(np.float16)
        scales[0] = np.float16(3e-7)  # a subnormal half
        blocks[:, offset:offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":  # exponents that give no infinity; the first two scales are subnormal
        blocks[:, 0] = np.concatenate([[0, 1], rng.integers(2, 250, size=len(blocks) - 2)])
    return blocks.reshape(-1)


def write_quants():
    rng = np.random.default_rng(20240607)
    with open(OUT / "quants.bin", "wb") as out:
        for name in TYPES:
            data = random_blocks(rng, name, 1024)
            values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32).reshape(-1)
            out.write(struct.pack("<8sII", name.encode(), len(values), len(data)))
            out.write(data.tobytes())
            out.write(values.tobytes())


def read_safetensors(path):
    raw = path.read_bytes()
    length, = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + x for x in entry["data_offsets"])
        assert entry["dtype"] == "BF16"
        tensors[name] = np.frombuffer(raw[begin:end], dtype=np.uint16).reshape(entry["shape"])
    return tensors


def gguf_name(name):
    table = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{table[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{table[rest]}.{suffix}"


def rope_factors(rope, head_dim):
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        length = rope["original_max_position_embeddings"]
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_tokenizer(writer, directory):
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if i in special else 1 for _, i in vocab])
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template((directory / "chat_template.jinja").read_text(encoding="utf-8"))


def write_model(name, arch):
    directory = HERE / "tiny" / name
    config = json.loads((directory / "config.json").read_text())
    heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, directory)
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
    for tensor, data in sorted(read_safetensors(directory / "model.safetensors").items()):
        if arch == "llama" and (".q_proj." in tensor or ".k_proj." in tensor):
            n = heads if ".q_proj." in tensor else kv_heads
            data = data.reshape(n, 2, len(data) // n // 2, -1).swapaxes(1, 2).reshape(data.shape)
        if data.ndim == 1:  # norms are kept in fp32
            writer.add_tensor(gguf_name(tensor), (data.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(gguf_name(tensor), np.ascontiguousarray(data).view(np.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    write_quants()
    write_model("llama-rope3", "llama")
    write_model("qwen3", "qwen3")
