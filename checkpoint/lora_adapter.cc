#include "checkpoint/lora_adapter.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "checkpoint/canonical_tensors.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/family.h"
#include "checkpoint/lora_config.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"

namespace somnus {
namespace {

constexpr char kTensorFile[] = "adapter_model.safetensors";

// The targets of a tensor of that role, in the order of the tensor's rows; none: no adapter changes such a
// tensor.
absl::Span<const LoraTarget> TargetsOf(TensorRole role) {
  static constexpr LoraTarget kAll[] = {LoraTarget::kQuery, LoraTarget::kKey,  LoraTarget::kValue,
                                        LoraTarget::kOut,   LoraTarget::kGate, LoraTarget::kUp,
                                        LoraTarget::kDown};
  const auto some = [](size_t first, size_t count) { return absl::MakeConstSpan(kAll + first, count); };
  switch (role) {
    case TensorRole::kQueryKeyValue:
      return some(0, 3);
    case TensorRole::kQuery:
      return some(0, 1);
    case TensorRole::kKey:
      return some(1, 1);
    case TensorRole::kValue:
      return some(2, 1);
    case TensorRole::kAttentionOut:
      return some(3, 1);
    case TensorRole::kGateUp:
      return some(4, 2);
    case TensorRole::kGate:
      return some(4, 1);
    case TensorRole::kUp:
      return some(5, 1);
    case TensorRole::kDown:
      return some(6, 1);
    default:
      return {};
  }
}

std::string NameOfA(const std::string& module) { return module + ".lora_A.weight"; }
std::string NameOfB(const std::string& module) { return module + ".lora_B.weight"; }

// The error for a tensor that belongs to no matrix of a layer.
absl::Status Refusal(const std::string& name) {
  const auto unsupported = [&name](absl::string_view what) {
    return absl::UnimplementedError(
        absl::StrCat(kTensorFile, ": tensor ", name, ": ", what, " are not supported"));
  };
  if (absl::StrContains(name, "lora_magnitude_vector")) return unsupported("magnitudes (DoRA)");
  if (absl::StrContains(name, "expert")) return unsupported("adapters of experts");
  if (absl::StrContains(name, "embed_tokens") || absl::StrContains(name, "lora_embedding"))
    return unsupported("adapters of the embedding");
  if (absl::StrContains(name, "lm_head")) return unsupported("adapters of the output matrix");
  if (absl::StrContains(name, "modules_to_save")) return unsupported("modules saved whole");
  if (absl::EndsWith(name, ".bias")) return unsupported("trained biases");
  return absl::InvalidArgumentError(
      absl::StrCat(kTensorFile, ": tensor ", name, " is of no linear layer of this model"));
}

absl::Status CheckShape(const TensorInfo& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kTensorFile, ": tensor ", tensor.name, " has shape ",
                                                 ShapeString(tensor.shape), ", and this model needs ",
                                                 ShapeString(shape)));
}

absl::StatusOr<std::vector<float>> ReadAll(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
  DequantizeRange(tensor.type, tensor.data, 0, static_cast<int64_t>(values.size()), values.data());
  RETURN_IF_ERROR(tensor.source->CheckWhole());
  return values;
}

}  // namespace

// Finds the pairs of an adapter's tensors, for one Open.
class LoraAdapter::Reader {
 public:
  using Names = absl::flat_hash_map<std::string, std::string>;

  // `saved_names`: of the tensors, by their canonical names.
  Reader(const ModelConfig& config, const LoraConfig& lora, int32_t max_rank, const Names& saved_names,
         LoraAdapter* adapter)
      : config_(config), lora_(lora), max_rank_(max_rank), saved_names_(saved_names), adapter_(*adapter) {
    ForEachUncommonTensor(config, TensorOrigin::kHuggingFace,
                          [this](const std::string& name, const HeadOrder& heads, float /*offset*/) {
                            heads_.emplace(name, heads);
                          });
  }

  absl::Status Run() {
    if (config_.latent.rank > 0)
      return absl::UnimplementedError("adapters of models with latent attention (MLA) are not supported");
    adapter_.pairs_.resize(static_cast<size_t>(config_.num_layers) * kNumLoraTargets);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (const TensorSpec& spec : config_.family->layer_tensors) {
        if (!IsInLayer(spec, config_, layer) || TargetsOf(spec.role).empty()) continue;
        RETURN_IF_ERROR(
            AddModule(layer, spec, absl::StrCat(config_.family->layer_prefix, layer, ".", spec.name)));
      }
    }
    RETURN_IF_ERROR(CheckTensors());
    return CheckTargets();
  }

 private:
  absl::Status AddModule(int32_t layer, const TensorSpec& spec, const std::string& module) {
    const TensorInfo* const a = adapter_.tensors_->Find(NameOfA(module));
    const TensorInfo* const b = adapter_.tensors_->Find(NameOfB(module));
    if (a == nullptr && b == nullptr) return absl::OkStatus();
    if (a == nullptr || b == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(kTensorFile, ": there is no tensor ",
                                                     a == nullptr ? NameOfA(module) : NameOfB(module)));
    }
    const LoraModuleName name = {.canonical = module, .saved = SavedName(a->name)};
    ASSIGN_OR_RETURN(const int32_t rank, lora_.RankOf(name));
    if (rank > max_rank_) {
      return absl::InvalidArgumentError(absl::StrCat(kTensorFile, ": tensor ", a->name, ": rank ", rank,
                                                     " is more than --max-lora-rank, ", max_rank_));
    }
    RETURN_IF_ERROR(CheckShape(*a, {rank, SizeOf(spec.cols, config_)}));
    RETURN_IF_ERROR(CheckShape(*b, {SizeOf(spec.rows, config_), rank}));
    ASSIGN_OR_RETURN(const double scale, lora_.ScaleOf(name, rank));
    known_.insert(a->name);
    known_.insert(b->name);
    modules_.push_back(module);
    adapter_.rank_ = std::max(adapter_.rank_, rank);
    AddPairs(layer, spec, {.a = a, .b = b, .scale = scale, .heads = HeadsOf(module)});
    return absl::OkStatus();
  }

  // The module's name in the model that PEFT has wrapped, of a tensor "base_model.model.NAME.lora_A.weight".
  std::string SavedName(const std::string& canonical_a) const {
    const auto found = saved_names_.find(canonical_a);
    absl::string_view name = found == saved_names_.end() ? canonical_a : found->second;
    absl::ConsumePrefix(&name, "base_model.model.");
    absl::ConsumeSuffix(&name, NameOfA(""));
    return std::string(name);
  }

  HeadOrder HeadsOf(const std::string& module) const {
    const auto found = heads_.find(module + ".weight");
    return found == heads_.end() ? HeadOrder() : found->second;
  }

  void AddPairs(int32_t layer, const TensorSpec& spec, Pair pair) {
    const absl::Span<const Dim> parts = PartsOf(spec.rows);
    const absl::Span<const LoraTarget> targets = TargetsOf(spec.role);
    for (size_t i = 0; i < targets.size(); ++i) {
      pair.num_rows = SizeOf(parts[i], config_);
      adapter_.pairs_[static_cast<size_t>(layer) * kNumLoraTargets + static_cast<size_t>(targets[i])] = pair;
      pair.first_row += pair.num_rows;
    }
  }

  // Every tensor of the file belongs to a matrix that was found.
  absl::Status CheckTensors() const {
    for (const TensorInfo* tensor : adapter_.tensors_->All()) {
      if (known_.count(tensor->name) == 0) return Refusal(tensor->name);
    }
    for (const RawTensor* tensor : adapter_.tensors_->AllRaw()) {
      return absl::UnimplementedError(absl::StrCat(kTensorFile, ": tensor ", tensor->name, " has dtype ",
                                                   tensor->dtype, ", which is not supported"));
    }
    if (modules_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(kTensorFile, ": there is no tensor of an adapter"));
    }
    return absl::OkStatus();
  }

  // Where target_modules is a list, every name has a module with tensors, and every such module has a name.
  absl::Status CheckTargets() const {
    const std::vector<std::string>& targets = lora_.targets();
    if (targets.empty()) return absl::OkStatus();
    for (const std::string& target : targets) {
      const auto named = [&](const std::string& module) { return NamesModule(target, module); };
      if (std::none_of(modules_.begin(), modules_.end(), named)) {
        return absl::InvalidArgumentError(
            absl::StrCat(kLoraConfigFile, ": target_modules: '", target, "' names ",
                         "no linear layer of this model with tensors in ", kTensorFile));
      }
    }
    for (const std::string& module : modules_) {
      const auto names = [&](const std::string& target) { return NamesModule(target, module); };
      if (std::none_of(targets.begin(), targets.end(), names)) {
        return absl::InvalidArgumentError(absl::StrCat(kTensorFile, ": tensor ", NameOfA(module),
                                                       " is of a module that target_modules does not name"));
      }
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const LoraConfig& lora_;
  const int32_t max_rank_;
  const Names& saved_names_;
  LoraAdapter& adapter_;
  absl::flat_hash_map<std::string, HeadOrder> heads_;  // of weights whose rows lie in another order
  absl::flat_hash_set<std::string> known_;             // tensors
  std::vector<std::string> modules_;                   // with tensors
};

LoraAdapter::LoraAdapter() : tensors_(std::make_unique<TensorTable>()) {}
LoraAdapter::~LoraAdapter() = default;

absl::StatusOr<std::unique_ptr<LoraAdapter>> LoraAdapter::Open(const std::string& directory,
                                                               const ModelConfig& config, int32_t max_rank) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> config_file,
                   MappedFile::Open(absl::StrCat(directory, "/", kLoraConfigFile)));
  absl::StatusOr<LoraConfig> lora = LoraConfig::Parse(config_file->text());
  RETURN_IF_ERROR(config_file->CheckWhole());
  RETURN_IF_ERROR(lora.status());
  absl::StatusOr<std::unique_ptr<MappedFile>> file =
      MappedFile::Open(absl::StrCat(directory, "/", kTensorFile));
  std::error_code ignored;
  if (!file.ok() && std::filesystem::exists(absl::StrCat(directory, "/adapter_model.bin"), ignored)) {
    return absl::UnimplementedError(
        absl::StrCat("adapter_model.bin is a pickle, which is not read: save the adapter as ", kTensorFile));
  }
  RETURN_IF_ERROR(file.status());
  std::unique_ptr<LoraAdapter> adapter(new LoraAdapter);
  Reader::Names saved_names;
  const auto note = [&saved_names](const std::string& name) {
    saved_names.emplace(CanonicalName(name), name);
    return true;
  };
  RETURN_IF_ERROR(ReadSafetensors(**file, note, adapter->tensors_.get()));
  adapter->file_ = file->get();
  adapter->config_ = std::string(config_file->text());
  adapter->tensors_->Keep(*std::move(file));
  RETURN_IF_ERROR(Reader(config, *lora, max_rank, saved_names, adapter.get()).Run());
  return adapter;
}

absl::StatusOr<std::string> LoraAdapter::Fingerprint() const {
  Sha256 hash;
  hash.Add(config_);
  hash.Add(file_->text());
  RETURN_IF_ERROR(file_->CheckWhole());
  return hash.Hex();
}

absl::StatusOr<LoraMatrices> LoraAdapter::Read(int32_t layer, LoraTarget target) const {
  const Pair& pair = pairs_[static_cast<size_t>(layer) * kNumLoraTargets + static_cast<size_t>(target)];
  LoraMatrices matrices;
  if (pair.a == nullptr) return matrices;
  matrices.rank = static_cast<int32_t>(pair.a->shape[0]);
  ASSIGN_OR_RETURN(matrices.a, ReadAll(*pair.a));
  ASSIGN_OR_RETURN(const std::vector<float> stored, ReadAll(*pair.b));
  const int64_t rank = matrices.rank;
  matrices.b.reserve(static_cast<size_t>(pair.num_rows * rank));
  for (int64_t row = pair.first_row; row < pair.first_row + pair.num_rows; ++row) {
    const float* const from = stored.data() + StoredRow(pair.heads, row) * rank;
    for (int64_t i = 0; i < rank; ++i)
      matrices.b.push_back(static_cast<float>(static_cast<double>(from[i]) * pair.scale));
  }
  return matrices;
}

}  // namespace somnus
