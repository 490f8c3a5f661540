#include "worker/model/weight_plan.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/storage_type.h"
#include "worker/model/carver.h"

namespace somnus {
namespace {

int64_t CountOf(const std::vector<WeightSource>& sources) {
  int64_t count = 0;
  for (const WeightSource& source : sources) count += source.rows.size() * source.cols.size();
  return count;
}

const char* TypeName(DataType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int32", "fp8_e4m3", "int8",
                                    "Q8_0",    "Q4_0",     "Q4_1",    "Q5_0",  "Q5_1",     "IQ4_NL",
                                    "MXFP4",   "Q2_K",     "Q3_K",    "Q4_K",  "Q5_K",     "Q6_K"};
  static_assert(std::size(kNames) == kNumDataTypes);
  return kNames[static_cast<int>(type)];
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckTensors(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  return ForEachTensor(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* tensor = checkpoint.Find(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("tensor ", name, " of shape ", ShapeText(shape), " is missing in ", config.name));
    }
    if (tensor->shape == shape) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has shape ", ShapeText(tensor->shape),
                                                   " in ", tensor->file, ", but the config asks for ",
                                                   ShapeText(shape)));
  });
}

}  // namespace

std::optional<DataType> QuantizedType(StorageType type) {
  switch (type) {
    case StorageType::kQ8_0:
      return DataType::kQ8_0;
    case StorageType::kQ4_0:
      return DataType::kQ4_0;
    case StorageType::kQ4_1:
      return DataType::kQ4_1;
    case StorageType::kQ5_0:
      return DataType::kQ5_0;
    case StorageType::kQ5_1:
      return DataType::kQ5_1;
    case StorageType::kIQ4_NL:
      return DataType::kIQ4_NL;
    case StorageType::kMXFP4:
      return DataType::kMXFP4;
    case StorageType::kQ2_K:
      return DataType::kQ2_K;
    case StorageType::kQ3_K:
      return DataType::kQ3_K;
    case StorageType::kQ4_K:
      return DataType::kQ4_K;
    case StorageType::kQ5_K:
      return DataType::kQ5_K;
    case StorageType::kQ6_K:
      return DataType::kQ6_K;
    case StorageType::kF8E4M3:
      return DataType::kF8E4M3;
    default:
      return std::nullopt;
  }
}

bool TakesStoredBlocks(const WeightSource& source, DataType type) {
  if (QuantizedType(source.tensor->type) != type) return false;
  return !source.tensor->scaled_by_blocks ||
         (source.rows.begin % kQuantBlock == 0 && source.rows.size() % kQuantBlock == 0);
}

class WeightPlanBuilder {
 public:
  WeightPlanBuilder(const Checkpoint& checkpoint, const ModelShards& shards, const WeightTypes& types,
                    const Device& device)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        shards_(shards),
        types_(types),
        device_(device) {
    plan_.weights_ = std::make_unique<ModelWeights>();
    plan_.weights_->layers.resize(shards_.layers.size());
    plan_.tied_ = config_.tie_word_embeddings && shards_.first_stage;
  }

  WeightPlan Build() && {
    ModelWeights& weights = *plan_.weights_;
    if (shards_.first_stage) AddMatrix(TensorRole::kEmbedding, 0, &weights.embedding);
    if (shards_.last_stage) AddHead(&weights.head);
    if (shards_.first_stage) {
      AddVector({TensorRole::kPositions}, 0, &weights.position_table);
      AddMatrix(TensorRole::kProjectIn, 0, &weights.project_in);
    }
    if (shards_.last_stage) AddMatrix(TensorRole::kProjectOut, 0, &weights.project_out);
    for (int64_t i = 0; i < shards_.layers.size(); ++i)
      AddLayer(static_cast<int32_t>(shards_.layers.begin + i), &weights.layers[i]);
    if (shards_.last_stage)
      AddVector({TensorRole::kFinalNorm}, 0, &weights.final_norm, &weights.final_norm_bias);
    return std::move(plan_);
  }

 private:
  // A stage with the head alone has a tied embedding as its head; elsewhere Bind makes the two the same.
  void AddHead(LinearWeight* head) {
    const bool takes_embedding = config_.tie_word_embeddings && !shards_.first_stage;
    AddMatrix(takes_embedding ? TensorRole::kEmbedding : TensorRole::kHead, 0, head);
  }

  // `i`: in the model.
  void AddLayer(int32_t i, LayerWeights* layer) {
    AddVector({TensorRole::kAttentionNorm}, i, &layer->attention_norm, &layer->attention_norm_bias);
    AddFused({TensorRole::kQueryKeyValue, TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}, i,
             &layer->qkv, &layer->qkv_bias);
    AddVector({TensorRole::kQueryNorm}, i, &layer->q_norm);
    AddVector({TensorRole::kKeyNorm}, i, &layer->k_norm);
    AddMatrix(TensorRole::kAttentionOut, i, &layer->out, &layer->out_bias);
    AddVector({TensorRole::kAttentionPostNorm}, i, &layer->attention_post_norm);
    AddVector({TensorRole::kMlpNorm}, i, &layer->mlp_norm, &layer->mlp_norm_bias);
    AddFused({TensorRole::kGateUp, TensorRole::kGate, TensorRole::kUp}, i, &layer->up, &layer->up_bias);
    AddMatrix(TensorRole::kDown, i, &layer->down, &layer->down_bias);
    AddVector({TensorRole::kMlpPostNorm}, i, &layer->mlp_post_norm);
  }

  // This rank's part of the roles' tensors, in the order of the roles, and of each part of a fused tensor;
  // roles that the model does not have are left out.
  std::vector<WeightSource> SourcesOf(std::initializer_list<TensorRole> roles, int32_t layer, bool biases) {
    const Family& family = *config_.family;
    std::vector<WeightSource> sources;
    for (const TensorRole role : roles) {
      const TensorSpec* spec = FindTensor(family, role);
      if (spec == nullptr || !spec->present(config_) || (biases && !spec->bias(config_))) continue;
      // Ranks sum the products of a row-parallel matrix, so only one rank adds the bias.
      if (biases && IsDivided(spec->cols) && !shards_.last_rank()) continue;
      const std::string name = TensorName(family, role, layer) + (biases ? ".bias" : ".weight");
      const TensorInfo* tensor = checkpoint_.Find(name);
      SOMNUS_CHECK(tensor != nullptr);
      int64_t begin = 0;  // row of the tensor where the part starts
      for (const Dim part : PartsOf(spec->rows)) {
        const Range rows = ShardOf(part, config_, shards_);
        sources.push_back({tensor,
                           {begin + rows.begin, begin + rows.end},
                           ShardOf(biases ? Dim::kNone : spec->cols, config_, shards_)});
        begin += SizeOf(part, config_);
      }
    }
    return sources;
  }

  int64_t Reserve(int64_t bytes) {
    const int64_t offset = plan_.region_bytes_;
    plan_.region_bytes_ += AlignedBytes(bytes);
    return offset;
  }

  // The type of a matrix; `in_layer`: the matrix belongs to a layer.
  DataType TypeOf(const WeightSource& source, bool in_layer) const {
    const std::optional<DataType> stored = QuantizedType(source.tensor->type);
    const bool keeps = types_.keep_quantized && !checkpoint_.is_dummy();
    if (keeps && stored.has_value() && ComputesBlocks(source, *stored) && TakesStoredBlocks(source, *stored))
      return *stored;
    const bool quantizes = in_layer && types_.quantize.has_value();
    return quantizes && ComputesBlocks(source, *types_.quantize) ? *types_.quantize : types_.dtype;
  }

  // Whether two sources in turn can be parts of one packed matrix: both are of the same type, and for fp8
  // either both or neither have scales of blocks.
  bool ShareMatrix(const WeightSource& a, const WeightSource& b) const {
    const DataType type = TypeOf(a, true);
    const auto by_blocks = [type](const WeightSource& source) {
      return source.tensor->scaled_by_blocks && TakesStoredBlocks(source, type);
    };
    return type == TypeOf(b, true) && by_blocks(a) == by_blocks(b);
  }

  // Whether the device computes with the type, and this rank's columns are whole blocks of that type.
  bool ComputesBlocks(const WeightSource& source, DataType type) const {
    const int64_t block = QuantBlockValues(type);
    return ComputesQuantized(device_, type) && source.cols.begin % block == 0 && source.cols.end % block == 0;
  }

  void AddMatrix(TensorRole role, int32_t layer, LinearWeight* target, const float** bias = nullptr) {
    AddPart(SourcesOf({role}, layer, /*biases=*/false), role >= TensorRole::kAttentionNorm, target);
    if (bias != nullptr) AddSources(bias, SourcesOf({role}, layer, /*biases=*/true));
  }

  // The roles' weights one below the other, a part for each type in turn, and the biases as one vector.
  void AddFused(std::initializer_list<TensorRole> roles, int32_t layer, FusedWeight* target,
                const float** bias) {
    LinearWeight* next = target->parts;
    std::vector<WeightSource> part;
    for (WeightSource& source : SourcesOf(roles, layer, /*biases=*/false)) {
      if (!part.empty() && !ShareMatrix(part.back(), source)) AddPart(std::exchange(part, {}), true, next++);
      part.push_back(std::move(source));
    }
    AddPart(std::move(part), true, next);
    AddSources(bias, SourcesOf(roles, layer, /*biases=*/true));
  }

  // Sources of one type as one packed matrix.
  void AddPart(std::vector<WeightSource> sources, bool in_layer, LinearWeight* target) {
    if (sources.empty()) return;
    target->dtype = TypeOf(sources[0], in_layer);
    target->k = sources[0].cols.size();
    for (const WeightSource& source : sources) target->n += source.rows.size();
    if (target->n > 0 && target->k > 0) {
      const int64_t bytes = PackedWeightBytes(device_, target->dtype, target->n, target->k);
      plan_.matrices_.push_back({target, Reserve(bytes), bytes, std::move(sources)});
    }
  }

  void AddVector(std::initializer_list<TensorRole> roles, int32_t layer, const float** target,
                 const float** bias = nullptr) {
    AddSources(target, SourcesOf(roles, layer, /*biases=*/false));
    if (bias != nullptr) AddSources(bias, SourcesOf(roles, layer, /*biases=*/true));
  }

  void AddSources(const float** target, std::vector<WeightSource> sources) {
    const int64_t count = CountOf(sources);
    if (count > 0) plan_.vectors_.push_back({target, Reserve(count * 4), count * 4, std::move(sources)});
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ModelShards& shards_;
  const WeightTypes types_;
  const Device& device_;
  WeightPlan plan_;
};

absl::StatusOr<WeightPlan> WeightPlan::Create(const Checkpoint& checkpoint, const ModelShards& shards,
                                              const WeightTypes& types, const Device& device) {
  RETURN_IF_ERROR(CheckTensors(checkpoint));
  return WeightPlanBuilder(checkpoint, shards, types, device).Build();
}

bool WeightPlan::LiesAs(const WeightPlan& other) const {
  const auto same_matrix = [](const Matrix& a, const Matrix& b) {
    return a.offset == b.offset && a.target->dtype == b.target->dtype && a.target->n == b.target->n &&
           a.target->k == b.target->k;
  };
  const auto same_vector = [](const Vector& a, const Vector& b) { return a.offset == b.offset; };
  return region_bytes_ == other.region_bytes_ &&
         std::equal(matrices_.begin(), matrices_.end(), other.matrices_.begin(), other.matrices_.end(),
                    same_matrix) &&
         std::equal(vectors_.begin(), vectors_.end(), other.vectors_.begin(), other.vectors_.end(),
                    same_vector);
}

std::string WeightPlan::DescribeTypes() const {
  std::map<DataType, int64_t> bytes;
  for (const Matrix& matrix : matrices_) bytes[matrix.target->dtype] += matrix.bytes;
  std::vector<std::pair<int64_t, DataType>> by_size;
  for (const auto& [type, size] : bytes) by_size.emplace_back(size, type);
  std::sort(by_size.rbegin(), by_size.rend());
  return absl::StrJoin(by_size, ", ", [](std::string* out, const std::pair<int64_t, DataType>& entry) {
    absl::StrAppendFormat(out, "%s %.1f MiB", TypeName(entry.second), entry.first / 1048576.0);
  });
}

std::string WeightPlan::DescribeExpanded() const {
  std::set<std::string> types;
  for (const Matrix& matrix : matrices_) {
    for (const WeightSource& source : matrix.sources) {
      const TensorInfo& tensor = *source.tensor;
      const bool is_block = BlockSizeOf(tensor.type).elements > 1;
      if (is_block && QuantizedType(tensor.type) != matrix.target->dtype)
        types.insert(StorageTypeName(tensor.type));
      if (!is_block && tensor.packed != nullptr) types.insert("numbers of quantization_config");
    }
  }
  return absl::StrJoin(types, ", ");
}

void WeightPlan::Bind(void* base) {
  uint8_t* bytes = static_cast<uint8_t*>(base);
  for (const Matrix& matrix : matrices_) matrix.target->data = bytes + matrix.offset;
  for (const Vector& vector : vectors_)
    *vector.target = reinterpret_cast<const float*>(bytes + vector.offset);
  if (tied_) weights_->head = weights_->embedding;
}

}  // namespace somnus
