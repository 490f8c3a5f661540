#include "coordinator/engine/commands/pause_command.h"

#include <utility>

#include "coordinator/engine/loop_access.h"

namespace somnus {

void PauseCommand::Start(LoopAccess* loop) {
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  if (!SettleOpenRequests(loop)) return;
  if (loop->Computes()) {
    const bool stands = clear_cache_ ? loop->Quiesce(CacheLoss::kPause) : loop->FinishSteps();
    if (!stands) return;
  }
  loop->parts().paused = true;
  loop->SwitchToRest();
  loop->End(TransitionReport());
}

void ResumeCommand::Start(LoopAccess* loop) {
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  loop->parts().paused = false;
  loop->SwitchToRest();
  loop->End(TransitionReport());
}

}  // namespace somnus
