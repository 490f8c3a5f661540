#pragma once
// Live sequences by the time at which they expire (request/expiry.h), so that nobody looks at all sequences.
// Owned by LiveSequences; not thread safe.

#include <cstdint>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

class ExpiryQueue {
 public:
  // Also to be called again when the time of a sequence has changed.
  void Insert(const SequencePtr& sequence) {
    Erase(*sequence);
    sequence->expires_at = ExpiresAt(sequence->request, sequence->was_scheduled);
    if (sequence->expires_at != absl::InfiniteDuration())
      queue_.emplace(std::pair(sequence->expires_at, sequence->id), sequence);
  }
  void Erase(const Sequence& sequence) { queue_.erase({sequence.expires_at, sequence.id}); }

  // The earliest time; infinite when the queue is empty.
  MonotonicTime next() const {
    return queue_.empty() ? absl::InfiniteDuration() : queue_.begin()->first.first;
  }
  // A sequence that expires at next(). The queue must not be empty.
  const SequencePtr& first() const { return queue_.begin()->second; }

 private:
  std::map<std::pair<MonotonicTime, int64_t>, SequencePtr> queue_;  // by (time, id)
};

}  // namespace somnus
