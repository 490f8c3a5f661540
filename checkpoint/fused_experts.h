#pragma once
// The experts' matrices of files and of clients that have all experts of a layer in one tensor.

#include <vector>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/whole_tensor.h"

namespace somnus {

// Adds each expert's matrices as parts of the files' tensors of all experts of a layer, by the names of files
// that have tensors for each expert. E experts of width I, H: hidden_size. The files have
//   gate_up_proj [E, 2 I, H], all rows of gate first, and down_proj [E, H, I], as transformers 5 saves its
//   modules (save_original_format=False);
// in families with `fused_experts`, whose every file is of this kind,
//   gate_up_proj [E, H, 2 I] and down_proj [E, I, H], inputs first, or
//   gate_up_proj_blocks [E, 2 I, H / 32, 16] and down_proj_blocks [E, H, I / 32, 16], the numbers of MXFP4
//   with two in a byte, the first in the low bits, and the same with _scales, without the last dimension,
// in which gate and up alternate, and gate_up_proj_bias [E, 2 I] and down_proj_bias [E, H].
// InvalidArgument and Unimplemented name a tensor of a wrong shape or type. Files without such tensors get
// nothing more.
absl::Status AddFusedExperts(const ModelConfig& config, TensorTable* tensors);

// The tensors of all experts of a layer in the form of transformers' modules, which trainers send, too; empty
// for a layer without experts. The shapes are those above, without MXFP4.
std::vector<WholeTensor> FusedExperts(const ModelConfig& config, int32_t layer);

}  // namespace somnus
