#include "worker/runner/model_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "worker/runner/block_copies.h"
#include "worker/runner/logit_edits.h"
#include "worker/runner/model_runner_impl.h"
#include "worker/runner/model_sizes.h"
#include "worker/runner/profile_steps.h"
#include "worker/runner/trace_range.h"

namespace somnus {
namespace {

// A rank without KV heads still counts blocks; the bytes keep divisions by a block's size sane.
constexpr int64_t kMinBlockBytes = 64;

BatchLimits LimitsOf(const ModelRunnerOptions& options, const ModelConfig& config) {
  BatchLimits limits;
  limits.max_num_seqs = std::max(0, options.max_num_seqs);
  limits.max_num_batched_tokens = options.max_num_batched_tokens;
  limits.max_model_len = options.max_model_len;
  limits.block_size = options.block_size;
  limits.vocab_size = config.vocab_size;
  const bool has_draft = !options.draft_model_path.empty();
  limits.max_proposals = has_draft ? options.num_speculative_tokens : 0;
  limits.max_adapters = options.max_adapters;
  limits.attention_reach = has_draft ? 0 : config.AttentionReach();  // as the coordinator's scheduler
  return limits;
}

absl::Status NoKvCache() { return absl::FailedPreconditionError("the KV cache is not allocated"); }

absl::Status CheckSwaps(const KvHostPool& pool, absl::Span<const BlockSwap> swaps, int64_t num_blocks) {
  for (const BlockSwap& swap : swaps) {
    const bool exists = swap.device_block > kNullBlock && swap.device_block < num_blocks &&
                        swap.host_block >= 0 && swap.host_block < pool.num_blocks;
    if (!exists) {
      return absl::InvalidArgumentError(absl::StrCat("a swap of block ", swap.device_block, " of ",
                                                     num_blocks, " with host block ", swap.host_block, " of ",
                                                     pool.num_blocks));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Load(const Checkpoint& checkpoint,
                                                               const ModelRunnerOptions& options,
                                                               Device* device, Communicator* communicator,
                                                               SleepableAllocator* allocator,
                                                               const Progress& progress) {
  RETURN_IF_ERROR(CheckPipeline(options.pipeline, checkpoint.config().num_layers));
  auto runner = std::make_unique<ModelRunnerImpl>(checkpoint, options, device, communicator, allocator);
  RETURN_IF_ERROR(runner->Init(checkpoint, progress));
  return runner;
}

ModelRunnerImpl::ModelRunnerImpl(const Checkpoint& checkpoint, const ModelRunnerOptions& options,
                                 Device* device, Communicator* communicator, SleepableAllocator* allocator)
    : options_(options),
      device_(*device),
      communicator_(*communicator),
      allocator_(*allocator),
      model_(checkpoint, options, device, communicator, allocator, kMinBlockBytes),
      state_(LimitsOf(options, model_.config())),
      batch_(options, &model_, &state_, device, communicator),
      tuner_(&model_.context(), &model_.head(), options.max_tune_time),
      steps_(&state_) {}

ModelRunnerImpl::~ModelRunnerImpl() {
  device_.Synchronize().IgnoreError();  // nothing may run on memory that is released
  device_.SetWorkspace(nullptr, 0);
  if (workspace_region_ != nullptr) allocator_.Free(workspace_region_).IgnoreError();
}

absl::Status ModelRunnerImpl::Init(const Checkpoint& checkpoint, const Progress& progress) {
  RETURN_IF_ERROR(CheckRunnerOptions(options_, model_.config(), device_));
  RETURN_IF_ERROR(model_.Allocate(checkpoint));
  if (communicator_.rank() == 0) {
    const RankWeights& weights = model_.weights();
    if (CacheTypeOf(options_) == DataType::kF8E4M3) LogKvScales(weights.kv_scales());
    LogInfo("weights: {}{}", weights.DescribeTypes(), weights.StoredTypesNote(checkpoint));
  }
  RETURN_IF_ERROR(model_.weights().Read(checkpoint, progress));
  if (!options_.draft_model_path.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<DraftModel> draft,
                     DraftModel::Load(options_, state_.limits(), &device_, &communicator_, &allocator_));
    drafts_ = std::make_unique<DraftRunner>(std::move(draft), &device_, &state_, &batch_.arrays(), &steps_);
  }
  if (options_.max_adapters > 0) {
    adapters_ = std::make_unique<RankAdapters>(model_.config(), model_.shards(), options_, &device_);
    model_.UseAdapters(&adapters_->weights());
    batch_.UseAdapters(&adapters_->places());
  }
  return AllocateWorkspace();
}

int64_t ModelRunnerImpl::CarveWorkspace(void* base) {
  Carver carver(base);
  ops_scratch_ = carver.Take<uint8_t>(ops_scratch_bytes_);
  model_.Carve(&carver);
  if (adapters_ != nullptr) adapters_->Carve(&carver);
  batch_.Carve(&carver);
  return carver.bytes();
}

absl::Status ModelRunnerImpl::AllocateWorkspace() {
  ops_scratch_bytes_ = model_.ops_workspace_bytes();
  if (drafts_ != nullptr)
    ops_scratch_bytes_ = std::max(ops_scratch_bytes_, drafts_->model().ops_workspace_bytes());
  ASSIGN_OR_RETURN(workspace_region_, allocator_.Allocate(kWorkspaceTag, CarveWorkspace(nullptr)));
  CarveWorkspace(workspace_region_);
  const bool sleeps = allocator_.Stats()[kWorkspaceTag].sleeping > 0;
  return sleeps ? absl::OkStatus() : BindWorkspace();  // while asleep, ResetAfterWake binds
}

absl::Status ModelRunnerImpl::BindWorkspace() {
  device_.SetWorkspace(ops_scratch_, ops_scratch_bytes_);
  RETURN_IF_ERROR(batch_.Bind());
  if (adapters_ != nullptr) adapters_->EmptyPlaces();
  if (drafts_ != nullptr) RETURN_IF_ERROR(drafts_->model().BindWorkspace());
  return model_.FillTables();
}

std::string ModelRunnerImpl::weight_types() const {
  const std::string own = model_.weights().DescribeTypes();
  return drafts_ == nullptr ? own : absl::StrCat(own, "; draft model: ", drafts_->model().weight_types());
}

std::vector<WeightPiece> ModelRunnerImpl::weight_pieces() const {
  std::vector<WeightPiece> pieces = model_.weights().pieces();
  if (drafts_ == nullptr) return pieces;
  for (const WeightPiece& piece : drafts_->model().weight_pieces())
    pieces.push_back({absl::StrCat("draft_model:", piece.name), piece.data, piece.bytes});
  return pieces;
}

int64_t ModelRunnerImpl::kv_block_bytes() const {
  return model_.cache().block_bytes() + (drafts_ == nullptr ? 0 : drafts_->model().kv_block_bytes());
}

// ---- Before the first step: all memory that serving needs is taken when the KV cache is given the rest.

absl::Status ModelRunnerImpl::Profile() {
  // On a host everything that a step touches is in regions that are resident since the mapping; a short step
  // only warms the code. A device allocates and loads lazily, so there the largest batches run.
  const bool lazy = device_.kind() != DeviceKind::kCpu;
  const int32_t batch = std::min(options_.max_num_batched_tokens, options_.max_model_len);
  const int32_t num_tokens = lazy ? batch : std::min(batch, 8);
  const int32_t total_blocks = (num_tokens + options_.block_size - 1) / options_.block_size;
  const int32_t num_blocks = static_cast<int32_t>(NumBlocks(total_blocks));
  // First, so that the steps below run as all later steps.
  RETURN_IF_ERROR(tuner_.Run(options_.max_num_batched_tokens, batch_.graphs().batch_sizes()));
  RETURN_IF_ERROR(AllocateBlocks(num_blocks, num_blocks));
  absl::Status status = Execute(LongestPrompt(num_tokens, total_blocks)).status();
  if (status.ok() && lazy) {
    const int32_t num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
    state_.AllowNullBlock(true);
    status = Execute(WidestBatch(num_seqs, model_.config().vocab_size, state_.limits().max_proposals > 0))
                 .status();
    state_.AllowNullBlock(false);
  }
  steps_.Clear();  // Execute has waited for all steps
  RETURN_IF_ERROR(FreeScratchBlocks());
  return status;
}

// Captures every graph, and keeps all graphs at once: how much a graph takes depends on the kernels and on
// the rest of the driver's last allocation, so a few graphs would say little about the rest.
absl::StatusOr<GraphReport> ModelRunnerImpl::ProfileGraphs() {
  if (!batch_.graphs().enabled()) return GraphReport{};
  // A call that frees memory may wait for the whole device. Without the barrier, a rank that still frees
  // could wait for a rank on the same device that is ahead and waits for the first rank in a collective.
  RETURN_IF_ERROR(communicator_.Barrier());
  RETURN_IF_ERROR(AllocateBlocks(2, 2));  // graphs keep the addresses, but are never launched
  absl::StatusOr<GraphReport> report = batch_.CaptureGraphs();
  RETURN_IF_ERROR(FreeScratchBlocks());
  return report;
}

// All ranks come here at the same step, with an empty batch: the first step of an epoch.
absl::Status ModelRunnerImpl::CaptureDeferredGraphs() {
  if (!batch_.graphs().TakeDeferred()) return absl::OkStatus();
  // A rank that joined a group which profiled long ago has not measured matrix products yet.
  RETURN_IF_ERROR(tuner_.Run(options_.max_num_batched_tokens, batch_.graphs().batch_sizes()));
  return batch_.CaptureGraphs().status();
}

// ---- The KV cache.

absl::Status ModelRunnerImpl::AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks,
                                              bool defer_graphs) {
  RETURN_IF_ERROR(AllocateBlocks(num_blocks, num_mapped_blocks));
  batch_.graphs().Defer(defer_graphs);
  return defer_graphs ? absl::OkStatus() : batch_.CaptureGraphs().status();
}

absl::Status ModelRunnerImpl::AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
  if (num_mapped_blocks < 2 || num_mapped_blocks > num_blocks ||
      num_blocks > std::numeric_limits<int32_t>::max() / options_.block_size ||
      num_blocks > std::numeric_limits<int64_t>::max() / kv_block_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a KV cache cannot have ", num_blocks, " blocks, ", num_mapped_blocks, " with memory"));
  }
  RETURN_IF_ERROR(model_.FreeBlocks());
  state_.Clear();
  state_.SetNumBlocks(0);
  batch_.graphs().Clear();
  RETURN_IF_ERROR(model_.AllocateBlocks(num_blocks, num_mapped_blocks));
  if (drafts_ != nullptr) {
    const absl::Status status = drafts_->AllocateBlocks(num_blocks, num_mapped_blocks);
    if (!status.ok()) {
      model_.FreeBlocks().IgnoreError();  // neither model has a cache now
      return status;
    }
  }
  state_.SetNumBlocks(num_mapped_blocks);
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::FreeScratchBlocks() {
  state_.Clear();
  state_.SetNumBlocks(0);
  if (drafts_ != nullptr) RETURN_IF_ERROR(drafts_->model().FreeBlocks());
  return model_.FreeBlocks();
}

absl::Status ModelRunnerImpl::ResizeKvCache(int32_t num_mapped_blocks) {
  if (!model_.cache().allocated()) return NoKvCache();
  const int32_t num_blocks = model_.cache().num_blocks();
  if (num_mapped_blocks < 2 || num_mapped_blocks > num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks: ", num_mapped_blocks, " is not from 2 to ", num_blocks));
  }
  RETURN_IF_ERROR(state_.CheckUnused(num_mapped_blocks));
  RETURN_IF_ERROR(device_.Synchronize());  // nothing may run on memory that is released
  RETURN_IF_ERROR(ResizeRegions(num_mapped_blocks));
  state_.SetNumBlocks(num_mapped_blocks);
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::ResizeRegions(int32_t num_mapped_blocks) {
  RETURN_IF_ERROR(model_.ResizeBlocks(num_mapped_blocks));
  if (drafts_ == nullptr) return absl::OkStatus();
  const absl::Status status = drafts_->model().ResizeBlocks(num_mapped_blocks);
  // Only growth fails, and the way back is none.
  if (!status.ok()) model_.ResizeBlocks(state_.limits().num_blocks).IgnoreError();
  return status;
}

absl::Status ModelRunnerImpl::SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                                         absl::Span<const BlockSwap> swaps) {
  if (!model_.cache().allocated()) return NoKvCache();
  RETURN_IF_ERROR(CheckSwaps(pool, swaps, state_.limits().num_blocks));
  model_.cache().Swap(direction, {pool.data, pool.num_blocks}, swaps);
  if (drafts_ == nullptr) return absl::OkStatus();
  const int64_t own_bytes = pool.num_blocks * model_.cache().block_bytes();
  drafts_->Swap(direction, pool, static_cast<uint8_t*>(pool.data) + own_bytes, swaps);
  return absl::OkStatus();
}

// ---- Steps.

absl::Status ModelRunnerImpl::BeginEpoch() {
  steps_.Drain();
  device_.Synchronize().IgnoreError();  // with the errors of failed steps
  RETURN_IF_ERROR(device_.Synchronize());
  // The KV cache keeps the entries that failed steps have written. That is safe, because nothing reads a
  // block's entry before the entry is written: attention reads a sequence's context alone (zeros replace the
  // rest of a tile), every token of which was computed by a step that has ended well or is computed again,
  // and padded rows have no context (and write to the null block).
  state_.Clear();
  if (drafts_ != nullptr && model_.cache().allocated()) drafts_->ForgetBlocks();
  failed_ = absl::OkStatus();
  if (communicator_.world_size() > 1) batch_.graphs().BeginEpoch();  // graphs without collectives stay good
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PendingStep>> ModelRunnerImpl::Launch(const v1::StepRequest& request) {
  if (!failed_.ok()) return failed_;
  if (!model_.cache().allocated()) return NoKvCache();
  failed_ = CaptureDeferredGraphs();
  RETURN_IF_ERROR(failed_);
  absl::StatusOr<std::unique_ptr<PendingStep>> step = LaunchStep(request);
  if (!step.ok()) failed_ = step.status();
  return step;
}

absl::StatusOr<std::unique_ptr<PendingStep>> ModelRunnerImpl::LaunchStep(const v1::StepRequest& request) {
  const TraceRange step("step");
  RETURN_IF_ERROR(steps_.MakeRoom());
  batch_.BeginStep();
  auto outcome = std::make_shared<StepOutcome>();
  outcome->reply.set_step_id(request.step_id());
  outcome->reports_tokens = model_.reports();
  outcome->vocab_size = model_.config().vocab_size;
  outcome->communicator = &communicator_;
  RETURN_IF_ERROR(state_.Branch(request));
  RETURN_IF_ERROR(state_.Free(request));
  RETURN_IF_ERROR(CopyBlocksOf(request));
  RETURN_IF_ERROR(state_.Add(request));
  RETURN_IF_ERROR(state_.Schedule(request));
  RETURN_IF_ERROR(state_.Fork(request));
  for (const int32_t slot : state_.refused_slots()) {
    if (outcome->reports_tokens) AddSlotError(slot, state_.slot(slot).error, &outcome->reply);
  }
  if (!state_.scheduled().empty()) RETURN_IF_ERROR(RunBatch(request, outcome.get()));
  const bool copies =
      !request.copies().empty() || !request.swap_outs().empty() || !request.swap_ins().empty();
  if (state_.scheduled().empty() && copies) RETURN_IF_ERROR(batch_.MarkDone(outcome.get()));
  steps_.Add(outcome);
  return MakePendingStep(std::move(outcome));
}

absl::Status ModelRunnerImpl::CopyBlocksOf(const v1::StepRequest& request) {
  RETURN_IF_ERROR(state_.CheckCopies(request));
  if (request.copies().empty()) return absl::OkStatus();
  const std::vector<BlockCopyCall> calls = PlanBlockCopies(request.copies());
  RETURN_IF_ERROR(model_.cache().Copy(calls, batch_.side()));
  return drafts_ == nullptr ? absl::OkStatus() : drafts_->Copy(request, calls, batch_.side());
}

absl::Status ModelRunnerImpl::RunBatch(const v1::StepRequest& request, StepOutcome* outcome) {
  const bool looks_at_tokens =
      std::any_of(state_.scheduled().begin(), state_.scheduled().end(),
                  [&](const ScheduledSlot& s) { return s.samples && LooksAtTokens(state_.slot(s.slot)); });
  if (looks_at_tokens) RETURN_IF_ERROR(steps_.SettleAll());
  if (adapters_ != nullptr) RETURN_IF_ERROR(adapters_->Place(state_));
  device_.BeginStep();
  const absl::Cleanup end_step = [this] { device_.EndStep(); };
  RETURN_IF_ERROR(batch_.Run(request, outcome));
  steps_.AppendSampled(device_.asynchronous(), outcome);
  return drafts_ == nullptr ? absl::OkStatus() : drafts_->Run(outcome);
}

absl::StatusOr<uint64_t> ModelRunnerImpl::SelfCheck() {
  if (!failed_.ok()) return failed_;
  if (!model_.cache().allocated()) return NoKvCache();
  if (!state_.empty()) return absl::FailedPreconditionError("a sequence has a slot");
  absl::StatusOr<uint64_t> fingerprint = batch_.SelfCheck();
  if (!fingerprint.ok()) failed_ = fingerprint.status();
  return fingerprint;
}

absl::Status ModelRunnerImpl::SetAdapters(absl::Span<const v1::WorkerAdapter> adapters) {
  if (adapters.empty() && adapters_ == nullptr) return absl::OkStatus();
  if (adapters_ == nullptr)
    return absl::FailedPreconditionError("adapters: the server was started without --enable-lora");
  RETURN_IF_ERROR(device_.Synchronize());  // nothing may run on adapters that are replaced
  RETURN_IF_ERROR(adapters_->Set(adapters));
  state_.SetAdapters(adapters_->loaded());
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::ResetAfterWake() {
  state_.Clear();
  if (drafts_ != nullptr) drafts_->ForgetSequences();
  steps_.Clear();
  return BindWorkspace();
}

// ---- Other weights in the place of the weights that were loaded.

absl::Status ModelRunnerImpl::CheckReload(const Checkpoint& checkpoint) const {
  return model_.weights().CheckReload(checkpoint);
}

absl::StatusOr<std::vector<FileRange>> ModelRunnerImpl::WeightRanges(const Checkpoint& checkpoint) const {
  return model_.weights().Ranges(checkpoint);
}

absl::Status ModelRunnerImpl::ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) {
  RETURN_IF_ERROR(model_.weights().Reload(checkpoint, progress));
  return drafts_ == nullptr ? absl::OkStatus() : drafts_->model().ReadWeights();
}

absl::StatusOr<std::unique_ptr<UpdatedTensors>> ModelRunnerImpl::BeginWeightUpdate(bool needs_all) {
  ASSIGN_OR_RETURN(std::unique_ptr<UpdatedTensors> update, model_.weights().BeginUpdate(needs_all));
  // Where the model's weights are not there, neither are the draft model's, which no update brings.
  if (drafts_ != nullptr && needs_all) RETURN_IF_ERROR(drafts_->model().ReadWeights());
  model_.weights().DropBackups();
  return update;
}

}  // namespace somnus
