#include "coordinator/engine/loop_access.h"

#include <utility>

#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

SchedulerOptions SchedulerOf(const EngineOptions& options) {
  SchedulerOptions scheduler = options.scheduler;
  scheduler.blocks.records_events = options.kv_events != nullptr;
  return scheduler;
}

}  // namespace

LoopParts::LoopParts(const EngineOptions& options_in, Executor* executor_in, EngineObserver* observer_in)
    : options(options_in),
      executor(*executor_in),
      observer(observer_in),
      scheduler(SchedulerOf(options_in)),
      holdings(options_in),
      kept(options_in, &scheduler, executor_in),
      check(options_in.wake_self_check, options_in.batch_invariant),
      stale(options_in.stale_weights_timeout),
      recovery(options_in) {
  scheduler.SetBlockLimit(holdings.mapped_blocks());
}

absl::Status LoopAccess::CheckLifecycle() const {
  if (state() == EngineState::kFailed) return DeclinedError("the engine has failed");
  if (state() == EngineState::kDraining) return DeclinedError("the server is shutting down");
  return absl::OkStatus();
}

bool LoopAccess::Computes() const {
  return state() != EngineState::kFailed && !parts_->recovery.under_way() && parts_->holdings.awake();
}

EngineState LoopAccess::RestingState() const {
  if (!MayServe()) return EngineState::kAsleep;
  if (waits()) return EngineState::kPausing;
  return parts_->paused ? EngineState::kPaused : EngineState::kAwake;
}

bool LoopAccess::Suspend() {
  if (!FinishSteps()) return false;
  parts_->scheduler.SuspendAll();
  return FlushFreedSlots();
}

bool LoopAccess::Quiesce(CacheLoss loss) {
  if (!FinishSteps()) return false;
  parts_->scheduler.ForgetComputed(loss);
  return FlushFreedSlots();
}

Executor::LifecycleDone LoopAccess::ExpectTransition() {
  return [events = events_, id = NewCall()](absl::StatusOr<TransitionReport> result) {
    events->PostCallResult(id, std::move(result));
  };
}

Executor::WeightsDone LoopAccess::ExpectWeights() {
  return [events = events_, id = NewCall()](const WeightsOutcome& outcome) {
    events->PostWeightsResult(id, outcome);
  };
}

Executor::SelfCheckDone LoopAccess::ExpectCheck() {
  return [events = events_, id = NewCall()](const absl::StatusOr<SelfCheckResult>& result) {
    events->PostCheckResult(id, result);
  };
}

}  // namespace somnus
