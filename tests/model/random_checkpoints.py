#!/usr/bin/env python3
"""Writes random small checkpoints in many forms, each with what transformers computes from it.

    random_checkpoints.py OUT [COUNT] [SEED]
    bazel-bin/tests/model/golden_cli OUT/*

Needs torch, transformers 5 and safetensors. Every folder is read back by transformers itself, so its reading of
config.json (old and new keys, defaults of what is missing) and of the weights (names, ties, shards) is what counts.
Folders of broken checkpoints have an error.txt instead: a part of the message that has to come.
"""
import json
import math
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, MistralConfig, OPTConfig, Qwen2Config, Qwen3Config)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["llama", "llama", "mistral", "qwen2", "qwen3", "opt", "opt"]


def heads(rng):
    """(query heads, KV heads): one KV head, as many as heads, and what lies between."""
    kv = rng.choice([1, 1, 2, 3, 4, 5])
    return kv * rng.choice([1, 1, 2, 3, 7]), kv


def rope(rng):
    theta = rng.choice([10000.0, 500.0, 1e6, 12345.5])
    kind = rng.choice(["default", "default", "linear", "llama3", "dynamic"])
    out = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        out["factor"] = rng.choice([2.0, 4.0, 8.0, 1.7])
    if kind == "llama3":
        out |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([4.0, 2.5]),
                "original_max_position_embeddings": rng.choice([16, 32, 64])}
    return out


def decoder_config(kind, rng, vocab):
    q, kv = heads(rng)
    head_dim = rng.choice([2, 4, 6, 8, 10, 16])
    hidden = head_dim * q if rng.random() < 0.5 else q * rng.randint(3, 12)
    common = dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=rng.randint(3, 90),
                  num_hidden_layers=rng.choice([1, 1, 2, 3]), num_attention_heads=q, num_key_value_heads=kv, head_dim=head_dim,
                  max_position_embeddings=rng.choice([100, 128, 200]), rms_norm_eps=rng.choice([1e-6, 1e-5, 3.7e-4, 0.01]),
                  tie_word_embeddings=rng.random() < 0.5, rope_parameters=rope(rng), bos_token_id=1, eos_token_id=2,
                  pad_token_id=None)
    if kind == "llama":
        return LlamaConfig(attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5, **common)
    if kind == "mistral":
        return MistralConfig(sliding_window=rng.choice([None, 4096]), **common)
    window = dict(use_sliding_window=False, sliding_window=rng.choice([None, 8]), max_window_layers=rng.choice([0, 28]))
    if kind == "qwen2":
        return Qwen2Config(**common, **window)
    return Qwen3Config(attention_bias=rng.random() < 0.5, **common, **window)


def opt_config(rng, vocab):
    q = rng.choice([1, 2, 3, 4, 7])
    hidden = q * rng.randint(2, 12)
    before = rng.random() < 0.6
    return OPTConfig(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=rng.choice([1, 2, 3]), ffn_dim=rng.randint(3, 90),
                     num_attention_heads=q, max_position_embeddings=rng.choice([100, 128]), do_layer_norm_before=before,
                     _remove_final_layer_norm=before and rng.random() < 0.3,
                     word_embed_proj_dim=rng.choice([hidden, rng.randint(2, 40)]), enable_bias=rng.random() < 0.7,
                     activation_function=rng.choice(["relu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh"]),
                     tie_word_embeddings=rng.random() < 0.7, bos_token_id=2, eos_token_id=2, pad_token_id=1)


def draw(name, tensor, generator):
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.25 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    if "embed_tokens" in name or "lm_head" in name:
        return noise * 3 / math.sqrt(tensor.shape[1])
    if "embed_positions" in name:
        return 0.3 * noise
    return noise * 1.3 / math.sqrt(tensor.shape[1])


def make_tensors(model, config, rng, generator):
    mixed = rng.random() < 0.3
    dtype = rng.choice(DTYPES)
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name] = draw(name, value, generator).to(rng.choice(DTYPES) if mixed else dtype).contiguous()
    embedding = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    if config.tie_word_embeddings:
        how = rng.choice(["absent", "absent", "same", "other"])
        if how == "absent":
            del tensors["lm_head.weight"]
        elif how == "same":
            tensors["lm_head.weight"] = tensors[embedding].clone()
    if rng.random() < 0.25 and ("lm_head.weight" not in tensors):
        tensors = {name.removeprefix("model."): value for name, value in tensors.items()}
    if rng.random() < 0.25:
        prefix = "model.layers.0.self_attn.rotary_emb.inv_freq"
        tensors[prefix] = torch.arange(4, dtype=torch.float32)
        tensors["step"] = torch.tensor(7)
        tensors["nothing"] = torch.zeros(0, 5)
    return tensors, dtype


def write_tensors(folder, tensors, rng):
    metadata = rng.choice([{"format": "pt"}, {"format": "pt", "note": "caf\u00e9 \" \\ {}"}])
    if rng.random() < 0.6:
        save_file(tensors, folder / "model.safetensors", metadata=metadata)
        return
    shards = rng.randint(1, 4)
    names = list(tensors)
    rng.shuffle(names)
    weight_map, parts = {}, []
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[len(names) * shard // shards: len(names) * (shard + 1) // shards]
        parts.append((file, {name: tensors[name] for name in part}))
        weight_map.update({name: file for name in part})
    if rng.random() < 0.3:  # the index may lack a tensor
        del weight_map[next(name for name in weight_map if list(weight_map.values()).count(weight_map[name]) > 1)]
    for file, part in parts:
        save_file(part, folder / file, metadata=metadata)
    index = {"metadata": {"total_size": 1, "total_parameters": 2}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def disguise(config, model, dtype, rng):
    """Returns config.json as some version of transformers, or a person, would have written it."""
    out = {k: v for k, v in config.to_dict().items() if k not in ("transformers_version", "dtype", "id2label", "label2id")}
    if rng.random() < 0.5:
        out = {k: v for k, v in out.items() if v is not None or k in ("eos_token_id", "sliding_window")}
    out["architectures"] = [type(model).__name__]
    key = rng.choice(["torch_dtype", "dtype", None])
    if key is not None:
        out[key] = rng.choice(["", "torch."] if key == "torch_dtype" else [""]) + str(dtype).removeprefix("torch.")
    parameters = out.get("rope_parameters")
    if parameters and rng.random() < 0.6:  # before transformers 5
        del out["rope_parameters"]
        out["rope_theta"] = parameters.pop("rope_theta")
        kind = parameters.pop("rope_type")
        out["rope_scaling"] = None if kind == "default" else {rng.choice(["type", "rope_type"]): kind, **parameters}
        if out["rope_theta"] == 10000.0 and rng.random() < 0.5:
            del out["rope_theta"]
        if out["rope_scaling"] is None and rng.random() < 0.5:
            del out["rope_scaling"]
    if rng.random() < 0.5:  # keys that old files lack, where the default says the same
        defaults = type(config)().to_dict()
        for name in ("attention_bias", "mlp_bias", "hidden_act", "tie_word_embeddings", "rms_norm_eps", "do_layer_norm_before",
                     "enable_bias", "activation_function", "layer_norm_elementwise_affine", "_remove_final_layer_norm",
                     "use_sliding_window", "sliding_window", "max_window_layers"):
            if name in out and out[name] == defaults.get(name):
                del out[name]
        if out["model_type"] == "llama" and out.get("num_key_value_heads") == out["num_attention_heads"]:
            del out["num_key_value_heads"]
        if "head_dim" in out and out["model_type"] != "qwen3" and out["head_dim"] * out["num_attention_heads"] == out["hidden_size"]:
            del out["head_dim"]
        if out.get("word_embed_proj_dim") == out["hidden_size"]:
            del out["word_embed_proj_dim"]
        out.pop("layer_types", None)
    if rng.random() < 0.2:
        del out["architectures"]
    if rng.random() < 0.3:
        out |= {"_name_or_path": "/x/y", "transformers_version": "4.31.0", "pretraining_tp": 1, "use_cache": True,
                "auto_map": {}, "custom": [1, {"a": None}]}
    return out


def expect(model, prompt, max_tokens):
    ids = list(prompt)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        prompt_logprobs = [None] + [round(logprobs[i - 1, ids[i]].item(), 6) for i in range(1, len(ids))]
        tokens, ambiguous = [], []
        for step in range(max_tokens):
            best = torch.topk(model(torch.tensor([ids])).logits[0, -1].double(), 2)
            if (best.values[0] - best.values[1]).item() < 1e-3:
                ambiguous.append(step)
            tokens.append(best.indices[0].item())
            ids.append(tokens[-1])
    return dict(prompt=list(prompt), prompt_logprobs=prompt_logprobs, tokens=tokens, ambiguous=ambiguous)


def make(folder, seed):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    vocab = rng.choice([3, 17, 31, 64, 97, 130, 257, 301])
    config = opt_config(rng, vocab) if kind == "opt" else decoder_config(kind, rng, vocab)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tensors, dtype = make_tensors(model, config, rng, generator)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors, rng)
    (folder / "config.json").write_text(json.dumps(disguise(config, model, dtype, rng), indent=1))
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                       output_loading_info=True)
    assert not info["missing_keys"], (folder, info["missing_keys"])
    model = model.eval().double()
    lengths = (1, rng.randint(2, 40), rng.randint(40, 80))
    prompts = [[int(t) for t in torch.randint(0, vocab, (n,), generator=generator)] for n in lengths]
    cases = [expect(model, prompt, 16) for prompt in prompts]
    (folder / "expected.json").write_text(json.dumps({"model": folder.name, "cases": cases}))


def main():
    root, count, first = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        make(root / f"{KINDS[seed % len(KINDS)]}-{seed}", seed)


if __name__ == "__main__":
    main()
