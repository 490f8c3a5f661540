// ModelRunnerImpl's step: batch state, inputs, forward pass, logits, sampling. Everything is queued;
// step_outcome.h reads the results.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "worker/runner/block_copies.h"
#include "worker/runner/logit_edits.h"
#include "worker/runner/model_runner_impl.h"
#include "worker/runner/trace_range.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<PendingStep>> ModelRunnerImpl::Launch(const v1::StepRequest& request) {
  if (!failed_.ok()) return failed_;
  if (context_.kv_cache.empty()) return absl::FailedPreconditionError("the KV cache is not allocated");
  failed_ = CaptureDeferredGraphs();
  RETURN_IF_ERROR(failed_);
  absl::StatusOr<std::unique_ptr<PendingStep>> step = LaunchStep(request);
  if (!step.ok()) failed_ = step.status();
  return step;
}

absl::StatusOr<std::unique_ptr<PendingStep>> ModelRunnerImpl::LaunchStep(const v1::StepRequest& request) {
  const TraceRange step("step");
  while (!in_flight_.empty() && (static_cast<int>(in_flight_.size()) >= kStepsInFlight ||
                                 in_flight_.front()->read.HasBeenNotified())) {
    RETURN_IF_ERROR(SettleOldest());
  }
  side_.Turn();
  auto outcome = std::make_shared<StepOutcome>();
  outcome->reply.set_step_id(request.step_id());
  outcome->reports_tokens = communicator_->rank() == 0;
  outcome->vocab_size = config_.vocab_size;
  outcome->communicator = communicator_;
  RETURN_IF_ERROR(state_.Branch(request));
  RETURN_IF_ERROR(state_.Free(request));
  RETURN_IF_ERROR(CopyBlocksOf(request));
  RETURN_IF_ERROR(state_.Add(request));
  RETURN_IF_ERROR(state_.Schedule(request));
  RETURN_IF_ERROR(state_.Fork(request));
  for (const int32_t slot : state_.refused_slots()) {
    if (outcome->reports_tokens) AddSlotError(slot, state_.slot(slot).error, &outcome->reply);
  }
  if (!state_.scheduled().empty()) RETURN_IF_ERROR(RunModel(request, outcome.get()));
  const bool copies =
      !request.copies().empty() || !request.swap_outs().empty() || !request.swap_ins().empty();
  if (state_.scheduled().empty() && copies) RETURN_IF_ERROR(MarkDone(outcome.get()));
  in_flight_.push_back(outcome);
  return MakePendingStep(std::move(outcome));
}

absl::Status ModelRunnerImpl::CopyBlocksOf(const v1::StepRequest& request) {
  RETURN_IF_ERROR(state_.CheckCopies(request));
  if (!shards_.kv_heads.empty()) RETURN_IF_ERROR(CopyBlocksOf(request, context_.kv_cache));
  if (draft_model_ == nullptr) return absl::OkStatus();
  for (const v1::BlockCopy& copy : request.copies()) draft_blocks_.Copy(copy.src(), copy.dst());
  return CopyBlocksOf(request, draft_model_->kv_cache());
}

absl::Status ModelRunnerImpl::CopyBlocksOf(const v1::StepRequest& request,
                                           absl::Span<const KvCacheView> layers) {
  if (layers.empty()) return absl::OkStatus();
  const int64_t num_layers = static_cast<int64_t>(layers.size());
  for (const BlockCopyCall& call : PlanBlockCopies(request.copies())) {
    const int64_t count = static_cast<int64_t>(call.src.size());
    ASSIGN_OR_RETURN(const int32_t* src, side_.Stage(call.src.data(), count));
    ASSIGN_OR_RETURN(const int32_t* dst, side_.Stage(call.dst.data(), count));
    CopyBlocks(*device_, layers.data(), num_layers, src, dst, count);
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                                         absl::Span<const BlockSwap> swaps) {
  if (context_.kv_cache.empty()) return absl::FailedPreconditionError("the KV cache is not allocated");
  const int64_t num_blocks = state_.limits().num_blocks;
  for (const BlockSwap& swap : swaps) {
    const bool exists = swap.device_block > kNullBlock && swap.device_block < num_blocks &&
                        swap.host_block >= 0 && swap.host_block < pool.num_blocks;
    if (!exists) {
      return absl::InvalidArgumentError(absl::StrCat("a swap of block ", swap.device_block, " of ",
                                                     num_blocks, " with host block ", swap.host_block, " of ",
                                                     pool.num_blocks));
    }
  }
  const auto swap = [&](absl::Span<const KvCacheView> layers, int64_t offset) {
    const KvHostPool own = {static_cast<uint8_t*>(pool.data) + offset, pool.num_blocks};
    somnus::SwapBlocks(*device_, layers.data(), static_cast<int64_t>(layers.size()), own, direction,
                       swaps.data(), static_cast<int64_t>(swaps.size()));
  };
  if (!shards_.kv_heads.empty()) swap(context_.kv_cache, 0);
  if (draft_model_ == nullptr) return absl::OkStatus();
  swap(draft_model_->kv_cache(), pool.num_blocks * OwnBlockBytes());
  for (const BlockSwap& swapped : swaps) {
    const int64_t host_block = pool.first_block + swapped.host_block;
    direction == SwapDirection::kToHost ? draft_blocks_.SwapOut(swapped.device_block, host_block)
                                        : draft_blocks_.SwapIn(swapped.device_block, host_block);
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::RunModel(const v1::StepRequest& request, StepOutcome* outcome) {
  RETURN_IF_ERROR(SettleWhatIsNeeded());
  device_->BeginStep();
  absl::Cleanup end_step = [this] { device_->EndStep(); };
  inputs_.Turn();
  results_.Turn();

  const auto& scheduled = state_.scheduled();
  const bool decodes_only = state_.num_scheduled_tokens() == static_cast<int32_t>(scheduled.size());
  const int32_t graph_size = decodes_only ? graphs_.PaddedSize(scheduled.size()) : 0;
  {
    const TraceRange range("inputs");
    arrays_.Build(state_, graph_size);
    sampler_.Build(arrays_.sample_rows(), state_, outcome->reports_tokens, request.awaits_masks());
    inputs_.Upload(inputs_.bytes());
    RETURN_IF_ERROR(arrays_.Queue(state_, &side_));
    RETURN_IF_ERROR(sampler_.QueueCounts(state_, &side_));
  }

  ASSIGN_OR_RETURN(const TensorView hidden, RunForward(graph_size));
  RETURN_IF_ERROR(ComputePromptLogprobs(hidden, outcome->reports_tokens ? &outcome->reply : nullptr));
  if (request.awaits_masks()) RETURN_IF_ERROR(AwaitMasks(request));
  RETURN_IF_ERROR(SampleTokens(hidden, request.awaits_masks()));
  results_.Download(sampler_.results_bytes());
  RETURN_IF_ERROR(MarkDone(outcome));
  outcome->sampled = sampler_.TakeResults();
  AppendSampled(outcome);
  return draft_model_ == nullptr ? absl::OkStatus() : RunDraftModel(outcome);
}

absl::Status ModelRunnerImpl::MarkDone(StepOutcome* outcome) {
  ASSIGN_OR_RETURN(outcome->done, device_->CreateEvent());
  outcome->done->Record();
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ModelRunnerImpl::RunForward(int64_t graph_size) {
  const TraceRange range("forward");
  if (graph_size > 0) return graphs_.Launch(static_cast<int32_t>(graph_size));
  return model_->Forward(arrays_.QueueInputs());
}

absl::Status ModelRunnerImpl::ComputePromptLogprobs(const TensorView& hidden, v1::StepReply* reply) {
  const absl::Span<const LogitRow> rows = arrays_.prompt_rows();
  std::vector<int32_t> indices;
  for (size_t begin = 0; begin < rows.size(); begin += head_.max_rows()) {
    const absl::Span<const LogitRow> piece = rows.subspan(begin, head_.max_rows());
    indices.clear();
    for (const LogitRow& row : piece) indices.push_back(row.row);
    const int64_t count = static_cast<int64_t>(piece.size());
    ASSIGN_OR_RETURN(const int32_t* staged, side_.Stage(indices.data(), count));
    ASSIGN_OR_RETURN(const TensorView logits, head_.Logits(hidden, {staged, count, false}));
    if (reply != nullptr) RETURN_IF_ERROR(sampler_.PromptLogprobs(logits, piece, state_, &side_, reply));
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::AwaitMasks(const v1::StepRequest& request) {
  if (communicator_->rank() != 0) return absl::OkStatus();
  if (request.has_masks()) return sampler_.SetMasks(request.masks());
  if (mask_source_ == nullptr) return absl::InvalidArgumentError("the step awaits masks, which cannot come");
  const TraceRange range("masks");
  ASSIGN_OR_RETURN(const v1::StepMasks masks,
                   mask_source_->AwaitMasks(request.group_epoch(), request.step_id()));
  return sampler_.SetMasks(masks);
}

absl::Status ModelRunnerImpl::SampleTokens(const TensorView& hidden, bool masked) {
  const TraceRange range("sample");
  const int64_t num_rows = static_cast<int64_t>(arrays_.sample_rows().size());
  if (num_rows == 0) return absl::OkStatus();
  // A decode batch samples every row in order, each once: no copy.
  const bool all = state_.forked().empty() && arrays_.sample_rows().back().row == num_rows - 1;
  for (int64_t first = 0; first < num_rows; first += head_.max_rows()) {
    const int64_t count = std::min(head_.max_rows(), num_rows - first);
    const LogitRows rows = {arrays_.sample_row_indices() + first, count, all && count == num_rows};
    if (sampler_.plain_greedy()) {
      RETURN_IF_ERROR(head_.ArgMaxTokens(hidden, rows, sampler_.tokens() + first));
    } else {
      ASSIGN_OR_RETURN(const TensorView logits, head_.Logits(hidden, rows));
      RETURN_IF_ERROR(sampler_.QueueSample(logits, first, state_, &side_));
      if (masked) RETURN_IF_ERROR(head_.ShareTokens(sampler_.tokens() + first, count, &side_));
    }
  }
  sampler_.QueueFinish(arrays_.sample_slots(), arrays_.last_tokens());
  return absl::OkStatus();
}

void ModelRunnerImpl::AppendSampled(StepOutcome* outcome) {
  const std::vector<LogitRow>& rows = outcome->sampled.rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t slot = rows[i].slot;
    if (rows[i].has_draft) continue;  // its next step names its input
    if (!device_->asynchronous()) {
      // A sequence that got no token runs on with token 0, until the coordinator frees its slot.
      state_.AppendToken(slot, std::max(0, outcome->sampled.tokens[i]));
    } else {
      outcome->unknown.push_back(
          {slot, state_.slot(slot).generation, state_.AppendToken(slot, kUnknownToken), i});
    }
  }
}

absl::Status ModelRunnerImpl::SettleOldest() {
  const std::shared_ptr<StepOutcome> oldest = in_flight_.front();
  in_flight_.pop_front();
  // The thread that makes the step's reply waits for the device; this one never does.
  oldest->read.WaitForNotification();
  RETURN_IF_ERROR(oldest->status);
  for (const StepOutcome::Unknown& place : oldest->unknown) {
    state_.SetToken(place.slot, place.generation, place.index,
                    std::max(0, oldest->sampled.tokens[place.row]));
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::SettleWhatIsNeeded() {
  const bool needed =
      std::any_of(state_.scheduled().begin(), state_.scheduled().end(),
                  [&](const ScheduledSlot& s) { return s.samples && LooksAtTokens(state_.slot(s.slot)); });
  while (needed && !in_flight_.empty()) RETURN_IF_ERROR(SettleOldest());
  return absl::OkStatus();
}

}  // namespace somnus
