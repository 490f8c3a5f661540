#include "coordinator/engine/commands/end_waiting_command.h"

#include "coordinator/engine/loop_access.h"

namespace somnus {

void EndWaitingCommand::Start(LoopAccess* loop) {
  if (!loop->Runs()) loop->EndOpenRequests(FinishReason::kError, error_);
  loop->End(TransitionReport());
}

}  // namespace somnus
