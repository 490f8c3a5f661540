#include "coordinator/scheduler/waiting_queue.h"

#include <algorithm>

namespace somnus {

void WaitingQueue::Insert(const SequencePtr& sequence, int64_t step) {
  queue_.emplace(KeyOf(*sequence), sequence);
  if (aging_steps_ == 0) return;
  // Waiting goes on where the last wait ended.
  sequence->aging_due = step + aging_steps_ - sequence->waited_steps;
  due_.emplace(std::make_pair(sequence->aging_due, sequence->id), sequence);
}

void WaitingQueue::Erase(Sequence* sequence, int64_t step) {
  queue_.erase(KeyOf(*sequence));
  if (aging_steps_ == 0) return;
  due_.erase({sequence->aging_due, sequence->id});
  sequence->waited_steps = std::min(aging_steps_ - 1, aging_steps_ - (sequence->aging_due - step));
}

void WaitingQueue::Age(int64_t step) {
  while (!due_.empty() && due_.begin()->first.first <= step) {
    const SequencePtr sequence = due_.begin()->second;
    due_.erase(due_.begin());
    queue_.erase(KeyOf(*sequence));
    --sequence->effective_priority;
    queue_.emplace(KeyOf(*sequence), sequence);
    sequence->aging_due += aging_steps_;
    due_.emplace(std::make_pair(sequence->aging_due, sequence->id), sequence);
  }
}

}  // namespace somnus
