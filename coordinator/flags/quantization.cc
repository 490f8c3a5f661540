#include "coordinator/flags/quantization.h"

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

using Method = QuantizationConfig::Method;

const char* NameOf(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kInt4:
      return "int4";
    case Quantization::kFp8:
      return "fp8";
    case Quantization::kAwq:
      return "awq";
    case Quantization::kGptq:
      return "gptq";
    case Quantization::kCompressedTensors:
      return "compressed-tensors";
    case Quantization::kGguf:
      return "gguf";
  }
  return "";
}

// Whether a checkpoint of the method can be served as the flag says. The quantizations that are made at load
// take checkpoints that have no method, or are meant to be quantized anew.
bool Agrees(Quantization quantization, const QuantizationConfig& stored) {
  switch (quantization) {
    case Quantization::kFp8:
      return stored.float8 || stored.method == Method::kNone || stored.method == Method::kGguf;
    case Quantization::kAwq:
      return stored.method == Method::kAwq;
    case Quantization::kGptq:
      return stored.method == Method::kGptq;
    case Quantization::kCompressedTensors:
      return stored.method == Method::kCompressedTensors;
    case Quantization::kGguf:
      return stored.method == Method::kGguf;
    default:
      return true;
  }
}

std::string WhatIsThere(const ModelConfig& config) {
  const auto method = [&](const char* name) {
    return absl::StrCat(config.name, " has quantization_config.quant_method ", name);
  };
  switch (config.quantization.method) {
    case Method::kGptq:
      return method("gptq");
    case Method::kAwq:
      return method("awq");
    case Method::kCompressedTensors:
      return absl::StrCat(method("compressed-tensors"),
                          config.quantization.float8 ? " (of fp8)" : " (of whole numbers)");
    case Method::kFp8:
      return method("fp8");
    case Method::kMxfp4:
      return method("mxfp4");
    case Method::kGguf:
      return absl::StrCat(config.name, " is a GGUF file");
    case Method::kNone:
      break;
  }
  return absl::StrCat(config.name, " has no quantization_config");
}

}  // namespace

std::vector<std::pair<std::string, Quantization>> QuantizationNames() {
  return {{"none", Quantization::kNone},
          {"int8", Quantization::kInt8},
          {"int4", Quantization::kInt4},
          {"fp8", Quantization::kFp8},
          {"awq", Quantization::kAwq},
          {"awq_marlin", Quantization::kAwq},
          {"gptq", Quantization::kGptq},
          {"gptq_marlin", Quantization::kGptq},
          {"compressed-tensors", Quantization::kCompressedTensors},
          {"gguf", Quantization::kGguf}};
}

v1::WeightQuantization WeightQuantizationOf(Quantization quantization) {
  switch (quantization) {
    case Quantization::kInt8:
      return v1::WEIGHT_QUANTIZATION_INT8;
    case Quantization::kInt4:
      return v1::WEIGHT_QUANTIZATION_INT4;
    case Quantization::kFp8:
      return v1::WEIGHT_QUANTIZATION_FP8;
    default:
      return v1::WEIGHT_QUANTIZATION_NONE;
  }
}

bool DequantizesAtLoad(std::optional<bool> dequantize, Quantization quantization) {
  return dequantize.value_or(WeightQuantizationOf(quantization) != v1::WEIGHT_QUANTIZATION_NONE);
}

absl::Status CheckQuantization(Quantization quantization, const ModelConfig& config) {
  if (Agrees(quantization, config.quantization)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--quantization=", NameOf(quantization), ": ",
                                                 WhatIsThere(config),
                                                 "; without the flag it is read as what it is"));
}

}  // namespace somnus
