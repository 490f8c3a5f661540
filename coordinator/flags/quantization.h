#pragma once
// The values of --quantization: the form that the weights get at load, or, by vLLM's names for the methods of
// checkpoints, the form that the weights have already. Pure functions.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "proto/model.pb.h"

namespace somnus {

// kFp8: an fp8 checkpoint stays as the checkpoint is; any other checkpoint is quantized to fp8 at load.
enum class Quantization { kNone, kInt8, kInt4, kFp8, kAwq, kGptq, kCompressedTensors, kGguf };

// Every name, with its meaning.
std::vector<std::pair<std::string, Quantization>> QuantizationNames();

// The quantization that workers are told; none for a method that a checkpoint has.
v1::WeightQuantization WeightQuantizationOf(Quantization quantization);

// Whether all weights are dequantized at load: the value of --dequantize, and without that flag, whether the
// weights are to be quantized anew.
bool DequantizesAtLoad(std::optional<bool> dequantize, Quantization quantization);

// InvalidArgument names the flag and the checkpoint's method, where the two differ.
absl::Status CheckQuantization(Quantization quantization, const ModelConfig& config);

}  // namespace somnus
