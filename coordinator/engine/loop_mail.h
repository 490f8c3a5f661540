#pragma once
// The executor's news for the engine loop, and the signal by which all mail wakes the loop.
//
// Ownership: the loop and the executor's callbacks share the mail, so that a callback that runs after the
// loop's end does no harm. Thread safety: Post* and Wake may be called from any thread; Take and WaitFor are
// for the loop thread. The mail keeps the first failure until the loop takes it, and the result of the latest
// lifecycle call.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/residency/self_check.h"
#include "coordinator/residency/transition_report.h"
#include "coordinator/residency/weights.h"

namespace somnus {

class LoopMail {
 public:
  struct CallResult {
    int64_t call;  // as it was posted
    absl::StatusOr<TransitionReport> result;
    WeightsOutcome weights;  // of a call that changes the weights; its status is the result's
    SelfCheckResult check;   // of a self-check; likewise
  };
  struct Events {
    std::optional<absl::Status> failure;    // the group was lost
    std::optional<absl::Status> recovered;  // how a recovery ended
    std::optional<CallResult> call_result;  // how a lifecycle call ended

    bool empty() const { return !failure.has_value() && !recovered.has_value() && !call_result.has_value(); }
  };

  void PostFailure(absl::Status reason);
  void PostRecovered(absl::Status status);
  // Calls are numbered in the order in which they were made.
  void PostCallResult(int64_t call, absl::StatusOr<TransitionReport> result);
  void PostWeightsResult(int64_t call, const WeightsOutcome& outcome);
  void PostCheckResult(int64_t call, const absl::StatusOr<SelfCheckResult>& result);
  // Ends the wait under way, or the next one: there is mail elsewhere.
  void Wake();

  // Returns what was posted since the last call.
  Events Take();
  // Returns as soon as something was posted or Wake was called since the last wait, or after `duration`,
  // which may be infinite and is measured by a monotonic clock. Meanwhile the thread's loop gives signs of
  // life (base/heartbeat.h).
  void WaitFor(absl::Duration duration);

 private:
  void PostResult(CallResult result);

  // Not absl::Mutex: base/monotonic.h says why.
  std::mutex mu_;
  std::condition_variable arrived_;
  Events events_;
  bool woken_ = false;
};

}  // namespace somnus
