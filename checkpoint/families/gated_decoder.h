#pragma once
// The common parts of Llama and its successors: RMSNorm before each block, rotary embedding, grouped KV
// heads, a gated MLP, and the tensors' names.

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/family.h"
#include "checkpoint/hf_keys.h"

namespace somnus {

// The keys that distinguish the families. The defaults are the same as in the configuration classes of
// `transformers`.
struct GatedDecoderKeys {
  bool qkv_bias = false;      // always on (Qwen2)
  bool bias_by_flag = false;  // attention_bias decides for q, k, v and o
  bool mlp_bias_by_flag = false;
  AttentionWindow window = AttentionWindow::kNone;
  int32_t default_positions = 2048;
  int32_t default_kv_heads = 0;  // 0: as many as heads
  int32_t default_head_dim = 0;  // 0: hidden_size / heads
  TokenIdDefaults token_ids = {};
};

absl::Status ReadGatedDecoder(const GatedDecoderKeys& keys, JsonFields* fields, ModelConfig* config);

inline bool HasQkNorm(const ModelConfig& c) { return c.family->qk_norm; }

inline constexpr TensorSpec kGatedDecoderTensors[] = {
    {.role = TensorRole::kEmbedding,
     .name = "model.embed_tokens",
     .gguf = "token_embd",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding},
    {.role = TensorRole::kFinalNorm, .name = "model.norm", .gguf = "output_norm"},
    {.role = TensorRole::kHead,
     .name = "lm_head",
     .gguf = "output",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding,
     .present = HasOwnHead},
};

inline constexpr TensorSpec kGatedDecoderLayerTensors[] = {
    {.role = TensorRole::kAttentionNorm, .name = "input_layernorm", .gguf = "attn_norm"},
    {.role = TensorRole::kQuery,
     .name = "self_attn.q_proj",
     .gguf = "attn_q",
     .rows = Dim::kQueries,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kKey,
     .name = "self_attn.k_proj",
     .gguf = "attn_k",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kValue,
     .name = "self_attn.v_proj",
     .gguf = "attn_v",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kAttentionOut,
     .name = "self_attn.o_proj",
     .gguf = "attn_output",
     .rows = Dim::kHidden,
     .cols = Dim::kQueries,
     .bias = HasOutBias},
    {.role = TensorRole::kQueryNorm,
     .name = "self_attn.q_norm",
     .gguf = "attn_q_norm",
     .rows = Dim::kHeadDim,
     .present = HasQkNorm},
    {.role = TensorRole::kKeyNorm,
     .name = "self_attn.k_norm",
     .gguf = "attn_k_norm",
     .rows = Dim::kHeadDim,
     .present = HasQkNorm},
    {.role = TensorRole::kMlpNorm, .name = "post_attention_layernorm", .gguf = "ffn_norm"},
    {.role = TensorRole::kGate,
     .name = "mlp.gate_proj",
     .gguf = "ffn_gate",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden,
     .bias = HasMlpBias},
    {.role = TensorRole::kUp,
     .name = "mlp.up_proj",
     .gguf = "ffn_up",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden,
     .bias = HasMlpBias},
    {.role = TensorRole::kDown,
     .name = "mlp.down_proj",
     .gguf = "ffn_down",
     .rows = Dim::kHidden,
     .cols = Dim::kIntermediate,
     .bias = HasMlpBias},
};

// `family`, read by `kKeys` and made of the tensors above.
template <const GatedDecoderKeys& kKeys>
constexpr Family GatedDecoder(Family family) {
  family.read_config = [](JsonFields* fields, ModelConfig* config) {
    return ReadGatedDecoder(kKeys, fields, config);
  };
  family.tensors = kGatedDecoderTensors;
  family.layer_tensors = kGatedDecoderLayerTensors;
  return family;
}

}  // namespace somnus
