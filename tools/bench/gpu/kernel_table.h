#pragma once
// One op at a time on the GPU, beside what bounds it.

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
  double bytes = 0;  // moved at least
  double flops = 0;
};

// Shapes of Qwen3-8B in bf16. Memory comes from the allocator and goes back to it.
absl::StatusOr<std::vector<KernelRow>> MeasureKernels(Device& device, SleepableAllocator& allocator);

}  // namespace somnus
