#pragma once
// A block of the KV cache whose contents are kept in host memory while the cache sleeps. A value.

#include <cstdint>

namespace somnus {

struct KeptBlock {
  int32_t device_block = 0;
  int32_t host_block = 0;  // of the host tier

  bool operator==(const KeptBlock&) const = default;
};

}  // namespace somnus
