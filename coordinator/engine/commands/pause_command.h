#pragma once
// PauseRequest and ResumeRequest: nothing is computed between the two, and memory stays.

#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class PauseCommand : public LifecycleCommand {
 public:
  explicit PauseCommand(const PauseRequest& request)
      : LifecycleCommand(request.mode), clear_cache_(request.clear_cache) {}

  const char* Name() const override { return "pause"; }
  bool EndsWaits() const override { return mode() != SleepMode::kWait; }
  void Start(LoopAccess* loop) override;

 private:
  const bool clear_cache_;  // as of PauseRequest
};

class ResumeCommand : public LifecycleCommand {
 public:
  const char* Name() const override { return "resume"; }
  bool EndsWaits() const override { return true; }
  void Start(LoopAccess* loop) override;
};

}  // namespace somnus
