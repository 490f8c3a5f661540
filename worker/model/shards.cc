#include "worker/model/shards.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {
namespace {

Range CutEvenly(int64_t total, int rank, int world_size) {
  return {total * rank / world_size, total * (rank + 1) / world_size};
}

Range Scaled(Range range, int64_t factor) { return {range.begin * factor, range.end * factor}; }

}  // namespace

Range ShardRange(int64_t total, int rank, int world_size) {
  const int64_t granule = total >= 256 * world_size ? 64 : total >= 64 * world_size ? 16 : 1;
  const Range units = CutEvenly((total + granule - 1) / granule, rank, world_size);
  return {std::min(total, units.begin * granule), std::min(total, units.end * granule)};
}

absl::Status CheckPipeline(const PipelinePlace& place, int32_t num_layers) {
  const auto bad = [](const auto&... text) { return absl::InvalidArgumentError(absl::StrCat(text...)); };
  if (place.num_stages < 1 || place.stage < 0 || place.stage >= place.num_stages)
    return bad("--pipeline-parallel-size: stage ", place.stage, " of ", place.num_stages);
  if (place.num_stages > num_layers) {
    return bad("--pipeline-parallel-size: ", place.num_stages, " stages, but the model has ", num_layers,
               " layers");
  }
  const std::vector<int32_t>& layers = place.stage_layers;
  if (layers.empty()) return absl::OkStatus();
  const bool positive = std::all_of(layers.begin(), layers.end(), [](int32_t count) { return count > 0; });
  const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  if (positive && static_cast<int>(layers.size()) == place.num_stages && sum == num_layers)
    return absl::OkStatus();
  return bad("--pipeline-layer-partition: ", layers.size(), " numbers of layers, ", sum, " in all, for ",
             place.num_stages, " stages and the model's ", num_layers, " layers");
}

Range StageLayers(const PipelinePlace& place, int32_t num_layers) {
  const int num_stages = place.num_stages, rest = num_layers % num_stages;
  Range layers;
  for (int stage = 0; stage <= place.stage; ++stage) {
    const bool one_more = stage < num_stages - 1 && stage >= num_stages - 1 - rest;
    layers.begin = layers.end;
    layers.end +=
        place.stage_layers.empty() ? num_layers / num_stages + (one_more ? 1 : 0) : place.stage_layers[stage];
  }
  return layers;
}

ModelShards MakeShards(const ModelConfig& config, int rank, int world_size, const PipelinePlace& place) {
  ModelShards shards;
  shards.layers = StageLayers(place, config.num_layers);
  shards.first_stage = place.first();
  shards.last_stage = place.last();
  shards.rank = rank;
  shards.world_size = world_size;
  const int64_t group = config.num_heads / config.num_kv_heads;  // query heads per KV head
  if (config.num_kv_heads >= world_size) {
    shards.kv_heads = CutEvenly(config.num_kv_heads, rank, world_size);
    shards.heads = Scaled(shards.kv_heads, group);
  } else {
    shards.heads = CutEvenly(config.num_heads, rank, world_size);
    if (!shards.heads.empty()) {
      shards.kv_heads = {shards.heads.begin / group, (shards.heads.end - 1) / group + 1};
      shards.first_own_kv_head = shards.heads.begin % group == 0 ? 0 : 1;
    }
  }
  for (int64_t head = shards.heads.begin; head < shards.heads.end; ++head) {
    shards.kv_head_of_head.push_back(static_cast<int32_t>(head / group - shards.kv_heads.begin));
  }
  shards.mlp = ShardRange(config.intermediate_size, rank, world_size);
  shards.vocab = ShardRange(config.vocab_size, rank, world_size);
  for (int r = 0; r < world_size; ++r) {
    shards.max_vocab_rows =
        std::max(shards.max_vocab_rows, ShardRange(config.vocab_size, r, world_size).size());
  }
  return shards;
}

bool IsDivided(Dim dim) {
  switch (PartsOf(dim).front()) {
    case Dim::kQueries:
    case Dim::kKeysValues:
    case Dim::kIntermediate:
    case Dim::kVocab:
      return true;
    default:
      return false;
  }
}

Range ShardOf(Dim dim, const ModelConfig& config, const ModelShards& shards) {
  switch (dim) {
    case Dim::kQueries:
      return Scaled(shards.heads, config.head_dim);
    case Dim::kKeysValues:
      return Scaled(shards.kv_heads, config.head_dim);
    case Dim::kIntermediate:
      return shards.mlp;
    case Dim::kVocab:
      return shards.vocab;
    default:
      SOMNUS_CHECK(PartsOf(dim).size() == 1);  // a rank holds several ranges of these
      return {0, SizeOf(dim, config)};
  }
}

}  // namespace somnus
