#pragma once
// Puts all ranks of a group to sleep and wakes them, all or nothing, as executor.h promises.
//
// A rank whose connection breaks is asked again, and says what became of the call. One that has not replied
// in time may have executed the call, or may still do so. The call is undone on it as on the others, and
// since a worker runs its calls in order, the reply to the undo settles what became of the call. Then every
// rank is asked for its state. A rank that does not reply even to that, or is in another state than the rest,
// makes the latch fail. For use by one thread.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/executor/collective_calls.h"
#include "coordinator/executor/executor_options.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class GroupSleep {
 public:
  // `calls` and `latch` are borrowed.
  GroupSleep(const CollectiveCalls* calls, FailureLatch* latch, size_t num_ranks,
             const ExecutorOptions& options)
      : calls_(*calls), latch_(*latch), num_ranks_(num_ranks), options_(options) {}

  absl::StatusOr<TransitionReport> Sleep(const SleepSpec& spec, const Residency& before);
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags, const Residency& before);

 private:
  std::vector<absl::Status> SleepAll(int level, TransitionReport* report) const;
  std::vector<absl::Status> WakeAll(const std::vector<std::string>& tags, bool reads_weights,
                                    TransitionReport* report) const;
  // After `undone`, the statuses of the calls that were to bring every rank to `state` ("awake", "asleep"):
  // asks every rank, and fails the latch unless all are there. `error`: what had to be undone.
  void Confirm(const std::string& state, const std::vector<absl::Status>& undone, const absl::Status& error);

  const CollectiveCalls& calls_;
  FailureLatch& latch_;
  const size_t num_ranks_;
  const ExecutorOptions options_;
};

}  // namespace somnus
