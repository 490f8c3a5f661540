#pragma once
// Takes the fingerprint of new weights (wake_check.h). The server's own command. Waits for no open request,
// so that sequences may have slots and blocks, and keep the blocks.

#include "coordinator/engine/commands/check_call.h"
#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class SelfCheckCommand : public LifecycleCommand {
 public:
  const char* Name() const override { return "self-check"; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;

 private:
  CheckCall check_;
};

}  // namespace somnus
