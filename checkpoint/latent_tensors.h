#pragma once
// The two matrices of latent attention that Hugging Face's files store as one.

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Adds, for each layer of a model with latent attention whose files have kv_b_proj ([heads * (nope + value),
// rank], for each head the rows of its keys and then of the head's values), the matrices that attention over
// the latent vectors multiplies by: k_b_proj, each head's keys transposed ([heads * rank, nope]), and
// v_b_proj
// ([heads * value, rank]). Matrices that are stored so stay the same.
absl::Status AddLatentTensors(const ModelConfig& config, TensorTable* tensors);

}  // namespace somnus
