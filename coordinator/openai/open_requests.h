#pragma once
// The clients' open requests, by the id in the response, so that operators can abort requests by that id.
// Thread safe.

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
  // `engine_ids`: the ids of the request's choices. Returns the key for Remove.
  int64_t Add(std::string response_id, std::vector<std::string> engine_ids);
  void Remove(int64_t key);

  struct Found {
    int num_requests = 0;
    std::vector<std::string> engine_ids;  // of all choices
  };
  // The requests with the given ids; several requests may share an id. Without ids: all requests.
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
