#include "tests/fakes/fake_executor.h"

namespace somnus {

void FakeExecutor::Recover(const Held& wanted) {
  const Residency& held = wanted.residency;
  Recovery recovery;
  absl::Status failure;
  {
    absl::MutexLock lock(&mu_);
    std::string what = held.awake() ? "awake" : "asleep " + std::to_string(held.level());
    for (const std::string& tag : held.asleep()) what += " " + tag;
    if (held.weights_stale()) what = "stale";
    recoveries_.push_back(what);
    residency_ = held;
    wanted_ = wanted;
    ++group_epoch_;
    recovery = recovery_;
    failure = health_;
  }
  if (recovery == Recovery::kFails) FinishRecovery(failure);
  if (recovery == Recovery::kSucceeds) FinishRecovery(absl::OkStatus());
}

void FakeExecutor::Restart(const Held& wanted) {
  Recovery recovery;
  {
    absl::MutexLock lock(&mu_);
    wanted_ = wanted;
    recoveries_.push_back("restart");
    ++group_epoch_;
    recovery = recovery_;
  }
  if (recovery == Recovery::kFails) FinishRecovery(absl::UnavailableError("the new workers did not come"));
  if (recovery == Recovery::kSucceeds) FinishRecovery(absl::OkStatus());
}

}  // namespace somnus
