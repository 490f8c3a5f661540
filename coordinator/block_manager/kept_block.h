#pragma once
// Blocks of the KV cache whose contents are in host memory while the cache sleeps. Values.

#include <cstdint>
#include <limits>
#include <vector>

namespace somnus {

struct KeptBlock {
  int32_t device_block = 0;
  int32_t host_block = 0;  // of the host tier

  bool operator==(const KeptBlock&) const = default;
};

// The host blocks that have contents while the cache sleeps.
struct HostTierBlocks {
  std::vector<KeptBlock> kept;   // copied there by the sleep, and back by the wake-up
  std::vector<int32_t> swapped;  // host blocks that steps have swapped out to, and may swap in
};

// Which blocks may be kept, as far as the host tier has room.
struct KeepLimits {
  int64_t num_blocks = std::numeric_limits<int64_t>::max();
  bool cached_blocks = true;  // also cached blocks that no sequence holds
};

}  // namespace somnus
