// EngineLoop's part for failures: the end of an epoch of the group, its recovery, and the engine's own end.

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {

void EngineLoop::Fail(const absl::Status& status) {
  if (state() == EngineState::kFailed) return;
  LogError("{}the engine has failed: {}", options_.log_name, std::string(status.message()));
  std::vector<EngineRequest> submitted;
  {
    absl::MutexLock lock(&mu_);
    error_ = std::string(status.message());
    ChangeState(EngineState::kFailed, error_);
    submitted.swap(submitted_);
  }
  ReportStateChange();
  for (EngineRequest& request : submitted) scheduler_.Add(std::move(request));
  EndWait();
  sent_.clear();
  NoteAwaitedStep();
  const absl::Status error = absl::UnavailableError(absl::StrCat("the engine failed: ", status.message()));
  if (options_.hand_over) {
    for (const SequencePtr& sequence : scheduler_.Recover()) {
      scheduler_.Abort(sequence->request.id);
      End(sequence, FinishReason::kError, error);
    }
    HandOver();
  }
  for (const SequencePtr& sequence : scheduler_.AbortAll()) End(sequence, FinishReason::kError, error);
  if (command_.has_value()) EndCommand(status);
}

void EngineLoop::FailGroup(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    may_revive_ = true;
  }
  Fail(status);
}

bool EngineLoop::MayRecover() {
  const MonotonicTime now = options_.monotonic_now();
  while (!recoveries_.empty() && now - recoveries_.front() >= options_.recovery_window)
    recoveries_.pop_front();
  if (static_cast<int32_t>(recoveries_.size()) >= options_.max_recoveries) return false;
  recoveries_.push_back(now);
  return true;
}

void EngineLoop::Lose(const absl::Status& reason) {
  if (state() == EngineState::kFailed || recovering_) return;
  sent_.clear();
  NoteAwaitedStep();
  // A loss by an operator's AbortCall is no sign that the group fails too often.
  const bool by_operator = command_.has_value() && !command_->given_up.ok();
  const bool recovers = by_operator || MayRecover();
  LogError("{}the group was lost{}: {}", options_.log_name, recovers ? "" : ", and is given up",
           std::string(reason.message()));
  recovering_ = true;
  lost_at_ = options_.monotonic_now();
  // Where a group is given up, its requests in flight may go on at another replica, unless a request was in
  // flight at too many losses.
  if (recovers || options_.hand_over) EndSuspects(scheduler_.Recover(), reason);
  SwitchState(EngineState::kRecovering, std::string(reason.message()));
  HandOver();
  if (!recovers) return executor_->Dismiss(reason);
  InterruptCommand(reason);
  executor_->Recover({residency_, weights_, mapped_blocks_});
  group_epoch_ = executor_->group_epoch();
}

// One of the requests that were in flight may be the cause. Those that were so too often, and never got
// beyond that point, run alone from now on, and end when that fails, too.
void EngineLoop::EndSuspects(const std::vector<SequencePtr>& suspects, const absl::Status& reason) {
  for (const SequencePtr& sequence : suspects) {
    sequence->num_tokens_at_failure = static_cast<int64_t>(sequence->tokens.size());
    sequence->runs_alone = ++sequence->num_failures >= options_.max_recoveries_per_request;
    if (sequence->num_failures <= options_.max_recoveries_per_request) continue;
    scheduler_.Abort(sequence->request.id);
    End(sequence, FinishReason::kError,
        absl::UnavailableError(absl::StrCat("the request was being computed at ", sequence->num_failures,
                                            " failures of the workers; the last: ", reason.message())));
  }
}

void EngineLoop::Exonerate(Sequence* sequence) {
  // Two steps may have been in flight at the failure.
  constexpr int64_t kTokensInFlight = 2;
  if (sequence->num_failures == 0) return;
  if (static_cast<int64_t>(sequence->tokens.size()) <= sequence->num_tokens_at_failure + kTokensInFlight)
    return;
  sequence->num_failures = 0;
  sequence->runs_alone = false;
}

void EngineLoop::HandOver() {
  if (!options_.hand_over) return;
  ReleaseHeldBack([](const EngineRequest&) { return true; });
  std::vector<EngineRequest> requests = scheduler_.ReleaseAll();
  {
    absl::MutexLock lock(&mu_);
    requests.insert(requests.end(), std::make_move_iterator(submitted_.begin()),
                    std::make_move_iterator(submitted_.end()));
    submitted_.clear();
    aborted_.clear();  // whoever takes the requests knows of these
    room_.Clear();
  }
  PublishStats();
  if (!requests.empty()) options_.hand_over(std::move(requests));
}

void EngineLoop::FinishRecovery(const absl::Status& status) {
  if (!std::exchange(recovering_, false)) return;
  const bool restarted = std::exchange(restarting_, false);
  if (!status.ok()) {
    PublishStats();  // before the state: readers at its change find the bytes that the workers still hold
    return FailGroup(status);
  }
  const absl::Duration duration = options_.monotonic_now() - lost_at_;
  num_recoveries_ += restarted ? 0 : 1;
  group_epoch_ = executor_->group_epoch();
  const Held recovered = executor_->recovered();
  if (recovered.residency.weights_stale() && !residency_.weights_stale())
    LogWarning("{}the weights came from an update, which new workers cannot have: they are stale",
               options_.log_name);
  residency_ = recovered.residency;
  weights_ = recovered.weights;
  NoteStaleWeights();
  step_deadline_.Restart();
  {
    absl::MutexLock lock(&mu_);
    error_.clear();  // of a failure from which it was revived
  }
  LogInfo("{}the group is whole again, in epoch {}, after {:.2f} s", options_.log_name, group_epoch_,
          absl::ToDoubleSeconds(duration));
  if (observer_ != nullptr && !restarted) observer_->OnRecovered(duration);
  // The news of another loss may have come before that of this recovery.
  if (const absl::Status health = executor_->Health(); !health.ok()) return Lose(health);
  PublishStats();  // before the state: whoever looks at its change finds which weights there are
  const bool lacks = NeedsWeights() && !command_.has_value();
  SwitchState(
      RestingState(),
      lacks ? "the last change of the weights has not ended, or new workers cannot have its weights" : "");
  if (!checked_.has_value()) QueueSelfCheck();  // those of a replica that was revived
  if (restarted && command_.has_value()) return EndCommand(TransitionReport());
  if (!command_.has_value()) return;
  // What is refused now is refused by ranks that hold this, whatever they held before the loss.
  if (command_->ChangesWeights()) command_->before = {residency_, weights_};
  StartCommand();
}

}  // namespace somnus
