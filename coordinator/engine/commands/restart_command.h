#pragma once
// The two commands that bring up new workers. A restart that is under way ends by itself: no operator can end
// the restart.

#include <optional>

#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/weights.h"

namespace somnus {

// EngineLoop::Restart: new workers take the places of workers that are well.
class RestartCommand : public LifecycleCommand {
 public:
  const char* Name() const override { return "restart"; }
  bool EndsByItself() const override { return restarts_; }
  void Start(LoopAccess* loop) override;
  bool OnLoss(LoopAccess* loop) override;
  void OnRecovered(LoopAccess* loop) override;

 private:
  bool restarts_ = false;  // the recovery under way is the restart
};

// EngineLoop::Revive: an engine that failed because its group was lost begins again. The state is recovering
// already when the command begins (EngineBoard::BeginRevival).
class ReviveCommand : public LifecycleCommand {
 public:
  struct Options {
    bool restart_workers = false;    // also workers that are well are replaced
    std::optional<Weights> weights;  // of the replicas beside which the engine serves, awake
    bool asleep = false;             // without `weights`: as of ReviveRequest
  };
  explicit ReviveCommand(Options options) : options_(std::move(options)) {}

  const char* Name() const override { return "restart"; }
  bool EndsByItself() const override { return true; }
  void Start(LoopAccess* loop) override;

 private:
  const Options options_;
};

}  // namespace somnus
