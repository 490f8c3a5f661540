#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/cache_layout.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// The tensor cores round a sum once; half the traffic of f32.
DataType SumType(const Device&, DataType act) { return act; }

DataType RouterWeightType(const Device&, DataType act) { return act; }

// Rows as they are: [n, k] without padding.
int64_t PackedWeightBytes(const Device&, DataType dtype, int64_t n, int64_t k) {
  return n * k * SizeOf(dtype);
}

bool ComputesQuantized(const Device&, DataType) { return false; }

void PackQuantizedRows(const Device&, const LinearWeight&, int64_t, int64_t, const uint8_t*) {
  SOMNUS_CHECK(false);
}

int64_t KvBlockBytes(const Device&, DataType dtype, int64_t block_size, int64_t num_kv_heads,
                     int64_t head_dim, bool latent) {
  return num_kv_heads * (latent ? 1 : 2) * CacheRunBytes(dtype, block_size, head_dim);
}

int64_t OpsWorkspaceBytes(const Device& device, const OpsLimits& limits) {
  const CudaDevice& cuda = AsCuda(device);
  const int64_t bytes = std::max({LinearWorkspaceBytes(cuda, limits), AttentionWorkspaceBytes(cuda, limits),
                                  SamplingWorkspaceBytes(cuda, limits)});
  return (bytes + 255) / 256 * 256;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
