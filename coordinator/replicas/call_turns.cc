#include "coordinator/replicas/call_turns.h"

#include "absl/time/time.h"
#include "coordinator/engine/caller.h"

namespace somnus {

absl::Status CallTurns::Take() {
  std::unique_lock<std::mutex> lock(mu_);
  const int64_t number = ++last_;
  waiting_.insert(number);
  const auto is_next = [&] { return !taken_ && *waiting_.begin() == number; };
  absl::Status caller;
  while (caller.ok() && !given_.wait_for(lock, absl::ToChronoNanoseconds(kCallerLook), is_next))
    caller = CheckCaller();
  waiting_.erase(number);
  if (caller.ok()) taken_ = true;
  given_.notify_all();
  return caller;
}

bool CallTurns::TryTake() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (taken_ || !waiting_.empty()) return false;
  taken_ = true;
  return true;
}

void CallTurns::Give() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    taken_ = false;
  }
  given_.notify_all();
}

int32_t CallTurns::num_waiting() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return static_cast<int32_t>(waiting_.size());
}

}  // namespace somnus
