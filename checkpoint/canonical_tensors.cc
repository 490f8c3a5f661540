#include "checkpoint/canonical_tensors.h"

#include "checkpoint/family.h"

namespace somnus {
namespace {

bool IsNorm(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kAttentionPostNorm:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kMlpPostNorm:
      return true;
    default:
      return false;
  }
}

// The rows of the tensor that are dimensions of queries and keys.
int64_t RotatingRows(const TensorSpec& spec, const ModelConfig& config) {
  const int64_t queries = SizeOf(Dim::kQueries, config), keys = SizeOf(Dim::kKeysValues, config);
  switch (spec.role) {
    case TensorRole::kQueryKeyValue:
      return queries + keys;
    case TensorRole::kQuery:
      return queries;
    case TensorRole::kKey:
      return keys;
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return SizeOf(spec.rows, config);
    default:
      return 0;
  }
}

}  // namespace

void ForEachUncommonTensor(
    const ModelConfig& config, TensorOrigin origin,
    absl::FunctionRef<void(const std::string& name, const HeadOrder& heads, float offset)> apply) {
  const Family& family = *config.family;
  const bool gguf = origin == TensorOrigin::kGguf;
  const bool interleaved = family.interleaved_rope || (gguf && family.gguf_permutes_heads);
  const int32_t rotary_dim = config.RotaryDim();
  const bool reorders =
      config.rope.type != RopeConfig::Type::kNone && (interleaved || rotary_dim < config.head_dim);
  const float norm_offset = gguf ? 0.0f : family.norm_offset;
  ForEachSpec(config, [&](const TensorSpec& spec, const std::string& name) {
    const int64_t rows = reorders ? RotatingRows(spec, config) : 0;
    const HeadOrder heads = {rows > 0 ? config.head_dim : 0, rotary_dim, interleaved, rows};
    const float offset = IsNorm(spec.role) ? norm_offset : 0.0f;
    if (rows == 0 && offset == 0) return;
    apply(name + spec.suffix, heads, offset);
    apply(name + ".bias", heads, 0.0f);
  });
}

}  // namespace somnus
