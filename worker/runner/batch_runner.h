#pragma once
// Computes what the batch state has scheduled: lays out the inputs, runs the model (as a graph where a graph
// was captured), and samples. Everything is queued on the device; step_outcome.h reads the results.
//
// Memory on the device is carved from the runner's workspace. Borrowed, and must outlive this object: model,
// batch state, device, communicator. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "proto/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/expert_load.h"
#include "worker/runner/graph_runner.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/prompt_scorer.h"
#include "worker/runner/rank_model.h"
#include "worker/runner/row_pooler.h"
#include "worker/runner/sampler.h"
#include "worker/runner/stage_transfer.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"
#include "worker/runner/step_outcome.h"

namespace somnus {

class BatchRunner {
 public:
  BatchRunner(const ModelRunnerOptions& options, RankModel* model, const BatchState* state, Device* device,
              Communicator* communicator);

  void Carve(Carver* carver);
  // After Carve, and after any sleep; no slot is in use.
  absl::Status Bind();

  // As ModelRunner::SetMaskSource.
  void SetMaskSource(StepMaskSource* source) { mask_source_ = source; }

  // As StepArrays::UseAdapters.
  void UseAdapters(const std::vector<int32_t>* places) { arrays_.UseAdapters(places); }
  // To be called first in a step. The device must be past the step before the last.
  void BeginStep() { side_.Turn(); }
  // Where small data of the step are staged.
  SideStage* side() { return &side_; }
  // Queues the scheduled tokens and, in the last stage, the sampling, and fills the outcome but for the
  // reply's tokens. Behind the first stage the call blocks for the stream of the previous stage. A step that
  // awaits masks blocks for the masks on rank 0 of the last stage, while the device runs the model.
  absl::Status Run(const v1::StepRequest& request, StepOutcome* outcome);
  // Records the event by which the step's reply waits for the device.
  absl::Status MarkDone(StepOutcome* outcome);

  // Runs the prompt of self_check.h on the null block, on all ranks together, eagerly. Returns the
  // fingerprint of the logits on rank 0 of the last stage; 0 on other ranks. No step may be under way.
  absl::StatusOr<uint64_t> SelfCheck();

  GraphRunner& graphs() { return graphs_; }
  // Captures the decode graphs over the current KV cache, as GraphRunner::Capture.
  absl::StatusOr<GraphReport> CaptureGraphs();

  const StepArrays& arrays() const { return arrays_; }

 private:
  // Brings the step's inputs to the device; graph_size as in RunForward, the rest as in Sampler::Build.
  absl::Status QueueInputs(int32_t graph_size, bool logprobs, bool awaits_masks);
  // The last layer's output, which goes on to the next stage, if there is one; by the graph of that size
  // unless graph_size is 0.
  absl::StatusOr<TensorView> RunForward(int32_t graph_size);
  // `reply` is null on ranks that report nothing, which compute the logits with the other ranks all the same.
  absl::Status ScorePrompts(const TensorView& hidden, v1::StepReply* reply);
  // All that the head computes of the step.
  absl::Status RunHead(const v1::StepRequest& request, const TensorView& hidden, StepOutcome* outcome);
  // Hands the step's masks to the sampler of the rank that reports.
  absl::Status AwaitMasks(const v1::StepRequest& request);
  // `masked`: rank 0 alone has masks, and so all ranks take the tokens of rank 0.
  absl::Status SampleTokens(const TensorView& hidden, bool masked);

  Device& device_;
  Communicator& communicator_;
  RankModel& model_;
  const BatchState& state_;
  StepMaskSource* mask_source_ = nullptr;
  MirroredBlock inputs_, results_;  // copied to the device, and back
  SideStage side_;
  StepArrays arrays_;
  GraphRunner graphs_;
  Sampler sampler_;
  PromptScorer prompt_scorer_;
  RowPooler row_pooler_;
  StageTransfer stages_;
  ExpertLoad expert_load_;
};

}  // namespace somnus
