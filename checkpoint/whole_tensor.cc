#include "checkpoint/whole_tensor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/fused_experts.h"
#include "checkpoint/latent_tensors.h"

namespace somnus {

std::string PartName(const WholeTensor::Part& part, int64_t slice) {
  return absl::StrReplaceAll(part.name, {{"*", absl::StrCat(slice)}});
}

std::vector<WholeTensor> WholeTensors(const ModelConfig& config) {
  std::vector<WholeTensor> all;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (WholeTensor& whole : FusedExperts(config, layer)) all.push_back(std::move(whole));
    if (config.latent.rank > 0) all.push_back(LatentKeysAndValues(config, layer));
  }
  return all;
}

}  // namespace somnus
