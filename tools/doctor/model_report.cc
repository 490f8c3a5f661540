#include "tools/doctor/model_report.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/family.h"
#include "checkpoint/storage_type.h"

namespace somnus {

namespace {

// The type of most weights: the type that most bytes of packed matrices become (quantization_config), where
// there are such matrices, or else the configuration's type.
StorageType StoredType(const Checkpoint& checkpoint) {
  std::map<StorageType, uint64_t> bytes;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    if (tensor->packed != nullptr) bytes[tensor->type] += tensor->bytes;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? checkpoint.config().stored_type : most->first;
}

// Files may have further tensors, as of the vision tower of a multimodal model.
std::vector<const TensorInfo*> NeededTensors(const Checkpoint& checkpoint) {
  std::vector<const TensorInfo*> needed;
  const auto add = [&](const std::string& name, const std::vector<int64_t>&) {
    if (const TensorInfo* tensor = checkpoint.Find(name); tensor != nullptr) needed.push_back(tensor);
    return absl::OkStatus();
  };
  ForEachTensor(checkpoint.config(), add).IgnoreError();
  return needed;
}

}  // namespace

ModelReport ReportModel(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ModelReport report;
  report.name = config.name;
  const StorageType stored = StoredType(checkpoint);
  report.stored_type = StorageTypeName(stored);
  report.is_quantized = BlockSizeOf(stored).elements > 1;
  report.multiplies_bytes = report.is_quantized && stored != StorageType::kF8E4M3;
  report.kv_token_bytes = int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim * 2;
  report.kv_reach = config.AttentionReach();
  int64_t matrix_elements = 0, head_elements = 0;
  for (const TensorInfo* tensor : NeededTensors(checkpoint)) {
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
    if (is_matrix) (has_vocab ? head_elements : matrix_elements) += elements;
  }
  report.bf16_bytes = 2 * report.num_parameters;
  report.prompt_token_flops = 2 * matrix_elements;
  report.step_flops = report.prompt_token_flops + 2 * head_elements;
  return report;
}

ModelSpeed BestSpeed(const ModelReport& model, const HostCeilings& ceilings) {
  const auto per = [](double rate, int64_t amount) {
    return amount > 0 ? rate * 1e9 / static_cast<double>(amount) : 0.0;
  };
  const MachinePeaks& peaks = ceilings.peaks;
  const double stored_rate = model.multiplies_bytes ? peaks.int8_gops : peaks.bf16_gflops;
  return {.decode_stored =
              std::min(per(ceilings.read_gbps, model.step_stored_bytes), per(stored_rate, model.step_flops)),
          .decode_bf16 = std::min(per(ceilings.read_gbps, model.step_bf16_bytes),
                                  per(peaks.bf16_gflops, model.step_flops)),
          .prompt_stored = per(stored_rate, model.prompt_token_flops),
          .prompt_bf16 = per(peaks.bf16_gflops, model.prompt_token_flops)};
}

}  // namespace somnus
