#pragma once
// ReloadWeightsRequest: every rank reads a checkpoint. A reload that a loss of the group interrupts begins
// again.

#include <string>

#include "coordinator/engine/commands/weights_command.h"

namespace somnus {

class ReloadCommand : public WeightsCommand {
 public:
  explicit ReloadCommand(const WeightsRequest& request) : WeightsCommand(request), path_(request.path) {}

  const char* Name() const override { return "reload_weights"; }
  void Start(LoopAccess* loop) override;

 private:
  void OnOutcome(LoopAccess* loop, const WeightsOutcome& outcome) override;
  bool updates() const override { return false; }

  const std::string path_;  // empty: of the checkpoint that was read last
};

}  // namespace somnus
