#include "coordinator/engine/commands/self_check_command.h"

#include "coordinator/engine/loop_access.h"

namespace somnus {

void SelfCheckCommand::Start(LoopAccess* loop) {
  if (!loop->CheckLifecycle().ok() || !loop->MayServe()) return loop->End(TransitionReport());
  if (loop->Suspend()) check_.Begin(loop);
}

// No wake-up is under way, so that no result is refused.
void SelfCheckCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  if (!result.result.ok()) return loop->End(result.result.status());
  if (!check_.Judge(loop, result.check).has_value()) return;
  loop->RestartStepDeadline();
  loop->End(TransitionReport());
}

}  // namespace somnus
