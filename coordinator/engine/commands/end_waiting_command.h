#pragma once
// EndWaitingRequest: every open request ends with an error, unless the engine computes.

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class EndWaitingCommand : public LifecycleCommand {
 public:
  explicit EndWaitingCommand(absl::Status error) : error_(std::move(error)) {}

  const char* Name() const override { return "end_waiting"; }
  void Start(LoopAccess* loop) override;

 private:
  const absl::Status error_;  // of the requests
};

}  // namespace somnus
