// EngineLoop's part for lifecycle commands: sleep, wake-up and the reset of the prefix cache.

#include <utility>

#include "base/log.h"
#include "base/request_bounds.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {
namespace {

// A command that as many losses of the group have interrupted ends at the next one.
constexpr int kMaxInterruptions = 3;

}  // namespace

absl::Status EngineLoop::CheckLifecycle() const {
  if (state() == EngineState::kFailed) return absl::FailedPreconditionError("the engine has failed");
  if (state() == EngineState::kDraining) return absl::FailedPreconditionError("the server is shutting down");
  return absl::OkStatus();
}

void EngineLoop::StartCommands() {
  while (!command_.has_value() && !recovering_ && !commands_.empty()) {
    command_ = std::move(commands_.front());
    commands_.pop_front();
    StartCommand();
  }
}

void EngineLoop::StartCommand() {
  switch (command_->kind) {
    case LifecycleCommand::Kind::kSleep:
      return StartSleep();
    case LifecycleCommand::Kind::kWakeUp:
      return StartWakeUp();
    case LifecycleCommand::Kind::kResetPrefixCache:
      scheduler_.ResetPrefixCache();
      return EndCommand(TagBytes());
    case LifecycleCommand::Kind::kRestart:
      return StartRestart();
  }
}

void EngineLoop::StartSleep() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (!residency_.SleepChanges(command_->level)) return EndCommand(TagBytes());
  if (residency_.awake()) {
    SwitchState(EngineState::kFallingAsleep);
    Quiesce();
    if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  }
  CallSleep(command_->level);
}

void EngineLoop::Quiesce() {
  ReceiveAll();
  if (!Computes()) return;
  scheduler_.PreemptAll();
  scheduler_.ResetPrefixCache();
  StepPlan flush = scheduler_.FlushFreedSlots();
  if (flush.request.freed_slots_size() > 0) Send(std::move(flush));
  ReceiveAll();
}

void EngineLoop::StartWakeUp() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (residency_.ToWake(command_->tags).empty()) return EndCommand(TagBytes());
  if (residency_.levels_differ()) return CallSleep(kMaxSleepLevel);
  CallWakeUp();
}

void EngineLoop::StartRestart() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (!residency_.awake()) return EndCommand(absl::FailedPreconditionError(WhyNotReady(state())));
  SwitchState(EngineState::kRecovering);  // Offer takes no request from now on
  ReceiveAll();
  if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  scheduler_.Recover();
  HandOver();
  LogInfo("{}the workers are restarted", options_.log_name);
  recovering_ = restarting_ = true;
  lost_at_ = options_.monotonic_now();
  executor_->Restart(residency_);
  group_epoch_ = executor_->group_epoch();
}

void EngineLoop::CallSleep(int level) { executor_->SleepAsync(level, residency_, Call(level, {})); }

void EngineLoop::CallWakeUp() {
  const std::vector<std::string> tags = residency_.ToWake(command_->tags);
  SwitchState(EngineState::kWaking);
  executor_->WakeUpAsync(tags, residency_, Call(0, tags));
}

Executor::LifecycleDone EngineLoop::Call(int sleep_level, std::vector<std::string> tags) {
  call_ = LifecycleCall{++last_call_, sleep_level, std::move(tags)};
  return [mail = mail_, id = call_->id](absl::StatusOr<TagBytes> result) {
    mail->PostCallResult(id, std::move(result));
  };
}

void EngineLoop::FinishCall(LoopMail::CallResult event) {
  if (!call_.has_value() || event.call != call_->id) return;  // a loss of the group has interrupted that call
  if (const absl::Status health = executor_->Health(); !event.result.ok() && !health.ok())
    return Lose(health);
  const LifecycleCall call = *std::exchange(call_, std::nullopt);
  if (call.sleep_level > 0) return FinishSleep(call.sleep_level, std::move(event.result));
  FinishWakeUp(call.tags, std::move(event.result));
}

void EngineLoop::FinishSleep(int level, absl::StatusOr<TagBytes> freed) {
  if (freed.ok()) {
    residency_.Slept(level);
  } else if (!residency_.awake()) {
    residency_.SleptInPart(level);  // after an error, too, every tag of every rank sleeps
  }
  SwitchState(residency_.awake() ? EngineState::kAwake : EngineState::kAsleep);
  if (freed.ok() && command_->kind == LifecycleCommand::Kind::kWakeUp) return CallWakeUp();
  EndCommand(std::move(freed));
}

void EngineLoop::FinishWakeUp(const std::vector<std::string>& tags, absl::StatusOr<TagBytes> mapped) {
  if (mapped.ok()) {
    residency_.Woke(tags);
    step_deadline_.Restart();  // pages may be touched for the first time
  } else {
    residency_.Slept(residency_.level());
  }
  SwitchState(residency_.awake() ? EngineState::kAwake : EngineState::kAsleep);
  EndCommand(std::move(mapped));
}

// The group was lost. The command begins again after the recovery; a result of its call that comes later does
// not count.
void EngineLoop::InterruptCommand(const absl::Status& reason) {
  if (!command_.has_value()) return;
  // Some ranks may have discarded their weights already.
  if (call_.has_value() && call_->sleep_level > 0 && !residency_.awake())
    residency_.SleptInPart(call_->sleep_level);
  call_.reset();
  if (++command_->num_interruptions > kMaxInterruptions || state() == EngineState::kDraining)
    EndCommand(reason);
}

void EngineLoop::EndCommand(absl::StatusOr<TagBytes> result) {
  const LifecycleCommand command = *std::exchange(command_, std::nullopt);
  call_.reset();
  PublishStats();
  command.reply(std::move(result));
}

}  // namespace somnus
