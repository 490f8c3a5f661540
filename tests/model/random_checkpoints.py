#!/usr/bin/env python3
"""Writes random small checkpoints in many forms, each with the results of transformers.

    random_checkpoints.py OUT [COUNT] [SEED]
    bazel-bin/tests/model/golden_cli OUT/*

Needs torch, transformers 5 and safetensors. Every folder is read back by transformers itself, so that transformers' reading of
config.json (old and new keys, defaults of missing keys) and of the weights (names, ties, shards) is what counts.
Folders of broken checkpoints have an error.txt instead: a part of the message that has to come.
"""
import json
import math
import pathlib
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoConfig, AutoModelForCausalLM, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, Glm4Config, Glm4MoeConfig,
                          Glm4MoeLiteConfig, GlmConfig, GptOssConfig, GraniteConfig, GraniteMoeHybridConfig, LlamaConfig,
                          Ministral3Config, MistralConfig, MixtralConfig, OPTConfig, Olmo2Config, Olmo3Config, Phi3Config,
                          Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["llama", "mistral", "ministral3", "qwen2", "qwen3", "opt", "smollm3", "phi3", "granite", "granitehybrid", "olmo2",
         "olmo3", "gemma2", "gemma3", "glm", "glm4", "qwen3moe", "qwen2moe", "mixtral", "glm4moe", "deepseek", "glm4moelite",
         "gptoss"]
OWN_HEAD_DIM = ("qwen3", "ministral3", "gemma2", "gemma3_text", "glm", "glm4", "qwen3_moe", "glm4_moe", "gpt_oss")  # the class has a default of its own


def heads(rng):
    """(query heads, KV heads): one KV head, as many as heads, and numbers in between."""
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
    """A window that some prompts are longer than; the layers with a window follow the family's rule, or a list."""
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
    """For classes that define no head_dim."""
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


def experts(rng, name="num_experts"):
    count = rng.choice([2, 3, 4, 5, 8])
    return {name: count, "num_experts_per_tok": rng.randint(1, min(count, 4)), "moe_intermediate_size": rng.randint(3, 40)}


def qwen3_moe(common, rng, layers):
    return Qwen3MoeConfig(**common, **experts(rng), norm_topk_prob=rng.random() < 0.5, attention_bias=rng.random() < 0.3,
                          decoder_sparse_step=rng.choice([1, 1, 2]), mlp_only_layers=rng.choice([[], [layers - 1]]))


def qwen2_moe(common, rng, _):
    return Qwen2MoeConfig(**headless(common), **experts(rng), norm_topk_prob=rng.random() < 0.5,
                          shared_expert_intermediate_size=rng.randint(3, 40))


def mixtral(common, rng, _):
    sizes = experts(rng, "num_local_experts")
    del sizes["moe_intermediate_size"]
    return MixtralConfig(**common | sizes | {"sliding_window": rng.choice([None, 5])})


def routed(rng):
    """A sigmoid router's settings: groups of equal sizes, of which the best stay."""
    groups = rng.choice([1, 1, 2])
    count, kept = groups * rng.choice([2, 3, 4]), rng.randint(1, groups)
    return {"n_routed_experts": count, "n_group": groups, "topk_group": kept,
            "num_experts_per_tok": rng.randint(1, min(4, count // groups * kept)), "n_shared_experts": rng.choice([1, 2]),
            "moe_intermediate_size": rng.randint(3, 40), "norm_topk_prob": rng.random() < 0.7,
            "routed_scaling_factor": rng.choice([1.0, 1.8])}


def glm4_moe(common, rng, layers):
    return Glm4MoeConfig(**glm(common) | routed(rng) | {
        "attention_bias": rng.random() < 0.5, "use_qk_norm": rng.random() < 0.5, "first_k_dense_replace": rng.randint(0, layers)})


def latent(common, rng, q_ranks):
    return {k: v for k, v in common.items() if k not in ("head_dim", "num_key_value_heads")} | {
        "num_key_value_heads": common["num_attention_heads"], "q_lora_rank": rng.choice(q_ranks), "kv_lora_rank": rng.choice([6, 12, 32]),
        "qk_rope_head_dim": rng.choice([2, 4, 8]), "qk_nope_head_dim": rng.choice([2, 6, 16]), "v_head_dim": rng.choice([3, 8, 20]),
        "rope_parameters": rope(rng, ("default", "yarn"))}


def deepseek(common, rng, layers):
    config = latent(common, rng, (None, 8, 20)) | routed(rng) | {"first_k_dense_replace": rng.randint(0, layers)}
    if config["rope_parameters"]["rope_type"] == "yarn" and rng.random() < 0.5:
        config["rope_parameters"] |= {"mscale": rng.choice([0.7, 1.0]), "mscale_all_dim": rng.choice([0.5, 1.0])}
    return DeepseekV3Config(**config, attention_bias=rng.random() < 0.3)


def glm4_moe_lite(common, rng, layers):
    return Glm4MoeLiteConfig(**latent(common, rng, (8, 20)) | routed(rng) | {
        "mlp_layer_types": [rng.choice(["dense", "sparse"]) for _ in range(layers)]})


def gpt_oss(common, rng, layers):
    sizes = experts(rng, "num_local_experts")
    del sizes["moe_intermediate_size"]
    return GptOssConfig(**common | window(rng, layers) | sizes | {
        "rope_parameters": rope(rng, ("default", "yarn")), "tie_word_embeddings": False})


NEWER = {
    "qwen3moe": qwen3_moe, "qwen2moe": qwen2_moe, "mixtral": mixtral, "glm4moe": glm4_moe, "deepseek": deepseek,
    "glm4moelite": glm4_moe_lite, "gptoss": gpt_oss,
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
    if name.endswith("sinks"):
        return 1.5 * noise
    return noise * 1.3 / math.sqrt(tensor.shape[-1])


def hub_names(model, tensors):
    """The tensors as save_pretrained writes them: in the hub's form, with the experts apart."""
    model.load_state_dict({name: value.double() for name, value in tensors.items()}, strict=False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {name: value.contiguous() for name, value in load_file(f"{folder}/model.safetensors").items()}


def make_tensors(model, config, rng, generator):
    mixed = rng.random() < 0.3
    dtype = rng.choice(DTYPES)
    tensors = {}
    for name, value in model.state_dict().items():
        tensors[name] = draw(name, value, generator).to(rng.choice(DTYPES) if mixed else dtype).contiguous()
    if any("experts" in name for name in tensors) and config.model_type != "gpt_oss" and rng.random() < 0.7:
        stored = hub_names(model, tensors)
        tensors = {name: value.to(torch.float32 if mixed else dtype) for name, value in stored.items()}
    embedding = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    if config.tie_word_embeddings:
        how = rng.choice(["absent", "absent", "same", "other"])
        if how == "absent":
            tensors.pop("lm_head.weight", None)
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
    """Returns config.json as some version of transformers, or a person, would have written the file."""
    out = {k: v for k, v in config.to_dict().items() if k not in ("transformers_version", "dtype", "id2label", "label2id")}
    if rng.random() < 0.5:
        out = {k: v for k, v in out.items() if v is not None or k in ("eos_token_id", "pad_token_id", "sliding_window", "q_lora_rank")}
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
        only_full = set(out.get("layer_types") or ()) <= {"full_attention"}
        if only_full and not out.get("sliding_window") and out["model_type"] != "granitemoehybrid":
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
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    tensors, dtype = make_tensors(model, config, rng, generator)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors, rng)
    disguised = disguise(config, model, dtype, rng)
    # transformers 5.23 reads no "torch.float16", which older releases wrote.
    readable = {k: v.removeprefix("torch.") if k == "torch_dtype" else v for k, v in disguised.items()}
    (folder / "config.json").write_text(json.dumps(readable, indent=1))
    config = AutoConfig.from_pretrained(folder)
    if "short_factor" in (getattr(config, "rope_parameters", None) or {}):  # a server whose context is longer takes the long factors from the start
        config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]
    model, info = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64, attn_implementation="eager",
                                                       experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"], (folder, info["missing_keys"])
    model = model.eval().double()
    lengths = (1, rng.randint(2, 40), rng.randint(40, 80))
    prompts = [[int(t) for t in torch.randint(0, vocab, (n,), generator=generator)] for n in lengths]
    cases = [expect(model, prompt, 16) for prompt in prompts]
    (folder / "expected.json").write_text(json.dumps({"model": folder.name, "cases": cases}))
    (folder / "config.json").write_text(json.dumps(disguised, indent=1))


def main():
    root, count, first = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        make(root / f"{KINDS[seed % len(KINDS)]}-{seed}", seed)


if __name__ == "__main__":
    main()
