#!/usr/bin/env python3
"""Writes a GGUF file of a Llama of any shape with random weights in bf16, for measurements beside llama.cpp.

Usage: random_llama.py SOURCE.gguf OUT.gguf --hidden 1536 --layers 28 --heads 12 --kv-heads 2 --intermediate 8960
         [--head-dim 128]
SOURCE is a GGUF file of a Llama with tied embeddings; its tokenizer and all that is not said stay. A head has hidden /
heads values unless --head-dim says otherwise: Qwen3-0.6B, whose hidden size is 1024, has 16 heads of 128 and 8 KV heads.
llama-quantize makes other types of OUT. Needs the packages gguf and numpy.
"""
import argparse

import gguf
import numpy as np


def copy_metadata(source, writer, changes):
    """All fields of the source; values of `changes` instead of its own, and the sizes there that it does not have."""
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, sub_kind = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, changes.get(name, field.contents()), kind, sub_type=sub_kind)
    for name, value in changes.items():
        if name not in source.fields and isinstance(value, int):
            writer.add_uint32(name, value)


def add_matrix(writer, rng, name, rows, columns):
    values = rng.standard_normal((rows, columns), dtype=np.float32) * 0.02
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    writer.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_layer(writer, rng, layer, args, head_dim):
    name = f"blk.{layer}."
    for norm in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"{name}{norm}.weight", np.ones(args.hidden, dtype=np.float32))
    for part, heads in (("attn_q", args.heads), ("attn_k", args.kv_heads), ("attn_v", args.kv_heads)):
        add_matrix(writer, rng, f"{name}{part}.weight", heads * head_dim, args.hidden)
    add_matrix(writer, rng, f"{name}attn_output.weight", args.hidden, args.heads * head_dim)
    for part in ("ffn_gate", "ffn_up"):
        add_matrix(writer, rng, f"{name}{part}.weight", args.intermediate, args.hidden)
    add_matrix(writer, rng, f"{name}ffn_down.weight", args.hidden, args.intermediate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    for name in ("hidden", "layers", "heads", "kv-heads", "intermediate"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--head-dim", type=int)
    args = parser.parse_args()
    head_dim = args.head_dim or args.hidden // args.heads
    source = gguf.GGUFReader(args.source)
    if source.fields["general.architecture"].contents() != "llama":
        raise SystemExit(f"error: {args.source} is no Llama")
    writer = gguf.GGUFWriter(args.out, "llama", use_temp_file=True)
    copy_metadata(source, writer, {
        "llama.embedding_length": args.hidden, "llama.block_count": args.layers,
        "llama.feed_forward_length": args.intermediate, "llama.attention.head_count": args.heads,
        "llama.attention.head_count_kv": args.kv_heads, "llama.rope.dimension_count": head_dim,
        "llama.attention.key_length": head_dim, "llama.attention.value_length": head_dim,
        "general.name": "random weights", "general.size_label": ""})
    rng = np.random.default_rng(0)
    vocab_size = len(source.fields["tokenizer.ggml.tokens"].data)
    add_matrix(writer, rng, "token_embd.weight", vocab_size, args.hidden)
    writer.add_tensor("output_norm.weight", np.ones(args.hidden, dtype=np.float32))
    for layer in range(args.layers):
        add_layer(writer, rng, layer, args, head_dim)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
