#pragma once
// The tags of device memory that sleeps. Coordinator, workers, wire and metrics use these names.

#include <array>

#include "absl/strings/string_view.h"

namespace somnus {

inline constexpr char kWeightsTag[] = "weights";      // a wake-up copies weights back or reads them again
inline constexpr char kKvCacheTag[] = "kv_cache";     // a sleep discards the cache
inline constexpr char kWorkspaceTag[] = "workspace";  // activations and batch state; a sleep discards them

inline constexpr std::array<const char*, 3> kMemoryTags = {kWeightsTag, kKvCacheTag, kWorkspaceTag};

// For error messages.
inline constexpr char kMemoryTagNames[] = "weights, kv_cache and workspace";

inline bool IsMemoryTag(absl::string_view tag) {
  for (const char* known : kMemoryTags) {
    if (tag == known) return true;
  }
  return false;
}

}  // namespace somnus
