#pragma once
// The scales of an fp8 KV cache, which stores value / scale. The keys of a layer have a scale, and so have
// the values; both are read from a checkpoint as in vLLM. Pure functions, but for the log.

#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

struct KvScales {
  float k = 1;
  float v = 1;
  bool given = false;  // by the checkpoint

  bool operator==(const KvScales&) const = default;
};

// The scales of each layer; 1 where the checkpoint has no scale. InvalidArgument names file and tensor for a
// scale that is not a single positive number.
absl::StatusOr<std::vector<KvScales>> ReadKvScales(const Checkpoint& checkpoint);

// Logs a line on the source of the scales.
void LogKvScales(const std::vector<KvScales>& scales);

}  // namespace somnus
