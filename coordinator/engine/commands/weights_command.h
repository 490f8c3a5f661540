#pragma once
// A change of the weights: the common part of reloads and updates. The weights are stale from before the
// executor is called until every rank has new weights; an error that says `untouched` brings the old weights
// back.

#include <cstdint>
#include <string>

#include "coordinator/engine/lifecycle_command.h"
#include "coordinator/residency/weights.h"

namespace somnus {

class WeightsCommand : public LifecycleCommand {
 public:
  bool EndsWaits() const override { return mode() != SleepMode::kWait; }
  bool ChangesWeights() const override { return true; }
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;
  void OnGivenUp(LoopAccess* loop, const absl::Status& reason) override { EndChange(loop, reason); }

  // Of a command that has ended well.
  const WeightsChange& change() const { return change_; }

  // Whether a client may ask for the version; 0: the next one.
  static absl::Status CheckVersion(int64_t version);

 protected:
  explicit WeightsCommand(const WeightsRequest& request)
      : LifecycleCommand(request.mode), version_(request.version), label_(request.label) {}

  // The command may change the weights now: nothing is computed, no block is cached, and the weights are
  // stale. False: the command waits, or has ended.
  bool BeginChange(LoopAccess* loop);
  // The version that the weights get. To be called once, before the call that gives the version.
  int64_t ChooseVersion(const LoopAccess& loop);
  void EndChange(LoopAccess* loop, const absl::Status& status);

  // A call of the executor has ended well.
  virtual void OnOutcome(LoopAccess* loop, const WeightsOutcome& outcome) = 0;
  // Every rank has `weights`, whose version is still to be set: ends the change.
  void Take(LoopAccess* loop, Weights weights, const WeightsOutcome& outcome);
  // An update: tensors come from a client.
  virtual bool updates() const = 0;

 private:
  const int64_t version_;  // 0: the next one
  const std::string label_;
  WeightsChange change_;
  Held before_;  // before the weights became stale
};

}  // namespace somnus
