#pragma once
// The watchdog of ranks on GPUs that wait for each other on their devices: a thread that checks every 50 ms
// whether the group is whole, and ends all that waits once the group is not. The first cause stays.
//
// Thread safe, except Leave and Stop, which are the owner's.

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"

namespace somnus {

class GroupWatch {
 public:
  struct Group {
    std::function<absl::Status()> look;  // ok while the group is whole
    // Ends what the device has queued and what the other ranks wait for. Called once at most.
    std::function<void(const std::string& reason)> end;
    std::string left;  // the reason for the other ranks, where this rank leaves and they still wait
  };
  // `group`'s functions are called until Stop, from any thread.
  explicit GroupWatch(Group group);
  ~GroupWatch() { Stop(); }

  // The first cause; ok while there is none.
  absl::Status error() const;
  // Ends the group, unless that has happened already.
  void Fail(const absl::Status& cause);
  // Returns `status`, which ends the group unless it says that the call was wrong.
  absl::Status Noted(absl::Status status);

  // Nothing is looked at any more, since other ranks may have left already. All that still waits in two
  // seconds is ended then.
  void Leave();
  // Ends the thread. Idempotent.
  void Stop();

 private:
  void Watch();
  std::optional<MonotonicTime> LeaveBy() const;

  const Group group_;
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::optional<MonotonicTime> leave_by_ ABSL_GUARDED_BY(mu_);
  StopSignal done_;
  std::thread thread_;  // last
};

}  // namespace somnus
