#pragma once
// SetAdaptersRequest: which adapters the ranks hold. The ranks read the files of new adapters while steps go
// on; the change itself is between two steps, or while memory sleeps.

#include <vector>

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/held_adapter.h"

namespace somnus {

class SetAdaptersCommand : public LifecycleCommand {
 public:
  explicit SetAdaptersCommand(const SetAdaptersRequest& request)
      : adapters_(request.adapters), by_next_workers_(request.by_next_workers) {}

  const char* Name() const override { return "a change of the adapters"; }
  bool LetsStepsGoOn() const override { return phase_ == Phase::kReads; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;
  bool OnLoss(LoopAccess* loop) override;

 private:
  // kReads: the ranks read files; kChanges: the ranks have read the files, or could not.
  enum class Phase { kBegins, kReads, kChanges };

  // Settles which adapters the ranks are to hold, and which of these the ranks hold already.
  void Compare(const LoopAccess& loop);
  std::vector<HeldAdapter> Unread() const;
  void Change(LoopAccess* loop);
  void EndChange(LoopAccess* loop, absl::StatusOr<TransitionReport> set);

  std::vector<HeldAdapter> adapters_;
  const bool by_next_workers_;
  std::vector<HeldAdapter> kept_;  // that the ranks hold before and afterwards
  Phase phase_ = Phase::kBegins;
  absl::Status read_;  // an error: the ranks are to hold kept_ alone
};

}  // namespace somnus
