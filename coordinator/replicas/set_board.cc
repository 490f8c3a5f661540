#include "coordinator/replicas/set_board.h"

#include <utility>

#include "coordinator/replicas/replica_stats.h"

namespace somnus {

void SetBoard::OnStateChange(std::function<void()> callback) {
  absl::MutexLock lock(&state_mu_);
  on_change_ = std::move(callback);
  if (on_change_) on_change_();
}

void SetBoard::NoteCall(SetCall call) {
  absl::MutexLock lock(&state_mu_);
  call_ = call;
  UpdateLocked();
}

void SetBoard::NoteDrain() {
  absl::MutexLock lock(&state_mu_);
  drains_ = true;
  UpdateLocked();
}

void SetBoard::Update() {
  absl::MutexLock lock(&state_mu_);
  UpdateLocked();
}

void SetBoard::UpdateLocked() {
  const EngineState state = SetState(loops_.States(), call_, drains_);
  {
    absl::MutexLock wait_lock(&wait_mu_);
    sleep_wait_.NoteState(state, options_.monotonic_now());
    if (state != state_) history_.NoteState(state, options_.now(), "");
  }
  if (state == state_) return;
  state_ = state;
  if (on_change_) on_change_();
}

EngineStats SetBoard::Stats() const {
  const EngineState state = state_;
  const std::vector<EngineStats> replicas = loops_.Stats();
  absl::Time since;
  {
    absl::MutexLock lock(&wait_mu_);
    since = history_.note().since;
  }
  return SumOfReplicas(replicas, state, since);
}

absl::Duration SetBoard::OldestWait(std::optional<absl::Time> arrival) const {
  absl::MutexLock lock(&wait_mu_);
  return sleep_wait_.Of(arrival, options_.now(), options_.monotonic_now());
}

}  // namespace somnus
