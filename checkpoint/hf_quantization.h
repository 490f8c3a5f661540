#pragma once
// quantization_config of a Hugging Face config.json. Include from .cc files only (json_file.h).

#include "absl/status/status.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"

namespace somnus {

// Reads quantization_config, or the compression_config of older compressed-tensors checkpoints; nothing where
// there is neither. Errors name the key: Unimplemented for a method, format or number of bits that is not
// read, InvalidArgument for values that cannot be.
absl::Status ReadQuantization(JsonFields* fields, QuantizationConfig* quantization);

}  // namespace somnus
