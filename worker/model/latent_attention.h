#pragma once
// Latent attention (MLA; DeepSeek V2, arXiv 2405.04434, section 2.1) without expanding the cache: each head's
// query is brought into the space of the latent vectors by the transpose of the head's key matrix, attends
// the rows of the cache, which all heads share, and the mean of latent vectors becomes the head's value by
// the head's value matrix. The same form serves prompts and decodes.

#include <cstdint>

#include "checkpoint/model_config.h"
#include "kernels/tensor.h"
#include "worker/model/carver.h"

namespace somnus {

struct ModelContext;
struct StepInput;

// Scratch of a layer's attention, beside Activations::qkv, which holds the queries of the latent space (sum
// [Tmax, H D]), and Activations::heads, which holds the means of rows (act [Tmax, H D]). H: this rank's query
// heads, D: the length of a row.
struct LatentActivations {
  TensorView query_down;      // sum [Tmax, latent.query_rank], where there is a rank of queries
  TensorView query_down_act;  // act [Tmax, latent.query_rank]
  TensorView queries;         // sum [Tmax, H (nope + rope)]
  TensorView queries_act;     // act [Tmax, H (nope + rope)]
  TensorView row;             // sum [Tmax, D]
  TensorView values;          // sum [Tmax, H value]
  TensorView values_act;      // act [Tmax, H value]

  static LatentActivations Carve(Carver* carver, const ModelConfig& config, int64_t num_heads, DataType act,
                                 DataType sum, int64_t max_tokens);
};

// values_act of the context's activations = attention of the layer over `normed` (act [T, hidden]), this
// rank's heads, of which there is one at least. Writes the cache.
void AttendLatent(const ModelContext& context, int64_t layer, const StepInput& input,
                  const TensorView& normed);

}  // namespace somnus
