#!/usr/bin/env python3
"""Writes tests/data/variants: small random checkpoints whose shapes real ones rarely have, with what transformers computes.

Needs torch, transformers, safetensors and numpy:  make_tiny_variants.py [output folder [variant ...]]
The files are committed; run it again only to add a variant, and name the new one, because another release of transformers
writes other keys. Weights are scaled by role so that nothing has a default
value (a part left out or applied twice shows at once); expected.json is computed from the stored weights in float64,
in the format that tests/data/tiny/README.md describes (fewer fields).
"""
import json
import math
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, Glm4Config, Glm4MoeConfig,
                          Glm4MoeLiteConfig, GlmConfig, GptOssConfig, GraniteConfig, GraniteMoeHybridConfig, LlamaConfig,
                          Ministral3Config, MistralConfig, MixtralConfig, OPTConfig, Olmo2Config, Olmo3Config, Phi3Config,
                          Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

VOCAB = 130  # no multiple of any block size of the kernels
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=None)

GPT_OSS = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=8, num_local_experts=5, num_experts_per_tok=2,
               sliding_window=20,
               rope_parameters={"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                "truncate": False, "original_max_position_embeddings": 32},
               tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON)

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
    # A window on all layers, and head_dim that is not hidden / heads.
    "mistral-window": dict(
        config=MistralConfig(hidden_size=40, intermediate_size=50, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
                             sliding_window=16, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                             rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON), dtype=torch.float32),
    # A window on the second layer alone, by use_sliding_window.
    "qwen2-window": dict(
        config=Qwen2Config(hidden_size=36, intermediate_size=40, num_attention_heads=6, num_key_value_heads=2,
                           use_sliding_window=True, sliding_window=20, max_window_layers=1, tie_word_embeddings=True,
                           max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON), dtype=torch.float32),
    # Fused matrices, a rotation of six of eight dimensions, and LongRoPE. A server has one list of factors for all lengths,
    # the long one here; transformers changes lists at 32 tokens.
    "phi3-longrope": dict(
        config=Phi3Config(hidden_size=48, intermediate_size=50, num_attention_heads=6, num_key_value_heads=3,
                          max_position_embeddings=128, original_max_position_embeddings=32, rms_norm_eps=1e-5,
                          rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                                           "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.5, 4.0]},
                          tie_word_embeddings=False, **COMMON), dtype=torch.float32, short_is_long=True),
    # Phi-4's shape: the whole head rotates; a window; tied.
    "phi3-window": dict(
        config=Phi3Config(hidden_size=42, intermediate_size=37, num_attention_heads=7, num_key_value_heads=1, sliding_window=24,
                          max_position_embeddings=128, original_max_position_embeddings=128, rms_norm_eps=1e-5,
                          tie_word_embeddings=True, **COMMON), dtype=torch.bfloat16),
    # Four factors.
    "granite": dict(
        config=GraniteConfig(hidden_size=40, intermediate_size=52, num_attention_heads=5, num_key_value_heads=5,
                             embedding_multiplier=6.0, logits_scaling=0.7, residual_multiplier=0.4, attention_multiplier=0.22,
                             tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON),
        dtype=torch.float32),
    # Granite 4 micro's class: a fused MLP of another name, and no rotary embedding.
    "granite-hybrid": dict(
        config=GraniteMoeHybridConfig(hidden_size=32, intermediate_size=8, shared_intermediate_size=44, num_attention_heads=4,
                                      num_key_value_heads=2, embedding_multiplier=3.0, logits_scaling=0.8,
                                      residual_multiplier=0.5, attention_multiplier=0.3, layer_types=["attention"] * 2,
                                      num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=8,
                                      tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON),
        dtype=torch.float32),
    # The second layer without rotary embedding, and with a window.
    "smollm3": dict(
        config=SmolLM3Config(hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2,
                             no_rope_layer_interval=2, use_sliding_window=True, sliding_window=16, tie_word_embeddings=True,
                             max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON), dtype=torch.float32),
    # Norms after the blocks, and over all heads, of which three and four ranks share some.
    "olmo2": dict(
        config=Olmo2Config(hidden_size=36, intermediate_size=44, num_attention_heads=6, num_key_value_heads=2,
                           tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON),
        dtype=torch.float32),
    # The same with windows on three layers of four, and YaRN on the fourth.
    "olmo3": dict(
        config=Olmo3Config(hidden_size=28, intermediate_size=24, num_attention_heads=7, num_key_value_heads=7, sliding_window=16,
                           rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                                                               "original_max_position_embeddings": 32},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}},
                           tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                           **(COMMON | dict(num_hidden_layers=4))), dtype=torch.float32),
    # Norms before and after, biases of q, k, v; neighbours rotate in the first half of each head.
    "glm4": dict(
        config=Glm4Config(hidden_size=36, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=12,
                          attention_bias=True, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                          **COMMON), dtype=torch.float32),
    "glm": dict(
        config=GlmConfig(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                         attention_bias=True, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                         **COMMON), dtype=torch.bfloat16),
    # Caps so low that they bend most scores and logits.
    "gemma2": dict(
        config=Gemma2Config(hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
                            query_pre_attn_scalar=6, sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=5.0,
                            tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32),
    # Two rotary embeddings.
    "gemma3": dict(
        config=Gemma3TextConfig(hidden_size=36, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
                                query_pre_attn_scalar=9, sliding_window=16,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5},
                                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}},
                                tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6,
                                **(COMMON | dict(num_hidden_layers=3))), dtype=torch.float32),
    # The text part of a multimodal model, as before transformers 5: other keys, and other names of tensors.
    "gemma3-wrapped": dict(
        config=Gemma3TextConfig(hidden_size=16, intermediate_size=24, num_attention_heads=8, num_key_value_heads=4, head_dim=4,
                                query_pre_attn_scalar=4, sliding_window=20, sliding_window_pattern=2,
                                rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                                                 "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}},
                                tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.bfloat16, wrapper="gemma3"),
    # YaRN, and queries that are scaled by their position.
    "ministral3": dict(
        config=Ministral3Config(hidden_size=36, intermediate_size=40, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
                                rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "beta_fast": 32.0,
                                                 "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                 "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3},
                                tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON),
        dtype=torch.float32, wrapper="mistral3"),
    # Seven experts, narrow and uneven over ranks, on the first and the last layer.
    "qwen3-moe": dict(
        config=Qwen3MoeConfig(hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
                              num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True,
                              mlp_only_layers=[1], tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-6,
                              **(COMMON | dict(num_hidden_layers=3))), dtype=torch.float32, hub_names=True,
        seed=2014),  # no two experts are so near that float16 would choose another
    # A shared expert with a gate; the weights of the chosen experts do not add up to 1; the first layer is dense.
    "qwen2-moe": dict(
        config=Qwen2MoeConfig(hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                              num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=28,
                              norm_topk_prob=False, decoder_sparse_step=2, tie_word_embeddings=True, max_position_embeddings=128,
                              rms_norm_eps=1e-6, **COMMON), dtype=torch.float32, hub_names=True),
    "mixtral": dict(
        config=MixtralConfig(hidden_size=32, intermediate_size=22, num_attention_heads=4, num_key_value_heads=2,
                             num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, max_position_embeddings=128,
                             rms_norm_eps=1e-5, **COMMON), dtype=torch.float16, hub_names=True),
    # Sigmoids with a correction of the choice, groups, two shared experts, a dense first layer.
    "glm4-moe": dict(
        config=Glm4MoeConfig(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                             n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2,
                             n_group=4, topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=1, use_qk_norm=True,
                             attention_bias=True, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                             **(COMMON | dict(num_hidden_layers=3))), dtype=torch.float32, hub_names=True),
    # Four layers, as GGUF's reader counts: the fourth without rotary embedding.
    "smollm3-four": dict(
        config=SmolLM3Config(hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2,
                             use_sliding_window=False, tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6,
                             **COMMON | {"num_hidden_layers": 4}), dtype=torch.float32),
    # Latent attention with a rank of queries, YaRN whose scale of attention counts twice, biases, and five heads, which no
    # group of 2 to 4 ranks divides evenly. No layer has experts.
    "deepseek-latent": dict(
        config=DeepseekV3Config(hidden_size=36, intermediate_size=40, num_attention_heads=5, num_key_value_heads=5,
                                q_lora_rank=20, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=10, v_head_dim=12,
                                n_routed_experts=4,
                                num_experts_per_tok=2, moe_intermediate_size=16, n_group=1, topk_group=1, first_k_dense_replace=2,
                                rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0,
                                                 "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                 "original_max_position_embeddings": 16},
                                attention_bias=True, tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-5,
                                **COMMON), dtype=torch.float32),
    # Latent attention whose queries are one product, and whose halves rotate together; two shards in bf16.
    "deepseek-latent-halves": dict(
        config=DeepseekV3Config(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=4,
                                q_lora_rank=None, kv_lora_rank=40, qk_rope_head_dim=12, qk_nope_head_dim=16, v_head_dim=20,
                                n_routed_experts=4,
                                num_experts_per_tok=2, moe_intermediate_size=16, n_group=1, topk_group=1, first_k_dense_replace=2,
                                rope_parameters={"rope_type": "default", "rope_theta": 5e3}, rope_interleave=False,
                                tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.bfloat16, shards=2),
    # Latent attention, and experts in groups behind a dense layer.
    "deepseek-v3": dict(
        config=DeepseekV3Config(hidden_size=36, intermediate_size=40, num_attention_heads=5, num_key_value_heads=5,
                                q_lora_rank=20, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=10, v_head_dim=12,
                                n_routed_experts=8,
                                num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2, n_group=4, topk_group=2,
                                first_k_dense_replace=1, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
                                tie_word_embeddings=False, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32, hub_names=True),
    "glm4-moe-lite": dict(
        config=Glm4MoeLiteConfig(hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=4,
                                 q_lora_rank=16, kv_lora_rank=20, qk_rope_head_dim=4, qk_nope_head_dim=12, v_head_dim=10,
                                 n_routed_experts=6,
                                 num_experts_per_tok=2, moe_intermediate_size=18, mlp_layer_types=["sparse", "dense"],
                                 rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=False,
                                 max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON), dtype=torch.float32, hub_names=True),
    # The names and forms of transformers 5's own modules, which save_original_format=False leaves: other parts of names, and
    # all experts of a layer in one tensor.
    "mixtral-modules": dict(
        config=MixtralConfig(hidden_size=16, intermediate_size=14, num_attention_heads=2, num_key_value_heads=1,
                             num_local_experts=3, num_experts_per_tok=2, tie_word_embeddings=True, max_position_embeddings=128,
                             rms_norm_eps=1e-5, **COMMON), dtype=torch.float32, hub_names=False),
    "qwen2-moe-modules": dict(
        config=Qwen2MoeConfig(hidden_size=16, intermediate_size=20, num_attention_heads=2, num_key_value_heads=2,
                              num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10, shared_expert_intermediate_size=12,
                              norm_topk_prob=False, tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6,
                              **COMMON), dtype=torch.bfloat16, hub_names=False),
    "deepseek-v3-modules": dict(
        config=DeepseekV3Config(hidden_size=16, intermediate_size=20, num_attention_heads=2, num_key_value_heads=2,
                                q_lora_rank=12, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=8,
                                n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=10, n_shared_experts=1, n_group=2,
                                topk_group=1, first_k_dense_replace=1, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
                                tie_word_embeddings=True, max_position_embeddings=128, rms_norm_eps=1e-6, **COMMON),
        dtype=torch.float32, hub_names=False),
    # Sinks, biases everywhere, a window on every other layer, YaRN with bounds that are not rounded, and experts whose gate
    # and up alternate in one tensor.
    "gpt-oss": dict(
        config=GptOssConfig(hidden_size=36, intermediate_size=20, **GPT_OSS), dtype=torch.float32),
    # The same with experts of MXFP4, which are clamped often.
    "gpt-oss-mxfp4": dict(
        config=GptOssConfig(hidden_size=32, intermediate_size=64, swiglu_limit=1.5, **GPT_OSS), dtype=torch.bfloat16,
        mxfp4=True),
    # GLM-4.7-Flash with the keys and the order of layers that the hub's file and its GGUF files have: a dense layer first.
    "glm4-moe-flash": dict(
        config=Glm4MoeLiteConfig(hidden_size=24, intermediate_size=28, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=12,
                                 kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6, n_routed_experts=5,
                                 num_experts_per_tok=2, moe_intermediate_size=14, mlp_layer_types=["dense", "sparse"],
                                 rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=False,
                                 max_position_embeddings=128, rms_norm_eps=1e-5, **COMMON), dtype=torch.float16, hub_names=True,
        keys={"first_k_dense_replace": 1, "mlp_layer_types": None}),
    # MXFP4 with the limit that GGUF files of GPT-OSS do not name.
    "gpt-oss-mxfp4-seven": dict(
        config=GptOssConfig(hidden_size=32, intermediate_size=32, **GPT_OSS), dtype=torch.bfloat16, mxfp4=True, seed=7),
}


def draw(name, tensor, generator, norm_mean=1):
    """A seeded normal tensor, scaled by the role that its name tells."""
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    if "norm" in name and name.endswith("weight"):
        return norm_mean + 0.25 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    if "embed_tokens" in name or "lm_head" in name:
        return noise * 3 / math.sqrt(tensor.shape[1])
    if "embed_positions" in name:
        return 0.3 * noise
    if name.endswith("sinks"):
        return 1.5 * noise
    return noise * 1.3 / math.sqrt(tensor.shape[-1])


def saved_tensors(model, dtype, original):
    """The model's tensors as save_pretrained writes them: in the hub's form, with the experts apart, or by the names of its modules."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=original)
        return {name: value.to(dtype).contiguous() for name, value in sorted(load_file(f"{folder}/model.safetensors").items())}


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


FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def to_mxfp4(tensors):
    """Rounds the experts' matrices [E, in, out] to MXFP4; the tensors that GPT-OSS's files have in their place."""
    stored = dict(tensors)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        weights = tensors[name].double().transpose(1, 2)
        blocks = weights.reshape(*weights.shape[:2], -1, 32)
        exponents = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
        scales = torch.pow(2.0, exponents)[..., None]
        codes = (blocks[..., None] / scales[..., None] - FP4).abs().argmin(-1)
        tensors[name] = (FP4[codes] * scales).reshape(weights.shape).transpose(1, 2).to(tensors[name].dtype).contiguous()
        del stored[name]
        stored[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8).contiguous()
        stored[name + "_scales"] = (exponents + 127).to(torch.uint8).contiguous()
    return stored


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


def old_gemma3_keys(config):
    """The configuration of a Gemma 3 as releases before transformers 5 wrote it."""
    ropes = config.pop("rope_parameters")
    full = ropes["full_attention"]
    config |= {"rope_theta": full["rope_theta"], "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
               "rope_scaling": {"rope_type": full["rope_type"], "factor": full["factor"]}, "sliding_window_pattern": 2}
    for name in ("layer_types", "_sliding_window_pattern", "num_attention_heads", "num_key_value_heads"):
        config.pop(name, None)  # 8 and 4 are the class's defaults
    return config


def wrap(kind, config, tensors):
    """Configuration and tensors of a multimodal model around the text part."""
    class_name = {"gemma3": "Gemma3", "mistral3": "Mistral3"}[kind] + "ForConditionalGeneration"
    text = {k: v for k, v in config.items() if k not in ("architectures", "torch_dtype")}
    whole = {"architectures": [class_name], "model_type": kind, "torch_dtype": config["torch_dtype"], "vision_config": {"hidden_size": 8}}
    tower = {"vision_tower.encoder.layers.0.self_attn.q_proj.weight": torch.zeros(8, 8), "multi_modal_projector.norm.weight": torch.ones(8)}
    if kind == "gemma3":
        text = old_gemma3_keys(text)
        text.pop("tie_word_embeddings", None)
        renamed = {f"language_model.{name}": value for name, value in tensors.items()}
    else:
        renamed = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
        tower = {f"model.{name}": value for name, value in tower.items()}
    return whole | {"text_config": text}, renamed | tower


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "variants")
    wanted = sys.argv[2:] or list(VARIANTS)
    for seed, (name, variant) in enumerate(VARIANTS.items()):
        if name not in wanted:
            continue
        generator = torch.Generator().manual_seed(variant.get("seed", 1000 + seed))
        source = variant["config"]
        saved = source.to_dict()
        if variant.get("short_is_long"):
            source.rope_parameters["short_factor"] = source.rope_parameters["long_factor"]
        model = AutoModelForCausalLM.from_config(source, attn_implementation="eager",
                                                 experts_implementation="eager").eval().double()
        norm_mean = 0 if source.model_type.startswith("gemma") else 1
        tensors = {}
        for key, value in model.state_dict().items():
            if key == "lm_head.weight" and source.tie_word_embeddings:
                continue
            tensors[key] = draw(key, value, generator, norm_mean).to(variant["dtype"]).contiguous()
        mxfp4 = to_mxfp4(tensors) if "mxfp4" in variant else None
        model.load_state_dict({k: v.double() for k, v in tensors.items()}, strict=False)
        model.tie_weights()
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        config = {k: v for k, v in saved.items() if (v is not None or k == "q_lora_rank") and k != "transformers_version"}
        config["architectures"] = [type(model).__name__]
        config["torch_dtype"] = str(variant["dtype"]).removeprefix("torch.")
        config.pop("dtype", None)
        stored = mxfp4 or tensors
        if "hub_names" in variant:
            stored = saved_tensors(model, variant["dtype"], original=variant["hub_names"])
        if mxfp4:
            config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
        config |= variant.get("keys", {})
        if "wrapper" in variant:
            config, stored = wrap(variant["wrapper"], config, tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        write_tensors(folder, stored, variant.get("shards", 1))
        prompts = [[int(t) for t in torch.randint(3, VOCAB, (n,), generator=generator)] for n in (1, 17, 70)]
        cases = [expect(model, prompt, 16) for prompt in prompts]
        (folder / "expected.json").write_text(json.dumps({"model": name, "cases": cases}) + "\n")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
