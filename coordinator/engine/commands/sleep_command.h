#pragma once
// SleepRequest: settles open requests, ends steps, and has the ranks release memory.

#include "coordinator/engine/commands/drop_kept_call.h"
#include "coordinator/engine/commands/sleep_call.h"
#include "coordinator/engine/commands/transition_command.h"

namespace somnus {

class SleepCommand : public TransitionCommand {
 public:
  explicit SleepCommand(const SleepRequest& request);

  const char* Name() const override { return "sleep"; }
  bool EndsWaits() const override { return mode() != SleepMode::kWait && !only_if_idle_; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;
  bool OnLoss(LoopAccess* loop) override;

 private:
  // Why the sleep is refused before it changes anything.
  absl::Status Check(LoopAccess* loop) const;

  const SleepSpec spec_;
  // As of SleepRequest.
  const bool only_if_idle_;
  const bool spares_only_copy_;
  const bool force_;

  SleepCall sleep_;
  DropKeptCall drop_;
  bool was_interrupted_ = false;  // by a loss of the group
};

}  // namespace somnus
