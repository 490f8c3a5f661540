#include "coordinator/engine/loop_mail.h"

#include <utility>

#include "base/heartbeat.h"

namespace somnus {

void LoopMail::PostFailure(absl::Status reason) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!events_.failure.has_value()) events_.failure = std::move(reason);
  }
  Wake();
}

void LoopMail::PostRecovered(absl::Status status) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    events_.recovered = std::move(status);
  }
  Wake();
}

void LoopMail::PostCallResult(int64_t call, absl::StatusOr<TransitionReport> result) {
  PostResult({.call = call, .result = std::move(result)});
}

void LoopMail::PostWeightsResult(int64_t call, const WeightsOutcome& outcome) {
  CallResult result = {.call = call, .result = TransitionReport(), .weights = outcome};
  if (!outcome.status.ok()) result.result = outcome.status;
  PostResult(std::move(result));
}

void LoopMail::PostCheckResult(int64_t call, const absl::StatusOr<SelfCheckResult>& checked) {
  CallResult result = {.call = call, .result = TransitionReport()};
  if (checked.ok()) {
    result.check = *checked;
  } else {
    result.result = checked.status();
  }
  PostResult(std::move(result));
}

void LoopMail::PostResult(CallResult result) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (events_.call_result.has_value() && events_.call_result->call > result.call) return;
    events_.call_result = std::move(result);
  }
  Wake();
}

void LoopMail::Wake() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    woken_ = true;
  }
  arrived_.notify_one();
}

LoopMail::Events LoopMail::Take() {
  const std::lock_guard<std::mutex> lock(mu_);
  return std::exchange(events_, Events());
}

void LoopMail::WaitFor(absl::Duration duration) {
  std::unique_lock<std::mutex> lock(mu_);
  WaitBeating(&arrived_, &lock, duration, [this] { return woken_; });
  woken_ = false;
}

}  // namespace somnus
