#include "worker/runner/rank_model.h"

#include "base/status_macros.h"
#include "worker/runner/model_sizes.h"

namespace somnus {

RankModel::RankModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device* device,
                     Communicator* communicator, SleepableAllocator* allocator, int64_t min_block_bytes)
    : config_(checkpoint.config()),
      options_(options),
      shards_(MakeShards(config_, communicator->rank(), communicator->world_size(), options.pipeline)),
      logit_rows_(LogitsHead::MaxRows(*device, config_.vocab_size, options.max_num_seqs)),
      weights_(&config_, &shards_, options, device, allocator),
      cache_(&config_, &shards_, options, device, allocator, min_block_bytes),
      decoder_(&context_) {
  context_.device = device;
  context_.communicator = communicator;
  context_.config = &config_;
  context_.shards = &shards_;
  head_.Bind(&context_);
}

absl::Status RankModel::Allocate(const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(tables_.Init(config_, &shards_, options_.max_model_len));
  RETURN_IF_ERROR(weights_.Allocate(checkpoint));
  context_.weights = &weights_.weights();
  return absl::OkStatus();
}

void RankModel::Carve(Carver* carver) {
  context_.act =
      Activations::Carve(carver, config_, shards_, options_.dtype, SumType(*context_.device, options_.dtype),
                         options_.max_num_batched_tokens);
  if (shards_.last_stage) head_.Carve(carver, config_, shards_, options_.dtype, logit_rows_);
  tables_.Carve(carver);
}

int64_t RankModel::ops_workspace_bytes() const {
  return OpsWorkspaceBytes(*context_.device, OpsLimitsOf(options_, config_, shards_, logit_rows_));
}

absl::Status RankModel::AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
  context_.kv_cache = {};
  RETURN_IF_ERROR(cache_.Allocate(num_blocks, num_mapped_blocks, weights_.kv_scales()));
  context_.kv_cache = cache_.layers();
  return absl::OkStatus();
}

absl::Status RankModel::FreeBlocks() {
  context_.kv_cache = {};
  return cache_.Free();
}

}  // namespace somnus
