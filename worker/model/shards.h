#pragma once
// Which part of a model a rank holds. Stages of a pipeline divide the layers; the ranks of a stage divide
// each layer (Megatron's tensor parallelism). Shards are ranges, not equal parts: rank r of n owns [total * r
// / n, total * (r + 1) / n), so that every world size works. A range may be empty, but the last rank's never
// is: addends that must be added exactly once (row-parallel biases) are added there.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/family.h"
#include "checkpoint/model_config.h"

namespace somnus {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// Returns rank `rank`'s part of `total` items. Where there are enough items the bounds are multiples of 64
// (at least 256 items for each rank) or 16 (at least 64), which kernels compute faster; the ranks' shares
// then differ by that much.
Range ShardRange(int64_t total, int rank, int world_size);

// The stage of a pipeline that a rank is in. The first stage has the embedding, the last stage the last norm
// and the head.
struct PipelinePlace {
  int stage = 0;
  int num_stages = 1;
  // The layers of each stage, in order. Empty: equal numbers, where the layers that are left over go to the
  // stages before the last, which has the head besides.
  std::vector<int32_t> stage_layers;

  bool first() const { return stage == 0; }
  bool last() const { return stage == num_stages - 1; }
};

// InvalidArgument names the flag of the coordinator: every stage has a layer, and all layers have a stage.
absl::Status CheckPipeline(const PipelinePlace& place, int32_t num_layers);
// The layers of the place's stage; of a place that CheckPipeline accepts.
Range StageLayers(const PipelinePlace& place, int32_t num_layers);

// Plain data. Attention is cut between KV heads while there are enough KV heads, and each KV head takes its
// query heads along; with fewer KV heads than ranks query heads are cut, and several ranks hold the KV heads
// that their query heads need.
struct ModelShards {
  int rank = 0;
  int world_size = 1;
  Range heads;                           // query heads
  Range kv_heads;                        // KV heads that `heads` need; empty when `heads` is
  std::vector<int32_t> kv_head_of_head;  // [heads.size()]: index into kv_heads
  // The first of kv_heads that no lower rank holds: 0, or 1 where the first KV head is shared.
  int64_t first_own_kv_head = 0;
  Range mlp;                   // rows of the MLP's first matrices
  Range vocab;                 // rows of embedding and head
  int64_t max_vocab_rows = 0;  // the largest rank's
  Range layers;                // of the rank's stage; `rank` and `world_size` are within the stage
  bool first_stage = true;
  bool last_stage = true;

  // The last of the ranks that divide a layer.
  bool last_rank() const { return rank == world_size - 1; }
};

// `rank` and `world_size`: within the stage.
ModelShards MakeShards(const ModelConfig& config, int rank, int world_size, const PipelinePlace& place = {});

// Whether ranks divide this side of a tensor among themselves.
bool IsDivided(Dim dim);
// This rank's part of the dimension, which is a single part (PartsOf); the whole of a dimension that is not
// divided.
Range ShardOf(Dim dim, const ModelConfig& config, const ModelShards& shards);

}  // namespace somnus
