// EngineLoop's part for lifecycle commands, in general and of sleep and wake-up.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

// A command that as many losses of the group have interrupted ends at the next one.
constexpr int kMaxInterruptions = 3;

}  // namespace

absl::Status EngineLoop::CheckLifecycle() const {
  if (state() == EngineState::kFailed) return DeclinedError("the engine has failed");
  if (state() == EngineState::kDraining) return DeclinedError("the server is shutting down");
  return absl::OkStatus();
}

void EngineLoop::StartCommands() {
  DropAbandoned();
  CheckWait();
  while (!command_.has_value() && !recovering_ && !commands_.empty()) {
    command_ = std::move(commands_.front());
    commands_.pop_front();
    command_->before = {residency_, weights_};
    command_->began = options_.monotonic_now();
    NoteCommand();
    StartCommand();
  }
  if (command_.has_value()) NoteCommand();
}

void EngineLoop::StartCommand() {
  switch (command_->kind) {
    case LifecycleCommand::Kind::kSleep:
      return StartSleep();
    case LifecycleCommand::Kind::kWakeUp:
      return StartWakeUp();
    case LifecycleCommand::Kind::kPause:
      return StartPause();
    case LifecycleCommand::Kind::kResume:
      return StartResume();
    case LifecycleCommand::Kind::kResetPrefixCache:
      return StartResetPrefixCache();
    case LifecycleCommand::Kind::kRestart:
      return StartRestart();
    case LifecycleCommand::Kind::kRevive:
      return StartRevive();
    case LifecycleCommand::Kind::kReload:
      return StartReload();
    case LifecycleCommand::Kind::kUpdate:
      return StartUpdate();
    case LifecycleCommand::Kind::kSelfCheck:
      return StartSelfCheck();
    case LifecycleCommand::Kind::kResizeKvCache:
      return StartResizeKvCache();
    case LifecycleCommand::Kind::kEndWaiting:
      return StartEndWaiting();
  }
}

void EngineLoop::StartSleep() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  // One that was committed when the group was lost has happened.
  const bool has_happened = command_->num_interruptions > 0 && residency_.ToSleep(command_->spec).empty();
  if (command_->only_if_idle && !has_happened && !IsIdle())
    return EndCommand(absl::AbortedError("the engine is not idle"));
  if (command_->spares_only_copy && command_->spec.level >= kMaxSleepLevel && HasOnlyCopy())
    return EndCommand(absl::AbortedError(kSparesOnlyCopy));
  const std::vector<std::string> changes = residency_.ToSleep(command_->spec);
  const bool loses_only_copy = command_->spec.level >= kMaxSleepLevel && HasOnlyCopy() &&
                               std::find(changes.begin(), changes.end(), kWeightsTag) != changes.end();
  if (loses_only_copy && !command_->force)
    return EndCommand(absl::FailedPreconditionError(kForceLosesOnlyCopy));
  if (!SettleOpenRequests()) return;
  if (residency_.ToSleep(command_->spec).empty()) {
    if (DropsKept(command_->spec)) return CallDropKept();
    return EndCommand(TransitionReport());
  }
  if (residency_.awake()) {
    SwitchState(EngineState::kFallingAsleep);
    QuiesceForSleep(command_->spec);
    if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  }
  CallSleep(command_->spec);
}

void EngineLoop::Quiesce(CacheLoss loss) {
  ReceiveAll();
  if (!Computes()) return;
  scheduler_.ForgetComputed(loss);
  FlushFreedSlots();
}

void EngineLoop::FlushFreedSlots() {
  StepPlan flush = scheduler_.FlushFreedSlots();
  if (flush.request.freed_slots_size() > 0) Send(std::move(flush));
  ReceiveAll();
}

void EngineLoop::StartWakeUp() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (paused_ && command_->for_arrivals) return EndCommand(DeclinedError(WhyNotReady(EngineState::kPaused)));
  command_->damage = absl::OkStatus();
  if (residency_.ToWake(command_->spec.tags).empty()) return EndWakeUp(TransitionReport());
  CallWakeUp();
}

void EngineLoop::StartRestart() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (!MayServe()) return EndCommand(absl::FailedPreconditionError(WhyNotReady(state())));
  if (!weights_.readable()) {
    return EndCommand(absl::FailedPreconditionError(
        "the weights came from an update, which new workers could not have; somnus reload-weights first"));
  }
  // Offer takes no request from now on.
  SwitchState(EngineState::kRecovering, "its workers are restarted, one replica after the other");
  ReceiveAll();
  if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  scheduler_.Recover();
  HandOver();
  LogInfo("{}the workers are restarted", options_.log_name);
  recovering_ = restarting_ = true;
  lost_at_ = options_.monotonic_now();
  executor_->Restart({residency_, weights_, mapped_blocks_});
  group_epoch_ = executor_->group_epoch();
}

// Where the command brings weights (`revived`), awake replicas have these weights, and this engine's
// requests.
void EngineLoop::StartRevive() {
  // It drains, or the group was lost once more in between and is whole again.
  if (state() != EngineState::kRecovering) return EndCommand(TransitionReport());
  LogInfo("{}it is tried again", options_.log_name);
  if (command_->revived.has_value()) {
    weights_ = *command_->revived;
    residency_ = Residency();
    residency_.SetWeightsStale(weights_.overwritten);
  } else {
    if (command_->revived_asleep) residency_.Slept({.level = kMaxSleepLevel});
    recoveries_.clear();
  }
  checked_.reset();
  check_due_ = false;
  paused_ = false;
  scheduler_.Recover();
  recovering_ = true;
  lost_at_ = options_.monotonic_now();
  if (command_->restart_workers) {
    executor_->Restart({residency_, weights_, mapped_blocks_});
  } else {
    executor_->Recover({residency_, weights_, mapped_blocks_});
  }
  group_epoch_ = executor_->group_epoch();
}

void EngineLoop::CallSleep(const SleepSpec& spec) {
  // Stale weights have nothing to keep.
  const SleepSpec changes = {residency_.weights_stale() ? kMaxSleepLevel : spec.level,
                             residency_.ToSleep(spec)};
  executor_->SleepAsync(changes, ChooseKept(changes), Call(changes));
}

void EngineLoop::CallWakeUp() {
  std::vector<std::string> tags = residency_.ToWake(command_->spec.tags);
  const absl::StatusOr<bool> reads = WillReadWeights(tags);
  if (!reads.ok()) return EndCommand(reads.status());
  if (!*reads && residency_.weights_stale()) std::erase(tags, kWeightsTag);  // they stay so
  if (tags.empty()) return EndWakeUp(TransitionReport());
  SwitchState(EngineState::kWaking);
  executor_->WakeUpAsync(tags, *reads, KeptFor(tags),
                         Call({.level = 0, .tags = tags}, /*weights_stale=*/!*reads));
}

Executor::LifecycleDone EngineLoop::Call(const SleepSpec& spec, bool weights_stale) {
  call_ = LifecycleCall{.id = ++last_call_, .spec = spec, .weights_stale = weights_stale};
  return [mail = mail_, id = call_->id](absl::StatusOr<TransitionReport> result) {
    mail->PostCallResult(id, std::move(result));
  };
}

void EngineLoop::FinishCall(LoopMail::CallResult event) {
  if (!call_.has_value() || event.call != call_->id) return;  // a loss of the group has interrupted that call
  if (const absl::Status health = executor_->Health(); !event.result.ok() && !health.ok())
    return Lose(health);
  const LifecycleCall call = *std::exchange(call_, std::nullopt);
  if (call.of_weights) return FinishWeights(event.weights);
  if (call.of_check) {
    return FinishSelfCheck(event.result.status(), event.check, options_.monotonic_now() - call.began);
  }
  if (call.drops_kept) return FinishDropKept(std::move(event.result));
  if (call.num_blocks > 0) return FinishResizeKvCache(call.num_blocks, event.result);
  if (call.spec.level > 0) return FinishSleep(call.spec, std::move(event.result));
  if (event.result.ok()) {
    NoteWoken(call.spec.tags, call.weights_stale);
    NoteWokenKv(call.spec.tags);
  }
  FinishWakeUp(std::move(event.result));
}

void EngineLoop::FinishSleep(const SleepSpec& spec, absl::StatusOr<TransitionReport> report) {
  if (!report.ok() && RetriesWithoutKept(spec, report.status())) return CallSleep(command_->spec);
  if (report.ok()) {
    residency_.Slept(spec);
    NoteSleptKv(spec);
  }
  SwitchState(RestingState());
  if (report.ok()) NoteTransition(*report, /*wakes=*/false);
  if (!command_->damage.ok()) report = command_->damage;
  EndCommand(std::move(report));
}

void EngineLoop::FinishWakeUp(absl::StatusOr<TransitionReport> report) {
  if (report.ok()) {
    step_deadline_.Restart();  // pages may be touched for the first time
    NoteTransition(*report, /*wakes=*/true);
  }
  EndWakeUp(std::move(report));
}

void EngineLoop::EndWakeUp(absl::StatusOr<TransitionReport> report) {
  if (report.ok() && check_due_ && residency_.awake()) {
    command_->woken = *std::move(report);
    return CallSelfCheck();
  }
  if (report.ok() && (residency_.awake() || command_->ends_pause)) paused_ = false;
  SwitchState(RestingState(), report.ok() ? "" : absl::StrCat("wake_up: ", report.status().message()));
  EndCommand(std::move(report));
}

void EngineLoop::NoteTransition(const TransitionReport& report, bool wakes) {
  TransitionEvent event;
  event.wakes = wakes;
  event.level = residency_.level();
  event.duration = options_.monotonic_now() - command_->began;
  event.report = report;
  if (observer_ != nullptr) observer_->OnTransition(event);
}

// The group was lost. The command begins again after the recovery, and finds what it wants when its call was
// committed. A result of its call that comes later does not count.
void EngineLoop::InterruptCommand(const absl::Status& reason) {
  if (!command_.has_value()) return;
  const bool resizes = call_.has_value() && call_->num_blocks > 0;
  const bool is_transition = call_.has_value() && !call_->of_weights && !call_->of_check && !resizes;
  // Some ranks may have changed: the recovery brings all to the size that surely has memory.
  if (resizes) NoteMappedBlocks(std::min(mapped_blocks_, call_->num_blocks));
  if (is_transition && executor_->committed()) {
    if (call_->spec.level > 0) {
      residency_.Slept(call_->spec);
    } else {
      NoteWoken(call_->spec.tags, call_->weights_stale);
    }
  }
  call_.reset();
  // What was sent of an update cannot be sent again.
  const bool ends = command_->kind == LifecycleCommand::Kind::kUpdate && residency_.weights_stale();
  if (!command_->given_up.ok()) return EndCommand(command_->given_up);
  if (ends || ++command_->num_interruptions > kMaxInterruptions || state() == EngineState::kDraining)
    EndCommand(reason);
}

// What became, since the command began, of the tags that it named, and of what went along.
std::map<std::string, TagOutcome> EngineLoop::Outcomes() const {
  std::map<std::string, TagOutcome> outcomes;
  for (const std::string tag : kMemoryTags) {
    const std::vector<std::string>& tags = command_->spec.tags;
    const bool named = tags.empty() || std::find(tags.begin(), tags.end(), tag) != tags.end();
    const TagState state = residency_.state(tag);
    const bool changed = state != command_->before.residency.state(tag);
    if (named || changed) outcomes[tag] = {state, changed};
  }
  return outcomes;
}

void EngineLoop::EndCommand(absl::StatusOr<TransitionReport> result) {
  EndWait();
  if (result.ok()) result->tags = Outcomes();
  if (command_->kind == LifecycleCommand::Kind::kUpdate) executor_->CancelWeightUpdate();
  const LifecycleCommand command = *std::exchange(command_, std::nullopt);
  call_.reset();
  PublishStats();
  NoteCommand();
  command.reply(std::move(result));
  for (const std::function<void()>& note : command.on_end) note();
}

// ---- Commands that are ended before they are done: by an operator, or because their client has left before
// they began

absl::Status EngineLoop::AbortCall() {
  struct Abort {
    StopSignal done;
    absl::Status status;
  };
  const auto abort = std::make_shared<Abort>();
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the engine has stopped");
    call_aborts_.push_back([abort](absl::Status status) {
      abort->status = std::move(status);
      abort->done.Stop();
    });
  }
  mail_->Wake();
  abort->done.WaitFor(absl::InfiniteDuration());
  return abort->status;
}

void EngineLoop::AbortCommands() {
  std::vector<std::function<void(absl::Status)>> aborts;
  {
    absl::MutexLock lock(&mu_);
    aborts.swap(call_aborts_);
  }
  for (std::function<void(absl::Status)>& reply : aborts) {
    if (!command_.has_value()) {
      reply(absl::FailedPreconditionError("no lifecycle call is under way"));
    } else if (restarting_ || command_->kind == LifecycleCommand::Kind::kRevive) {
      reply(absl::FailedPreconditionError("the workers are being restarted, which ends by itself"));
    } else {
      command_->on_end.push_back([reply = std::move(reply)] { reply(absl::OkStatus()); });
      AbortCommand();
    }
  }
}

void EngineLoop::AbortCommand() {
  if (!command_->given_up.ok()) return;  // its end is under way
  command_->given_up = absl::AbortedError(kEndedByOperator);
  LogWarning("{}{} is ended by an operator", options_.log_name, command_->Name());
  if (waits_) return EndWaitOf(command_->given_up);
  if (recovering_) return EndCommand(command_->given_up);
  if (!call_.has_value()) return EndWeightsChange(command_->given_up);  // tensors are coming
  // The time that a rank would still take is unknown; the loss of the group ends the command.
  executor_->LoseEpoch(command_->given_up);
}

void EngineLoop::DropAbandoned() {
  std::vector<LifecycleCommand> dropped;
  std::erase_if(commands_, [&](LifecycleCommand& command) {
    const bool drops = command.Abandoned();
    if (drops) dropped.push_back(std::move(command));
    return drops;
  });
  for (const LifecycleCommand& command : dropped) {
    LogInfo("{}{} is not carried out: its client has left", options_.log_name, command.Name());
    command.reply(absl::CancelledError(kAbandoned));
  }
}

void EngineLoop::NoteCommand() {
  absl::MutexLock lock(&mu_);
  lifecycle_call_ = LifecycleCallStats();
  if (!command_.has_value()) return;
  lifecycle_call_.name = command_->Name();
  lifecycle_call_.began = command_->began;
  if (command_->caller != nullptr) lifecycle_call_.client = command_->caller->name;
  lifecycle_call_.num_waiting = static_cast<int32_t>(commands_.size());
}

}  // namespace somnus
