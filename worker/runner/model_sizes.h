#pragma once
// What a model's configuration says about the memory of a rank: the model's own, and that of a draft model
// beside it. Pure functions.

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/model/kv_scales.h"
#include "worker/model/shards.h"
#include "worker/runner/model_runner.h"

namespace somnus {

// The element type of the KV cache.
inline DataType CacheTypeOf(const ModelRunnerOptions& options) {
  return options.kv_cache_dtype.value_or(options.dtype);
}

// The largest sizes that ops will be called with. logit_rows: as LogitsHead::MaxRows.
OpsLimits OpsLimitsOf(const ModelRunnerOptions& options, const ModelConfig& config, const ModelShards& shards,
                      int64_t logit_rows);

// Bytes of one block of one layer, K and V, this rank's heads; 0 where it has none.
int64_t LayerBlockBytesOf(const Device& device, const ModelRunnerOptions& options, const ModelConfig& config,
                          const ModelShards& shards);

// A view for each layer of a region that has a row for each, of `num_blocks` blocks one after the other.
// scales: by layer; empty: all 1.
std::vector<KvCacheView> KvCacheViewsOf(void* region, int32_t num_blocks, int64_t layer_block_bytes,
                                        const ModelRunnerOptions& options, const ModelConfig& config,
                                        const ModelShards& shards, const std::vector<KvScales>& scales);

// InvalidArgument where the model cannot run with these options.
absl::Status CheckModelRuns(const ModelRunnerOptions& options, const ModelConfig& config);

}  // namespace somnus
