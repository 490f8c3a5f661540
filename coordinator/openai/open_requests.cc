#include "coordinator/openai/open_requests.h"

#include <utility>

#include "absl/container/flat_hash_set.h"

namespace somnus {

int64_t OpenRequests::Add(std::string response_id, std::vector<std::string> engine_ids) {
  absl::MutexLock lock(&mutex_);
  entries_.emplace(++last_key_, Entry{std::move(response_id), std::move(engine_ids)});
  return last_key_;
}

void OpenRequests::Remove(int64_t key) {
  absl::MutexLock lock(&mutex_);
  entries_.erase(key);
}

OpenRequests::Found OpenRequests::Find(const std::optional<std::vector<std::string>>& response_ids) const {
  absl::flat_hash_set<std::string> wanted;
  if (response_ids.has_value()) wanted.insert(response_ids->begin(), response_ids->end());
  Found found;
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, entry] : entries_) {
    if (response_ids.has_value() && !wanted.contains(entry.response_id)) continue;
    ++found.num_requests;
    found.engine_ids.insert(found.engine_ids.end(), entry.engine_ids.begin(), entry.engine_ids.end());
  }
  return found;
}

}  // namespace somnus
