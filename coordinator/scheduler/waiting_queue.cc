#include "coordinator/scheduler/waiting_queue.h"

#include <algorithm>
#include <limits>

namespace somnus {
namespace {

// The place of sequences that are not the first of their user.
constexpr int64_t kBehind = std::numeric_limits<int64_t>::max();

}  // namespace

void WaitingQueue::Insert(const SequencePtr& sequence, int64_t step) {
  Place(sequence);
  if (aging_steps_ == 0) return;
  // Waiting goes on where the last wait ended.
  sequence->aging_due = step + aging_steps_ - sequence->waited_steps;
  due_.emplace(std::make_pair(sequence->aging_due, sequence->id), sequence);
}

void WaitingQueue::Erase(Sequence* sequence, int64_t step) {
  Remove(sequence);
  if (aging_steps_ == 0) return;
  due_.erase({sequence->aging_due, sequence->id});
  sequence->waited_steps = std::min(aging_steps_ - 1, aging_steps_ - (sequence->aging_due - step));
}

void WaitingQueue::Age(int64_t step) {
  while (!due_.empty() && due_.begin()->first.first <= step) {
    const SequencePtr sequence = due_.begin()->second;
    due_.erase(due_.begin());
    Remove(sequence.get());
    --sequence->effective_priority;
    Place(sequence);
    sequence->aging_due += aging_steps_;
    due_.emplace(std::make_pair(sequence->aging_due, sequence->id), sequence);
  }
}

void WaitingQueue::Place(const SequencePtr& sequence) {
  if (sequence->visit == nullptr) return Enqueue(sequence);
  Group& group = groups_[{sequence->visit->user(), sequence->effective_priority}];
  const bool is_first = group.empty() || sequence->id < group.begin()->first;
  if (is_first && !group.empty()) Move(group.begin()->second, kBehind);
  group.emplace(sequence->id, sequence);
  sequence->service = is_first ? sequence->visit->service() : kBehind;
  Enqueue(sequence);
}

void WaitingQueue::Enqueue(const SequencePtr& sequence) {
  queue_.emplace(KeyOf(*sequence), sequence);
  if (sequence->num_to_compute() <= brief_tokens_) brief_.insert(KeyOf(*sequence));
}

void WaitingQueue::Remove(Sequence* sequence) {
  promoted_.reset();
  queue_.erase(KeyOf(*sequence));
  brief_.erase(KeyOf(*sequence));
  if (sequence->visit == nullptr) return;
  const auto it = groups_.find(GroupKey(sequence->visit->user(), sequence->effective_priority));
  Group& group = it->second;
  const bool was_first = group.begin()->first == sequence->id;
  group.erase(sequence->id);
  if (group.empty()) {
    groups_.erase(it);
  } else if (was_first) {
    Move(group.begin()->second, sequence->visit->service());
    promoted_ = KeyOf(*group.begin()->second);
  }
}

void WaitingQueue::Move(const SequencePtr& sequence, int64_t service) {
  queue_.erase(KeyOf(*sequence));
  brief_.erase(KeyOf(*sequence));
  sequence->service = service;
  Enqueue(sequence);
}

WaitingQueue::Map::const_iterator WaitingQueue::NextBrief(const ServiceKey& key) const {
  const auto next = brief_.upper_bound(key);
  return next == brief_.end() ? queue_.end() : queue_.find(*next);
}

bool WaitingQueue::Refresh(Map::const_iterator* place) {
  const auto [key, sequence] = **place;
  if (sequence->visit == nullptr || sequence->service == kBehind) return false;
  const int64_t service = sequence->visit->service();
  if (service == sequence->service) return false;
  Move(sequence, service);
  *place = queue_.upper_bound(key);
  return true;
}

WaitingQueue::Map::const_iterator WaitingQueue::After(const ServiceKey& key) const {
  const Map::const_iterator next = queue_.upper_bound(key);
  const bool comes_first = promoted_.has_value() && (next == queue_.end() || *promoted_ < next->first);
  return comes_first ? queue_.find(*promoted_) : next;
}

void WaitingQueue::RefreshFirst() {
  for (Map::const_iterator first = queue_.begin(); first != queue_.end() && Refresh(&first);)
    first = queue_.begin();
}

}  // namespace somnus
