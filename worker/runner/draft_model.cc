#include "worker/runner/draft_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "worker/model/weight_loader.h"
#include "worker/runner/model_sizes.h"

namespace somnus {
namespace {

absl::Status OfDraftModel(const ModelRunnerOptions& options, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--draft-model: ", options.draft_model_path, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDraft(const ModelRunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened =
      Checkpoint::Open(options.draft_model_path, options.draft_format);
  if (opened.ok() || options.read_weights) return opened;
  // As of a group with random weights: for the layout config.json is enough.
  absl::StatusOr<std::unique_ptr<Checkpoint>> dummy =
      Checkpoint::Open(options.draft_model_path, LoadFormat::kDummy);
  return dummy.ok() ? std::move(dummy) : std::move(opened);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Load(const ModelRunnerOptions& options,
                                                             const BatchLimits& limits, Device* device,
                                                             Communicator* communicator,
                                                             SleepableAllocator* allocator) {
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenDraft(options);
  RETURN_IF_ERROR(OfDraftModel(options, checkpoint.status()));
  std::unique_ptr<DraftModel> model(
      new DraftModel(**checkpoint, options, limits, device, communicator, allocator));
  RETURN_IF_ERROR(OfDraftModel(options, model->Init(**checkpoint)));
  return model;
}

DraftModel::DraftModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options,
                       const BatchLimits& limits, Device* device, Communicator* communicator,
                       SleepableAllocator* allocator)
    : config_(checkpoint.config()),
      options_(options),
      limits_(limits),
      device_(device),
      communicator_(communicator),
      allocator_(allocator),
      shards_(MakeShards(config_, communicator->rank(), communicator->world_size())),
      layer_block_bytes_(LayerBlockBytesOf(*device, options, config_, shards_)),
      logit_rows_(LogitsHead::MaxRows(*device, config_.vocab_size, options.max_num_seqs)) {
  const int64_t num_seqs = limits.max_num_seqs, num_rows = num_seqs * options.num_speculative_tokens;
  query_start_ = inputs_.Take<int32_t>(num_seqs + 1);
  slots_ = inputs_.Take<int32_t>(num_seqs);
  last_context_ = inputs_.Take<int32_t>(num_seqs);
  tokens_ = inputs_.Take<int32_t>(num_seqs);
  positions_ = inputs_.Take<int32_t>(num_rows);
  context_len_ = inputs_.Take<int32_t>(num_rows);
  slot_mapping_ = inputs_.Take<int32_t>(num_rows);
  missing_.query_start = missing_.inputs.Take<int32_t>(num_seqs + 1);
  missing_.slots = missing_.inputs.Take<int32_t>(num_seqs);
  missing_.context_len = missing_.inputs.Take<int32_t>(num_seqs);
  missing_.token_ids = missing_.inputs.Take<int32_t>(limits.max_num_batched_tokens);
  missing_.positions = missing_.inputs.Take<int32_t>(limits.max_num_batched_tokens);
  missing_.slot_mapping = missing_.inputs.Take<int32_t>(limits.max_num_batched_tokens);
}

DraftModel::~DraftModel() {
  device_->Synchronize().IgnoreError();  // nothing may run on memory that is released
  for (void* region : {kv_region_, workspace_region_, weights_region_}) {
    if (region != nullptr) allocator_->Free(region).IgnoreError();  // a destructor can do nothing about it
  }
}

absl::StatusOr<WeightPlan> DraftModel::PlanWeights(const Checkpoint& checkpoint) const {
  if (checkpoint.config().vocab_size != limits_.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("it has a vocabulary of ", checkpoint.config().vocab_size,
                                                   " tokens, the model one of ", limits_.vocab_size));
  }
  return WeightPlan::Create(checkpoint, shards_, {options_.dtype, !options_.dequantize}, *device_);
}

absl::Status DraftModel::Init(const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(CheckModelRuns(options_, config_));
  ASSIGN_OR_RETURN(plan_, PlanWeights(checkpoint));
  if (CacheTypeOf(options_) == DataType::kF8E4M3) {
    ASSIGN_OR_RETURN(kv_scales_, ReadKvScales(checkpoint));
  }
  RETURN_IF_ERROR(tables_.Init(config_, &shards_, options_.max_model_len));
  ASSIGN_OR_RETURN(weights_region_,
                   allocator_->Allocate(kWeightsTag, std::max<int64_t>(64, plan_.region_bytes())));
  plan_.Bind(weights_region_);
  if (communicator_->rank() == 0) LogInfo("draft model {}: {}", config_.name, weight_types());
  if (options_.read_weights) RETURN_IF_ERROR(LoadWeights(plan_, checkpoint, *device_, nullptr));
  RETURN_IF_ERROR(device_->Synchronize());
  ASSIGN_OR_RETURN(workspace_region_, allocator_->Allocate(kWorkspaceTag, CarveWorkspace(nullptr)));
  CarveWorkspace(workspace_region_);
  context_.device = device_;
  context_.communicator = communicator_;
  context_.config = &config_;
  context_.shards = &shards_;
  context_.weights = &plan_.weights();
  model_ = std::make_unique<DecoderModel>(&context_);
  head_.Bind(&context_);
  return absl::OkStatus();
}

absl::Status DraftModel::ReadWeights() {
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenDraft(options_);
  RETURN_IF_ERROR(OfDraftModel(options_, checkpoint.status()));
  absl::StatusOr<WeightPlan> plan = PlanWeights(**checkpoint);
  RETURN_IF_ERROR(OfDraftModel(options_, plan.status()));
  if (!plan->LiesAs(plan_)) {
    return OfDraftModel(options_, absl::FailedPreconditionError(
                                      absl::StrCat("is not the model that was loaded, ", config_.name)));
  }
  plan->Bind(weights_region_);
  return OfDraftModel(options_, LoadWeights(*plan, **checkpoint, *device_, nullptr));
}

int64_t DraftModel::CarveWorkspace(void* base) {
  Carver carver(base);
  inputs_memory_ = carver.Take<uint8_t>(inputs_.bytes());
  missing_memory_ = carver.Take<uint8_t>(missing_.inputs.bytes());
  context_.act = Activations::Carve(&carver, config_, shards_, options_.dtype,
                                    SumType(*device_, options_.dtype), options_.max_num_batched_tokens);
  head_.Carve(&carver, config_, shards_, options_.dtype, logit_rows_);
  tables_.Carve(&carver);
  block_tables_ = carver.Take<int32_t>(int64_t{limits_.max_num_seqs} * limits_.max_blocks_per_seq());
  proposed_ = carver.Take<int32_t>(int64_t{limits_.max_num_seqs} * options_.num_speculative_tokens);
  return carver.bytes();
}

absl::Status DraftModel::BindWorkspace() {
  RETURN_IF_ERROR(inputs_.Bind(device_, inputs_memory_));
  RETURN_IF_ERROR(missing_.inputs.Bind(device_, missing_memory_));
  return tables_.Fill(device_, &context_);
}

int64_t DraftModel::ops_workspace_bytes() const {
  return OpsWorkspaceBytes(*device_, OpsLimitsOf(options_, config_, shards_, logit_rows_));
}

absl::Status DraftModel::AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
  RETURN_IF_ERROR(FreeBlocks());
  if (layer_block_bytes_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(kv_region_,
                   allocator_->AllocateRows(kKvCacheTag, num_blocks * layer_block_bytes_, config_.num_layers,
                                            num_mapped_blocks * layer_block_bytes_));
  context_.kv_cache =
      KvCacheViewsOf(kv_region_, num_blocks, layer_block_bytes_, options_, config_, shards_, kv_scales_);
  return absl::OkStatus();
}

absl::Status DraftModel::ResizeBlocks(int32_t num_mapped_blocks) {
  if (kv_region_ == nullptr) return absl::OkStatus();
  return allocator_->Resize(kv_region_, num_mapped_blocks * layer_block_bytes_);
}

absl::Status DraftModel::FreeBlocks() {
  context_.kv_cache.clear();
  if (kv_region_ == nullptr) return absl::OkStatus();
  return allocator_->Free(std::exchange(kv_region_, nullptr));
}

absl::Status DraftModel::CatchUp(std::vector<MissingTokens> pieces, const int32_t* slot_tables) {
  RETURN_IF_ERROR(device_->Synchronize());  // it may still copy the inputs of the last ones
  missing_.inputs.Turn();
  const auto rest = std::stable_partition(
      pieces.begin(), pieces.end(), [](const MissingTokens& piece) { return piece.token_ids.size() == 1; });
  StepInput input;
  AttentionBatch& batch = input.batch;
  batch.num_decodes = rest - pieces.begin();
  missing_.query_start.host()[0] = 0;
  for (const MissingTokens& piece : pieces) {
    const auto count = static_cast<int32_t>(piece.token_ids.size()), block_size = limits_.block_size;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = piece.position + i;
      const int64_t row = batch.num_tokens + i;
      missing_.token_ids.host()[row] = piece.token_ids[static_cast<size_t>(i)];
      missing_.positions.host()[row] = position;
      missing_.slot_mapping.host()[row] =
          piece.block_ids[static_cast<size_t>(position / block_size)] * block_size + position % block_size;
    }
    missing_.slots.host()[batch.num_seqs] = piece.slot;
    missing_.context_len.host()[batch.num_seqs] = piece.position + count;
    batch.num_tokens += count;
    missing_.query_start.host()[++batch.num_seqs] = static_cast<int32_t>(batch.num_tokens);
    batch.max_query_len = std::max<int64_t>(batch.max_query_len, count);
    batch.max_context_len = std::max<int64_t>(batch.max_context_len, piece.position + count);
  }
  missing_.inputs.Upload(missing_.inputs.bytes());
  GatherBlockTables(*device_, slot_tables, missing_.slots.device(), missing_.context_len.device(),
                    batch.num_seqs, limits_.max_blocks_per_seq(), limits_.block_size, block_tables_);
  input.token_ids = missing_.token_ids.device();
  batch.query_start = missing_.query_start.device();
  batch.context_len = missing_.context_len.device();
  batch.block_tables = block_tables_;
  batch.max_blocks_per_seq = limits_.max_blocks_per_seq();
  batch.positions = missing_.positions.device();
  batch.slot_mapping = missing_.slot_mapping.device();
  return model_->Forward(input).status();
}

void DraftModel::BuildInputs(absl::Span<const ProposingSlot> sequences, absl::Span<const size_t> order) {
  const int32_t num_seqs = limits_.max_num_seqs, block_size = limits_.block_size;
  inputs_.Turn();
  query_start_.host()[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ProposingSlot& sequence = sequences[order[i]];
    query_start_.host()[i + 1] = static_cast<int32_t>(i + 1);
    slots_.host()[i] = sequence.slot;
    last_context_.host()[i] = sequence.position + sequence.count;
    tokens_.host()[i] = sequence.token;
    for (int32_t guess = 0; guess < sequence.count; ++guess) {
      const int32_t position = sequence.position + guess;
      const size_t row = static_cast<size_t>(guess) * num_seqs + i;
      positions_.host()[row] = position;
      context_len_.host()[row] = position + 1;
      slot_mapping_.host()[row] =
          sequence.block_ids[position / block_size] * block_size + position % block_size;
    }
  }
  inputs_.Upload(inputs_.bytes());
}

absl::StatusOr<std::vector<std::vector<int32_t>>> DraftModel::Propose(
    absl::Span<const ProposingSlot> sequences, const int32_t* slot_tables) {
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sequences[a].count > sequences[b].count; });
  BuildInputs(sequences, order);
  GatherBlockTables(*device_, slot_tables, slots_.device(), last_context_.device(),
                    static_cast<int64_t>(order.size()), limits_.max_blocks_per_seq(), limits_.block_size,
                    block_tables_);
  const int32_t most = sequences.empty() ? 0 : sequences[order[0]].count;
  for (int32_t guess = 0; guess < most; ++guess) {
    const auto end =
        std::find_if(order.begin(), order.end(), [&](size_t i) { return sequences[i].count <= guess; });
    RETURN_IF_ERROR(ProposeNext(guess, end - order.begin()));
  }
  std::vector<int32_t> rows(static_cast<size_t>(most) * limits_.max_num_seqs);
  device_->CopyToHost(rows.data(), proposed_, static_cast<int64_t>(rows.size() * sizeof(int32_t)));
  RETURN_IF_ERROR(device_->Synchronize());
  RETURN_IF_ERROR(communicator_->status());
  std::vector<std::vector<int32_t>> proposals(sequences.size());
  for (size_t i = 0; i < order.size(); ++i) {
    for (int32_t guess = 0; guess < sequences[order[i]].count; ++guess) {
      const int32_t token = rows[static_cast<size_t>(guess) * limits_.max_num_seqs + i];
      if (token < 0 || token >= limits_.vocab_size) break;  // the logits are not finite
      proposals[order[i]].push_back(token);
    }
  }
  return proposals;
}

absl::Status DraftModel::ProposeNext(int32_t index, int64_t count) {
  const int64_t first_row = int64_t{index} * limits_.max_num_seqs;
  StepInput input;
  // A token that is none, of logits that are not finite, is embedded as zeros.
  input.token_ids = index == 0 ? tokens_.device() : proposed_ + first_row - limits_.max_num_seqs;
  AttentionBatch& batch = input.batch;
  batch.num_seqs = batch.num_tokens = batch.num_decodes = count;
  batch.max_query_len = 1;
  batch.max_context_len = *std::max_element(last_context_.host(), last_context_.host() + count);
  batch.query_start = query_start_.device();
  batch.context_len = context_len_.device() + first_row;
  batch.block_tables = block_tables_;
  batch.max_blocks_per_seq = limits_.max_blocks_per_seq();
  batch.positions = positions_.device() + first_row;
  batch.slot_mapping = slot_mapping_.device() + first_row;
  ASSIGN_OR_RETURN(const TensorView hidden, model_->Forward(input));
  for (int64_t begin = 0; begin < count; begin += head_.max_rows()) {
    const int64_t rows = std::min(head_.max_rows(), count - begin);
    // query_start has the numbers of all rows.
    RETURN_IF_ERROR(head_.ArgMaxTokens(hidden, {query_start_.device() + begin, rows, rows == count},
                                       proposed_ + first_row + begin));
  }
  return absl::OkStatus();
}

}  // namespace somnus
