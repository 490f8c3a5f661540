#include "checkpoint/gguf/gguf_tensors.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "checkpoint/experts_config.h"

namespace somnus {
namespace {

// "IQ2_XXS (number 16 of ggml)": the name in messages of a type that cannot be read.
std::string UnsupportedTypeName(uint32_t ggml_type) {
  constexpr struct {
    uint32_t ggml_type;
    const char* name;
  } kNames[] = {{9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
                {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},
                {25, "I16"},   {26, "I32"},   {27, "I64"},     {28, "F64"},    {29, "IQ1_M"},
                {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"},   {41, "Q1_0"}};
  for (const auto& known : kNames) {
    if (known.ggml_type == ggml_type) return absl::StrCat(known.name, " (number ", ggml_type, " of ggml)");
  }
  return absl::StrCat("number ", ggml_type, " of ggml");
}

// Adds the tensor; a tensor of all experts, whose name has a "*" and whose first dimension is the experts, as
// one tensor for each expert; any other tensor of three dimensions, of all heads, as the heads' matrices one
// below the other.
absl::Status AddTensor(TensorInfo info, TensorTable* tensors) {
  const size_t star = info.name.find('*');
  if (star == std::string::npos && info.shape.size() == 3) {
    info.shape[1] *= info.shape[0];  // GgufFile has checked the number of elements
    info.shape.erase(info.shape.begin());
  }
  if (star == std::string::npos) return tensors->Add(std::move(info));
  const int64_t count = info.shape.size() > 1 ? info.shape[0] : 0;
  if (count < 1 || count > kMaxRoutedExperts || info.bytes % count != 0) {
    return absl::InvalidArgumentError(absl::StrCat(info.file, ": tensor ", info.name, ": shape ",
                                                   ShapeString(info.shape), " is not of 1 to ",
                                                   kMaxRoutedExperts, " experts"));
  }
  const uint64_t bytes = info.bytes / count;
  for (int64_t expert = 0; expert < count; ++expert) {
    TensorInfo part = info;
    part.name = absl::StrCat(info.name.substr(0, star), expert, info.name.substr(star + 1));
    part.shape.erase(part.shape.begin());
    part.data = info.data + expert * bytes;
    part.bytes = bytes;
    RETURN_IF_ERROR(tensors->Add(std::move(part)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CanonicalGgufName(const Family& family, const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string stem = name.substr(0, dot), suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return name;
  const auto suffix_of = [&](const TensorSpec& spec) {
    return suffix == spec.gguf_suffix ? spec.suffix : suffix;
  };
  for (const TensorSpec& spec : family.tensors) {
    if (spec.gguf != nullptr && stem == spec.gguf) return absl::StrCat(spec.name, suffix_of(spec));
  }
  const std::vector<std::string> parts = absl::StrSplit(stem, '.');
  int layer = 0;
  if (parts.size() != 3 || parts[0] != "blk" || !absl::SimpleAtoi(parts[1], &layer)) return name;
  for (const TensorSpec& spec : family.layer_tensors) {
    if (spec.gguf != nullptr && parts[2] == spec.gguf)
      return absl::StrCat(family.layer_prefix, layer, ".", spec.name, suffix_of(spec));
  }
  return name;
}

absl::Status AddGgufTensors(const Family& family, const GgufFile& gguf, const MappedFile& file,
                            TensorTable* tensors) {
  for (const GgufTensor& tensor : gguf.tensors()) {
    const std::string name = CanonicalGgufName(family, tensor.name);
    if (!tensor.type.has_value()) {
      RETURN_IF_ERROR(tensors->AddRaw({.name = absl::StrReplaceAll(name, {{"*", "0"}}),
                                       .dtype = UnsupportedTypeName(tensor.ggml_type),
                                       .shape = tensor.shape,
                                       .file = gguf.name()}));
      continue;
    }
    TensorInfo info{name, *tensor.type, tensor.shape, file.data() + tensor.offset, tensor.bytes, gguf.name()};
    info.source = &file;
    RETURN_IF_ERROR(AddTensor(std::move(info), tensors));
  }
  return absl::OkStatus();
}

}  // namespace somnus
