// One step: batch state, forward pass, logits, sampling.
#include <algorithm>
#include <chrono>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/status_macros.h"
#include "worker/runner/model_runner_impl.h"

namespace somnus {

absl::StatusOr<v1::StepReply> ModelRunnerImpl::Execute(const v1::StepRequest& request) {
  if (!failed_.ok()) return failed_;
  if (context_.kv_cache.empty()) return absl::FailedPreconditionError("the KV cache is not allocated");
  absl::StatusOr<v1::StepReply> reply = ExecuteStep(request);
  if (!reply.ok()) failed_ = reply.status();
  return reply;
}

absl::StatusOr<v1::StepReply> ModelRunnerImpl::ExecuteStep(const v1::StepRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  v1::StepReply reply;
  reply.set_step_id(request.step_id());
  RETURN_IF_ERROR(state_.Free(request));
  RETURN_IF_ERROR(CopyBlocksOf(request));
  RETURN_IF_ERROR(state_.Add(request));
  RETURN_IF_ERROR(state_.Schedule(request));
  if (!state_.scheduled().empty()) RETURN_IF_ERROR(RunModel(communicator_->rank() == 0 ? &reply : nullptr));
  reply.set_compute_us(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start)
          .count());
  return reply;
}

absl::Status ModelRunnerImpl::CopyBlocksOf(const v1::StepRequest& request) {
  RETURN_IF_ERROR(state_.CheckCopies(request));
  if (request.copies().empty() || shards_.kv_heads.empty()) return absl::OkStatus();
  auto flush = [&](int64_t count) {
    if (count > 0) {
      CopyBlocks(*device_, context_.kv_cache.data(), static_cast<int64_t>(context_.kv_cache.size()),
                 copies_src_, copies_dst_, count);
    }
  };
  int64_t count = 0;
  for (const v1::BlockCopy& copy : request.copies()) {
    // Copies of one call may run in any order, so one that touches a block of the others starts a new call.
    const bool touches = std::find(copies_dst_, copies_dst_ + count, copy.src()) != copies_dst_ + count ||
                         std::find(copies_dst_, copies_dst_ + count, copy.dst()) != copies_dst_ + count ||
                         std::find(copies_src_, copies_src_ + count, copy.dst()) != copies_src_ + count;
    if (touches || count == kMaxCopies) {
      flush(count);
      count = 0;
    }
    if (copy.src() == copy.dst()) continue;
    copies_src_[count] = copy.src();
    copies_dst_[count] = copy.dst();
    ++count;
  }
  flush(count);
  return device_->Synchronize();
}

absl::Status ModelRunnerImpl::RunModel(v1::StepReply* reply) {
  device_->BeginStep();
  absl::Cleanup end_step = [this] { device_->EndStep(); };
  const StepInput input = arrays_.Build(state_);
  ASSIGN_OR_RETURN(const TensorView hidden, model_->Forward(input));
  // Prompt tokens first: sampling appends to the slots.
  RETURN_IF_ERROR(ComputePromptLogprobs(hidden, reply));
  RETURN_IF_ERROR(SampleTokens(hidden, reply));
  return device_->Synchronize();
}

absl::Status ModelRunnerImpl::ComputePromptLogprobs(const TensorView& hidden, v1::StepReply* reply) {
  const absl::Span<const LogitRow> rows = arrays_.prompt_rows();
  for (size_t begin = 0; begin < rows.size(); begin += head_.max_rows()) {
    const absl::Span<const LogitRow> piece = rows.subspan(begin, head_.max_rows());
    ASSIGN_OR_RETURN(const TensorView logits, head_.Logits(hidden, piece));
    if (reply != nullptr) sampler_.PromptLogprobs(logits, piece, state_, reply);
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::SampleTokens(const TensorView& hidden, v1::StepReply* reply) {
  const absl::Span<const LogitRow> rows = arrays_.sample_rows();
  const bool greedy = std::all_of(rows.begin(), rows.end(),
                                  [&](const LogitRow& row) { return IsPlainGreedy(state_.slot(row.slot)); });
  for (size_t begin = 0; begin < rows.size(); begin += head_.max_rows()) {
    const absl::Span<const LogitRow> piece = rows.subspan(begin, head_.max_rows());
    int32_t* tokens = tokens_.data() + begin;
    if (greedy) {
      RETURN_IF_ERROR(head_.ArgMaxTokens(hidden, piece, tokens));
      for (size_t i = 0; reply != nullptr && i < piece.size(); ++i) {
        v1::SampledToken* token = reply->add_tokens();
        token->set_slot(piece[i].slot);
        token->set_token_id(tokens[i]);
      }
    } else {
      ASSIGN_OR_RETURN(const TensorView logits, head_.Logits(hidden, piece));
      sampler_.SampleRows(logits, piece, state_, tokens, reply);
    }
  }
  RETURN_IF_ERROR(device_->Synchronize());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= config_.vocab_size) {
      return absl::InternalError(absl::StrCat("the logits of slot ", rows[i].slot, " are not numbers"));
    }
    state_.AppendToken(rows[i].slot, tokens_[i]);
  }
  return absl::OkStatus();
}

}  // namespace somnus
