#pragma once
// The clients' requests that are open, by the id that their responses have, so that operators can abort them
// by it. Thread safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

class OpenRequests {
 public:
  // `engine_ids`: those of its choices. Returns what Remove takes.
  int64_t Add(std::string response_id, std::vector<std::string> engine_ids);
  void Remove(int64_t key);

  struct Found {
    int num_requests = 0;
    std::vector<std::string> engine_ids;  // of all their choices
  };
  // Those of the given ids, which several requests may share; all without ids.
  Found Find(const std::optional<std::vector<std::string>>& response_ids) const;

 private:
  struct Entry {
    std::string response_id;
    std::vector<std::string> engine_ids;
  };

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace somnus
