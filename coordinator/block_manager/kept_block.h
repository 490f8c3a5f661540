#pragma once
// A block of the KV cache whose contents are kept in host memory while the cache sleeps. Values.

#include <cstdint>
#include <limits>

namespace somnus {

struct KeptBlock {
  int32_t device_block = 0;
  int32_t host_block = 0;  // of the host tier

  bool operator==(const KeptBlock&) const = default;
};

// What may be kept, beside what the host tier has room for.
struct KeepLimits {
  int64_t num_blocks = std::numeric_limits<int64_t>::max();
  bool cached_blocks = true;  // those that no sequence holds, too
};

}  // namespace somnus
