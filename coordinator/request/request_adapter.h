#pragma once
// The adapter (LoRA) that a request is computed with. Shared by all requests of one load of the adapter: the
// adapter may leave the workers once nobody holds this object any more.

#include <atomic>
#include <cstdint>
#include <string>

namespace somnus {

struct RequestAdapter {
  int32_t slot = 0;  // of the workers, at least 1
  uint64_t id = 0;   // of this load, never used again
  std::string name;
  std::string path;
  // Begins the cache salt of the adapter's requests: no request of the base model or of another load finds
  // their blocks. Nobody can guess the salt.
  std::string salt;
  // Of live sequences, at all replicas; kept by LiveSequences, for metrics.
  mutable std::atomic<int32_t> num_running{0};
  mutable std::atomic<int32_t> num_waiting{0};
};

}  // namespace somnus
