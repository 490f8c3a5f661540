#include "coordinator/replicas/call_turns.h"

#include <memory>

#include "absl/time/time.h"
#include "coordinator/engine/caller.h"

namespace somnus {

absl::Status CallTurns::Take(const char* name) {
  std::unique_lock<std::mutex> lock(mu_);
  const int64_t number = ++last_;
  waiting_.insert(number);
  const auto is_next = [&] { return !taken_ && *waiting_.begin() == number; };
  absl::Status status;
  while (status.ok() && !given_.wait_for(lock, absl::ToChronoNanoseconds(kCallerLook), is_next))
    status = CheckCaller();
  waiting_.erase(number);
  if (status.ok()) {
    taken_ = true;
    const std::shared_ptr<const Caller> caller = CurrentCaller();
    current_ = {.name = name, .client = caller == nullptr ? "" : caller->name, .began = now_()};
  }
  given_.notify_all();
  return status;
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
    current_ = LifecycleCallStats();
  }
  given_.notify_all();
}

void CallTurns::Park() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    parked_ = current_;
  }
  Give();
}

void CallTurns::EndParked() {
  const std::lock_guard<std::mutex> lock(mu_);
  parked_ = LifecycleCallStats();
}

LifecycleCallStats CallTurns::Current() const {
  const std::lock_guard<std::mutex> lock(mu_);
  LifecycleCallStats call = current_.name.empty() ? parked_ : current_;
  call.num_waiting = static_cast<int32_t>(waiting_.size());
  return call;
}

}  // namespace somnus
