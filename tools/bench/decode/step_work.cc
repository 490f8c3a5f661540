#include "tools/bench/decode/step_work.h"

#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

// Tokens that a mean step looks back at, its own token included.
double MeanContext(int64_t prompt_tokens, int64_t new_tokens) {
  return static_cast<double>(prompt_tokens) + static_cast<double>(new_tokens + 1) / 2;
}

}  // namespace

ModelWork WorkOf(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ModelWork work;
  work.attention_width = static_cast<double>(config.num_layers) * config.num_heads * config.head_dim;
  work.head_weights = static_cast<double>(config.vocab_size) * config.embedding_dim;
  double bytes_weights = 0;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    if (tensor->shape.size() != 2 || tensor->shape[0] == config.vocab_size) continue;
    const auto elements = static_cast<double>(tensor->shape[0] * tensor->shape[1]);
    work.layer_weights += elements;
    const bool is_quantized = BlockSizeOf(tensor->type).elements > 1;
    if (is_quantized && tensor->type != StorageType::kF8E4M3) bytes_weights += elements;
  }
  work.stored_as_bytes = bytes_weights > work.layer_weights / 2;
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
  return work.weights_bytes +
         static_cast<double>(batch) * MeanContext(prompt_tokens, new_tokens) * work.kv_token_bytes;
}

}  // namespace somnus
