#include "kernels/cuda/gemm_plan.h"

#include <algorithm>

namespace somnus {

int32_t AlignmentOf(const void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<int32_t>(address & -address);
}

int64_t BucketRows(int64_t rows) {
  if (rows <= 16) return rows;
  const int64_t below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows - 1)));
  const int64_t step = std::max<int64_t>(16, below / 8);
  return (rows + step - 1) / step * step;
}

}  // namespace somnus
