#pragma once
// The waits of lifecycle calls: for open requests, for a recovery, for an empty replica; and who ends a wait
// early.
//
// A condition reads what other classes publish under locks of their own. Code that changes something that a
// condition may read calls NoteChange afterwards, and every condition is read again. Thread safe. mu_ is held
// neither while a condition is read nor during a wait, so callers may take any lock in a condition; callers
// must hold no lock.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class CallWaits {
 public:
  CallWaits() = default;
  CallWaits(const CallWaits&) = delete;

  void NoteChange();
  // Waits for `condition`, at most for `timeout`, by a monotonic clock (absl::Mutex would wait by wall time).
  void AwaitFor(const std::function<bool()>& condition, absl::Duration timeout);
  // The same for the wait of a lifecycle call; ok also after `timeout`. An error: an operator or the end of
  // the server has ended the wait, or the client of this thread's call has left.
  absl::Status AwaitInCall(const std::function<bool()>& condition, absl::Duration timeout);

  // Ends the waits of AwaitInCall that are under way. False: there is none.
  bool Abort();
  // While a call that ends the wait of an earlier call waits for its turn, WantsTurn holds.
  void NoteInterruption(int64_t count);
  bool WantsTurn() const;
  // The server ends: all waits end, now and later.
  void Drain();
  bool draining() const;
  // Declined: the server is shutting down.
  absl::Status CheckDrain() const;

 private:
  // Counts a wait of AwaitInCall. Returns how many aborts there were before.
  int64_t BeginWait();
  void EndWait();
  int64_t num_aborts() const;
  void NoteChangeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<StopSignal> NextChange();

  mutable absl::Mutex mu_;
  // Stopped at the next change; null: nobody waits.
  std::shared_ptr<StopSignal> changed_ ABSL_GUARDED_BY(mu_);
  int64_t num_interruptions_ ABSL_GUARDED_BY(mu_) = 0;  // behind WantsTurn
  int64_t num_aborts_ ABSL_GUARDED_BY(mu_) = 0;         // since the start
  int64_t num_waits_ ABSL_GUARDED_BY(mu_) = 0;          // of AwaitInCall, under way
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace somnus
