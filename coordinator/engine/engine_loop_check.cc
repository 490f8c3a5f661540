// EngineLoop's part for the self-check: a fixed prompt, whose logits must be after a wake-up what they were
// before the sleep. Its fingerprint is taken when the ranks have new weights, from a load, a reload or an
// update, and compared when a wake-up has brought weights or workspace back.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {

void EngineLoop::QueueSelfCheck() {
  if (!options_.wake_self_check || !MayServe()) return;
  const auto checks = [](const LifecycleCommand& command) {
    return command.kind == LifecycleCommand::Kind::kSelfCheck;
  };
  if (command_.has_value() && checks(*command_)) return;  // it begins again
  if (std::any_of(commands_.begin(), commands_.end(), checks)) return;
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kSelfCheck;
  command.reply = [](const absl::StatusOr<TransitionReport>&) {};
  commands_.push_front(std::move(command));
}

void EngineLoop::NoteWoken(const std::vector<std::string>& tags, bool weights_stale) {
  residency_.Woke(tags, weights_stale);
  const auto checked = [](const std::string& tag) { return tag == kWeightsTag || tag == kWorkspaceTag; };
  check_due_ |= options_.wake_self_check && std::any_of(tags.begin(), tags.end(), checked);
}

// It waits for nothing that is open, so that sequences may have slots and blocks, which they keep.
void EngineLoop::StartSelfCheck() {
  if (!CheckLifecycle().ok() || !MayServe()) return EndCommand(TransitionReport());
  ReceiveAll();
  if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  scheduler_.SuspendAll();
  FlushFreedSlots();
  if (!Computes()) return;
  CallSelfCheck();
}

void EngineLoop::NoteNewWeights() {
  checked_.reset();
  check_due_ = options_.wake_self_check && !residency_.awake();
  QueueSelfCheck();
}

void EngineLoop::CallSelfCheck() {
  if (check_due_) SwitchState(EngineState::kWaking);
  call_ = LifecycleCall{.id = ++last_call_, .of_check = true, .began = options_.monotonic_now()};
  executor_->SelfCheckAsync([mail = mail_, id = call_->id](const absl::StatusOr<SelfCheckResult>& result) {
    mail->PostCheckResult(id, result);
  });
}

void EngineLoop::FinishSelfCheck(const absl::Status& status, const SelfCheckResult& result,
                                 absl::Duration duration) {
  if (!status.ok()) {
    SwitchState(RestingState());
    return EndCommand(status);
  }
  if (result.weights_version != weights_.version) {
    return Lose(absl::InternalError(absl::StrCat("the workers have checked version ", result.weights_version,
                                                 " of the weights, not ", weights_.version)));
  }
  SelfCheckEvent event = {.duration = duration};
  if (!checked_.has_value() || !checked_->ComparesWith(result)) {
    checked_ = result;
    LogInfo("{}self-check: fingerprint {:016x} of version {} of the weights", options_.log_name,
            result.fingerprint, result.weights_version);
  } else if (checked_->fingerprint == result.fingerprint) {
    event.outcome = SelfCheckOutcome::kSame;
  } else if (check_due_ && (result.bitwise || options_.batch_invariant)) {
    event.outcome = SelfCheckOutcome::kRefused;
  } else {
    event.outcome = SelfCheckOutcome::kDifferent;
    LogWarning("{}self-check: the logits are not those of before, which without --batch-invariant may be",
               options_.log_name);
  }
  if (observer_ != nullptr) observer_->OnSelfCheck(event);
  if (event.outcome == SelfCheckOutcome::kRefused) return GiveUpDamaged(result);
  step_deadline_.Restart();
  if (!std::exchange(check_due_, false)) return EndCommand(TransitionReport());
  EndWakeUp(std::move(command_->woken));
}

// Nothing of what woke is used again: not the memory, and no backup of it.
void EngineLoop::GiveUpDamaged(const SelfCheckResult& result) {
  command_->damage = absl::DataLossError(absl::StrFormat(
      "self-check: with version %d of the weights every rank is awake, but their logits have fingerprint "
      "%016x, not %016x as before the sleep; the memory and its backups are given up, and %s",
      result.weights_version, result.fingerprint, checked_->fingerprint,
      weights_.readable() ? "the next wake-up reads the checkpoint"
                          : "a reload or an update has to bring the weights"));
  LogError("{}{}", options_.log_name, std::string(command_->damage.message()));
  CallSleep({.level = kMaxSleepLevel});
}

}  // namespace somnus
