#pragma once
// The two matrices of latent attention that Hugging Face's files store as one.

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/whole_tensor.h"

namespace somnus {

// A layer's kv_b_proj ([heads * (nope + value), rank]: for each head the rows of keys, then the rows of
// values), and in it the two matrices that attention over the latent vectors multiplies by: k_b_proj, each
// head's keys transposed ([heads * rank, nope]), and v_b_proj ([heads * value, rank]).
WholeTensor LatentKeysAndValues(const ModelConfig& config, int32_t layer);

// Adds the two matrices of every layer to the table. Files that have k_b_proj and v_b_proj already stay as
// they are.
absl::Status AddLatentTensors(const ModelConfig& config, TensorTable* tensors);

}  // namespace somnus
