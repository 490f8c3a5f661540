#pragma once
// The sequences that wait for admission, in the order of service: by effective priority (smaller first), then
// by arrival.
//
// Aging. A sequence's effective priority is its request's, less one for every `aging_steps` steps that it has
// spent waiting, all its waits together. It does not change while the sequence runs. Time is counted in steps
// of the scheduler, so that the same calls give the same order.
//
// Owned by the Scheduler; not thread safe.

#include <cstdint>
#include <map>
#include <utility>

#include "coordinator/scheduler/sequence.h"

namespace somnus {

class WaitingQueue {
 public:
  using Map = std::map<ServiceKey, SequencePtr>;

  // aging_steps 0: priorities stay as they are.
  explicit WaitingQueue(int64_t aging_steps) : aging_steps_(aging_steps) {}

  // `step` is the number of the step that is made next; it never decreases from call to call.
  void Insert(const SequencePtr& sequence, int64_t step);
  void Erase(Sequence* sequence, int64_t step);
  // Improves the priorities that are due.
  void Age(int64_t step);

  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  Map::const_iterator begin() const { return queue_.begin(); }
  Map::const_iterator end() const { return queue_.end(); }

 private:
  const int64_t aging_steps_;
  Map queue_;
  std::map<std::pair<int64_t, int64_t>, SequencePtr> due_;  // by (step of the next improvement, id)
};

}  // namespace somnus
