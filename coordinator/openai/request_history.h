#pragma once
// The trails of a model's requests: of all open ones, and of those that ended last. Bounded: the open ones by
// the queue, the ended ones by `max_ended`. Thread safe.

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/request/request_trail.h"

namespace somnus {

using SharedTrail = std::shared_ptr<RequestTrail>;

class RequestHistory {
 public:
  explicit RequestHistory(size_t max_ended = 1000) : max_ended_(max_ended) {}

  void Add(SharedTrail trail);
  // The request has ended, and its trail says how. The oldest ended one goes where there are too many.
  void End(const SharedTrail& trail);
  // The engine has not taken the request.
  void Forget(const SharedTrail& trail);

  // In no order.
  std::vector<SharedTrail> Open() const;
  // The one that ended last comes first; `limit` at most.
  std::vector<SharedTrail> Ended(size_t limit) const;
  // All with this id, open ones first. Clients may give several requests the same id.
  std::vector<SharedTrail> Find(const std::string& id) const;

 private:
  const size_t max_ended_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<SharedTrail> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<SharedTrail> ended_ ABSL_GUARDED_BY(mutex_);  // the latest last
};

}  // namespace somnus
