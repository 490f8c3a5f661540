#include "worker/lifecycle.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace somnus {

const char* WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kCreated:
      return "created";
    case WorkerState::kLoaded:
      return "loaded";
    case WorkerState::kAwake:
      return "awake";
    case WorkerState::kAsleep:
      return "asleep";
    case WorkerState::kFailed:
      return "failed";
  }
  return "";
}

void Lifecycle::Set(WorkerState state, int sleep_level) {
  absl::MutexLock lock(&mu_);
  state_ = state;
  sleep_level_ = sleep_level;
}

bool Lifecycle::Fail(int64_t epoch, const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  if (epoch != epoch_ || !error_.ok()) return false;
  error_ = error;
  return true;
}

bool Lifecycle::FailForGood(const absl::Status& error) {
  absl::MutexLock lock(&mu_);
  for_good_ = true;
  if (!error_.ok()) return false;
  error_ = error;
  return true;
}

void Lifecycle::BeginEpoch(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  epoch_ = epoch;
  if (!for_good_) error_ = absl::OkStatus();
}

void Lifecycle::SetTransitionPrepared(bool prepared) {
  absl::MutexLock lock(&mu_);
  transition_prepared_ = prepared;
}

WorkerState Lifecycle::state() const {
  absl::MutexLock lock(&mu_);
  return error_.ok() ? state_ : WorkerState::kFailed;
}

int Lifecycle::sleep_level() const {
  absl::MutexLock lock(&mu_);
  return error_.ok() ? sleep_level_ : 0;
}

absl::Status Lifecycle::Require(std::initializer_list<WorkerState> allowed, const char* call) const {
  absl::MutexLock lock(&mu_);
  if (!error_.ok()) return error_;
  if (std::find(allowed.begin(), allowed.end(), state_) != allowed.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the worker is ", WorkerStateName(state_)));
}

bool Lifecycle::transition_prepared() const {
  absl::MutexLock lock(&mu_);
  return transition_prepared_;
}

absl::Status Lifecycle::RequireNoTransition(const char* call) const {
  if (!transition_prepared()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": a transition is prepared"));
}

}  // namespace somnus
