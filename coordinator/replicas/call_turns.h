#pragma once
// The turns of lifecycle calls: a single call at a time, in the order of arrival; and which call has the
// turn.
//
// A call whose client leaves before the call's turn gives up its place. A call may park: the call goes on
// without the turn, and takes the turn again later. Thread safe; any thread may give a turn back.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_stats.h"

namespace somnus {

class CallTurns {
 public:
  explicit CallTurns(MonotonicClock now) : now_(std::move(now)) {}

  // Waits for the turn of the call `name` (as of LifecycleCallStats). Cancelled: the client of this thread's
  // call has left, and there is no turn to give back.
  absl::Status Take(const char* name);
  // Takes the turn for the server itself, without a name. False: a call has the turn, or waits for the turn.
  bool TryTake();
  void Give();
  // Gives the turn, but the call goes on: Current names the call while no other call with a name has the
  // turn, until EndParked. One call at a time may park.
  void Park();
  void EndParked();

  // The call under way, and how many calls wait for their turn.
  LifecycleCallStats Current() const;

 private:
  const MonotonicClock now_;
  mutable std::mutex mu_;  // not absl::Mutex: base/monotonic.h says why
  std::condition_variable given_;
  std::set<int64_t> waiting_;  // numbers of calls, in order of arrival
  int64_t last_ = 0;
  bool taken_ = false;
  LifecycleCallStats current_;  // the call that has the turn
  LifecycleCallStats parked_;   // the call that has parked
};

}  // namespace somnus
