#pragma once
// SetAdaptersRequest: which adapters the ranks hold. Between two steps, or while memory sleeps.

#include <vector>

#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/held_adapter.h"

namespace somnus {

class SetAdaptersCommand : public LifecycleCommand {
 public:
  explicit SetAdaptersCommand(const SetAdaptersRequest& request)
      : adapters_(request.adapters), by_next_workers_(request.by_next_workers) {}

  const char* Name() const override { return "a change of the adapters"; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;

 private:
  std::vector<HeldAdapter> adapters_;
  const bool by_next_workers_;
  std::vector<HeldAdapter> kept_;  // that the ranks hold before and afterwards
};

}  // namespace somnus
