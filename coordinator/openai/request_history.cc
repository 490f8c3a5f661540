#include "coordinator/openai/request_history.h"

#include <algorithm>
#include <utility>

namespace somnus {

void RequestHistory::Add(SharedTrail trail) {
  absl::MutexLock lock(&mutex_);
  open_.insert(std::move(trail));
}

void RequestHistory::End(const SharedTrail& trail) {
  absl::MutexLock lock(&mutex_);
  if (open_.erase(trail) == 0 || max_ended_ == 0) return;
  if (ended_.size() == max_ended_) ended_.pop_front();
  ended_.push_back(trail);
}

void RequestHistory::Forget(const SharedTrail& trail) {
  absl::MutexLock lock(&mutex_);
  open_.erase(trail);
}

std::vector<SharedTrail> RequestHistory::Open() const {
  absl::MutexLock lock(&mutex_);
  return {open_.begin(), open_.end()};
}

std::vector<SharedTrail> RequestHistory::Ended(size_t limit) const {
  absl::MutexLock lock(&mutex_);
  const size_t count = std::min(limit, ended_.size());
  return {ended_.rbegin(), ended_.rbegin() + static_cast<ptrdiff_t>(count)};
}

std::vector<SharedTrail> RequestHistory::Find(const std::string& id) const {
  std::vector<SharedTrail> found;
  const auto add = [&](const SharedTrail& trail) {
    if (trail->facts().id == id) found.push_back(trail);
  };
  absl::MutexLock lock(&mutex_);
  for (const SharedTrail& trail : open_) add(trail);
  for (auto trail = ended_.rbegin(); trail != ended_.rend(); ++trail) add(*trail);
  return found;
}

}  // namespace somnus
