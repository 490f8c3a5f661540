#pragma once
// How a block of the paged cache lies in a device's memory: [num_kv_heads][K, V] runs, a run being the K or
// the V of one KV head. A run is [block_size][head_dim] elements; in an int8 cache the f32 scales
// [block_size] lie before the elements, and both parts are padded to 16 bytes. A latent cache has one run a
// head, which is K and V. Plain numbers of the host; no CUDA here.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// Where a run's elements begin, in bytes from its start.
constexpr int64_t CacheRunHeader(DataType dtype, int64_t block_size) {
  return dtype == DataType::kI8 ? (block_size * 4 + 15) / 16 * 16 : 0;
}
// From one run to the next.
constexpr int64_t CacheRunBytes(DataType dtype, int64_t block_size, int64_t head_dim) {
  const int64_t elements = block_size * head_dim * SizeOf(dtype);
  return dtype == DataType::kI8 ? CacheRunHeader(dtype, block_size) + (elements + 15) / 16 * 16 : elements;
}

}  // namespace somnus
