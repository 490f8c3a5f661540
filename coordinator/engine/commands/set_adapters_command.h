#pragma once
// SetAdaptersRequest: which adapters the ranks hold. Between two steps, or while memory sleeps.

#include <utility>
#include <vector>

#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/held_adapter.h"

namespace somnus {

class SetAdaptersCommand : public LifecycleCommand {
 public:
  explicit SetAdaptersCommand(std::vector<HeldAdapter> adapters) : adapters_(std::move(adapters)) {}

  const char* Name() const override { return "a change of the adapters"; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;

 private:
  std::vector<HeldAdapter> adapters_;
  std::vector<HeldAdapter> kept_;  // that the ranks hold before and afterwards
};

}  // namespace somnus
