#pragma once
// Which matrices of a quantized Hugging Face checkpoint are made of which tensors.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Adds, for every matrix that a model of this configuration needs and that is stored by parts, one tensor
// with `packed`, under the name and in the shape that the configuration asks for. A matrix that is stored
// unpacked stays so, regardless of quantization_config; missing matrices are left to CheckTensors.
// InvalidArgument names the tensor: a part that is missing beside present parts, or of a wrong type or shape,
// or a g_idx that names no group.
//
// The tensor's type is the type of the blocks of 32 that hold the numbers unchanged:
//   Q4_0   4 bits, symmetric: exact
//   Q4_1   4 bits with zero points: the product of scale and zero point is rounded to half precision
//   Q8_0   8 bits, symmetric: exact
//   F8_E4M3 fp8 with a scale for each row, for all of them, or for blocks of multiples of 32 rows: exact
//   Scales that are stored as bfloat16 or float32 are rounded to half precision, but not scales of fp8. The
//   type is F32, with all values exact, for 8 bits with zero points, fp8 with several scales in a row of its
//   own, inputs that are sorted into groups (GPTQ's desc_act), and where 32 does not divide the groups or the
//   inputs.
absl::Status AddPackedTensors(const ModelConfig& config, TensorTable* tensors);

// The tensor that AddPackedTensors would add for the matrix `name` of `shape`, [rows, columns]; nothing where
// no parts of the matrix are there.
absl::StatusOr<std::optional<TensorInfo>> MakePackedTensor(const QuantizationConfig& config,
                                                           const TensorTable& tensors,
                                                           const std::string& name,
                                                           const std::vector<int64_t>& shape);

}  // namespace somnus
