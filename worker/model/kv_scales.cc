#include "worker/model/kv_scales.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"

namespace somnus {
namespace {

// Beyond these a reciprocal or a product with a stored value might leave float's range.
constexpr float kSmallest = 1e-20f, kLargest = 1e20f;

// Names under a layer's self_attn, where % is k or v: the names that vLLM, compressed-tensors and ModelOpt
// write, and the names for fused projections.
constexpr const char* kNames[] = {"%_scale",          "attn.%_scale", "%_proj.%_scale", "%_proj.output_scale",
                                  "qkv_proj.%_scale", "%_cache.scale"};
// The name of a number that is the scale of both.
constexpr const char* kCommonName = "kv_scale";

absl::StatusOr<float> ReadScale(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const auto bad = [&](const auto&... reason) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.file, ": tensor ", tensor.name, ": a scale of the KV cache ", reason...));
  };
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim != 1; })) {
    return bad("is one number, not of shape [", absl::StrJoin(tensor.shape, ", "), "]");
  }
  TensorInfo one = tensor;
  one.shape = {1};  // a tensor without dimensions is read as shape [1]
  float scale = 0;
  RETURN_IF_ERROR(checkpoint.ReadRows(one, 0, 1, 0, 1, &scale));
  if (!(scale >= kSmallest && scale <= kLargest)) return bad("must be a positive number, not ", scale);
  return scale;
}

// `which`: "k" or "v". Empty where there is none.
absl::StatusOr<std::optional<float>> FindScale(const Checkpoint& checkpoint, const std::string& attention,
                                               const std::string& which) {
  for (const char* name : kNames) {
    const TensorInfo* tensor = checkpoint.Find(attention + absl::StrReplaceAll(name, {{"%", which}}));
    if (tensor != nullptr) return ReadScale(checkpoint, *tensor);
  }
  return std::optional<float>();
}

absl::StatusOr<KvScales> ReadLayer(const Checkpoint& checkpoint, const std::string& attention) {
  if (const TensorInfo* both = checkpoint.Find(attention + kCommonName); both != nullptr) {
    ASSIGN_OR_RETURN(const float scale, ReadScale(checkpoint, *both));
    return KvScales{scale, scale, true};
  }
  ASSIGN_OR_RETURN(const std::optional<float> k, FindScale(checkpoint, attention, "k"));
  ASSIGN_OR_RETURN(const std::optional<float> v, FindScale(checkpoint, attention, "v"));
  if (!k && !v) return KvScales();
  if (!k) return absl::InvalidArgumentError(absl::StrCat(attention, "v_scale is there without k_scale"));
  return KvScales{*k, v.value_or(*k), true};  // v takes k's, as in vLLM
}

}  // namespace

absl::StatusOr<std::vector<KvScales>> ReadKvScales(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  std::vector<KvScales> scales;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    ASSIGN_OR_RETURN(scales.emplace_back(),
                     ReadLayer(checkpoint, absl::StrCat(config.family->layer_prefix, layer, ".self_attn.")));
  }
  return scales;
}

void LogKvScales(const std::vector<KvScales>& scales) {
  const auto given = std::count_if(scales.begin(), scales.end(), [](const KvScales& s) { return s.given; });
  if (given == static_cast<int64_t>(scales.size())) {
    LogInfo("KV cache in fp8_e4m3 with the checkpoint's scales");
  } else {
    LogWarning("KV cache in fp8_e4m3: {} of {} layers have scales in the checkpoint, the others get 1.0",
               given, scales.size());
  }
}

}  // namespace somnus
