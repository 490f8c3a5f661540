#include "coordinator/replicas/call_waits.h"

#include <algorithm>
#include <utility>

#include "coordinator/engine/caller.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/residency/declined.h"

namespace somnus {

void CallWaits::NoteChangeLocked() {
  if (changed_ != nullptr) std::exchange(changed_, nullptr)->Stop();
}

void CallWaits::NoteChange() {
  absl::MutexLock lock(&mu_);
  NoteChangeLocked();
}

std::shared_ptr<StopSignal> CallWaits::NextChange() {
  absl::MutexLock lock(&mu_);
  if (changed_ == nullptr) changed_ = std::make_shared<StopSignal>();
  return changed_;
}

void CallWaits::AwaitFor(const std::function<bool()>& condition, absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  while (true) {
    // The signal comes before the look at the condition, so that no change in between is missed.
    const std::shared_ptr<StopSignal> changed = NextChange();
    if (condition()) return;
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return;
    changed->WaitFor(left);
  }
}

absl::Status CallWaits::AwaitInCall(const std::function<bool()>& condition, absl::Duration timeout) {
  const int64_t aborts = BeginWait();
  const MonotonicTime deadline = MonotonicNow() + timeout;
  const auto ends = [&] { return condition() || draining() || num_aborts() > aborts; };
  absl::Status caller;
  while (!ends() && caller.ok() && MonotonicNow() < deadline) {
    AwaitFor(ends, std::min(kCallerLook, deadline - MonotonicNow()));
    caller = CheckCaller();
  }
  EndWait();
  if (condition()) return absl::OkStatus();
  if (absl::Status status = CheckDrain(); !status.ok()) return status;
  if (num_aborts() > aborts) return absl::AbortedError(kEndedByOperator);
  return caller;
}

int64_t CallWaits::BeginWait() {
  absl::MutexLock lock(&mu_);
  ++num_waits_;
  return num_aborts_;
}

void CallWaits::EndWait() {
  absl::MutexLock lock(&mu_);
  --num_waits_;
}

int64_t CallWaits::num_aborts() const {
  absl::MutexLock lock(&mu_);
  return num_aborts_;
}

bool CallWaits::Abort() {
  absl::MutexLock lock(&mu_);
  if (num_waits_ == 0) return false;
  ++num_aborts_;
  NoteChangeLocked();
  return true;
}

void CallWaits::NoteInterruption(int64_t count) {
  absl::MutexLock lock(&mu_);
  num_interruptions_ += count;
  NoteChangeLocked();
}

bool CallWaits::WantsTurn() const {
  absl::MutexLock lock(&mu_);
  return num_interruptions_ > 0;
}

void CallWaits::Drain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  NoteChangeLocked();
}

bool CallWaits::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

absl::Status CallWaits::CheckDrain() const {
  return draining() ? DeclinedError("the server is shutting down") : absl::OkStatus();
}

}  // namespace somnus
