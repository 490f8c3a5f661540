#pragma once
// The sequences that wait for admission, in the order of service: by effective priority (smaller first), then
// by the service of their users (less first), then by arrival.
//
// Aging. A sequence's effective priority is its request's, less one for every `aging_steps` steps that the
// sequence has spent waiting, all its waits together. The priority does not change while the sequence runs.
// Time is counted in steps of the scheduler, so that the same calls give the same order.
//
// Users. Where sequences have accounts (user_accounts.h), only the first sequence of each user and effective
// priority stands where its account says; the user's other sequences are behind all such places until the
// first one has left. So nobody looks at the whole queue when an account changes. An account only grows, so
// that a place can only be too far to the front: a walk through the queue asks Refresh about each place, and
// looks again where a sequence has moved.
//
// Owned by LiveSequences; not thread safe.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

class WaitingQueue {
 public:
  using Map = std::map<ServiceKey, SequencePtr>;

  // aging_steps 0: priorities stay as they are.
  // `brief_tokens`: a sequence with no more tokens to compute is brief.
  WaitingQueue(int64_t aging_steps, int64_t brief_tokens)
      : aging_steps_(aging_steps), brief_tokens_(brief_tokens) {}

  // `step` is the number of the step that is made next, and never decreases from call to call.
  void Insert(const SequencePtr& sequence, int64_t step);
  void Erase(Sequence* sequence, int64_t step);
  // Improves the priorities that are due.
  void Age(int64_t step);

  // Where the sequence at `place` belongs further back by now, moves the sequence there, and returns true,
  // with the place that comes next.
  bool Refresh(Map::const_iterator* place);
  // The place after `key`, whose sequence was erased last. If that made another sequence the first of its
  // user, and this sequence is before that place, its place.
  Map::const_iterator After(const ServiceKey& key) const;
  // Whether the sequence at that place is brief; and where the next brief sequence is.
  bool IsBrief(const ServiceKey& key) const { return brief_.contains(key); }
  Map::const_iterator NextBrief(const ServiceKey& key) const;
  // Makes begin() the sequence that is served next.
  void RefreshFirst();

  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  Map::const_iterator begin() const { return queue_.begin(); }
  Map::const_iterator end() const { return queue_.end(); }

 private:
  using Group = std::map<int64_t, SequencePtr>;  // of one user and priority, by arrival
  using GroupKey = std::pair<const void*, int64_t>;

  // Place puts a sequence where its priority and its account say; Remove takes the sequence away from there.
  void Place(const SequencePtr& sequence);
  void Remove(Sequence* sequence);
  void Move(const SequencePtr& sequence, int64_t service);
  void Enqueue(const SequencePtr& sequence);

  const int64_t aging_steps_;
  const int64_t brief_tokens_;
  Map queue_;
  std::set<ServiceKey> brief_;  // the places of brief sequences
  absl::flat_hash_map<GroupKey, Group> groups_;
  std::optional<ServiceKey> promoted_;                      // the last Erase made this place a first
  std::map<std::pair<int64_t, int64_t>, SequencePtr> due_;  // by (step of the next improvement, id)
};

}  // namespace somnus
