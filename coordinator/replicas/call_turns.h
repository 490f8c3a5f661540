#pragma once
// Whose turn it is: one lifecycle call at a time, in the order in which they came. A call whose client leaves
// before its turn gives up its place. Thread safe; a turn may be given back on another thread than the one
// that took it.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "absl/status/status.h"

namespace somnus {

class CallTurns {
 public:
  // Waits for the turn. Cancelled, and there is nothing to give back: the client of this thread's call has
  // left.
  absl::Status Take();
  // False: it is another call's turn, or others wait.
  bool TryTake();
  void Give();
  int32_t num_waiting() const;

 private:
  mutable std::mutex mu_;  // not absl::Mutex: base/monotonic.h says why
  std::condition_variable given_;
  std::set<int64_t> waiting_;  // numbers, by their order
  int64_t last_ = 0;
  bool taken_ = false;
};

}  // namespace somnus
