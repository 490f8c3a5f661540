#pragma once
// The turns of lifecycle calls: a single call at a time, in the order of arrival. A call whose client leaves
// before its turn gives up its place. Thread safe; any thread may give a turn back.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "absl/status/status.h"

namespace somnus {

class CallTurns {
 public:
  // Waits for the turn. Cancelled: the client of this thread's call has left, and there is no turn to give
  // back.
  absl::Status Take();
  // False: a call has the turn, or waits for the turn.
  bool TryTake();
  void Give();
  int32_t num_waiting() const;

 private:
  mutable std::mutex mu_;  // not absl::Mutex: base/monotonic.h says why
  std::condition_variable given_;
  std::set<int64_t> waiting_;  // numbers of calls, in order of arrival
  int64_t last_ = 0;
  bool taken_ = false;
};

}  // namespace somnus
