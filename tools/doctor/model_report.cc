#include "tools/doctor/model_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// A tensor of the model, and whether an expert has it.
struct NeededTensor {
  const TensorInfo* tensor;
  bool of_expert;
};

// Files may have further tensors, as of the vision tower of a multimodal model.
std::vector<NeededTensor> NeededTensors(const Checkpoint& checkpoint) {
  std::vector<NeededTensor> needed;
  const auto add = [&](const std::string& name, bool of_expert) {
    if (const TensorInfo* tensor = checkpoint.Find(name); tensor != nullptr)
      needed.push_back({tensor, of_expert});
  };
  const ModelConfig& config = checkpoint.config();
  ForEachSpec(config, [&](const TensorSpec& spec, const std::string& name) {
    add(name + spec.suffix, IsOfExperts(spec));
    if (spec.bias(config)) add(name + ".bias", IsOfExperts(spec));
  });
  return needed;
}

// The tensors that a step of one sequence reads, in bytes and elements.
struct StepWork {
  int64_t stored_bytes = 0, elements = 0, matrix_elements = 0, head_elements = 0;

  void Add(const StepWork& other, int64_t times, int64_t divisor) {
    stored_bytes += other.stored_bytes * times / divisor;
    elements += other.elements * times / divisor;
    matrix_elements += other.matrix_elements * times / divisor;
  }
};

ModelFit FitOf(int64_t weights, int64_t kv_token_bytes, int64_t available) {
  const int64_t lacking = weights + kFewestKvTokens * kv_token_bytes - available;
  if (lacking > 0) return {.lacking_bytes = lacking};
  return {.kv_tokens = kv_token_bytes > 0 ? (available - weights) / kv_token_bytes : 0};
}

std::string TokenizerError(const Checkpoint& checkpoint) {
  absl::Status status = checkpoint.FindTokenizer();
  if (status.ok()) status = checkpoint.ReadTokenizer().status();
  return std::string(status.message());
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
  const int64_t rows = config.latent.rank > 0 ? 1 : 2;  // a latent cache has one row for K and V
  report.kv_token_bytes = rows * config.num_layers * config.num_kv_heads * config.head_dim * 2;
  report.kv_reach = config.AttentionReach();
  report.num_experts = config.experts.num_experts;
  report.experts_per_token = config.experts.per_token;
  StepWork work, experts;           // of what every token needs, and of all experts
  std::set<const uint8_t*> wholes;  // larger tensors of the files, of which several tensors are parts
  for (const auto& [tensor, of_expert] : NeededTensors(checkpoint)) {
    int64_t elements = 1;
    for (const int64_t size : tensor->shape) elements *= size;
    const bool is_matrix = tensor->shape.size() == 2;
    const bool has_vocab = is_matrix && !of_expert && tensor->shape[0] == config.vocab_size;
    const bool is_head = has_vocab && (config.tie_word_embeddings || tensor->name == "lm_head.weight");
    report.num_parameters += elements;
    const bool counts = tensor->part == nullptr || wholes.insert(tensor->data).second;
    const int64_t stored_bytes = counts ? static_cast<int64_t>(tensor->bytes) : 0;
    report.stored_bytes += stored_bytes;
    if (has_vocab && !is_head) continue;
    StepWork& sum = of_expert ? experts : work;
    sum.stored_bytes += stored_bytes;
    sum.elements += elements;
    if (is_matrix) (has_vocab ? sum.head_elements : sum.matrix_elements) += elements;
  }
  if (config.experts.num_experts > 0) work.Add(experts, config.experts.per_token, config.experts.num_experts);
  report.step_stored_bytes = work.stored_bytes;
  report.step_bf16_bytes = 2 * work.elements;
  report.active_parameters = work.elements;
  report.bf16_bytes = 2 * report.num_parameters;
  report.prompt_token_flops = 2 * work.matrix_elements;
  report.step_flops = report.prompt_token_flops + 2 * work.head_elements;
  report.tokenizer_error = TokenizerError(checkpoint);
  return report;
}

ModelFit FitAsStored(const ModelReport& model, int64_t available) {
  const int64_t cache_widening = model.stored_type == StorageTypeName(StorageType::kF32) ? 2 : 1;
  return FitOf(model.stored_bytes, cache_widening * model.kv_token_bytes, available);
}

ModelFit FitInBf16(const ModelReport& model, int64_t available) {
  return FitOf(model.bf16_bytes, model.kv_token_bytes, available);
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
