#include "coordinator/engine/lifecycle_command.h"

#include <utility>

#include "coordinator/engine/loop_access.h"

namespace somnus {

void LifecycleCommand::OnResult(LoopAccess* /*loop*/, LoopMail::CallResult /*result*/) {}

bool LifecycleCommand::OnLoss(LoopAccess* /*loop*/) { return true; }

void LifecycleCommand::OnTurn(LoopAccess* /*loop*/) {}

void LifecycleCommand::OnGivenUp(LoopAccess* loop, const absl::Status& reason) { loop->End(reason); }

void LifecycleCommand::OnEnd(LoopAccess* /*loop*/) {}

void LifecycleCommand::Finish(absl::StatusOr<TransitionReport> result) {
  result_ = std::move(result);
  ended_.Stop();
}

void LifecycleCommand::OnSettled(LoopAccess* loop) {
  mode_ = SleepMode::kKeep;
  Start(loop);
}

bool LifecycleCommand::SettleOpenRequests(LoopAccess* loop) { return loop->SettleOpenRequests(mode_); }

}  // namespace somnus
