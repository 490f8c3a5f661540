#!/usr/bin/env python3
"""Makes tests/data/gguf_variants: tiny checkpoints of tests/data/variants as llama.cpp's converter writes them.

Needs: pip install gguf numpy.  Usage: make_gguf_variants.py [variant ...] (writes beside itself; the same bytes every time)
Names of tensors and keys, the order of q's and k's rows, and norms of 1 + w are llama.cpp's (convert_hf_to_gguf.py). Two keys
are written that its converter leaves out, because the tiny models differ there from what llama.cpp assumes: Gemma's
attention.scale, and Gemma 3's attention.sliding_window_pattern.
"""
import json
import pathlib
import re
import shutil
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "gguf_variants"
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
SHARED = {f"mlp.shared_expert{s}.{n}_proj": f"ffn_{n}_shexp" for s in ("", "s") for n in ("gate", "up", "down")}
NAMES |= {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
          "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
          "self_attn.k_b_proj": "attn_k_b", "self_attn.v_b_proj": "attn_v_b", "self_attn.sinks": "attn_sinks",
          "mlp.router": "ffn_gate_inp"}
NAMES |= SHARED | {"mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
                   "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
# A matrix of an expert: GGUF has that of all experts of a layer as one tensor.
EXPERT = re.compile(r"(.*layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
BEFORE_MLP = {"post_attention_layernorm": "ffn_norm"}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GEMMA = AFTER | {"pre_feedforward_layernorm": "ffn_norm"}
GLM = {"post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm"}
# The folder in tests/data/variants: architecture, names of norms, whether q and k are permuted, and what is added to norms.
MODELS = {"mistral-window": ("llama", BEFORE_MLP, True, 0), "ministral3": ("mistral3", BEFORE_MLP, True, 0),
          "granite": ("granite", BEFORE_MLP, True, 0), "phi3-longrope": ("phi3", BEFORE_MLP, False, 0),
          "granite-hybrid": ("granite", BEFORE_MLP, True, 0), "smollm3-four": ("smollm3", BEFORE_MLP, True, 0),
          "olmo2": ("olmo2", AFTER, False, 0), "olmo3": ("olmo2", AFTER, False, 0), "glm4": ("glm4", GLM, False, 0),
          "gemma2": ("gemma2", GEMMA, False, 1), "gemma3": ("gemma3", GEMMA, False, 1),
          "mixtral": ("llama", BEFORE_MLP, True, 0), "qwen3-moe": ("qwen3moe", BEFORE_MLP, False, 0),
          "qwen2-moe": ("qwen2moe", BEFORE_MLP, False, 0),
          "glm4-moe": ("glm4moe", {"post_attention_layernorm": "post_attention_norm"}, False, 0),
          "gpt-oss": ("gpt-oss", {"post_attention_layernorm": "post_attention_norm"}, False, 0),
          "gpt-oss-mxfp4-seven": ("gpt-oss", {"post_attention_layernorm": "post_attention_norm"}, False, 0),
          "deepseek-latent": ("deepseek2", BEFORE_MLP, False, 0), "deepseek-v3": ("deepseek2", BEFORE_MLP, False, 0),
          "glm4-moe-flash": ("deepseek2", BEFORE_MLP, False, 0)}


def read_tensors(path):
    """Arrays of all tensors. NumPy has no bfloat16: such a tensor is widened to float32."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "BF16": np.uint16}
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            values = np.frombuffer(data[begin + first:begin + last], types[entry["dtype"]]).reshape(entry["shape"])
            tensors[name] = (values.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else values
    return tensors


def mxfp4(blocks, scales):
    """GPT-OSS's blocks [E, rows, n, 16] and their exponents as llama.cpp's bytes: the exponent, then element j in the low and
    element j + 16 in the high nibble of byte j. GPT-OSS has elements 2 j and 2 j + 1 in byte j."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    stored = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], axis=-1)
    return np.ascontiguousarray(stored.reshape(*stored.shape[:2], -1))


def stack_experts(tensors):
    """The tensors with those of experts stacked, under the name of llama.cpp and the layer's prefix."""
    stacked = {}
    for name, data in tensors.items():
        match = EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = data
        else:
            layer, expert, role = match.groups()
            stacked.setdefault(f"{layer}.ffn_{EXPERTS[role]}_exps.weight", {})[int(expert)] = data
    return {name: np.stack([data[i] for i in range(len(data))]) if isinstance(data, dict) else data
            for name, data in stacked.items()}


def split_fused(tensors, config):
    """The tensors with GPT-OSS's experts apart, outputs first, and DeepSeek's keys and values of heads apart, keys transposed."""
    split = {}
    for name, data in tensors.items():
        layer = name.split(".mlp.")[0]
        if name.endswith("sinks"):
            split[name + ".weight"] = data
        elif name.endswith("_blocks"):
            stored = mxfp4(data, tensors[name.removesuffix("_blocks") + "_scales"])
            parts = {"down": stored} if "down_proj" in name else {"gate": stored[:, 0::2], "up": stored[:, 1::2]}
            split |= {f"{layer}.ffn_{role}_exps.weight": part for role, part in parts.items()}
        elif name.endswith("_scales"):
            continue
        elif name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
            for i, role in enumerate(("gate", "up")):
                part = data[..., i::2]
                split[f"{layer}.ffn_{role}_exps.{'bias' if part.ndim == 2 else 'weight'}"] = part.swapaxes(1, -1)
        elif name.endswith(("experts.down_proj", "experts.down_proj_bias")):
            split[f"{layer}.ffn_down_exps.{'bias' if data.ndim == 2 else 'weight'}"] = data.swapaxes(1, -1)
        elif name.endswith("kv_b_proj.weight"):
            heads = data.reshape(config["num_attention_heads"], -1, data.shape[1])
            stem = name.removesuffix("kv_b_proj.weight")
            split[stem + "k_b_proj.weight"] = heads[:, :config["qk_nope_head_dim"]].swapaxes(1, 2)
            split[stem + "v_b_proj.weight"] = heads[:, config["qk_nope_head_dim"]:]
        else:
            split[name] = data
    return split


def gguf_name(name, norms):
    name = name.replace("mlp.gate.e_score_correction_bias", "exp_probs_b.bias")
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{(NAMES | norms).get(rest, rest)}.{suffix}"


def permute(data, heads):
    return np.ascontiguousarray(data.reshape(heads, 2, len(data) // heads // 2, -1).swapaxes(1, 2).reshape(data.shape))


def add_sizes(writer, config, head_dim):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config.get("shared_intermediate_size") or config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if "kv_lora_rank" in config:
        writer.add_head_count_kv(1)
        writer.add_kv_lora_rank(config["kv_lora_rank"])
        if config["q_lora_rank"]:
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        writer.add_value_length_mla(config["v_head_dim"])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_rope(writer, arch, config, head_dim):
    ropes = config["rope_parameters"]
    rope = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == "deepseek2" and rope["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if arch == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_float32(f"{arch}.attention.temperature_scale", rope["llama_4_scaling_beta"])
    if rope["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(original))))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))
    if arch == "gemma3":
        writer.add_float32(f"{arch}.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])


def add_options(writer, arch, config):
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("layer_types") and arch in ("olmo2", "gemma3"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if config["model_type"] == "granitemoehybrid":  # a switch, here, for the rotary embedding
        writer.add_rope_scaling_finetuned(config.get("position_embedding_type") == "rope")
    if arch.startswith("gemma"):
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_experts(writer, arch, config):
    count = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if arch in ("glm4moe", "deepseek2"):
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def add_tokenizer(writer, size):
    """As many tokens as the model has; nothing is tokenized."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_model(name, arch, norms, permuted, norm_offset):
    source = HERE / "variants" / name
    config = json.loads((source / "config.json").read_text())
    config = config.get("text_config", config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("qk_rope_head_dim") or config.get("head_dim") or config["hidden_size"] // heads
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    add_sizes(writer, config, head_dim)
    add_rope(writer, arch, config, head_dim)
    add_options(writer, arch, config)
    add_experts(writer, arch, config)
    add_tokenizer(writer, config["vocab_size"])
    tensors = split_fused(stack_experts(read_tensors(source / "model.safetensors")), config)
    for tensor, data in sorted(tensors.items()):
        tensor = tensor.replace("model.language_model.", "model.", 1)
        if "vision_tower" in tensor or "projector" in tensor:
            continue
        if permuted and (".q_proj." in tensor or ".k_proj." in tensor):
            data = permute(data, heads if ".q_proj." in tensor else kv_heads)
        if ".shared_mlp.input_linear." in tensor:  # gate and up
            gate, data = np.split(data, 2)
            writer.add_tensor(gguf_name(tensor.replace("shared_mlp.input_linear", "mlp.gate_proj"), norms), np.ascontiguousarray(gate))
        tensor = tensor.replace("shared_mlp.input_linear", "mlp.up_proj").replace("shared_mlp.output_linear", "mlp.down_proj")
        if norm_offset and tensor.endswith("norm.weight"):
            data = data + np.float32(norm_offset)
        if data.dtype == np.uint8:
            writer.add_tensor(gguf_name(tensor, norms), np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            writer.add_tensor(gguf_name(tensor, norms), np.ascontiguousarray(data.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copy(source / "expected.json", folder / "expected.json")


if __name__ == "__main__":
    for model in sys.argv[1:] or MODELS:
        write_model(model, *MODELS[model])
