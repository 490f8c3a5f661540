#include "checkpoint/gguf_tensors.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace somnus {

std::string CanonicalGgufName(const Family& family, const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string stem = name.substr(0, dot), suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return name;
  for (const TensorSpec& spec : family.tensors) {
    if (spec.gguf != nullptr && stem == spec.gguf) return spec.name + suffix;
  }
  const std::vector<std::string> parts = absl::StrSplit(stem, '.');
  int layer = 0;
  if (parts.size() != 3 || parts[0] != "blk" || !absl::SimpleAtoi(parts[1], &layer)) return name;
  for (const TensorSpec& spec : family.layer_tensors) {
    if (spec.gguf != nullptr && parts[2] == spec.gguf)
      return absl::StrCat(family.layer_prefix, layer, ".", spec.name, suffix);
  }
  return name;
}

absl::Status AddGgufTensors(const Family& family, const GgufFile& gguf, const MappedFile& file,
                            TensorTable* tensors) {
  for (const GgufTensor& tensor : gguf.tensors()) {
    const std::string name = CanonicalGgufName(family, tensor.name);
    if (!tensor.type.has_value()) {
      RETURN_IF_ERROR(
          tensors->AddUnsupported(name, gguf.name(), absl::StrCat("number ", tensor.ggml_type, " of ggml")));
      continue;
    }
    TensorInfo info{name, *tensor.type, tensor.shape, file.data() + tensor.offset, tensor.bytes, gguf.name()};
    info.source = &file;
    RETURN_IF_ERROR(tensors->Add(std::move(info)));
  }
  return absl::OkStatus();
}

void MarkPermutedHeads(const ModelConfig& config, TensorTable* tensors) {
  if (!config.family->gguf_permutes_heads) return;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const TensorRole role : {TensorRole::kQuery, TensorRole::kKey}) {
      const std::string name = TensorName(*config.family, role, layer);
      tensors->SetPermuted(name + ".weight", config.head_dim);
      tensors->SetPermuted(name + ".bias", config.head_dim);
    }
  }
}

}  // namespace somnus
