// ModelRunnerImpl's loading, memory and waking. model_runner_profile.cc has what runs before the first step,
// model_runner_step.cc has the steps.
#include "worker/runner/model_runner.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "worker/model/weight_loader.h"
#include "worker/model/weight_ranges.h"
#include "worker/runner/model_runner_impl.h"

namespace somnus {
namespace {

BatchLimits LimitsOf(const ModelRunnerOptions& options, const ModelConfig& config) {
  BatchLimits limits;
  limits.max_num_seqs = std::max(0, options.max_num_seqs);
  limits.max_num_batched_tokens = options.max_num_batched_tokens;
  limits.max_model_len = options.max_model_len;
  limits.block_size = options.block_size;
  limits.vocab_size = config.vocab_size;
  limits.max_proposals = options.draft_model_path.empty() ? 0 : options.num_speculative_tokens;
  return limits;
}

// Whether the weights of one can take the place of the other's: everything that the forward pass reads, and
// nothing of names, tokens or sampling.
bool ComputesAlike(const ModelConfig& a, const ModelConfig& b) {
  const auto sizes = [](const ModelConfig& c) {
    return std::tie(c.family, c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads,
                    c.num_kv_heads, c.head_dim, c.embedding_dim, c.max_position_embeddings);
  };
  const auto options = [](const ModelConfig& c) {
    return std::tie(c.norm_eps, c.activation, c.rope, c.tie_word_embeddings, c.attention_qkv_bias,
                    c.attention_out_bias, c.mlp_bias, c.norm_before, c.final_norm);
  };
  return sizes(a) == sizes(b) && options(a) == options(b);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Load(const Checkpoint& checkpoint,
                                                               const ModelRunnerOptions& options,
                                                               Device* device, Communicator* communicator,
                                                               SleepableAllocator* allocator,
                                                               const Progress& progress) {
  auto runner = std::make_unique<ModelRunnerImpl>(checkpoint, options, device, communicator, allocator);
  RETURN_IF_ERROR(runner->Init(checkpoint, progress));
  return runner;
}

ModelRunnerImpl::ModelRunnerImpl(const Checkpoint& checkpoint, const ModelRunnerOptions& options,
                                 Device* device, Communicator* communicator, SleepableAllocator* allocator)
    : config_(checkpoint.config()),
      options_(options),
      device_(device),
      communicator_(communicator),
      allocator_(allocator),
      shards_(MakeShards(config_, communicator->rank(), communicator->world_size())),
      state_(LimitsOf(options, config_)),
      arrays_(state_.limits(), &inputs_),
      tuner_(&context_, &head_, options.max_tune_time),
      sampler_(state_.limits(), LogitsHead::MaxRows(*device, config_.vocab_size, options.max_num_seqs),
               &inputs_, &results_),
      draft_progress_(state_.limits().max_num_seqs),
      draft_blocks_(state_.limits().block_size) {}

ModelRunnerImpl::~ModelRunnerImpl() {
  device_->Synchronize().IgnoreError();  // nothing may run on memory that is released
  device_->SetWorkspace(nullptr, 0);
  for (void* region : {kv_region_, workspace_region_, weights_region_}) {
    if (region != nullptr) allocator_->Free(region).IgnoreError();  // a destructor can do nothing about it
  }
}

absl::Status ModelRunnerImpl::CheckOptions() const {
  const ModelRunnerOptions& o = options_;
  if (o.max_num_seqs < 1 || o.max_num_batched_tokens < 1 || o.max_model_len < 1 || o.block_size < 1) {
    return absl::InvalidArgumentError(
        "max_num_seqs, max_num_batched_tokens, max_model_len and block_size must be positive");
  }
  RETURN_IF_ERROR(CheckModelRuns(o, config_));
  const bool eight_bits = CacheType() == DataType::kF8E4M3 || CacheType() == DataType::kI8;
  if (device_->kind() == DeviceKind::kCuda && CacheType() != o.dtype && !eight_bits) {
    return absl::InvalidArgumentError(
        "--kv-cache-dtype: on a GPU the KV cache holds the model's type (--dtype), fp8 or int8");
  }
  return CheckQuantization();
}

absl::Status ModelRunnerImpl::CheckQuantization() const {
  const std::optional<DataType> type = options_.quantize;
  if (!type.has_value() || ComputesQuantized(*device_, *type)) return absl::OkStatus();
  if (*type == DataType::kF8E4M3) {
    if (config_.quantization.float8) return absl::OkStatus();  // what is there, and is expanded
    return absl::InvalidArgumentError(
        absl::StrCat("--quantization=fp8: on a GPU it is for checkpoints of fp8, which are expanded to "
                     "--dtype there, and ",
                     config_.name, " is none"));
  }
  return absl::InvalidArgumentError(
      "--quantization: int8 and int4 are for CPUs: a GPU computes with --dtype alone");
}

std::string ModelRunnerImpl::StoredTypesNote(const Checkpoint& checkpoint) const {
  if (!options_.dequantize) {
    const std::string expanded = checkpoint.is_dummy() ? "" : plan_.DescribeExpanded();
    return expanded.empty() ? "" : absl::StrCat("; not computed here as it is stored: ", expanded);
  }
  WeightTypes types = Types();
  types.keep_quantized = true;
  const absl::StatusOr<WeightPlan> stored = WeightPlan::Create(checkpoint, shards_, types, *device_);
  if (!stored.ok() || stored->LiesAs(plan_)) return "";
  return absl::StrCat("; --no-dequantize would compute with ", stored->DescribeTypes());
}

absl::Status ModelRunnerImpl::Init(const Checkpoint& checkpoint, const Progress& progress) {
  RETURN_IF_ERROR(CheckOptions());
  ASSIGN_OR_RETURN(plan_, WeightPlan::Create(checkpoint, shards_, Types(), *device_));
  if (CacheType() == DataType::kF8E4M3) {
    ASSIGN_OR_RETURN(kv_scales_, ReadKvScales(checkpoint));
    if (communicator_->rank() == 0) LogKvScales(kv_scales_);
  }
  RETURN_IF_ERROR(tables_.Init(config_, &shards_, options_.max_model_len));
  ASSIGN_OR_RETURN(weights_region_,
                   allocator_->Allocate(kWeightsTag, std::max<int64_t>(64, plan_.region_bytes())));
  plan_.Bind(weights_region_);
  if (communicator_->rank() == 0) LogInfo("weights: {}{}", weight_types(), StoredTypesNote(checkpoint));
  if (options_.read_weights) RETURN_IF_ERROR(LoadWeights(plan_, checkpoint, *device_, progress));
  RETURN_IF_ERROR(device_->Synchronize());
  if (!options_.draft_model_path.empty()) {
    ASSIGN_OR_RETURN(draft_model_,
                     DraftModel::Load(options_, state_.limits(), device_, communicator_, allocator_));
  }
  RETURN_IF_ERROR(AllocateWorkspace());
  context_.device = device_;
  context_.communicator = communicator_;
  context_.config = &config_;
  context_.shards = &shards_;
  context_.weights = &plan_.weights();
  model_ = std::make_unique<DecoderModel>(&context_);
  head_.Bind(&context_);
  arrays_.Bind(device_);
  return absl::OkStatus();
}

int64_t ModelRunnerImpl::CarveWorkspace(void* base) {
  const int64_t max_tokens = options_.max_num_batched_tokens;
  const int64_t logit_rows = LogitsHead::MaxRows(*device_, config_.vocab_size, options_.max_num_seqs);
  Carver carver(base);
  ops_scratch_ = carver.Take<uint8_t>(ops_scratch_bytes_);
  inputs_memory_ = carver.Take<uint8_t>(inputs_.bytes());
  results_memory_ = carver.Take<uint8_t>(results_.bytes());
  prompt_results_memory_ = carver.Take<uint8_t>(sampler_.prompt_results_bytes());
  side_memory_ = carver.Take<uint8_t>(SideStage::DeviceBytes(*device_));
  context_.act = Activations::Carve(&carver, config_, shards_, options_.dtype,
                                    SumType(*device_, options_.dtype), max_tokens);
  arrays_.Carve(&carver);
  head_.Carve(&carver, config_, shards_, options_.dtype, logit_rows);
  sampler_.Carve(&carver, *device_);
  tables_.Carve(&carver);
  return carver.bytes();
}

absl::Status ModelRunnerImpl::AllocateWorkspace() {
  const int64_t logit_rows = LogitsHead::MaxRows(*device_, config_.vocab_size, options_.max_num_seqs);
  ops_scratch_bytes_ = OpsWorkspaceBytes(*device_, OpsLimitsOf(options_, config_, shards_, logit_rows));
  if (draft_model_ != nullptr)
    ops_scratch_bytes_ = std::max(ops_scratch_bytes_, draft_model_->ops_workspace_bytes());
  ASSIGN_OR_RETURN(workspace_region_, allocator_->Allocate(kWorkspaceTag, CarveWorkspace(nullptr)));
  CarveWorkspace(workspace_region_);
  return WorkspaceSleeps() ? absl::OkStatus() : BindWorkspace();  // while asleep, ResetAfterWake binds
}

bool ModelRunnerImpl::WorkspaceSleeps() const { return allocator_->Stats()[kWorkspaceTag].sleeping > 0; }

absl::Status ModelRunnerImpl::BindWorkspace() {
  device_->SetWorkspace(ops_scratch_, ops_scratch_bytes_);
  RETURN_IF_ERROR(inputs_.Bind(device_, inputs_memory_));
  RETURN_IF_ERROR(results_.Bind(device_, results_memory_));
  RETURN_IF_ERROR(side_.Bind(device_, side_memory_));
  RETURN_IF_ERROR(sampler_.Bind(device_, prompt_results_memory_));
  if (draft_model_ != nullptr) RETURN_IF_ERROR(draft_model_->BindWorkspace());
  return tables_.Fill(device_, &context_);
}

std::string ModelRunnerImpl::weight_types() const {
  if (draft_model_ == nullptr) return plan_.DescribeTypes();
  return absl::StrCat(plan_.DescribeTypes(), "; draft model: ", draft_model_->weight_types());
}

int64_t ModelRunnerImpl::LayerBlockBytes() const {
  return LayerBlockBytesOf(*device_, options_, config_, shards_);
}

int64_t ModelRunnerImpl::OwnBlockBytes() const {
  // A rank without heads still counts blocks; 64 bytes keep divisions by this number sane.
  return std::max<int64_t>(64, LayerBlockBytes() * config_.num_layers);
}

int64_t ModelRunnerImpl::kv_block_bytes() const {
  return OwnBlockBytes() + (draft_model_ == nullptr ? 0 : draft_model_->kv_block_bytes());
}

int64_t ModelRunnerImpl::RowBytes(int64_t num_blocks) const {
  return num_blocks * (shards_.kv_heads.empty() ? OwnBlockBytes() : LayerBlockBytes());
}

absl::Status ModelRunnerImpl::AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks,
                                              bool defer_graphs) {
  RETURN_IF_ERROR(AllocateBlocks(num_blocks, num_mapped_blocks));
  graphs_deferred_ = defer_graphs;
  return defer_graphs ? absl::OkStatus() : CaptureGraphs().status();
}

absl::Status ModelRunnerImpl::BeginEpoch() {
  while (!in_flight_.empty()) {
    in_flight_.front()->read.WaitForNotification();
    in_flight_.pop_front();
  }
  device_->Synchronize().IgnoreError();  // the errors of what failed
  RETURN_IF_ERROR(device_->Synchronize());
  // The KV cache keeps what failed steps left in it. That is safe, because no one reads a block's entry
  // before it is written: attention reads a sequence's context alone (what a tile holds beyond it is replaced
  // by zeros), every token of which was computed by a step that has ended well or is computed again, and
  // padded rows have no context (they write to the null block).
  state_.Clear();
  // A rank that is new knows nothing of the blocks, and all must know the same.
  if (draft_model_ != nullptr && !context_.kv_cache.empty())
    draft_blocks_.Reset(static_cast<int32_t>(context_.kv_cache[0].num_blocks));
  failed_ = absl::OkStatus();
  if (communicator_->world_size() == 1) return absl::OkStatus();  // graphs without collectives stay good
  graphs_.Clear();
  // Every rank runs every size again, because those of a rank that is new do, and collectives are for all.
  graphs_warm_ = false;
  graphs_deferred_ = true;
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
  if (num_mapped_blocks < 2 || num_mapped_blocks > num_blocks ||
      num_blocks > std::numeric_limits<int32_t>::max() / options_.block_size ||
      num_blocks > std::numeric_limits<int64_t>::max() / kv_block_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a KV cache cannot have ", num_blocks, " blocks, ", num_mapped_blocks, " with memory"));
  }
  if (kv_region_ != nullptr) {
    RETURN_IF_ERROR(allocator_->Free(kv_region_));
    kv_region_ = nullptr;
  }
  state_.Clear();
  state_.SetNumBlocks(0);
  context_.kv_cache.clear();
  graphs_.Clear();
  graphs_deferred_ = false;
  const int64_t num_rows = shards_.kv_heads.empty() ? 1 : config_.num_layers;
  ASSIGN_OR_RETURN(kv_region_, allocator_->AllocateRows(kKvCacheTag, RowBytes(num_blocks), num_rows,
                                                        RowBytes(num_mapped_blocks)));
  if (draft_model_ != nullptr) {
    RETURN_IF_ERROR(draft_model_->AllocateBlocks(num_blocks, num_mapped_blocks));
    draft_blocks_.Reset(num_blocks);
  }
  context_.kv_cache =
      KvCacheViewsOf(kv_region_, num_blocks, LayerBlockBytes(), options_, config_, shards_, kv_scales_);
  state_.SetNumBlocks(num_mapped_blocks);
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::ResizeKvCache(int32_t num_mapped_blocks) {
  if (context_.kv_cache.empty()) return absl::FailedPreconditionError("the KV cache is not allocated");
  const int64_t num_blocks = context_.kv_cache[0].num_blocks;
  if (num_mapped_blocks < 2 || num_mapped_blocks > num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks: ", num_mapped_blocks, " is not from 2 to ", num_blocks));
  }
  RETURN_IF_ERROR(state_.CheckUnused(num_mapped_blocks));
  RETURN_IF_ERROR(device_->Synchronize());  // nothing may run on memory that is released
  RETURN_IF_ERROR(ResizeRegions(num_mapped_blocks));
  state_.SetNumBlocks(num_mapped_blocks);
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::ResizeRegions(int32_t num_mapped_blocks) {
  RETURN_IF_ERROR(allocator_->Resize(kv_region_, RowBytes(num_mapped_blocks)));
  if (draft_model_ == nullptr) return absl::OkStatus();
  const absl::Status status = draft_model_->ResizeBlocks(num_mapped_blocks);
  // Only growth fails, and the way back is none.
  if (!status.ok()) allocator_->Resize(kv_region_, RowBytes(state_.limits().num_blocks)).IgnoreError();
  return status;
}

absl::StatusOr<WeightPlan> ModelRunnerImpl::PlanReload(const Checkpoint& checkpoint) const {
  ASSIGN_OR_RETURN(WeightPlan plan, WeightPlan::Create(checkpoint, shards_, Types(), *device_));
  const ModelConfig& other = checkpoint.config();
  if (!ComputesAlike(other, config_) || !plan.LiesAs(plan_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(other.name, " is not the model that was loaded, ", config_.name));
  }
  if (CacheType() == DataType::kF8E4M3) {
    // The graphs, which outlive a sleep, contain the scales.
    ASSIGN_OR_RETURN(const std::vector<KvScales> scales, ReadKvScales(checkpoint));
    if (scales != kv_scales_) {
      return absl::InvalidArgumentError(
          absl::StrCat(other.name, " has other scales of the KV cache than what was loaded"));
    }
  }
  return plan;
}

absl::Status ModelRunnerImpl::CheckReload(const Checkpoint& checkpoint) const {
  return PlanReload(checkpoint).status();
}

absl::StatusOr<std::vector<FileRange>> ModelRunnerImpl::WeightRanges(const Checkpoint& checkpoint) const {
  if (checkpoint.is_dummy()) return std::vector<FileRange>();
  ASSIGN_OR_RETURN(const WeightPlan plan, PlanReload(checkpoint));
  return somnus::WeightRanges(plan);
}

absl::Status ModelRunnerImpl::ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) {
  ASSIGN_OR_RETURN(WeightPlan plan, PlanReload(checkpoint));
  allocator_->DropBackups(kWeightsTag);  // they would restore the old weights
  plan.Bind(weights_region_);
  RETURN_IF_ERROR(LoadWeights(plan, checkpoint, *device_, progress));
  return draft_model_ == nullptr ? absl::OkStatus() : draft_model_->ReadWeights();
}

absl::StatusOr<std::unique_ptr<UpdatedTensors>> ModelRunnerImpl::BeginWeightUpdate(bool needs_all) {
  // The update's own tensors are the sources of its plan, so it needs them before it can have the plan.
  const auto plan = std::make_shared<WeightPlan>();
  auto update = std::make_unique<UpdatedTensors>(
      config_, needs_all,
      [this, plan](const Checkpoint& checkpoint, const TensorInfo& tensor) {
        return LoadTensor(*plan, checkpoint, tensor, *device_);
      },
      [this](const v1::CudaMemory& memory, void* to) {
        return device_->CopyFromProcess(memory.handle(), memory.offset(), memory.bytes(), to);
      });
  ASSIGN_OR_RETURN(*plan, WeightPlan::Create(update->tensors(), shards_, Types(), *device_));
  if (!plan->LiesAs(plan_)) {
    return absl::FailedPreconditionError(
        "an update brings float weights, and these are computed as they are stored: start the server with "
        "--dequantize");
  }
  // Where the model's weights are not there, neither are the draft model's, which no update brings.
  if (draft_model_ != nullptr && needs_all) RETURN_IF_ERROR(draft_model_->ReadWeights());
  allocator_->DropBackups(kWeightsTag);
  plan->Bind(weights_region_);
  return update;
}

absl::Status ModelRunnerImpl::ResetAfterWake() {
  state_.Clear();
  draft_progress_.Clear();
  in_flight_.clear();
  return BindWorkspace();
}

}  // namespace somnus
