#include "worker/runner/rank_weights.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "worker/model/weight_loader.h"
#include "worker/model/weight_ranges.h"
#include "worker/runner/model_sizes.h"

namespace somnus {
namespace {

// Whether the weights of `a` can take the place of the weights of `b`: everything that the forward pass reads
// is equal. Names, tokens and sampling may differ.
bool ComputesAlike(const ModelConfig& a, const ModelConfig& b) {
  const auto sizes = [](const ModelConfig& c) {
    return std::tie(c.family, c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads,
                    c.num_kv_heads, c.head_dim, c.embedding_dim, c.max_position_embeddings);
  };
  const auto options = [](const ModelConfig& c) {
    return std::tie(c.norm_eps, c.activation, c.swiglu_limit, c.swiglu_alpha, c.rope, c.tie_word_embeddings,
                    c.attention_qkv_bias, c.attention_out_bias, c.mlp_bias, c.norm_before, c.final_norm);
  };
  const auto layers = [](const ModelConfig& c) {
    return std::tie(c.layer_attention, c.local_rope, c.latent, c.attention_scale, c.attention_softcap,
                    c.query_temperature, c.embedding_scale, c.residual_scale, c.logits_scale,
                    c.logits_softcap, c.head_norms, c.experts);
  };
  return sizes(a) == sizes(b) && options(a) == options(b) && layers(a) == layers(b);
}

std::string NameOf(const std::vector<WeightSource>& sources) {
  return absl::StrJoin(sources, "+", [](std::string* out, const WeightSource& source) {
    absl::StrAppend(out, source.tensor->name);
  });
}

// The names are taken now: the plan's tensors end with their checkpoint.
std::vector<WeightPiece> PiecesOf(const WeightPlan& plan, const void* region) {
  const auto* const base = static_cast<const uint8_t*>(region);
  std::vector<WeightPiece> pieces;
  for (const WeightPlan::Matrix& matrix : plan.matrices())
    pieces.push_back({NameOf(matrix.sources), base + matrix.offset, matrix.bytes});
  for (const WeightPlan::Vector& vector : plan.vectors())
    pieces.push_back({NameOf(vector.sources), base + vector.offset, vector.bytes});
  return pieces;
}

}  // namespace

RankWeights::RankWeights(const ModelConfig* config, const ModelShards* shards,
                         const ModelRunnerOptions& options, Device* device, SleepableAllocator* allocator)
    : config_(*config), shards_(*shards), options_(options), device_(*device), allocator_(*allocator) {}

RankWeights::~RankWeights() {
  if (region_ != nullptr) allocator_.Free(region_).IgnoreError();  // nobody to tell
}

bool RankWeights::HasScales() const { return CacheTypeOf(options_) == DataType::kF8E4M3; }

absl::StatusOr<WeightPlan> RankWeights::Plan(const Checkpoint& checkpoint) const {
  return WeightPlan::Create(checkpoint, shards_, Types(), device_);
}

absl::Status RankWeights::Allocate(const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(plan_, Plan(checkpoint));
  if (HasScales()) {
    ASSIGN_OR_RETURN(kv_scales_, ReadKvScales(checkpoint));
  }
  ASSIGN_OR_RETURN(region_, allocator_.Allocate(kWeightsTag, std::max<int64_t>(64, plan_.region_bytes())));
  plan_.Bind(region_);
  pieces_ = PiecesOf(plan_, region_);
  return absl::OkStatus();
}

absl::Status RankWeights::Read(const Checkpoint& checkpoint, const Progress& progress) {
  if (options_.read_weights) RETURN_IF_ERROR(LoadWeights(plan_, checkpoint, device_, progress));
  return device_.Synchronize();
}

std::string RankWeights::StoredTypesNote(const Checkpoint& checkpoint) const {
  if (!options_.dequantize) {
    const std::string expanded = checkpoint.is_dummy() ? "" : plan_.DescribeExpanded();
    return expanded.empty() ? "" : absl::StrCat("; not computed here as it is stored: ", expanded);
  }
  WeightTypes types = Types();
  types.keep_quantized = true;
  const absl::StatusOr<WeightPlan> stored = WeightPlan::Create(checkpoint, shards_, types, device_);
  if (!stored.ok() || Fits(*stored)) return "";
  return absl::StrCat("; --no-dequantize would compute with ", stored->DescribeTypes());
}

absl::Status RankWeights::Overwrite(WeightPlan plan, const Checkpoint& checkpoint, const Progress& progress) {
  plan.Bind(region_);
  return LoadWeights(plan, checkpoint, device_, progress);
}

absl::StatusOr<WeightPlan> RankWeights::PlanReload(const Checkpoint& checkpoint) const {
  ASSIGN_OR_RETURN(WeightPlan plan, Plan(checkpoint));
  const ModelConfig& other = checkpoint.config();
  if (!ComputesAlike(other, config_) || !Fits(plan)) {
    return absl::InvalidArgumentError(
        absl::StrCat(other.name, " is not the model that was loaded, ", config_.name));
  }
  if (HasScales()) {
    // The graphs, which outlive a sleep, contain the scales.
    ASSIGN_OR_RETURN(const std::vector<KvScales> scales, ReadKvScales(checkpoint));
    if (scales != kv_scales_) {
      return absl::InvalidArgumentError(
          absl::StrCat(other.name, " has other scales of the KV cache than what was loaded"));
    }
  }
  return plan;
}

absl::Status RankWeights::CheckReload(const Checkpoint& checkpoint) const {
  return PlanReload(checkpoint).status();
}

absl::StatusOr<std::vector<FileRange>> RankWeights::Ranges(const Checkpoint& checkpoint) const {
  if (checkpoint.is_dummy()) return std::vector<FileRange>();
  ASSIGN_OR_RETURN(const WeightPlan plan, PlanReload(checkpoint));
  return WeightRanges(plan);
}

absl::Status RankWeights::Reload(const Checkpoint& checkpoint, const Progress& progress) {
  ASSIGN_OR_RETURN(WeightPlan plan, PlanReload(checkpoint));
  DropBackups();
  return Overwrite(std::move(plan), checkpoint, progress);
}

absl::StatusOr<std::unique_ptr<UpdatedTensors>> RankWeights::BeginUpdate(bool needs_all) {
  // The update's own tensors are the sources of the plan, so the update exists before the plan does.
  const auto plan = std::make_shared<WeightPlan>();
  auto update = std::make_unique<UpdatedTensors>(
      config_, needs_all,
      [this, plan](const Checkpoint& checkpoint, const TensorInfo& tensor) {
        return LoadTensor(*plan, checkpoint, tensor, device_);
      },
      [this](const v1::CudaMemory& memory, void* to) {
        return device_.CopyFromProcess(memory.handle(), memory.offset(), memory.bytes(), to);
      });
  ASSIGN_OR_RETURN(*plan, Plan(update->tensors()));
  if (!Fits(*plan)) {
    return absl::FailedPreconditionError(
        "an update brings float weights, and these are computed as they are stored: start the server with "
        "--dequantize");
  }
  plan->Bind(region_);
  return update;
}

void RankWeights::DropBackups() { allocator_.DropBackups(kWeightsTag); }

}  // namespace somnus
