#pragma once
// The values of --quantization: what the weights become at load, or, by vLLM's names for the methods of
// checkpoints, what they are already. Pure functions.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "proto/model.pb.h"

namespace somnus {

// kFp8 is both: what is not fp8 becomes it.
enum class Quantization { kNone, kInt8, kInt4, kFp8, kAwq, kGptq, kCompressedTensors, kGguf };

// Every name, with what it means.
std::vector<std::pair<std::string, Quantization>> QuantizationNames();

// What workers are told; nothing for a method that a checkpoint has.
v1::WeightQuantization WeightQuantizationOf(Quantization quantization);

// Whether all weights are dequantized at load: the value of --dequantize, and without that flag, whether the
// weights are to be quantized anew.
bool DequantizesAtLoad(std::optional<bool> dequantize, Quantization quantization);

// InvalidArgument names the flag and what the checkpoint has, where the flag names another method.
absl::Status CheckQuantization(Quantization quantization, const ModelConfig& config);

}  // namespace somnus
