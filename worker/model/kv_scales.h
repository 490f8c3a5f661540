#pragma once
// The scales of an fp8 KV cache, which stores value / scale. There is one number each for the keys and the
// values of a layer, read from a checkpoint as vLLM reads them. Pure functions, but for the log.

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

// One per layer; 1 where the checkpoint has none. InvalidArgument names file and tensor for a scale that is
// not one positive number.
absl::StatusOr<std::vector<KvScales>> ReadKvScales(const Checkpoint& checkpoint);

// Logs one line on where the scales are from.
void LogKvScales(const std::vector<KvScales>& scales);

}  // namespace somnus
