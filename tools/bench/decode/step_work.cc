#include "tools/bench/decode/step_work.h"

#include <cmath>

#include "absl/strings/match.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

// Tokens that a mean step looks back at, its own token included.
double MeanContext(int64_t prompt_tokens, int64_t new_tokens) {
  return static_cast<double>(prompt_tokens) + static_cast<double>(new_tokens + 1) / 2;
}

// Whether the tensor, which has a row for each token of the vocabulary, is the embedding.
bool IsEmbedding(const TensorInfo& tensor) { return absl::StrContains(tensor.name, "embed_tokens"); }

}  // namespace

ModelWork WorkOf(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ModelWork work;
  work.attention_width = static_cast<double>(config.num_layers) * config.num_heads * config.head_dim;
  work.head_weights = static_cast<double>(config.vocab_size) * config.embedding_dim;
  if (config.experts.num_experts > 0)
    work.chosen_share = static_cast<double>(config.experts.per_token) / config.experts.num_experts;
  double all_bytes = 0, lookup_bytes = 0, expert_bytes = 0, multiplied_as_bytes = 0;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    if (tensor->shape.size() != 2) continue;
    const auto elements = static_cast<double>(tensor->shape[0] * tensor->shape[1]);
    const BlockSize block = BlockSizeOf(tensor->type);
    const double bytes = elements / block.elements * block.bytes;
    all_bytes += bytes;
    if (tensor->shape[0] == config.vocab_size) {
      if (!config.tie_word_embeddings && IsEmbedding(*tensor)) lookup_bytes += bytes;
      continue;
    }
    const bool is_expert = absl::StrContains(tensor->name, ".experts.");
    if (is_expert) expert_bytes += bytes;
    const double multiplied = elements * (is_expert ? work.chosen_share : 1);
    work.layer_weights += multiplied;
    if (block.elements > 1 && tensor->type != StorageType::kF8E4M3) multiplied_as_bytes += multiplied;
  }
  work.stored_as_bytes = multiplied_as_bytes > work.layer_weights / 2;
  if (all_bytes > 0) {
    work.lookup_share = lookup_bytes / all_bytes;
    work.experts_share = expert_bytes / all_bytes;
  }
  return work;
}

double PrefillFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens) {
  const auto tokens = static_cast<double>(prompt_tokens);
  const double pairs = tokens * (tokens + 1) / 2;
  return static_cast<double>(batch) *
         (2 * work.layer_weights * tokens + 2 * work.head_weights + 4 * work.attention_width * pairs);
}

double DecodeFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens) {
  return static_cast<double>(batch) * (2 * (work.layer_weights + work.head_weights) +
                                       4 * work.attention_width * MeanContext(prompt_tokens, new_tokens));
}

double DecodeBytes(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens) {
  const double missed = std::pow(1 - work.chosen_share, static_cast<double>(batch));
  return work.weights_bytes * (1 - work.lookup_share - work.experts_share * missed) +
         static_cast<double>(batch) * MeanContext(prompt_tokens, new_tokens) * work.kv_token_bytes;
}

}  // namespace somnus
