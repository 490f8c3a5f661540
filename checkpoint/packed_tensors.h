#pragma once
// Which matrices of a quantized Hugging Face checkpoint are made of which tensors.

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Adds, for every matrix that a model of this configuration needs and that is stored by parts, one tensor
// with `packed`, under the name and in the shape that the configuration asks for. What is stored as it is
// stays so, whatever quantization_config says of it; what is missing is left to CheckTensors. InvalidArgument
// names the tensor: one that is missing beside others, or of a wrong type or shape, or a g_idx that names no
// group.
//
// Its type is that of the blocks of 32 that hold the numbers as they are:
//   Q4_0   4 bits, symmetric: exact
//   Q4_1   4 bits with zero points: the product of scale and zero point is rounded to half precision
//   Q8_0   8 bits, symmetric: exact
//   F8_E4M3  fp8 with a scale for each row, for all of them, or for blocks of multiples of 32 rows: exact
// Scales that are stored as bfloat16 or float32 are rounded to half precision, but not those of fp8. It is
// F32, with all values exact, of 8 bits with zero points, fp8 with several scales in a row of its own, inputs
// that are sorted into groups (GPTQ's desc_act), and where 32 does not divide the groups or the inputs.
absl::Status AddPackedTensors(const ModelConfig& config, TensorTable* tensors);

}  // namespace somnus
