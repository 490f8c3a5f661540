#pragma once
// The experts' matrices of files and of clients that have all experts of a layer in one tensor.

#include <vector>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/whole_tensor.h"

namespace somnus {

// Adds, for each layer with experts of a family with `fused_experts`, each expert's gate_proj, up_proj and
// down_proj with their biases as parts of the files' tensors, by the names that other families' files have
// (mlp.experts.0.gate_proj.weight). E experts of width I, H: hidden_size. The files have
//   gate_up_proj [E, H, 2 I] and down_proj [E, I, H], inputs first, or
//   gate_up_proj_blocks [E, 2 I, H / 32, 16] and down_proj_blocks [E, H, I / 32, 16], the numbers of MXFP4
//   with two in a byte, the first in the low bits, and the same with _scales, without the last dimension,
// in which gate and up alternate, and gate_up_proj_bias [E, 2 I] and down_proj_bias [E, H].
// InvalidArgument names a tensor of a wrong type or shape. Files without such tensors get nothing more.
absl::Status AddFusedExperts(const ModelConfig& config, TensorTable* tensors);

// The tensors of all experts of a layer in the form of transformers' modules, which trainers send; empty for
// a layer without experts. Families with `fused_experts` have the shapes above, without MXFP4. All further
// families have gate_up_proj [E, 2 I, H], all rows of gate first, and down_proj [E, H, I].
std::vector<WholeTensor> FusedExperts(const ModelConfig& config, int32_t layer);

}  // namespace somnus
