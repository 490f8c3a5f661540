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

// Which layers of a family's models have the attention window `sliding_window`, where no layer_types say so.
enum class AttentionWindow {
  kNone,
  kAlways,               // all
  kBySwitch,             // with use_sliding_window, those from max_window_layers on (Qwen)
  kBySwitchAlternating,  // with use_sliding_window, every second, from 0 on, below max_window_layers
                         // (Qwen2-MoE)
  kByPattern,            // layer i unless i + 1 is a multiple of Family::window_period
  kWithoutRotary,        // with use_sliding_window, those without rotary embedding (SmolLM3)
};

struct WindowKeys {
  AttentionWindow kind = AttentionWindow::kNone;
  int32_t default_window = 4096;    // of an absent sliding_window; 0: none
  bool skips_rope_by_list = false;  // no_rope_layers and no_rope_layer_interval are read
};

// The rotary embedding's defaults.
struct RopeKeys {
  double theta = 1e4;
  double local_theta = 1e4;       // of layers with a window, in families that have two
  double partial = 1.0;           // partial_rotary_factor
  bool yarn_is_longrope = false;  // as Phi-3's class reads old files
};

// The sizes that hold where the key is absent: transformers 4 leaves the sizes of the class out of a
// wrapper's text_config. A key with null is an error.
struct SizeDefaults {
  int32_t vocab = 1;
  int32_t hidden = 1;
  int32_t intermediate = 1;
  int32_t layers = 1;
  int32_t heads = 1;
};

// vocab_size, hidden_size, num_hidden_layers, num_attention_heads, token ids, and intermediate_size under the
// family's key; embedding_dim is hidden_size.
void ReadCommonKeys(const SizeDefaults& sizes, const TokenIdDefaults& token_ids, const char* intermediate_key,
                    JsonFields* fields, ModelConfig* config);

// Gated families have silu(gate) * up or the same with GELU in its tanh form, all other families a plain
// non-linearity but for SiLU; Unimplemented for anything else.
void ReadActivation(JsonFields* fields, const char* key, const char* otherwise, ModelConfig* config);

// rope_scaling (with rope_theta beside it) or transformers 5's rope_parameters (with rope_theta inside; with
// an object for each kind of layer in families that have two rotary embeddings). Fills rope, local_rope and
// query_temperature; head_dim and max_position_embeddings must have been read.
absl::Status ReadRopes(const RopeKeys& keys, JsonFields* fields, ModelConfig* config);

// Which layers have a window or no rotation. Unimplemented for kinds of layers that no decoder here has.
absl::Status ReadLayers(const WindowKeys& keys, JsonFields* fields, ModelConfig* config);

}  // namespace somnus
