#pragma once
// A rank's weights, by their place in the forward pass. Matrices that read the same input are fused (q, k, v;
// gate, up) as far as their types are equal, and packed for the device; norms, biases and learned positions
// are f32. Views: the memory belongs to the region that WeightPlan::Bind was given.

#include <vector>

#include "kernels/ops.h"

namespace somnus {

// Fused matrices, one below the other: a single part, or, for a file that stores them in several types that
// the device computes with, a part for each type in turn (Q4_K_M has q and k in Q4_K, and v in Q6_K). The
// rest have n == 0.
struct FusedWeight {
  LinearWeight parts[3];

  int64_t n() const { return parts[0].n + parts[1].n + parts[2].n; }
};

// H: this rank's query heads, KV: its KV heads, D: head_dim, M: its MLP rows, V: its vocabulary rows. Null
// pointers and n == 0 mean that this model (or this rank) has no such weight.
struct LayerWeights {
  const float* attention_norm = nullptr;       // [hidden]
  const float* attention_norm_bias = nullptr;  // [hidden]
  FusedWeight qkv;                             // [(H + 2 KV) D, hidden]
  const float* qkv_bias = nullptr;             // [(H + 2 KV) D]
  const float* q_norm = nullptr;               // [D]; with Family::qk_norm_wide [H D]
  const float* k_norm = nullptr;               // [D]; with Family::qk_norm_wide [KV D]
  LinearWeight out;                            // [hidden, H D]
  const float* out_bias = nullptr;             // [hidden], on the last rank only
  const float* attention_post_norm = nullptr;  // [hidden]
  const float* mlp_norm = nullptr;             // [hidden]
  const float* mlp_norm_bias = nullptr;        // [hidden]
  FusedWeight up;                              // [2 M, hidden] gate then up; not gated: [M, hidden]
  const float* up_bias = nullptr;              // as up's rows
  LinearWeight down;                           // [hidden, M]
  const float* down_bias = nullptr;            // [hidden], on the last rank only
  const float* mlp_post_norm = nullptr;        // [hidden]
};

struct ModelWeights {
  LinearWeight embedding;                  // [V, embedding_dim]
  const float* position_table = nullptr;   // [max_position_embeddings + offset, hidden]
  LinearWeight project_in;                 // [hidden, embedding_dim], when the two sizes differ
  LinearWeight project_out;                // [embedding_dim, hidden]
  std::vector<LayerWeights> layers;        // of the rank's stage (ModelShards::layers)
  const float* final_norm = nullptr;       // [hidden]
  const float* final_norm_bias = nullptr;  // [hidden]
  LinearWeight head;                       // [V, embedding_dim]; the embedding itself when tied
};

}  // namespace somnus
