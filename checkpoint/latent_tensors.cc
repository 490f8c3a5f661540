#include "checkpoint/latent_tensors.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/packed_tensors.h"
#include "checkpoint/tensor_part.h"

namespace somnus {
namespace {

// The stored matrix; nothing in files without the matrix.
absl::StatusOr<std::optional<TensorInfo>> FindWhole(const ModelConfig& config, const TensorTable& tensors,
                                                    const std::string& name,
                                                    const std::vector<int64_t>& shape) {
  if (tensors.Find(name) == nullptr) return MakePackedTensor(config.quantization, tensors, name, shape);
  RETURN_IF_ERROR(tensors.Expect(name, shape));
  return *tensors.Find(name);
}

}  // namespace

WholeTensor LatentKeysAndValues(const ModelConfig& config, int32_t layer) {
  const LatentConfig& latent = config.latent;
  const int64_t head_rows = int64_t{latent.nope} + latent.value, rows = config.num_heads * head_rows;
  const std::string prefix = absl::StrCat(config.family->layer_prefix, layer, ".self_attn.");
  TensorPart keys{.transposed = true, .group_rows = latent.rank, .group_step = head_rows};
  TensorPart values{.first_row = latent.nope, .group_rows = latent.value, .group_step = head_rows};
  return {.name = prefix + "kv_b_proj.weight",
          .shape = {rows, latent.rank},
          .rows = rows,
          .cols = latent.rank,
          .parts = {{prefix + "k_b_proj.weight", std::move(keys)},
                    {prefix + "v_b_proj.weight", std::move(values)}}};
}

absl::Status AddLatentTensors(const ModelConfig& config, TensorTable* tensors) {
  const LatentConfig& latent = config.latent;
  if (latent.rank == 0) return absl::OkStatus();
  const int64_t heads = config.num_heads;
  const std::vector<int64_t> shapes[] = {{heads * latent.rank, latent.nope},
                                         {heads * latent.value, latent.rank}};
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const WholeTensor both = LatentKeysAndValues(config, layer);
    ASSIGN_OR_RETURN(const std::optional<TensorInfo> whole,
                     FindWhole(config, *tensors, both.name, both.shape));
    if (!whole.has_value()) continue;
    for (size_t i = 0; i < both.parts.size(); ++i) {
      TensorPart place = both.parts[i].place;
      place.whole = *whole;
      RETURN_IF_ERROR(tensors->Add(MakePartTensor(both.parts[i].name, shapes[i], std::move(place))));
    }
  }
  return absl::OkStatus();
}

}  // namespace somnus
