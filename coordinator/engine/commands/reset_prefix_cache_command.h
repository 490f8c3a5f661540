#pragma once
// ResetPrefixCacheRequest: no later request adopts a block that is cached now, on the device or in the host
// tier.

#include "coordinator/engine/commands/drop_kept_call.h"
#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class ResetPrefixCacheCommand : public LifecycleCommand {
 public:
  // `preempt_running`: as of ResetPrefixCacheRequest.
  explicit ResetPrefixCacheCommand(bool preempt_running) : preempt_running_(preempt_running) {}

  const char* Name() const override { return "reset_prefix_cache"; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;

 private:
  const bool preempt_running_;
  DropKeptCall drop_;
};

}  // namespace somnus
