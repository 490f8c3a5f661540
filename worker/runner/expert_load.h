#pragma once
// How many tokens of a step the router sent to each of this rank's experts, for the step's reply. The model
// counts on the device, where each step replaces the counts of the step before, and a copy comes back with
// the step's other results. Ranks that divide the width of each expert would count the same, so the stage's
// last rank alone counts, which has a part of every expert.
//
// Memory on the device is carved from the runner's workspace. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/model/carver.h"
#include "worker/model/shards.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/staging.h"

namespace somnus {

// The counts of a step, in a host buffer of ExpertLoad, once the device has done the step.
struct ExpertCounts {
  const uint32_t* tokens = nullptr;  // [layers of the stage, experts of the rank]; null: nothing was counted
  const ModelConfig* config = nullptr;
  const ModelShards* shards = nullptr;

  // Adds the counts of the layers that have experts.
  void FillReply(v1::StepReply* reply) const;
};

class ExpertLoad {
 public:
  // Borrows config and shards. Counts with options.expert_load, where the rank has counts to report.
  ExpertLoad(const ModelRunnerOptions& options, const ModelConfig* config, const ModelShards* shards);

  void Carve(Carver* carver) { results_.Carve(carver); }
  // As MirroredBlock::Bind.
  absl::Status Bind(Device* device);
  // Where the model counts: [layers of the stage, experts of the rank]; null: nothing is counted.
  uint32_t* device() const { return counts_ ? tokens_.device() : nullptr; }
  // Queues the copy of the counts behind the step that was queued last.
  ExpertCounts Download();

 private:
  const ModelConfig& config_;
  const ModelShards& shards_;
  const bool counts_;
  MirroredBlock results_;
  MirroredBlock::Array<uint32_t> tokens_;
};

}  // namespace somnus
