#pragma once
// Watches a group for failures that a blocking read cannot see: the deadline of the awaited step, and
// connections that break while no call is under way. Makes the latch fail, once.
//
// Ownership: owns its thread; links, streams and latch are borrowed and outlive it. Thread safe.

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/step_streams.h"
#include "coordinator/executor/worker_link.h"

namespace somnus {

class GroupMonitor {
 public:
  GroupMonitor(const std::vector<WorkerLink>* workers, const StepStreams* streams, FailureLatch* latch,
               absl::Duration blame_grace, MonotonicClock now);
  ~GroupMonitor();
  GroupMonitor(const GroupMonitor&) = delete;

  // Call once, when every rank is connected. `look` is called again and again meanwhile, on the monitor's
  // thread.
  void Start(std::function<void()> look = nullptr);
  // To be called before the workers are asked to end: from now on a broken connection is no failure. Does not
  // wait for the thread.
  void Stop() { stop_.Stop(); }

  // The reply to `step_id` is due within `timeout` from now.
  void AwaitStep(int64_t step_id, absl::Duration timeout);
  void StepArrived();

 private:
  void Run();
  absl::Status CheckDeadline() const;
  absl::Status CheckConnections() const;

  const std::vector<WorkerLink>& workers_;
  const StepStreams& streams_;
  FailureLatch& latch_;
  const absl::Duration blame_grace_;
  const MonotonicClock now_;
  StopSignal stop_;
  std::function<void()> look_;

  mutable absl::Mutex mu_;
  int64_t step_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration timeout_ ABSL_GUARDED_BY(mu_);
  MonotonicTime deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();

  std::thread thread_;
};

}  // namespace somnus
