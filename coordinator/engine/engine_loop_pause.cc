// EngineLoop's part for pauses, and for what becomes of open requests at a pause or a sleep.

#include <algorithm>
#include <iterator>
#include <utility>

#include "coordinator/engine/engine_loop.h"

namespace somnus {

bool EngineLoop::Runs() const { return Computes() && !check_due_ && !paused_; }

EngineState EngineLoop::RestingState() const {
  if (!MayServe()) return EngineState::kAsleep;
  if (waits_) return EngineState::kPausing;
  return paused_ ? EngineState::kPaused : EngineState::kAwake;
}

bool EngineLoop::IsIdle() const {
  if (!Runs() || scheduler_.has_sequences()) return false;
  absl::MutexLock lock(&mu_);
  return submitted_.empty();
}

bool EngineLoop::SettleOpenRequests() {
  if (command_->mode == SleepMode::kAbort) {
    for (const SequencePtr& sequence : scheduler_.AbortAll())
      End(sequence, FinishReason::kAbort, absl::OkStatus());
  }
  waits_ = command_->mode == SleepMode::kWait && Runs() && scheduler_.has_sequences();
  if (waits_) SwitchState(EngineState::kPausing);
  return !waits_;
}

// Goes on with a command that waited until the open requests have ended, or ends it because of another one.
void EngineLoop::CheckWait() {
  if (!waits_ || recovering_) return;
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (command_->Abandoned()) return EndWaitOf(absl::CancelledError(kAbandoned));
  const auto ends_waits = [](const LifecycleCommand& command) { return command.EndsWaits(); };
  // The state stays what it is: the other command changes it at once.
  if (std::any_of(commands_.begin(), commands_.end(), ends_waits))
    return EndCommand(absl::AbortedError("another call has ended the wait for open requests"));
  if (scheduler_.has_sequences()) return;
  command_->mode = SleepMode::kKeep;  // what was held back is not waited for
  EndWait();
  StartCommand();
}

// The command has changed nothing.
void EngineLoop::EndWaitOf(const absl::Status& reason) {
  waits_ = false;
  SwitchState(RestingState());
  EndCommand(reason);
}

void EngineLoop::EndWait() {
  waits_ = false;
  ReleaseHeldBack([](const EngineRequest&) { return true; });
}

// Gives those requests that `chosen` names to the scheduler.
void EngineLoop::ReleaseHeldBack(const std::function<bool(const EngineRequest&)>& chosen) {
  const auto stays = [&](const EngineRequest& request) { return !chosen(request); };
  const auto first = std::stable_partition(held_back_.begin(), held_back_.end(), stays);
  std::vector<EngineRequest> released(std::make_move_iterator(first),
                                      std::make_move_iterator(held_back_.end()));
  held_back_.erase(first, held_back_.end());
  AddToScheduler(std::move(released));
}

void EngineLoop::StartPause() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (!SettleOpenRequests()) return;
  if (Computes()) {
    if (command_->clear_cache) {
      Quiesce(CacheLoss::kPause);
    } else {
      ReceiveAll();
    }
    if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  }
  paused_ = true;
  SwitchState(RestingState());
  EndCommand(TransitionReport());
}

void EngineLoop::StartEndWaiting() {
  if (!Runs()) {
    for (const SequencePtr& sequence : scheduler_.AbortAll())
      End(sequence, FinishReason::kError, command_->error);
  }
  EndCommand(TransitionReport());
}

void EngineLoop::StartResume() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  paused_ = false;
  SwitchState(RestingState());
  EndCommand(TransitionReport());
}

void EngineLoop::StartResetPrefixCache() {
  if (command_->clear_cache && Computes()) {
    Quiesce(CacheLoss::kReset);
    if (!Computes()) return;
  } else if (command_->clear_cache && HoldsKept()) {
    return CallDropKept();
  } else if (command_->clear_cache && !residency_.awake()) {
    scheduler_.ForgetComputed();
  } else {
    scheduler_.ResetPrefixCache();
  }
  EndCommand(TransitionReport());
}

}  // namespace somnus
