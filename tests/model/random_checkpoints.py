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
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, Glm4Config, GlmConfig, GraniteConfig,
                          GraniteMoeHybridConfig, LlamaConfig, Ministral3Config, MistralConfig, OPTConfig, Olmo2Config,
                          Olmo3Config, Phi3Config, Qwen2Config, Qwen3Config, SmolLM3Config)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["llama", "mistral", "ministral3", "qwen2", "qwen3", "opt", "smollm3", "phi3", "granite", "granitehybrid", "olmo2",
         "olmo3", "gemma2", "gemma3", "glm", "glm4"]
OWN_HEAD_DIM = ("qwen3", "ministral3", "gemma2", "gemma3_text", "glm", "glm4")  # the class has a default of its own


def heads(rng):
    """(query heads, KV heads): one KV head, as many as heads, and what lies between."""
    kv = rng.choice([1, 1, 2, 3, 4, 5])
    return kv * rng.choice([1, 1, 2, 3, 7]), kv


def rope(rng, kinds=("default", "default", "linear", "llama3", "dynamic", "yarn")):
    theta = rng.choice([10000.0, 500.0, 1e6, 12345.5])
    kind = rng.choice(kinds)
    out = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        out["factor"] = rng.choice([2.0, 4.0, 8.0, 1.7])
    if kind == "llama3":
        out |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([4.0, 2.5]),
                "original_max_position_embeddings": rng.choice([16, 32, 64])}
    if kind == "yarn":
        out |= {"original_max_position_embeddings": rng.choice([16, 32, 64])}
        if rng.random() < 0.5:
            out |= {"beta_fast": rng.choice([8.0, 32.0]), "beta_slow": 1.0, "truncate": rng.random() < 0.5}
    return out


def longrope(rng, pairs):
    return {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1 + 0.1 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.3 * rng.random() * i for i in range(pairs)]}


def window(rng, layers):
    """A window that some prompts are longer than; which layers have it: by the family's rule, or by a list."""
    out = {"sliding_window": rng.choice([1, 5, 16, 33])}
    if rng.random() < 0.5:
        out["layer_types"] = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
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
    layers = common["num_hidden_layers"]
    if kind == "llama":
        return LlamaConfig(attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5, **common)
    if kind == "mistral":
        return MistralConfig(**common | {"sliding_window": rng.choice([None, 1, 5, 16, 4096])})
    if kind in ("qwen2", "qwen3"):
        windows = dict(use_sliding_window=rng.random() < 0.5, sliding_window=rng.choice([5, 16]), max_window_layers=rng.choice([0, 1]))
        if not windows["use_sliding_window"]:
            windows = windows | dict(sliding_window=rng.choice([None, 8]), max_window_layers=rng.choice([0, 28]))
        if kind == "qwen2":
            return Qwen2Config(**common, **windows)
        return Qwen3Config(attention_bias=rng.random() < 0.5, **common, **windows)
    return NEWER[kind](common, rng, layers)


def phi3(common, rng, layers):
    partial = rng.choice([1.0, 0.5]) if common["head_dim"] % 4 == 0 else 1.0
    pairs = int(common["head_dim"] * partial) // 2
    parameters = longrope(rng, pairs) if rng.random() < 0.6 else rope(rng, ("default",))
    return Phi3Config(**headless(common) | {
        "rope_parameters": parameters | {"partial_rotary_factor": partial}, "pad_token_id": None,
        "original_max_position_embeddings": 32, "sliding_window": rng.choice([None, 16])})


def headless(common):
    """For classes without a head_dim of their own."""
    return {k: v for k, v in common.items() if k != "head_dim"} | {"hidden_size": common["head_dim"] * common["num_attention_heads"]}


def granite(common, rng):
    return common | dict(embedding_multiplier=rng.choice([1.0, 12.0]), logits_scaling=rng.choice([1.0, 8.0]),
                         residual_multiplier=rng.choice([1.0, 0.22]), attention_multiplier=rng.choice([1.0, 0.0625]))


def granite_hybrid(common, rng, layers):
    return GraniteMoeHybridConfig(**granite(headless(common), rng) | {
        "layer_types": ["attention"] * layers, "num_local_experts": 0, "shared_intermediate_size": common["intermediate_size"],
        "position_embedding_type": rng.choice(["rope", "nope"]), "mamba_n_heads": common["num_attention_heads"]})


def gemma(common, rng):
    return common | {"query_pre_attn_scalar": rng.choice([24, 256]), "hidden_activation": "gelu_pytorch_tanh"}


def two_ropes(rng):
    return {"full_attention": rope(rng, ("default", "linear", "yarn")), "sliding_attention": rope(rng, ("default",))}


def glm(common):
    head_dim = max(4, common["head_dim"] // 4 * 4)
    return common | {"head_dim": head_dim, "attention_bias": True, "pad_token_id": None,
                     "rope_parameters": common["rope_parameters"] | {"partial_rotary_factor": 0.5}}


def ministral3(common, rng, _):
    parameters = rope(rng, ("yarn",)) | {"llama_4_scaling_beta": rng.choice([0.1, 0.5]), "mscale": 1.0, "mscale_all_dim": 1.0}
    return Ministral3Config(**common | {"rope_parameters": parameters, "sliding_window": None})


NEWER = {
    "ministral3": ministral3,
    "smollm3": lambda common, rng, layers: SmolLM3Config(
        **common, no_rope_layers=[rng.choice([0, 1]) for _ in range(layers)], use_sliding_window=False),
    "phi3": phi3,
    "granite": lambda common, rng, _: GraniteConfig(
        attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5, **granite(headless(common), rng)),
    "granitehybrid": granite_hybrid,
    "olmo2": lambda common, rng, _: Olmo2Config(attention_bias=rng.random() < 0.3, **headless(common)),
    "olmo3": lambda common, rng, layers: Olmo3Config(
        **headless(common) | window(rng, layers) | {"rope_parameters": rope(rng, ("default", "yarn"))}),
    "gemma2": lambda common, rng, layers: Gemma2Config(**gemma(common, rng) | window(rng, layers) | {
        "attn_logit_softcapping": rng.choice([None, 5.0]), "final_logit_softcapping": rng.choice([None, 7.0])}),
    "gemma3": lambda common, rng, layers: Gemma3TextConfig(**gemma(common, rng) | window(rng, layers) | {
        "rope_parameters": two_ropes(rng)}),
    "glm": lambda common, rng, _: GlmConfig(**glm(common)),
    "glm4": lambda common, rng, _: Glm4Config(**glm(common)),
}


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
    layered = bool(parameters) and "full_attention" in parameters
    if layered and out["model_type"] == "gemma3_text" and rng.random() < 0.6:
        full, local = parameters["full_attention"], parameters["sliding_attention"]
        del out["rope_parameters"]
        out |= {"rope_theta": full.pop("rope_theta"), "rope_local_base_freq": local["rope_theta"],
                "rope_scaling": full if full["rope_type"] != "default" else None}
    elif parameters and not layered and rng.random() < 0.6:  # before transformers 5
        del out["rope_parameters"]
        out["rope_theta"] = parameters.pop("rope_theta")
        kind = parameters.pop("rope_type")
        if "partial_rotary_factor" in parameters:
            out["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
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
        if "head_dim" in out and out["model_type"] not in OWN_HEAD_DIM and out["head_dim"] * out["num_attention_heads"] == out["hidden_size"]:
            del out["head_dim"]
        if out.get("word_embed_proj_dim") == out["hidden_size"]:
            del out["word_embed_proj_dim"]
        if set(out.get("layer_types") or ()) <= {"full_attention"} and not out.get("sliding_window"):
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
