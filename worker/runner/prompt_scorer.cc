#include "worker/runner/prompt_scorer.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "worker/runner/sampled_rows.h"

namespace somnus {

PromptScorer::PromptScorer(int64_t max_rows) {
  logprobs_ = results_.Take<float>(max_rows);
  ranks_ = results_.Take<int32_t>(max_rows);
  top_ = results_.Take<ScoredToken>(max_rows * kMaxStepLogprobs);
}

absl::Status PromptScorer::Bind(Device* device) {
  device_ = device;
  return results_.Bind(device);
}

absl::Status PromptScorer::Score(const TensorView& logits, absl::Span<const LogitRow> rows,
                                 const BatchState& state, SideStage* side, v1::StepReply* reply) {
  ids_.clear();
  int64_t stride = 0;
  for (const LogitRow& row : rows) {
    const Slot& slot = state.slot(row.slot);
    ids_.push_back(slot.tokens[row.position + 1]);
    stride = std::max<int64_t>(stride, std::min<int64_t>(slot.sampling->num_prompt_logprobs, logits.cols));
  }
  ASSIGN_OR_RETURN(const int32_t* ids, side->Stage(ids_.data(), static_cast<int64_t>(rows.size())));
  LogProbs(*device_, logits, ids, stride, logprobs_.device(), ranks_.device(),
           stride > 0 ? top_.device() : nullptr);
  results_.Download(results_.bytes());
  RETURN_IF_ERROR(device_->Synchronize());
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitRow& row = rows[i];
    const int last = reply->prompt_logprobs_size() - 1;
    // Rows of a sequence follow each other; a piece may continue the sequence of the piece before.
    v1::PromptLogprobs* entry = last >= 0 && reply->prompt_logprobs(last).slot() == row.slot
                                    ? reply->mutable_prompt_logprobs(last)
                                    : nullptr;
    if (entry == nullptr) {
      entry = reply->add_prompt_logprobs();
      entry->set_slot(row.slot);
    }
    if (std::isnan(logprobs_.host()[i])) AddSlotError(row.slot, LogitsNotFiniteError(), reply);
    const int64_t wanted = std::min<int64_t>(state.slot(row.slot).sampling->num_prompt_logprobs, stride);
    AddLogprobs(ids_[i], logprobs_.host()[i], ranks_.host()[i],
                {top_.host() + i * stride, static_cast<size_t>(wanted)}, entry->add_positions());
  }
  return absl::OkStatus();
}

}  // namespace somnus
