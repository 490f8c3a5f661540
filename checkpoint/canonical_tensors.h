#pragma once
// Which tensors of a checkpoint are stored otherwise than models compute with them: rows in another order
// (head_order.h), or norms less a number. Readers write that down in TensorInfo, and ReadRows undoes it.

#include <string>

#include "absl/functional/function_ref.h"
#include "checkpoint/head_order.h"
#include "checkpoint/model_config.h"

namespace somnus {

// Whose files the tensors are from. Tensors that clients send are as Hugging Face's.
enum class TensorOrigin { kHuggingFace, kGguf };

// Calls apply(name, heads, offset) for each such tensor of a model of this configuration, as of
// TensorInfo::heads and TensorInfo::offset. Names end in ".weight" or ".bias"; a bias may be absent.
void ForEachUncommonTensor(
    const ModelConfig& config, TensorOrigin origin,
    absl::FunctionRef<void(const std::string& name, const HeadOrder& heads, float offset)> apply);

}  // namespace somnus
