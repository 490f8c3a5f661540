#!/usr/bin/env python3
"""Writes a GGUF file with the shape of a model that people run and random weights, for measurements beside llama.cpp.

Usage: random_gguf.py SHAPE OUT.gguf [--tokenizer-of FILE.gguf] [--hidden N] [--layers N] [--heads N] [--kv-heads N]
         [--head-dim N] [--intermediate N]     SHAPE: one of SHAPES below; numbers take the place of the shape's own
Weights are bf16, and the experts of GPT-OSS MXFP4, as published. --layers leaves out layers, so that a model with many
experts fits the machine: the time of a layer stays what it is. Without --tokenizer-of the file has no tokenizer:
decode_bench and llama-batched-bench, which compute random tokens, need none. llama-quantize makes other types of OUT.
Needs the packages gguf and numpy.
"""
import argparse

import gguf
import numpy as np

BF16, F32, MXFP4 = (gguf.GGMLQuantizationType[name] for name in ("BF16", "F32", "MXFP4"))
MXFP4_BLOCK = 32
CHUNK = 1 << 24  # weights that are drawn at once

# hidden, layers, heads, kv_heads, head_dim, intermediate (of an expert where there are experts), vocab; experts and how
# many of them a token takes; window: of the sliding layers, in tokens.
SHAPES = {
    "qwen2.5-1.5b": dict(arch="llama", hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, intermediate=8960,
                         vocab=151936, tied=True),
    "qwen3-0.6b": dict(arch="qwen3", hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, intermediate=3072,
                       vocab=151936, tied=True, rope=1e6),
    "gemma-3-1b": dict(arch="gemma3", hidden=1152, layers=26, heads=4, kv_heads=1, head_dim=256, intermediate=6912,
                       vocab=262144, tied=True, rope=1e6, window=512),
    "qwen3-30b-a3b": dict(arch="qwen3moe", hidden=2048, layers=48, heads=32, kv_heads=4, head_dim=128, intermediate=768,
                          vocab=151936, tied=False, rope=1e6, experts=128, experts_used=8),
    "gpt-oss-20b": dict(arch="gpt-oss", hidden=2880, layers=24, heads=64, kv_heads=8, head_dim=64, intermediate=2880,
                        vocab=201088, tied=False, rope=150000.0, experts=32, experts_used=4, window=128),
}


class Weights:
    """Draws tensors and hands them to a writer. Matrices have a standard deviation of 0.02, so that activations stay finite."""

    def __init__(self, writer):
        self.writer = writer
        self.rng = np.random.default_rng(0)

    def matrix(self, name, *shape):
        """bf16, of any number of dimensions; the last one is the one that a product sums over."""
        count = int(np.prod(shape))
        bits = np.empty(count, np.uint16)
        for at in range(0, count, CHUNK):
            values = self.rng.standard_normal(min(CHUNK, count - at), dtype=np.float32) * np.float32(0.02)
            bits[at:at + CHUNK] = values.view(np.uint32) >> 16
        self.writer.add_tensor(name, bits.reshape(shape).view(np.uint8), raw_dtype=BF16)

    def mxfp4(self, name, *shape):
        """Blocks of an exponent and 32 values of four bits, of the same size of values as a matrix of bf16."""
        rows = shape[:-1]
        blocks = self.rng.integers(0, 256, (*rows, shape[-1] // MXFP4_BLOCK, 1 + MXFP4_BLOCK // 2), dtype=np.uint8)
        blocks[..., 0] = 127 - 7
        self.writer.add_tensor(name, blocks.reshape(*rows, -1), raw_dtype=MXFP4)

    def vector(self, name, size, value):
        self.writer.add_tensor(name, np.full(size, value, np.float32), raw_dtype=F32)


def add_fields(writer, shape):
    writer.add_context_length(131072)
    writer.add_embedding_length(shape["hidden"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["intermediate"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_rope_freq_base(shape.get("rope", 10000.0))
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape["vocab"])
    if "window" in shape:
        writer.add_sliding_window(shape["window"])
    if "experts" in shape:
        writer.add_expert_count(shape["experts"])
        writer.add_expert_used_count(shape["experts_used"])
        writer.add_expert_feed_forward_length(shape["intermediate"])
    if shape["arch"] == "gpt-oss":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)


def add_attention(weights, layer, shape):
    name, hidden, arch = f"blk.{layer}.", shape["hidden"], shape["arch"]
    wide, narrow = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    weights.vector(f"{name}attn_norm.weight", hidden, 1)
    for part, rows, columns in (("attn_q", wide, hidden), ("attn_k", narrow, hidden), ("attn_v", narrow, hidden),
                                ("attn_output", hidden, wide)):
        weights.matrix(f"{name}{part}.weight", rows, columns)
        if arch == "gpt-oss":
            weights.vector(f"{name}{part}.bias", rows, 0.01)
    if arch in ("qwen3", "qwen3moe", "gemma3"):
        weights.vector(f"{name}attn_q_norm.weight", shape["head_dim"], 1)
        weights.vector(f"{name}attn_k_norm.weight", shape["head_dim"], 1)
    if arch in ("gemma3", "gpt-oss"):
        weights.vector(f"{name}post_attention_norm.weight", hidden, 1)
    if arch == "gpt-oss":
        weights.vector(f"{name}attn_sinks.weight", shape["heads"], 0.5)
    if arch == "gemma3":
        weights.vector(f"{name}post_ffw_norm.weight", hidden, 1)
    if arch != "gpt-oss":  # its norm before the experts is the one after attention
        weights.vector(f"{name}ffn_norm.weight", hidden, 1)


def add_feed_forward(weights, layer, shape):
    name, hidden, inner = f"blk.{layer}.", shape["hidden"], shape["intermediate"]
    parts = (("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner))
    if "experts" not in shape:
        for part, rows, columns in parts:
            weights.matrix(f"{name}{part}.weight", rows, columns)
        return
    experts, biased = shape["experts"], shape["arch"] == "gpt-oss"
    weights.writer.add_tensor(f"{name}ffn_gate_inp.weight",
                              weights.rng.standard_normal((experts, hidden), dtype=np.float32) * np.float32(0.02))
    if biased:
        weights.vector(f"{name}ffn_gate_inp.bias", experts, 0)
    for part, rows, columns in parts:
        (weights.mxfp4 if biased else weights.matrix)(f"{name}{part}_exps.weight", experts, rows, columns)
        if biased:
            weights.vector(f"{name}{part}_exps.bias", (experts, rows), 0.01)


def add_tokenizer(writer, path):
    """All fields of the tokenizer of the GGUF file at `path`. Returns how many tokens there are."""
    source = gguf.GGUFReader(path)
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            kind, sub_kind = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=sub_kind)
    return len(source.fields["tokenizer.ggml.tokens"].data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--tokenizer-of", metavar="GGUF", help="copy this file's tokenizer, and take its vocabulary's size")
    for name in ("hidden", "layers", "heads", "kv-heads", "head-dim", "intermediate"):
        parser.add_argument(f"--{name}", type=int, help="in place of the shape's own")
    args = parser.parse_args()
    changes = {name: value for name, value in vars(args).items() if value is not None and name in SHAPES["gpt-oss-20b"]}
    shape = {**SHAPES[args.shape], **changes}
    writer = gguf.GGUFWriter(args.out, shape["arch"], use_temp_file=True)
    writer.add_name("random weights")
    if args.tokenizer_of:
        shape["vocab"] = add_tokenizer(writer, args.tokenizer_of)
    else:
        writer.add_tokenizer_model("none")
    add_fields(writer, shape)
    weights = Weights(writer)
    weights.matrix("token_embd.weight", shape["vocab"], shape["hidden"])
    weights.vector("output_norm.weight", shape["hidden"], 1)
    if not shape["tied"]:
        weights.matrix("output.weight", shape["vocab"], shape["hidden"])
    for layer in range(shape["layers"]):
        add_attention(weights, layer, shape)
        add_feed_forward(weights, layer, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
