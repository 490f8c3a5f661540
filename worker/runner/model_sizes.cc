#include "worker/runner/model_sizes.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "worker/model/experts_mlp.h"

namespace somnus {
namespace {

bool HasEightBits(DataType cache) { return cache == DataType::kF8E4M3 || cache == DataType::kI8; }

absl::Status CheckQuantization(const ModelRunnerOptions& options, const ModelConfig& config,
                               const Device& device) {
  const std::optional<DataType> type = options.quantize;
  if (!type.has_value() || ComputesQuantized(device, *type)) return absl::OkStatus();
  if (*type == DataType::kF8E4M3) {
    if (config.quantization.float8) return absl::OkStatus();  // the stored weights, expanded
    return absl::InvalidArgumentError(
        absl::StrCat("--quantization=fp8: on a GPU it is for checkpoints of fp8, which are expanded to "
                     "--dtype there, and ",
                     config.name, " is none"));
  }
  return absl::InvalidArgumentError(
      "--quantization: int8 and int4 are for CPUs: a GPU computes with --dtype alone");
}

}  // namespace

OpsLimits OpsLimitsOf(const ModelRunnerOptions& options, const ModelConfig& config, const ModelShards& shards,
                      int64_t logit_rows) {
  const int64_t head_cols = shards.heads.size() * config.head_dim;
  const int64_t mlp = std::max(
      {config.HasDenseLayer() ? shards.mlp.size() : 0, shards.expert_mlp.size(), shards.shared_mlp.size()});
  OpsLimits limits;
  limits.max_tokens = options.max_num_batched_tokens;
  limits.max_seqs = std::max<int64_t>(options.max_num_seqs, logit_rows);
  limits.max_k = std::max(
      {static_cast<int64_t>(config.hidden_size), static_cast<int64_t>(config.embedding_dim), head_cols, mlp});
  const LatentConfig& latent = config.latent;
  const int64_t latent_cols = shards.heads.size() * std::max(latent.nope + latent.rope, latent.value);
  limits.max_k = std::max({limits.max_k, static_cast<int64_t>(latent.query_rank), latent_cols});
  limits.max_n = std::max({limits.max_k, head_cols + 2 * shards.kv_heads.size() * config.head_dim, 2 * mlp,
                           static_cast<int64_t>(config.experts.num_experts), shards.vocab.size()});
  limits.num_heads = shards.heads.size();
  limits.head_dim = config.head_dim;
  limits.block_size = options.block_size;
  limits.max_model_len = options.max_model_len;
  limits.vocab_size = config.vocab_size;
  limits.max_expert_rows = std::min<int64_t>(options.max_num_batched_tokens, ExpertActivations::kMaxTokens) *
                           config.experts.per_token;
  limits.max_experts = shards.experts.size();
  return limits;
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
  if (config.latent.rank > 0 && HasEightBits(CacheTypeOf(options))) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-cache-dtype: fp8 and int8 are not for ", config.name,
                                                   ", whose cache holds latent vectors (kv_lora_rank)"));
  }
  return absl::OkStatus();
}

absl::Status CheckRunnerOptions(const ModelRunnerOptions& o, const ModelConfig& config,
                                const Device& device) {
  if (o.max_num_seqs < 1 || o.max_num_batched_tokens < 1 || o.max_model_len < 1 || o.block_size < 1) {
    return absl::InvalidArgumentError(
        "max_num_seqs, max_num_batched_tokens, max_model_len and block_size must be positive");
  }
  RETURN_IF_ERROR(CheckModelRuns(o, config));
  if (o.pipeline.num_stages > 1 && !o.draft_model_path.empty()) {
    return absl::InvalidArgumentError(
        "--draft-model: is not for a pipeline, whose stages would have to share the draft model's layers");
  }
  const DataType cache = CacheTypeOf(o);
  if (device.kind() == DeviceKind::kCuda && cache != o.dtype && !HasEightBits(cache)) {
    return absl::InvalidArgumentError(
        "--kv-cache-dtype: on a GPU the KV cache holds the model's type (--dtype), fp8 or int8");
  }
  return CheckQuantization(o, config, device);
}

}  // namespace somnus
