// ModelRunnerImpl's part for a draft model: the model computes what the large one has computed, and goes on
// from what that has sampled.
#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "worker/runner/model_runner_impl.h"
#include "worker/runner/trace_range.h"

namespace somnus {

absl::Status ModelRunnerImpl::RunDraftModel(StepOutcome* outcome) {
  const TraceRange range("draft model");
  RETURN_IF_ERROR(draft_model_->Forward(arrays_.Inputs()));
  const bool proposes = std::any_of(state_.scheduled().begin(), state_.scheduled().end(),
                                    [](const ScheduledSlot& slot) { return slot.num_proposals > 0; });
  if (!proposes) return absl::OkStatus();
  // Which token of a draft was the last that counts decides where proposals begin, and the host must know it.
  RETURN_IF_ERROR(device_->Synchronize());
  const std::vector<ProposingSlot> slots = SlotsThatPropose(outcome->sampled);
  if (slots.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto proposals, draft_model_->Propose(slots, arrays_.slot_tables()));
  if (!outcome->reports_tokens) return absl::OkStatus();
  for (size_t i = 0; i < slots.size(); ++i) {
    v1::DraftTokens* draft = outcome->reply.add_drafts();
    draft->set_slot(slots[i].slot);
    draft->mutable_token_ids()->Add(proposals[i].begin(), proposals[i].end());
  }
  return absl::OkStatus();
}

// Ranks must find the same, so log-probabilities, which only rank 0 has, do not count.
std::vector<ProposingSlot> ModelRunnerImpl::SlotsThatPropose(const SampledRows& sampled) const {
  const BatchLimits& limits = state_.limits();
  std::vector<int32_t> wanted(limits.max_num_seqs, 0);
  for (const ScheduledSlot& scheduled : state_.scheduled()) wanted[scheduled.slot] = scheduled.num_proposals;
  std::vector<ProposingSlot> slots;
  bool counts = true;
  for (size_t i = 0; i < sampled.rows.size(); ++i) {
    const LogitRow& row = sampled.rows[i];
    const bool is_first = i == 0 || sampled.rows[i - 1].slot != row.slot;
    // As in the reply: up to and with the first token that is not the draft's.
    counts = (is_first || (counts && sampled.tokens[i - 1] == sampled.rows[i - 1].guess)) &&
             sampled.tokens[i] >= 0;
    if (!counts || wanted[row.slot] == 0) continue;
    const std::vector<int32_t>& blocks = state_.slot(row.slot).block_ids;
    const int64_t end =
        std::min<int64_t>(limits.max_model_len, static_cast<int64_t>(blocks.size()) * limits.block_size);
    if (!is_first) slots.pop_back();  // of the token before
    const int32_t position = row.position + 1;
    const auto room = static_cast<int32_t>(std::max<int64_t>(0, end - position));
    slots.push_back({row.slot, sampled.tokens[i], position, std::min(wanted[row.slot], room), blocks});
  }
  std::erase_if(slots, [](const ProposingSlot& slot) { return slot.count == 0; });
  return slots;
}

}  // namespace somnus
