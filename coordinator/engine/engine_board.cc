#include "coordinator/engine/engine_board.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/engine/engine_report.h"

namespace somnus {
namespace {

std::string ReasonOf(const LifecycleCallStats& call) {
  return absl::StrCat(call.client.empty() ? "the server itself" : "an operator", " has called ", call.name);
}

}  // namespace

EngineBoard::EngineBoard(const EngineOptions& options, const Executor* executor, EngineState state)
    : options_(options),
      executor_(executor),
      state_(state),
      prefill_speed_(options_.scheduler.max_num_batched_tokens) {
  absl::MutexLock lock(&mu_);
  sleep_wait_.NoteState(state, options_.monotonic_now());
  history_.NoteState(state, options_.now(), "its workers were taken over from an earlier server");
}

void EngineBoard::OnStateChange(std::function<void()> callback) {
  absl::MutexLock lock(&on_state_change_mu_);
  on_state_change_ = std::move(callback);
  if (on_state_change_) on_state_change_();
}

void EngineBoard::ReportStateChange() {
  absl::MutexLock lock(&on_state_change_mu_);
  if (on_state_change_) on_state_change_();
}

// A rank that is known to hang is a better reason than the step; heartbeats may report the rank a little
// later.
absl::Status EngineBoard::Stall() const {
  const absl::Status progress = executor_->Progress();
  const bool hangs = awaited_step_ != 0 && options_.running_now() - awaited_since_ > options_.step_stall;
  if (!progress.ok() || !hangs) return progress;
  return absl::UnavailableError(absl::StrCat("Step ", awaited_step_, " has been under way for longer than ",
                                             absl::FormatDuration(options_.step_stall), "."));
}

EngineStats EngineBoard::Stats() const {
  absl::MutexLock lock(&mu_);
  EngineStats stats = stats_;
  stats.state = state_;
  stats.error = error_;
  stats.note = history_.note();
  stats.may_revive = may_revive_;
  stats.gave_up_stale_weights = gave_up_stale_weights_;
  // An engine that ends may have outlived its workers and the executor.
  if (IsReady(state_)) stats.stall = Stall();
  stats.stalled_since = awaited_at_;
  stats.lifecycle_call = command_;
  const bool call_is_long =
      !command_.name.empty() && options_.running_now() - command_since_ > options_.step_stall;
  if (!IsReady(state_) || !stats.stall.ok() || !call_is_long) return stats;
  const std::string bound = absl::FormatDuration(options_.step_stall);
  stats.lifecycle_call.stall = absl::UnavailableError(
      command_.steps_go_on
          ? absl::StrCat("Other calls, or requests with adapters, wait for ", command_.name,
                         ", which has been under way for longer than ", bound, ".")
          : absl::StrCat("Requests wait for ", command_.name, ", for longer than ", bound, "."));
  stats.lifecycle_call.stalled_since = command_at_;
  if (!command_.steps_go_on || command_.num_waiting > 0) stats.NoteThatCallStalls();
  return stats;
}

absl::Duration EngineBoard::OldestWait(std::optional<absl::Time> arrival) const {
  absl::MutexLock lock(&mu_);
  return sleep_wait_.Of(arrival, options_.now(), options_.monotonic_now());
}

absl::Status EngineBoard::CheckAdmits() const {
  if (!AdmitsRequests(state())) return absl::UnavailableError(ReportState(Stats()).Line());
  if (gave_up_stale_weights_) return absl::UnavailableError(kStaleForTooLong);
  return absl::OkStatus();
}

int64_t EngineBoard::num_preempted() const {
  absl::MutexLock lock(&mu_);
  return num_preempted_;
}

int64_t EngineBoard::num_steps() const {
  absl::MutexLock lock(&mu_);
  return stats_.num_steps;
}

Weights EngineBoard::weights() const {
  absl::MutexLock lock(&mu_);
  return weights_;
}

std::optional<absl::Duration> EngineBoard::PrefillTime(int64_t num_tokens) const {
  absl::MutexLock lock(&mu_);
  return prefill_speed_.TimeFor(num_tokens, options_.monotonic_now());
}

bool EngineBoard::may_revive() const {
  absl::MutexLock lock(&mu_);
  return state_ == EngineState::kFailed && may_revive_;
}

bool EngineBoard::ChangeState(EngineState to, std::string why) {
  const bool is_asked_for = command_.name == "sleep" || command_.name == "pause";
  if (state_ == to && why.empty() && is_asked_for && !command_.client.empty())
    history_.NoteReason(ReasonOf(command_));
  if (state_ == to || !IsAllowedChange(state_, to)) return false;
  state_ = to;
  if (why.empty() && !command_.name.empty() && to != EngineState::kAwake) why = ReasonOf(command_);
  history_.NoteState(to, options_.now(), std::move(why));
  sleep_wait_.NoteState(to, options_.monotonic_now());
  return true;
}

void EngineBoard::SwitchState(EngineState to, std::string why) {
  {
    absl::MutexLock lock(&mu_);
    if (!ChangeState(to, std::move(why))) return;
  }
  ReportStateChange();
}

bool EngineBoard::BeginDrain() {
  absl::MutexLock lock(&mu_);
  return ChangeState(EngineState::kDraining, "the server was told to end");
}

bool EngineBoard::BeginRevival() {
  absl::MutexLock lock(&mu_);
  if (state_ != EngineState::kFailed || !may_revive_) return false;
  may_revive_ = false;
  (void)ChangeState(EngineState::kRecovering, "new workers take the places of those that were lost");
  return true;
}

void EngineBoard::Fail(const std::string& error) {
  {
    absl::MutexLock lock(&mu_);
    error_ = error;
    (void)ChangeState(EngineState::kFailed, error);
  }
  ReportStateChange();
}

void EngineBoard::NoteMayRevive() {
  absl::MutexLock lock(&mu_);
  may_revive_ = true;
}

void EngineBoard::ClearError() {
  absl::MutexLock lock(&mu_);
  error_.clear();
}

void EngineBoard::SetGaveUpStaleWeights(bool gives_up) {
  if (gave_up_stale_weights_.exchange(gives_up) != gives_up) ReportStateChange();
}

void EngineBoard::Publish(EngineStats stats, const Weights& weights, int64_t num_preempted) {
  absl::MutexLock lock(&mu_);
  stats_ = std::move(stats);
  weights_ = weights;
  num_preempted_ = num_preempted;
}

void EngineBoard::NoteCommand(LifecycleCallStats command) {
  absl::MutexLock lock(&mu_);
  const bool is_same = !command_.name.empty() && command.began == command_.began;
  if (!is_same || command.steps_go_on != command_.steps_go_on) {
    command_since_ = options_.running_now();
    command_at_ = options_.now();
  }
  command_ = std::move(command);
}

void EngineBoard::NoteAwaitedStep(int64_t step_id) {
  absl::MutexLock lock(&mu_);
  awaited_step_ = step_id;
  awaited_since_ = options_.running_now();
  awaited_at_ = options_.now();
}

void EngineBoard::NotePrefill(int32_t num_tokens, absl::Duration duration, MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  prefill_speed_.Observe(num_tokens, duration, now);
}

}  // namespace somnus
