#pragma once
// The one implementation of ModelRunner. Its host memory is small; everything large is in regions of the
// allocator.

#include <memory>
#include <utility>
#include <vector>

#include "worker/model/decoder_model.h"
#include "worker/model/weights.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/logits_head.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/sampler.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

// Block copies that go to the device in one call.
inline constexpr int64_t kMaxCopies = 256;

class ModelRunnerImpl : public ModelRunner {
 public:
  ModelRunnerImpl(const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device* device,
                  Communicator* communicator, SleepableAllocator* allocator);
  ~ModelRunnerImpl() override;

  absl::Status Init(const Checkpoint& checkpoint, const Progress& progress);

  int64_t kv_block_bytes() const override;
  absl::Status Profile() override;
  absl::Status AllocateKvCache(int32_t num_blocks) override;
  absl::StatusOr<v1::StepReply> Execute(const v1::StepRequest& request) override;
  absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) override;
  absl::Status ResetAfterWake() override;

 private:
  absl::Status CheckOptions() const;
  absl::Status AllocateWorkspace();
  void FillSmallTables();
  // Lays out everything in the workspace region; over nullptr to learn its size.
  int64_t CarveWorkspace(void* base);
  int64_t LayerBlockBytes() const;

  absl::StatusOr<v1::StepReply> ExecuteStep(const v1::StepRequest& request);
  absl::Status CopyBlocksOf(const v1::StepRequest& request);
  absl::Status RunModel(v1::StepReply* reply);
  absl::Status SampleTokens(const TensorView& hidden, v1::StepReply* reply);
  absl::Status ComputePromptLogprobs(const TensorView& hidden, v1::StepReply* reply);

  const ModelConfig config_;
  const ModelRunnerOptions options_;
  Device* const device_;
  Communicator* const communicator_;
  SleepableAllocator* const allocator_;
  const ModelShards shards_;
  const cpu_set_t cpus_;  // for loading: those of the thread that made the runner, before it was pinned

  WeightPlan plan_;
  void* weights_region_ = nullptr;
  void* workspace_region_ = nullptr;
  void* kv_region_ = nullptr;

  // Views into workspace.
  void* ops_scratch_ = nullptr;
  int64_t ops_scratch_bytes_ = 0;
  float* rope_cos_ = nullptr;           // [max_model_len, head_dim / 2]
  float* rope_sin_ = nullptr;           // likewise
  int32_t* kv_head_of_head_ = nullptr;  // [H]
  int32_t* copies_src_ = nullptr;       // [kMaxCopies]
  int32_t* copies_dst_ = nullptr;       // [kMaxCopies]

  std::vector<double> rope_frequencies_;
  ModelContext context_;
  std::unique_ptr<DecoderModel> model_;
  StepArrays arrays_;
  LogitsHead head_;
  Sampler sampler_;
  BatchState state_;
  std::vector<int32_t> tokens_;  // sampled in the current step
  absl::Status failed_;          // the first error of a step
};

}  // namespace somnus
