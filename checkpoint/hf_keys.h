#pragma once
// Keys of a Hugging Face config.json that families share. Each reader fills a part of a ModelConfig and keeps
// errors in the JsonFields, or returns them; they name the key. Include from .cc files only (json_file.h).

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"

namespace somnus {

// What a key that is absent means; -1: none.
struct TokenIdDefaults {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
};

// Where a family keeps the width of its attention window, if it has one.
enum class AttentionWindow { kNone, kAlways, kBySwitch };

// vocab_size, hidden_size, num_hidden_layers, num_attention_heads, token ids; embedding_dim is hidden_size.
void ReadCommonKeys(const TokenIdDefaults& token_ids, JsonFields* fields, ModelConfig* config);

// The gated families are built on silu(gate) * up alone, the others on a plain non-linearity.
void ReadActivation(JsonFields* fields, const char* key, const char* otherwise, ModelConfig* config);

// rope_scaling (with rope_theta beside it) or transformers 5's rope_parameters (with rope_theta inside).
absl::Status ReadRope(JsonFields* fields, int64_t max_positions, RopeConfig* out);

// Unimplemented where a layer would not attend to the whole context.
absl::Status CheckFullAttention(AttentionWindow window, JsonFields* fields, const ModelConfig& config);

}  // namespace somnus
