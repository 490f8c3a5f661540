#pragma once
// An update of the weights that keeps an object alive until the update has ended, such as the count of a call
// under way. For engines over another engine.
//
// Ownership: owns the update and a share of the hold. Thread safety: as WeightUpdate says.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/engine/weight_update.h"

namespace somnus {

class HeldUpdate : public WeightUpdate {
 public:
  HeldUpdate(std::shared_ptr<void> hold, std::unique_ptr<WeightUpdate> update)
      : hold_(std::move(hold)), update_(std::move(update)) {}

  absl::Status Send(v1::WeightChunk chunk) override { return update_->Send(std::move(chunk)); }
  absl::Status status() const override { return update_->status(); }
  std::vector<v1::UpdatePort> ports() const override { return update_->ports(); }
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
    return update_->Finish(expected);
  }

 private:
  // Members are destroyed in reverse: the update first.
  const std::shared_ptr<void> hold_;
  const std::unique_ptr<WeightUpdate> update_;
};

}  // namespace somnus
