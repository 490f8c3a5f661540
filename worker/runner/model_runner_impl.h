#pragma once
// The implementation of ModelRunner: owns the parts of a rank's runner and the workspace, decides how a step
// uses each part, and remembers the first error of a step. Host memory is small; everything large is in
// regions of the allocator.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/runner/batch_runner.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/draft_runner.h"
#include "worker/runner/linear_tuner.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/rank_adapters.h"
#include "worker/runner/rank_model.h"
#include "worker/runner/step_outcome.h"
#include "worker/runner/unsettled_steps.h"

namespace somnus {

class ModelRunnerImpl : public ModelRunner {
 public:
  ModelRunnerImpl(const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device* device,
                  Communicator* communicator, SleepableAllocator* allocator);
  ~ModelRunnerImpl() override;

  absl::Status Init(const Checkpoint& checkpoint, const Progress& progress);

  int64_t kv_block_bytes() const override;
  std::string weight_types() const override;
  absl::Status Profile() override;
  absl::StatusOr<GraphReport> ProfileGraphs() override;
  absl::Status AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks, bool defer_graphs) override;
  absl::Status ResizeKvCache(int32_t num_mapped_blocks) override;
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override;
  absl::Status BeginEpoch() override;
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest& request) override;
  void SetMaskSource(StepMaskSource* source) override { batch_.SetMaskSource(source); }
  absl::StatusOr<uint64_t> SelfCheck() override;
  absl::Status CheckReload(const Checkpoint& checkpoint) const override;
  absl::StatusOr<std::vector<FileRange>> WeightRanges(const Checkpoint& checkpoint) const override;
  std::vector<WeightPiece> weight_pieces() const override;
  absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) override;
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) override;
  std::shared_ptr<const AdapterReader> adapter_reader() const override {
    return adapters_ == nullptr ? nullptr : adapters_->reader();
  }
  void AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> adapters) override {
    if (adapters_ != nullptr) adapters_->AddRead(std::move(adapters));
  }
  absl::Status CheckAdapters(absl::Span<const v1::WorkerAdapter> adapters) const override {
    return adapters_ == nullptr ? absl::OkStatus() : adapters_->Check(adapters);
  }
  absl::Status SetAdapters(absl::Span<const v1::WorkerAdapter> adapters) override;
  std::map<uint64_t, std::string> AdapterFingerprints() const override {
    return adapters_ == nullptr ? std::map<uint64_t, std::string>() : adapters_->Fingerprints();
  }
  int64_t adapter_host_bytes() const override {
    return adapters_ == nullptr ? 0 : adapters_->adapter_host_bytes();
  }
  absl::Status ResetAfterWake() override;

 private:
  // Lays out everything in the workspace region; over nullptr to learn the size.
  int64_t CarveWorkspace(void* base);
  absl::Status AllocateWorkspace();
  // Makes the workspace usable, once the region has memory.
  absl::Status BindWorkspace();

  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks);
  absl::Status FreeScratchBlocks();
  absl::Status ResizeRegions(int32_t num_mapped_blocks);

  absl::StatusOr<std::unique_ptr<PendingStep>> LaunchStep(const v1::StepRequest& request);
  absl::Status CopyBlocksOf(const v1::StepRequest& request);
  absl::Status RunBatch(const v1::StepRequest& request, StepOutcome* outcome);
  absl::Status CaptureDeferredGraphs();

  const ModelRunnerOptions options_;
  Device& device_;
  Communicator& communicator_;
  SleepableAllocator& allocator_;
  RankModel model_;
  BatchState state_;
  BatchRunner batch_;
  LinearTuner tuner_;
  UnsettledSteps steps_;
  std::unique_ptr<DraftRunner> drafts_;     // null: there is no draft model
  std::unique_ptr<RankAdapters> adapters_;  // null: the model takes no adapters

  void* workspace_region_ = nullptr;
  void* ops_scratch_ = nullptr;  // in the workspace
  int64_t ops_scratch_bytes_ = 0;
  absl::Status failed_;  // the first error of a step
};

}  // namespace somnus
