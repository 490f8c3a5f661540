#pragma once
// Times one op at a time on the GPU, for a table beside the ceilings.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "kernels/device.h"
#include "tools/bench/gpu/ceilings.h"

namespace somnus {

struct KernelRow {
  std::string name;
  double us = 0;
  double bytes = 0;  // that must be moved at least
  double flops = 0;
};

// Measures the ops at the shapes of Qwen3-8B in bf16. Memory comes from the allocator and goes back to it.
absl::StatusOr<std::vector<KernelRow>> MeasureKernels(Device& device, SleepableAllocator& allocator);

}  // namespace somnus
