#pragma once
// An adapter (LoRA) that every rank of a group holds. Plain data, but for `dropped`.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace somnus {

struct HeldAdapter {
  int32_t slot = 0;  // by which steps name the adapter; at least 1
  // Of a change: the adapter is left out where the ranks do not hold it any more, since a worker that came
  // after a loss could not read it.
  bool must_be_held = false;
  uint64_t id = 0;  // of what was loaded, never used again
  std::string name;
  std::string path;  // a directory on the workers' hosts
  // Of the files that were loaded; another fingerprint is an error. Empty: the files are read for the first
  // time.
  std::string fingerprint;
  // Becomes true once a worker that came after a loss could not read the adapter, which its group does not
  // hold any more. Null: nobody asks.
  std::shared_ptr<std::atomic<bool>> dropped;

  bool operator==(const HeldAdapter&) const = default;
};

inline bool HasId(const std::vector<HeldAdapter>& adapters, uint64_t id) {
  return std::any_of(adapters.begin(), adapters.end(), [id](const HeldAdapter& one) { return one.id == id; });
}

}  // namespace somnus
