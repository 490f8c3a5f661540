#include "tests/simulation/coordinator_deaths.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLongest = absl::Milliseconds(20);  // in the state; a transition takes as long

}  // namespace

void CoordinatorDeaths::Plan(int coordinator, absl::Duration span) {
  coordinator_ = coordinator;
  state_.reset();
  if (num_left_ == 0) return;
  constexpr EngineState kStates[] = {EngineState::kAsleep, EngineState::kFallingAsleep, EngineState::kWaking};
  Random& random = site_.world.random();
  if (const int64_t drawn = random.Between(0, 3); drawn < 3) {
    state_ = kStates[drawn];
  } else {
    KillAfter(random.Between(absl::ZeroDuration(), span));
  }
}

void CoordinatorDeaths::OnState(EngineState state) {
  if (state_ == state) KillAfter(site_.world.random().Between(absl::ZeroDuration(), kLongest));
}

void CoordinatorDeaths::KillAfter(absl::Duration delay) {
  state_.reset();
  site_.world.After(delay, [this, pid = coordinator_] {
    if (num_left_ == 0 || !site_.world.alive(pid)) return;
    --num_left_;
    faults_.CountOther();
    site_.world.Kill(pid, "was killed by signal 9 (Killed)");
  });
}

}  // namespace somnus::simulation
