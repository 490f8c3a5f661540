#pragma once
// An adapter (LoRA) that every rank of a group holds. Plain data, but for `dropped`.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace somnus {

struct HeldAdapter {
  int32_t slot = 0;  // by which steps name the adapter; at least 1
  // In a SetAdaptersRequest: an adapter that a recovery has dropped meanwhile is left out, and not read
  // again.
  bool must_be_held = false;
  uint64_t id = 0;  // of one load of the files; no other load gets the same id
  std::string name;
  std::string path;  // a directory on the workers' hosts
  // LoraAdapter::Fingerprint of the files; files with another fingerprint are an error. Empty: the files have
  // not been read yet.
  std::string fingerprint;
  // Becomes true once a recovery has dropped the adapter, because a new worker could not read the files. May
  // be null.
  std::shared_ptr<std::atomic<bool>> dropped;

  bool operator==(const HeldAdapter&) const = default;
};

inline bool HasId(const std::vector<HeldAdapter>& adapters, uint64_t id) {
  return std::any_of(adapters.begin(), adapters.end(), [id](const HeldAdapter& one) { return one.id == id; });
}

// The error for clients of an adapter that workers could not read again: DataLoss. `cause` is a rank's error,
// which may name paths.
absl::Status AdapterUnreadable(const std::string& name, const absl::Status& cause);

}  // namespace somnus
