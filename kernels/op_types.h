#pragma once
// Types of parameters and results of ops.h that kernels see, too: plain data. Includes no header of the
// standard library's classes nor of Abseil's, which would bring inline functions and objects that are made at
// the program's start into code that is compiled for one instruction set (kernels/cpu/kernel_table.h).

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// A weight matrix [n, k] (out_features, in_features), packed for the device; see PackedWeightBytes. On an
// asynchronous device a matrix is packed row by row without padding, so that a DeviceUploader can fill the
// memory, too.
struct LinearWeight {
  void* data = nullptr;
  DataType dtype = DataType::kBF16;
  int64_t n = 0;
  int64_t k = 0;
};

// The adapters (LoRA) of one linear [n, k], in slots of one size. A slot of rank 0 changes nothing.
struct LoraWeights {
  const void* a = nullptr;         // [num_slots, max_rank, k]: A, in the first rows of its slot
  const void* b = nullptr;         // [num_slots, max_rank, n]: B transposed, likewise
  const int32_t* ranks = nullptr;  // [num_slots]
  DataType dtype = DataType::kBF16;
  int64_t max_rank = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// Matrices of one shape and type, one for each of `count` experts: the matrix of expert e begins e * stride
// bytes after that of expert 0, which is `first`. Each is packed as a LinearWeight.
struct ExpertWeight {
  LinearWeight first;
  int64_t count = 0;
  int64_t stride = 0;  // a multiple of 64

  LinearWeight Of(int64_t expert) const {
    LinearWeight weight = first;
    weight.data = static_cast<char*>(first.data) + expert * stride;
    return weight;
  }
};

// The bias of expert e, f32, begins at data + e * stride; data is nullptr where there is none.
struct ExpertBias {
  const float* data = nullptr;
  int64_t stride = 0;
};

// How a router chooses experts: a score of each expert from its logit, of which the best `per_token` are
// chosen; among equal scores the expert of the smaller number.
struct RouterRule {
  int64_t per_token = 1;    // at most kMaxExpertsPerToken
  bool sigmoid = false;     // the score is the sigmoid of the logit; else the softmax over all experts
  bool renormalize = true;  // the chosen experts' scores are divided by their sum
  float scale = 1;          // of the weights
  // More than 1: experts lie in groups of equal size, and only those of the best top_groups groups are
  // chosen, by the sum of a group's two best scores (DeepSeek V3, arXiv 2412.19437, section 2.1.2).
  int64_t num_groups = 1;
  int64_t top_groups = 1;
};
inline constexpr int64_t kMaxExpertsPerToken = 32;
inline constexpr int64_t kMaxExperts = 1024;

// Rows of a tile of ExpertRouting::tiles.
inline constexpr int64_t kExpertTileRows = 64;

// Which rows the experts of a rank compute: a row for each pair of a token and one of its experts, sorted by
// the expert, then by the token; the experts of other ranks have none. P: num_tokens * per_token. All arrays
// on the device.
struct ExpertRouting {
  int64_t num_tokens = 0;
  int64_t per_token = 0;
  int64_t first_expert = 0;  // this rank's experts: [first_expert, first_expert + num_experts)
  int64_t num_experts = 0;
  int32_t* ids = nullptr;    // [P]: of the token's experts, best first, counted over all ranks
  float* weights = nullptr;  // [P]
  int32_t* begin =
      nullptr;  // [num_experts + 1]: the rows of expert first_expert + e are [begin[e], begin[e + 1])
  int32_t* token_of = nullptr;  // [P]: the token of a row
  int32_t* row_of = nullptr;    // [P]: the row of a pair; -1: another rank's
  // CUDA alone, which makes grids for the most tiles that there can be: [ExpertTiles()] of {expert of this
  // rank, first row}; the expert of a tile that is not needed is -1.
  int32_t* tiles = nullptr;

  // Not null: RouteExperts counts the tokens of each of this rank's experts, [num_experts]. A padded row is
  // no token: its slot is 0, the null block's first.
  uint32_t* load = nullptr;
  bool adds_load = false;          // to what `load` holds; else `load` is replaced
  const int32_t* slots = nullptr;  // [num_tokens] of AttentionBatch::slot_mapping; read with `load` alone

  int64_t NumPairs() const { return num_tokens * per_token; }
};
// The most tiles of kExpertTileRows rows that `pairs` rows of `experts` experts have.
constexpr int64_t ExpertTiles(int64_t pairs, int64_t experts) {
  const int64_t partial = pairs < experts ? pairs : experts;
  return partial + pairs / kExpertTileRows;
}

// GPT-OSS's gated unit: with g = min(gate, limit) and u = up within -limit and limit, (u + 1) * g * sigmoid(
// alpha * g).
struct ClampedSwiglu {
  float alpha = 1.702f;
  float limit = 7;
};

enum class UnaryActivation { kIdentity, kRelu, kGelu, kGeluTanh };

// One layer's paged cache: num_blocks blocks of block_size tokens for this rank's KV heads. Each device has
// its own layout within a block; KvBlockBytes returns the bytes of a block (K and V of one layer). Block 0 is
// the null block (base/null_block.h): values written there are never read. dtype: act's, kF8E4M3, which
// stores value / scale, saturated, with one scale for all keys and one for all values, or kI8; on the CPU any
// type.
//
// kI8: a token's K of one head has a scale of its own, f32, and so has the token's V: the largest magnitude /
// 127. The stored byte is value * (127 / largest), rounded to nearest even, and the scale lies in the same
// block, so that a copy of the block has both. Where the largest magnitude is below kLeastI8Magnitude the
// head is zeros and the scale 0; where a value is not finite the scale is NaN.
struct KvCacheView {
  void* data = nullptr;  // [num_blocks][KvBlockBytes]
  DataType dtype = DataType::kBF16;
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  float k_scale = 1;  // of kF8E4M3
  float v_scale = 1;
  // A token has one row [head_dim] for each KV head, which is both K and V (DeepSeek V2's latent
  // attention, arXiv 2405.04434, section 2.1). dtype: a type that activations have.
  bool latent = false;
};
inline constexpr float kLeastI8Magnitude = 0x1p-100f;

// Which keys of the cache a query attends, and what becomes of a score before the softmax. A layer's own:
// layers of one model may differ.
struct AttentionRule {
  float scale = 1;  // of the product of query and key
  // The query at position p attends the keys at positions p - window + 1 to p, `window` keys with its own: as
  // transformers' sliding_window, which masks keys at or before p - window (sliding_window_overlay of
  // masking_utils.py; Mistral 7B, arXiv 2310.06825, section 2). 0: all keys from position 0 on. Nothing of a
  // block is read where every key of the block lies before the windows of all of a sequence's queries: the
  // entry in the block table may be the null block, or name a block that other sequences have by now.
  int32_t window = 0;
  // A scaled score s becomes logit_softcap * tanh(s / logit_softcap), before the mask, as transformers'
  // attn_logit_softcapping (Gemma 2, arXiv 2408.00118, section 2). 0: scores stay as they are.
  float logit_softcap = 0;
  // f32 [num_heads], one logit for each query head, which enters the softmax beside the scores and has no
  // value: the weight of token j becomes exp(s_j) / (sum over i of exp(s_i) + exp(sink)). Neither scaled nor
  // capped. As transformers' eager_attention_forward of GptOss. nullptr: none.
  const float* sinks = nullptr;
};

struct ScoredToken {
  float value;
  int32_t id;
};

}  // namespace somnus
