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

absl::Status AddLatentTensors(const ModelConfig& config, TensorTable* tensors) {
  const LatentConfig& latent = config.latent;
  if (latent.rank == 0) return absl::OkStatus();
  const int64_t head_rows = int64_t{latent.nope} + latent.value, heads = config.num_heads;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = absl::StrCat(config.family->layer_prefix, layer, ".self_attn.");
    ASSIGN_OR_RETURN(
        const std::optional<TensorInfo> whole,
        FindWhole(config, *tensors, prefix + "kv_b_proj.weight", {heads * head_rows, latent.rank}));
    if (!whole.has_value()) continue;
    TensorPart keys{.whole = *whole, .transposed = true, .group_rows = latent.rank, .group_step = head_rows};
    TensorPart values{
        .whole = *whole, .first_row = latent.nope, .group_rows = latent.value, .group_step = head_rows};
    RETURN_IF_ERROR(tensors->Add(
        MakePartTensor(prefix + "k_b_proj.weight", {heads * latent.rank, latent.nope}, std::move(keys))));
    RETURN_IF_ERROR(tensors->Add(
        MakePartTensor(prefix + "v_b_proj.weight", {heads * latent.value, latent.rank}, std::move(values))));
  }
  return absl::OkStatus();
}

}  // namespace somnus
