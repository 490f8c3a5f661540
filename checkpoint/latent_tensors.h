#pragma once
// The two matrices of latent attention that Hugging Face's files store as one.

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Splits kv_b_proj ([heads * (nope + value), rank]: for each head the rows of keys, then the rows of values)
// of every layer into the two matrices that attention over the latent vectors multiplies by, and adds these
// to the table: k_b_proj, each head's keys transposed ([heads * rank, nope]), and v_b_proj ([heads * value,
// rank]). Files that have k_b_proj and v_b_proj already stay as they are.
absl::Status AddLatentTensors(const ModelConfig& config, TensorTable* tensors);

}  // namespace somnus
