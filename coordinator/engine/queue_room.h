#pragma once
// The bounds of a queue of requests, and how much of the bounds the waiting requests take. A value without a
// lock; its owner guards it.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/request/request.h"

namespace somnus {

struct QueueLimits {
  int32_t max_num_waiting = 1024;            // requests accepted and not running, preempted requests included
  int64_t max_num_waiting_tokens = 4 << 20;  // their prompts together
  int64_t max_waiting_bytes = 256 << 20;     // the memory that they hold together, by RequestBytes
  // The share of each bound that the requests of a single user may take while other users' requests wait, (0,
  // 1]; 1: users do not count.
  double max_user_share = 1;
};

// The ids of live requests, and the bounds of requests that were never scheduled.
class QueueRoom {
 public:
  explicit QueueRoom(const QueueLimits& limits) : limits_(limits) {}

  // Whether all of `requests`, whose queued_bytes are set, have room. `num_preempted` others wait again: they
  // count, since otherwise a flood of urgent requests could make any number of them wait. InvalidArgument: an
  // id is in use, or the requests are more than an empty queue takes; ResourceExhausted: the queue, or their
  // user's share of it, is full.
  absl::Status Check(const std::vector<EngineRequest>& requests, int64_t num_preempted) const;
  void Add(const EngineRequest& request);
  // `request` was scheduled for the first time.
  void NoteScheduled(const EngineRequest& request);
  // `request` has ended; it was scheduled at some time, or not.
  void Remove(const EngineRequest& request, bool was_scheduled);
  void Clear();

  bool is_live(const std::string& id) const { return live_ids_.contains(id); }
  int64_t num_live() const { return static_cast<int64_t>(live_ids_.size()); }
  int64_t waiting_tokens() const { return waiting_.tokens; }  // of prompts never scheduled
  // Of the live request that came first; not set: there is none.
  std::optional<absl::Time> oldest_arrival() const {
    return arrivals_.empty() ? std::nullopt : std::optional(*arrivals_.begin());
  }

 private:
  // Requests that were never scheduled.
  struct Waiting {
    int64_t num = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;

    void Add(const EngineRequest& request, int sign);
  };

  // `sign` of 1 for one more, of -1 for one less.
  void Count(const EngineRequest& request, int sign);
  absl::Status CheckUser(const std::string& user, const Waiting& more) const;

  const QueueLimits limits_;
  Waiting waiting_;
  absl::flat_hash_map<std::string, Waiting> waiting_by_user_;  // empty where users do not count
  absl::flat_hash_set<std::string> live_ids_;
  std::multiset<absl::Time> arrivals_;  // of live requests
};

}  // namespace somnus
