// Memory that is filled by a rule instead of from a file.
#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {

void FillRandom(Device& device, void* data, DataType dtype, int64_t count, uint64_t seed, float scale) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(count, count * 4, [&](int64_t begin, int64_t end) {
    cpu.kernels().fill_random(static_cast<char*>(data), dtype, begin, end, seed, scale);
  });
}

}  // namespace somnus::cpu
