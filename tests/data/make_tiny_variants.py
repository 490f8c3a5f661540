#!/usr/bin/env python3
"""Writes tests/data/variants: small random checkpoints whose shapes real ones rarely have, with what transformers computes.

Needs torch, transformers, safetensors and numpy:  make_tiny_variants.py [output folder]
The files are committed; run it again only to add a variant. Weights are scaled by role so that nothing has a default
value (a part left out or applied twice shows at once); expected.json is computed from the stored weights in float64,
in the format that tests/data/tiny/README.md describes (fewer fields).
"""
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig, Qwen2Config, Qwen3Config

VOCAB = 130  # no multiple of any block size of the kernels
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=None)

VARIANTS = {
    # One KV head, head_dim that is not hidden / heads, biases everywhere, three files.
    "llama-mqa-bias": dict(
        config=LlamaConfig(hidden_size=32, intermediate_size=50, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
                           attention_bias=True, mlp_bias=True, tie_word_embeddings=False, max_position_embeddings=128,
                           rms_norm_eps=1e-5, **COMMON), dtype=torch.float32, shards=3),
    # Seven heads, which no group of 2 to 6 ranks divides evenly; rope "linear"; tied embeddings.
    "llama-seven": dict(
        config=LlamaConfig(hidden_size=42, intermediate_size=53, num_attention_heads=7, num_key_value_heads=7, head_dim=6,
                           rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}, tie_word_embeddings=True,
                           max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON), dtype=torch.float32),
    # Seven query heads on one KV head, q/k/v biases, untied.
    "qwen2-seven": dict(
        config=Qwen2Config(hidden_size=42, intermediate_size=40, num_attention_heads=7, num_key_value_heads=1,
                           tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32),
    # QK-norm, untied head, biases on all four projections, two shards in bf16.
    "qwen3-untied": dict(
        config=Qwen3Config(hidden_size=48, intermediate_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
                           attention_bias=True, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-6,
                           **COMMON), dtype=torch.bfloat16, shards=2),
    # OPT-350m's shape: norms after the blocks, a narrow embedding with projections, no final norm.
    "opt-postnorm": dict(
        config=OPTConfig(hidden_size=32, ffn_dim=44, num_attention_heads=4, word_embed_proj_dim=20, do_layer_norm_before=False,
                         max_position_embeddings=100, vocab_size=VOCAB, num_hidden_layers=2, bos_token_id=1, eos_token_id=2,
                         pad_token_id=0), dtype=torch.float32),
    # Rope "yarn" as in most files: a factor over the original context, and defaults for the rest.
    "llama-yarn": dict(
        config=LlamaConfig(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                           rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                                            "original_max_position_embeddings": 32},
                           tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32),
    # The further fields of "yarn": the two mscales, betas, and pairs' numbers that are not rounded.
    "qwen3-yarn-mscale": dict(
        config=Qwen3Config(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
                           rope_parameters={"rope_type": "yarn", "factor": 8.0, "rope_theta": 5000.0, "beta_fast": 8.0,
                                            "beta_slow": 0.5, "mscale": 1.3, "mscale_all_dim": 0.6, "truncate": False,
                                            "original_max_position_embeddings": 16},
                           tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32),
    # A given scale of attention.
    "qwen2-yarn-factor": dict(
        config=Qwen2Config(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                           rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "attention_factor": 0.8,
                                            "original_max_position_embeddings": 32},
                           tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32),
}


def draw(name, tensor, generator):
    """A seeded normal tensor, scaled by the role that its name tells."""
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


def write_tensors(folder, tensors, shards):
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[len(names) * shard // shards: len(names) * (shard + 1) // shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def expect(model, prompt, max_tokens):
    ids = list(prompt)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        prompt_logprobs = [None] + [round(logprobs[i - 1, ids[i]].item(), 6) for i in range(1, len(ids))]
        tokens, ambiguous = [], []
        for step in range(max_tokens):
            logits = model(torch.tensor([ids])).logits[0, -1].double()
            best = torch.topk(logits, 2)
            if (best.values[0] - best.values[1]).item() < 1e-3:
                ambiguous.append(step)
            tokens.append(best.indices[0].item())
            ids.append(tokens[-1])
    return dict(prompt=list(prompt), prompt_logprobs=prompt_logprobs, tokens=tokens, ambiguous=ambiguous)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "variants")
    for seed, (name, variant) in enumerate(VARIANTS.items()):
        generator = torch.Generator().manual_seed(1000 + seed)
        model = AutoModelForCausalLM.from_config(variant["config"], attn_implementation="eager").eval().double()
        tied = variant["config"].tie_word_embeddings
        tensors = {}
        for key, value in model.state_dict().items():
            if key == "lm_head.weight" and tied:
                continue
            tensors[key] = draw(key, value, generator).to(variant["dtype"]).contiguous()
        model.load_state_dict({k: v.double() for k, v in tensors.items()}, strict=False)
        model.tie_weights()
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        config = {k: v for k, v in variant["config"].to_dict().items() if v is not None and k != "transformers_version"}
        config["architectures"] = [type(model).__name__]
        config["torch_dtype"] = str(variant["dtype"]).removeprefix("torch.")
        config.pop("dtype", None)
        (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        write_tensors(folder, tensors, variant.get("shards", 1))
        prompts = [[int(t) for t in torch.randint(3, VOCAB, (n,), generator=generator)] for n in (1, 17, 70)]
        cases = [expect(model, prompt, 16) for prompt in prompts]
        (folder / "expected.json").write_text(json.dumps({"model": name, "cases": cases}) + "\n")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
