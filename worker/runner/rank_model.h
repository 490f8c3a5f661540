#pragma once
// A model on a rank: the rank's shard of the weights, the KV cache, the small tables, and the forward pass
// from tokens to the logits head. The served model and a draft model beside it are a RankModel each.
//
// Owns weights and cache; views into the workspace are carved from the owner's region. Borrowed, and must
// outlive the model: device, communicator, allocator. Used by the runner thread alone.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/model/shards.h"
#include "worker/runner/kv_cache.h"
#include "worker/runner/logits_head.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/rank_weights.h"
#include "worker/runner/small_tables.h"

namespace somnus {

class RankModel {
 public:
  // min_block_bytes: as in KvCache.
  RankModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device* device,
            Communicator* communicator, SleepableAllocator* allocator, int64_t min_block_bytes);
  RankModel(const RankModel&) = delete;

  // Takes memory for the weights, and reads none of the weights: weights().Read does. To be called once.
  absl::Status Allocate(const Checkpoint& checkpoint);
  // Takes activations, the head's buffers and the small tables from the workspace.
  void Carve(Carver* carver);
  // Computes the small tables: after Carve, and after a sleep has lost the workspace.
  absl::Status FillTables() { return tables_.Fill(context_.device, &context_); }
  // Steps of this model may name adapters from now on; borrowed.
  void UseAdapters(const AdapterWeights* adapters) { context_.adapters = adapters; }
  // Steps count the tokens of experts there from now on; as ModelContext::expert_load.
  void CountExperts(uint32_t* load) { context_.expert_load = load; }
  // The bytes of scratch that ops need in a step of this model.
  int64_t ops_workspace_bytes() const;

  // As KvCache. Both numbers of blocks count the null block.
  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks);
  absl::Status ResizeBlocks(int32_t num_mapped_blocks) { return cache_.Resize(num_mapped_blocks); }
  absl::Status FreeBlocks();

  // Runs the layers of the stage; as DecoderModel.
  absl::StatusOr<TensorView> Forward(const StepInput& input) { return decoder_.Forward(input); }
  TensorView residual(int64_t num_tokens) const { return decoder_.residual(num_tokens); }
  // Whether this rank makes replies: rank 0 of the last stage.
  bool reports() const { return shards_.last_stage && shards_.rank == 0; }

  const ModelConfig& config() const { return config_; }
  const ModelShards& shards() const { return shards_; }
  const ModelContext& context() const { return context_; }
  RankWeights& weights() { return weights_; }
  const RankWeights& weights() const { return weights_; }
  const KvCache& cache() const { return cache_; }
  LogitsHead& head() { return head_; }
  // The most rows of a call of the head.
  int64_t logit_rows() const { return logit_rows_; }

 private:
  const ModelConfig config_;
  const ModelRunnerOptions options_;
  const ModelShards shards_;
  const int64_t logit_rows_;
  RankWeights weights_;
  KvCache cache_;
  SmallTables tables_;
  ModelContext context_;
  DecoderModel decoder_;
  LogitsHead head_;
};

}  // namespace somnus
