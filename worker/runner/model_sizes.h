#pragma once
// How large a model is on a rank, and whether the model can run there: the served model, or a draft model
// beside the served model. Pure functions.

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "kernels/ops.h"
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

// InvalidArgument where the model cannot run with the options.
absl::Status CheckModelRuns(const ModelRunnerOptions& options, const ModelConfig& config);

// CheckModelRuns for the served model; also InvalidArgument for options that are bad with any model, or on
// the device. The error names the flag.
absl::Status CheckRunnerOptions(const ModelRunnerOptions& options, const ModelConfig& config,
                                const Device& device);

}  // namespace somnus
