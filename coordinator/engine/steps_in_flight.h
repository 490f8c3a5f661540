#pragma once
// The steps that the executor carries out: sent, and not replied to. Measures the time of steps, for the
// deadline of the next reply, the prices of preemption and the speed of prompts, and describes each step for
// the observer.
//
// Borrows options, executor, scheduler and board; for the loop thread.

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_board.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/step_deadline.h"
#include "coordinator/executor/executor.h"
#include "coordinator/scheduler/preemption_cost.h"
#include "coordinator/scheduler/scheduler.h"
#include "proto/worker.pb.h"

namespace somnus {

class StepsInFlight {
 public:
  StepsInFlight(const EngineOptions& options, Executor* executor, Scheduler* scheduler, EngineBoard* board);

  bool empty() const { return sent_.empty(); }
  size_t size() const { return sent_.size(); }

  // Sends the step, whose planning took `schedule`. InvalidArgument: the step is larger than workers accept;
  // another error is a loss of the group.
  absl::Status Send(StepPlan plan, absl::Duration schedule, int64_t group_epoch);
  // Waits for the reply to the oldest step. An error is a loss of the group; a reply that was computed with
  // another version of the weights is a loss, too.
  absl::StatusOr<v1::StepReply> Wait(int64_t weights_version);
  // Applies the reply that Wait has returned last, and fills in the description of its step. An error: the
  // reply cannot be right, or the scheduler's books are wrong.
  absl::StatusOr<std::vector<SequenceOutput>> Apply(const v1::StepReply& reply, StepEvent* step);
  // Sends the masks that the oldest step awaits, if it does: to be called after Apply. Errors as Send.
  absl::Status SendMasks();
  // The group was lost, or the engine has failed: no reply comes any more.
  void Clear();
  // The next step is the first one after a recovery, a wake-up or a change of the weights, and may be slow.
  void RestartDeadline() { deadline_.Restart(); }

  void Publish(EngineStats* stats) const;

 private:
  StepEvent Describe(const StepPlan& plan);
  // Learns from the time that a step has taken.
  void Measure(const StepEvent& step);

  const EngineOptions& options_;
  Executor* const executor_;
  Scheduler& scheduler_;
  EngineBoard* const board_;

  std::deque<StepEvent> sent_;
  StepEvent replied_;           // of the last Wait
  absl::Duration stood_still_;  // before the last Wait (base/running_clock.h)
  MonotonicTime last_reply_ = -absl::InfiniteDuration();
  StepDeadline deadline_;
  PreemptionCost preemption_cost_;
  absl::Duration decode_step_time_;  // the mean, in which the latest step counts an eighth
  int64_t num_steps_ = 0;
  // When the last step was scheduled.
  SchedulerStats counters_seen_;
  int64_t watermark_refusals_seen_ = 0;
};

}  // namespace somnus
