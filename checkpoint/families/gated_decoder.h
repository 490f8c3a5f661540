#pragma once
// The common parts of Llama and its successors: RMSNorm around the blocks, rotary embedding, grouped KV
// heads, a gated MLP, and the tensors' names.

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/family.h"
#include "checkpoint/hf_keys.h"

namespace somnus {

// The keys that distinguish the families. The defaults are the same as in the configuration classes of
// `transformers`.
struct GatedDecoderKeys {
  bool qkv_bias = false;          // always on (Qwen2)
  bool bias_by_flag = false;      // attention_bias decides for q, k, v and o
  bool qkv_bias_by_flag = false;  // the same for q, k and v alone, where an absent key means true (GLM)
  bool mlp_bias_by_flag = false;
  WindowKeys window = {};
  RopeKeys rope = {};
  SizeDefaults sizes = {};
  int32_t default_positions = 2048;
  int32_t default_kv_heads = 0;  // 0: as many as heads
  int32_t default_head_dim = 0;  // 0: hidden_size / heads
  double default_eps = 1e-6;
  bool tied = false;
  const char* intermediate_key = "intermediate_size";
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  TokenIdDefaults token_ids = {};
  // Reads what the family alone has; nullptr: nothing. Called first, so that a model of another kind under
  // the same name is refused by its own reason.
  void (*more)(JsonFields* fields, ModelConfig* config) = nullptr;
};

absl::Status ReadGatedDecoder(const GatedDecoderKeys& keys, JsonFields* fields, ModelConfig* config);

// GatedDecoderKeys::more of families whose class in `transformers` has a scaled rotary embedding for files
// without any, which must not become a plain one: an error, as no such file is known.
void NeedRope(JsonFields* fields, ModelConfig* config);

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

// The tensors of layers, for families to choose from.
namespace layer_tensors {

// The same tensor with a family's own name in Hugging Face's files.
constexpr TensorSpec Named(TensorSpec spec, const char* name) {
  spec.name = name;
  return spec;
}
constexpr TensorSpec InDenseLayers(TensorSpec spec) {
  spec.layers = LayerKind::kDense;
  return spec;
}

inline constexpr TensorSpec kInputNorm = {
    .role = TensorRole::kAttentionNorm, .name = "input_layernorm", .gguf = "attn_norm"};
inline constexpr TensorSpec kQuery = {.role = TensorRole::kQuery,
                                      .name = "self_attn.q_proj",
                                      .gguf = "attn_q",
                                      .rows = Dim::kQueries,
                                      .cols = Dim::kHidden,
                                      .bias = HasQkvBias};
inline constexpr TensorSpec kKey = {.role = TensorRole::kKey,
                                    .name = "self_attn.k_proj",
                                    .gguf = "attn_k",
                                    .rows = Dim::kKeysValues,
                                    .cols = Dim::kHidden,
                                    .bias = HasQkvBias};
inline constexpr TensorSpec kValue = {.role = TensorRole::kValue,
                                      .name = "self_attn.v_proj",
                                      .gguf = "attn_v",
                                      .rows = Dim::kKeysValues,
                                      .cols = Dim::kHidden,
                                      .bias = HasQkvBias};
inline constexpr TensorSpec kQueryKeyValue = {.role = TensorRole::kQueryKeyValue,
                                              .name = "self_attn.qkv_proj",
                                              .gguf = "attn_qkv",
                                              .rows = Dim::kQueriesKeysValues,
                                              .cols = Dim::kHidden,
                                              .bias = HasQkvBias};
inline constexpr TensorSpec kOut = {.role = TensorRole::kAttentionOut,
                                    .name = "self_attn.o_proj",
                                    .gguf = "attn_output",
                                    .rows = Dim::kHidden,
                                    .cols = Dim::kQueries,
                                    .bias = HasOutBias};
inline constexpr TensorSpec kQueryNorm = {.role = TensorRole::kQueryNorm,
                                          .name = "self_attn.q_norm",
                                          .gguf = "attn_q_norm",
                                          .rows = Dim::kHeadDim,
                                          .present = HasQkNorm};
inline constexpr TensorSpec kKeyNorm = {.role = TensorRole::kKeyNorm,
                                        .name = "self_attn.k_norm",
                                        .gguf = "attn_k_norm",
                                        .rows = Dim::kHeadDim,
                                        .present = HasQkNorm};
// Before the MLP, in spite of the name.
inline constexpr TensorSpec kPostAttentionNorm = {
    .role = TensorRole::kMlpNorm, .name = "post_attention_layernorm", .gguf = "ffn_norm"};
inline constexpr TensorSpec kGate = {.role = TensorRole::kGate,
                                     .name = "mlp.gate_proj",
                                     .gguf = "ffn_gate",
                                     .rows = Dim::kIntermediate,
                                     .cols = Dim::kHidden,
                                     .bias = HasMlpBias};
inline constexpr TensorSpec kUp = {.role = TensorRole::kUp,
                                   .name = "mlp.up_proj",
                                   .gguf = "ffn_up",
                                   .rows = Dim::kIntermediate,
                                   .cols = Dim::kHidden,
                                   .bias = HasMlpBias};
inline constexpr TensorSpec kGateUp = {.role = TensorRole::kGateUp,
                                       .name = "mlp.gate_up_proj",
                                       .gguf = "ffn_up",
                                       .rows = Dim::kGateUp,
                                       .cols = Dim::kHidden};
inline constexpr TensorSpec kDown = {.role = TensorRole::kDown,
                                     .name = "mlp.down_proj",
                                     .gguf = "ffn_down",
                                     .rows = Dim::kHidden,
                                     .cols = Dim::kIntermediate,
                                     .bias = HasMlpBias};
// The norms of a block's output.
inline constexpr TensorSpec kAfterAttention = {.role = TensorRole::kAttentionPostNorm,
                                               .name = "post_attention_layernorm",
                                               .gguf = "post_attention_norm"};
inline constexpr TensorSpec kAfterMlp = {
    .role = TensorRole::kMlpPostNorm, .name = "post_feedforward_layernorm", .gguf = "post_ffw_norm"};

// Qwen's and GLM's experts.
inline constexpr TensorSpec kDenseGate = InDenseLayers(kGate), kDenseUp = InDenseLayers(kUp),
                            kDenseDown = InDenseLayers(kDown);
inline constexpr TensorSpec kRouter = {.role = TensorRole::kRouter,
                                       .name = "mlp.gate",
                                       .gguf = "ffn_gate_inp",
                                       .rows = Dim::kExperts,
                                       .cols = Dim::kHidden,
                                       .layers = LayerKind::kExperts};
inline constexpr TensorSpec kExpertGate = {.role = TensorRole::kExpertGate,
                                           .name = "mlp.experts.*.gate_proj",
                                           .gguf = "ffn_gate_exps",
                                           .rows = Dim::kExpertIntermediate,
                                           .cols = Dim::kHidden,
                                           .layers = LayerKind::kExperts};
inline constexpr TensorSpec kExpertUp = {.role = TensorRole::kExpertUp,
                                         .name = "mlp.experts.*.up_proj",
                                         .gguf = "ffn_up_exps",
                                         .rows = Dim::kExpertIntermediate,
                                         .cols = Dim::kHidden,
                                         .layers = LayerKind::kExperts};
inline constexpr TensorSpec kExpertDown = {.role = TensorRole::kExpertDown,
                                           .name = "mlp.experts.*.down_proj",
                                           .gguf = "ffn_down_exps",
                                           .rows = Dim::kHidden,
                                           .cols = Dim::kExpertIntermediate,
                                           .layers = LayerKind::kExperts};
// DeepSeek's and GLM's router and shared experts.
inline constexpr TensorSpec kRouterCorrection = {.role = TensorRole::kRouterCorrection,
                                                 .name = "mlp.gate.e_score_correction_bias",
                                                 .gguf = "exp_probs_b",
                                                 .rows = Dim::kExperts,
                                                 .present = HasCorrection,
                                                 .layers = LayerKind::kExperts,
                                                 .suffix = "",
                                                 .gguf_suffix = ".bias"};
inline constexpr TensorSpec kSharedGate = {.role = TensorRole::kSharedGate,
                                           .name = "mlp.shared_experts.gate_proj",
                                           .gguf = "ffn_gate_shexp",
                                           .rows = Dim::kSharedIntermediate,
                                           .cols = Dim::kHidden,
                                           .present = HasSharedExpert,
                                           .layers = LayerKind::kExperts};
inline constexpr TensorSpec kSharedUp = {.role = TensorRole::kSharedUp,
                                         .name = "mlp.shared_experts.up_proj",
                                         .gguf = "ffn_up_shexp",
                                         .rows = Dim::kSharedIntermediate,
                                         .cols = Dim::kHidden,
                                         .present = HasSharedExpert,
                                         .layers = LayerKind::kExperts};
inline constexpr TensorSpec kSharedDown = {.role = TensorRole::kSharedDown,
                                           .name = "mlp.shared_experts.down_proj",
                                           .gguf = "ffn_down_shexp",
                                           .rows = Dim::kHidden,
                                           .cols = Dim::kSharedIntermediate,
                                           .present = HasSharedExpert,
                                           .layers = LayerKind::kExperts};

// Llama's and Qwen's.
inline constexpr TensorSpec kAll[] = {kInputNorm,         kQuery, kKey, kValue, kOut, kQueryNorm, kKeyNorm,
                                      kPostAttentionNorm, kGate,  kUp,  kDown};

}  // namespace layer_tensors

// `family`, read by `kKeys`; of the tensors above, where it names none of its own.
template <const GatedDecoderKeys& kKeys>
constexpr Family GatedDecoder(Family family) {
  family.read_config = [](JsonFields* fields, ModelConfig* config) {
    return ReadGatedDecoder(kKeys, fields, config);
  };
  family.tensors = kGatedDecoderTensors;
  if (family.layer_tensors.empty()) family.layer_tensors = layer_tensors::kAll;
  return family;
}

}  // namespace somnus
