#pragma once
// A rank's parts of all adapters, by their place in the forward pass. Views: the memory belongs to the
// runner's workspace (worker/runner/rank_adapters.h).

#include <cstdint>
#include <vector>

#include "checkpoint/lora_adapter.h"
#include "kernels/op_types.h"
#include "kernels/tensor.h"

namespace somnus {

struct AdapterWeights {
  std::vector<LoraWeights> linears;  // [layers of the stage][kNumLoraTargets]
  TensorView hidden = {};            // f32 [Tmax, max_rank]: scratch of one linear

  const LoraWeights& Of(int64_t layer, LoraTarget target) const {
    return linears[static_cast<size_t>(layer * kNumLoraTargets) + static_cast<size_t>(target)];
  }
};

}  // namespace somnus
