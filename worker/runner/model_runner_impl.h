#pragma once
// The one implementation of ModelRunner. Its host memory is small; everything large is in regions of the
// allocator.

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/decoder_model.h"
#include "worker/model/kv_scales.h"
#include "worker/model/weight_plan.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/draft_blocks.h"
#include "worker/runner/draft_model.h"
#include "worker/runner/draft_progress.h"
#include "worker/runner/graph_runner.h"
#include "worker/runner/linear_tuner.h"
#include "worker/runner/logits_head.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/model_sizes.h"
#include "worker/runner/sampler.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"
#include "worker/runner/step_outcome.h"

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
  void SetMaskSource(StepMaskSource* source) override { mask_source_ = source; }
  absl::StatusOr<uint64_t> SelfCheck() override;
  absl::Status CheckReload(const Checkpoint& checkpoint) const override;
  absl::StatusOr<std::vector<FileRange>> WeightRanges(const Checkpoint& checkpoint) const override;
  absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) override;
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) override;
  absl::Status ResetAfterWake() override;

 private:
  absl::Status CheckOptions() const;
  // Where the checkpoint's weights would lie, once it is known that it can be reloaded.
  absl::StatusOr<WeightPlan> PlanReload(const Checkpoint& checkpoint) const;
  absl::Status AllocateWorkspace();
  absl::Status BindWorkspace();
  // Lays out everything in the workspace region; over nullptr to learn its size.
  int64_t CarveWorkspace(void* base);
  int64_t LayerBlockBytes() const;
  // Of a block, without the draft model's part.
  int64_t OwnBlockBytes() const;
  // The cache's region has a row for each layer, with a block after the other.
  int64_t RowBytes(int64_t num_blocks) const;
  absl::Status ResizeRegions(int32_t num_mapped_blocks);
  // What the options say of matrices.
  WeightTypes Types() const { return {options_.dtype, !options_.dequantize, options_.quantize}; }
  absl::Status CheckQuantization() const;
  // For the log: the checkpoint's quantized types that this device cannot compute with, and expands; or, with
  // --dequantize, the types that --no-dequantize would compute with.
  std::string StoredTypesNote(const Checkpoint& checkpoint) const;
  DataType CacheType() const { return CacheTypeOf(options_); }

  absl::StatusOr<std::unique_ptr<PendingStep>> LaunchStep(const v1::StepRequest& request);
  absl::StatusOr<uint64_t> RunCheck();
  absl::Status CopyBlocksOf(const v1::StepRequest& request);
  absl::Status CopyBlocksOf(const v1::StepRequest& request, absl::Span<const KvCacheView> layers);
  absl::Status RunModel(const v1::StepRequest& request, StepOutcome* outcome);
  // Records the event by which the step's reply waits for the device.
  absl::Status MarkDone(StepOutcome* outcome);
  // The last layer's output; by a graph when there is one for this batch.
  absl::StatusOr<TensorView> RunForward(int64_t graph_size);
  // Hands the step's masks to the sampler of rank 0.
  absl::Status AwaitMasks(const v1::StepRequest& request);
  // `masked`: rank 0 alone has masks, and so all ranks take the tokens of rank 0.
  absl::Status SampleTokens(const TensorView& hidden, bool masked);
  absl::Status ComputePromptLogprobs(const TensorView& hidden, v1::StepReply* reply);
  void AppendSampled(StepOutcome* outcome);
  // The draft model's part of a step (model_runner_drafts.cc), once its tokens are sampled.
  absl::Status RunDraftModel(StepOutcome* outcome);
  // Take note of what is new in the step: blocks in tables, and sequences.
  void NoteBlockEdits();
  void NoteNewSequences();
  absl::StatusOr<MissingTokens> MissingBefore(const ProposingSlot& proposing);
  // Computes what is missing before the tokens that these begin with, no more than a step may have. Those
  // before which something is missing still are taken out.
  absl::Status CatchUpByDraftModel(std::vector<ProposingSlot>* slots);
  // The draft model has computed the first `end` tokens, and these guesses behind them.
  void NoteComputedByDraftModel(int32_t slot, int32_t end, absl::Span<const int32_t> guesses);
  std::vector<ProposingSlot> SlotsThatPropose(const SampledRows& sampled) const;
  // Waits for the oldest launched step and takes its tokens into the batch state.
  absl::Status SettleOldest();
  // Settles all steps in flight when a scheduled sequence's edits depend on its tokens.
  absl::Status SettleWhatIsNeeded();
  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks);
  bool WorkspaceSleeps() const;
  absl::Status FreeScratchBlocks();
  // The sizes of decode batches to prepare for; ascending.
  std::vector<int32_t> BatchSizes() const;
  // Those that have graphs: none on a CPU, or when eager.
  std::vector<int32_t> GraphSizes() const;
  absl::StatusOr<GraphReport> CaptureGraphs();
  absl::Status CaptureDeferredGraphs();

  const ModelConfig config_;
  const ModelRunnerOptions options_;
  Device* const device_;
  Communicator* const communicator_;
  SleepableAllocator* const allocator_;
  StepMaskSource* mask_source_ = nullptr;
  const ModelShards shards_;

  WeightPlan plan_;
  std::vector<KvScales> kv_scales_;  // by layer; empty: all 1
  void* weights_region_ = nullptr;
  void* workspace_region_ = nullptr;
  void* kv_region_ = nullptr;

  // Views into workspace.
  void* ops_scratch_ = nullptr;
  int64_t ops_scratch_bytes_ = 0;
  void* inputs_memory_ = nullptr;  // of inputs_, below, as the three that follow
  void* results_memory_ = nullptr;
  void* prompt_results_memory_ = nullptr;
  void* side_memory_ = nullptr;

  SmallTables tables_;
  ModelContext context_;
  std::unique_ptr<DecoderModel> model_;
  GraphRunner graphs_;
  bool graphs_warm_ = false;        // every size has run since the group formed
  bool graphs_deferred_ = false;    // the next Launch captures them
  MirroredBlock inputs_, results_;  // what a step copies to the device, and back
  SideStage side_;
  BatchState state_;
  StepArrays arrays_;
  LogitsHead head_;
  LinearTuner tuner_;
  Sampler sampler_;
  std::unique_ptr<DraftModel> draft_model_;  // null: there is none
  DraftProgress draft_progress_;
  DraftBlocks draft_blocks_;
  std::deque<std::shared_ptr<StepOutcome>> in_flight_;
  absl::Status failed_;  // the first error of a step
};

}  // namespace somnus
