#include "worker/runner/model_sizes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checkpoint/family.h"

namespace somnus {

OpsLimits OpsLimitsOf(const ModelRunnerOptions& options, const ModelConfig& config, const ModelShards& shards,
                      int64_t logit_rows) {
  const int64_t head_cols = shards.heads.size() * config.head_dim;
  OpsLimits limits;
  limits.max_tokens = options.max_num_batched_tokens;
  limits.max_seqs = std::max<int64_t>(options.max_num_seqs, logit_rows);
  limits.max_k = std::max({static_cast<int64_t>(config.hidden_size),
                           static_cast<int64_t>(config.embedding_dim), head_cols, shards.mlp.size()});
  limits.max_n = std::max({limits.max_k, head_cols + 2 * shards.kv_heads.size() * config.head_dim,
                           2 * shards.mlp.size(), shards.vocab.size()});
  limits.num_heads = shards.heads.size();
  limits.head_dim = config.head_dim;
  limits.block_size = options.block_size;
  limits.max_model_len = options.max_model_len;
  limits.vocab_size = config.vocab_size;
  return limits;
}

int64_t LayerBlockBytesOf(const Device& device, const ModelRunnerOptions& options, const ModelConfig& config,
                          const ModelShards& shards) {
  if (shards.kv_heads.empty()) return 0;
  return KvBlockBytes(device, CacheTypeOf(options), options.block_size, shards.kv_heads.size(),
                      config.head_dim);
}

std::vector<KvCacheView> KvCacheViewsOf(void* region, int32_t num_blocks, int64_t layer_block_bytes,
                                        const ModelRunnerOptions& options, const ModelConfig& config,
                                        const ModelShards& shards, const std::vector<KvScales>& scales) {
  std::vector<KvCacheView> views;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    KvCacheView view;
    view.data = static_cast<uint8_t*>(region) + layer * num_blocks * layer_block_bytes;
    view.dtype = CacheTypeOf(options);
    view.num_blocks = num_blocks;
    view.block_size = options.block_size;
    view.num_kv_heads = shards.kv_heads.size();
    view.head_dim = config.head_dim;
    if (!scales.empty()) {
      view.k_scale = scales[layer].k;
      view.v_scale = scales[layer].v;
    }
    views.push_back(view);
  }
  return views;
}

absl::Status CheckModelRuns(const ModelRunnerOptions& options, const ModelConfig& config) {
  if (config.rope.type != RopeConfig::Type::kNone && config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary embedding needs an even head_dim, not ", config.head_dim));
  }
  if (config.family->learned_positions && options.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat("max_model_len ", options.max_model_len,
                                                   " is more than the ", config.max_position_embeddings,
                                                   " positions that the model has"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
