#include "tools/doctor/model_report.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/storage_type.h"

namespace somnus {

ModelReport ReportModel(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ModelReport report;
  report.name = config.name;
  report.stored_type = StorageTypeName(config.stored_type);
  report.is_quantized = BlockSizeOf(config.stored_type).elements > 1;
  report.kv_token_bytes = int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim * 2;
  int64_t matrix_elements = 0;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    int64_t elements = 1;
    for (const int64_t size : tensor->shape) elements *= size;
    const bool is_matrix = tensor->shape.size() == 2;
    const bool has_vocab = is_matrix && tensor->shape[0] == config.vocab_size;
    const bool is_head = has_vocab && (config.tie_word_embeddings || tensor->name == "lm_head.weight");
    report.num_parameters += elements;
    report.stored_bytes += static_cast<int64_t>(tensor->bytes);
    if (has_vocab && !is_head) continue;
    report.step_stored_bytes += static_cast<int64_t>(tensor->bytes);
    report.step_bf16_bytes += 2 * elements;
    if (is_matrix && !has_vocab) matrix_elements += elements;
  }
  report.bf16_bytes = 2 * report.num_parameters;
  report.prompt_token_flops = 2 * matrix_elements;
  return report;
}

ModelSpeed BestSpeed(const ModelReport& model, const HostCeilings& ceilings) {
  const auto per = [](double rate, int64_t amount) {
    return amount > 0 ? rate * 1e9 / static_cast<double>(amount) : 0.0;
  };
  return {per(ceilings.read_gbps, model.step_stored_bytes), per(ceilings.read_gbps, model.step_bf16_bytes),
          per(ceilings.bf16_gflops, model.prompt_token_flops)};
}

}  // namespace somnus
