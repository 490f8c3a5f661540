#pragma once
// Keys of a Hugging Face config.json that families share. Each function fills a part of a ModelConfig and
// keeps errors in the JsonFields, or returns the errors, which name the key. Include from .cc files only
// (json_file.h).

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"

namespace somnus {

// The values of absent keys; -1: none.
struct TokenIdDefaults {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
};

// Whether a family's models have an attention window: never, always, or when use_sliding_window is set.
enum class AttentionWindow { kNone, kAlways, kBySwitch };

// vocab_size, hidden_size, num_hidden_layers, num_attention_heads, token ids; embedding_dim is hidden_size.
void ReadCommonKeys(const TokenIdDefaults& token_ids, JsonFields* fields, ModelConfig* config);

// Gated families have silu(gate) * up only, all other families a plain non-linearity; Unimplemented for
// anything else.
void ReadActivation(JsonFields* fields, const char* key, const char* otherwise, ModelConfig* config);

// rope_scaling (with rope_theta beside it) or transformers 5's rope_parameters (with rope_theta inside).
absl::Status ReadRope(JsonFields* fields, int64_t max_positions, RopeConfig* out);

// Unimplemented where a layer would not attend to the whole context.
absl::Status CheckFullAttention(AttentionWindow window, JsonFields* fields, const ModelConfig& config);

}  // namespace somnus
