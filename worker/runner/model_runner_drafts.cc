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
  bool has_prompts = false, proposes = false;
  for (const ScheduledSlot& scheduled : state_.scheduled()) {
    draft_progress_.Begin(scheduled.slot, state_.slot(scheduled.slot).generation, scheduled.start);
    has_prompts |= scheduled.num_tokens - scheduled.num_drafts > 1;
    proposes |= scheduled.num_proposals > 0;
  }
  if (has_prompts) RETURN_IF_ERROR(ComputeStepByDraftModel());
  if (!proposes) return absl::OkStatus();
  // Which token of a draft was the last that counts decides where proposals begin, and the host must know it.
  RETURN_IF_ERROR(device_->Synchronize());
  const std::vector<ProposingSlot> slots = SlotsThatPropose(outcome->sampled);
  if (slots.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CatchUpByDraftModel(slots));
  ASSIGN_OR_RETURN(const auto proposals, draft_model_->Propose(slots, arrays_.slot_tables()));
  for (size_t i = 0; i < slots.size(); ++i) {
    // It has computed each but the last.
    const size_t computed = std::min(proposals[i].size(), static_cast<size_t>(slots[i].count - 1));
    draft_progress_.Set(slots[i].slot, slots[i].position + 1,
                        absl::MakeConstSpan(proposals[i]).subspan(0, computed));
  }
  if (!outcome->reports_tokens) return absl::OkStatus();
  for (size_t i = 0; i < slots.size(); ++i) {
    v1::DraftTokens* draft = outcome->reply.add_drafts();
    draft->set_slot(slots[i].slot);
    draft->mutable_token_ids()->Add(proposals[i].begin(), proposals[i].end());
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::ComputeStepByDraftModel() {
  RETURN_IF_ERROR(draft_model_->Forward(arrays_.Inputs()));
  for (const ScheduledSlot& scheduled : state_.scheduled()) {
    const std::vector<int32_t>& tokens = state_.slot(scheduled.slot).tokens;
    if (draft_progress_.Reached(scheduled.slot, tokens, scheduled.start) < scheduled.start) continue;
    const int32_t end = scheduled.start + scheduled.num_tokens - scheduled.num_drafts;
    draft_progress_.Set(scheduled.slot, end,
                        absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(end),
                                                            static_cast<size_t>(scheduled.num_drafts)));
  }
  return absl::OkStatus();
}

absl::Status ModelRunnerImpl::CatchUpByDraftModel(absl::Span<const ProposingSlot> slots) {
  const auto is_unknown = [](int32_t token) { return token < 0; };
  std::vector<MissingTokens> missing;
  for (const ProposingSlot& proposing : slots) {
    const Slot& slot = state_.slot(proposing.slot);
    const auto end = slot.tokens.begin() + proposing.position;
    // A step before this one has sampled them, and the device is past it.
    while (!in_flight_.empty() && std::any_of(slot.tokens.begin(), end, is_unknown))
      RETURN_IF_ERROR(SettleOldest());
    const int32_t begin = draft_progress_.Reached(proposing.slot, slot.tokens, proposing.position);
    if (begin == proposing.position) continue;
    const auto tokens = absl::MakeConstSpan(slot.tokens).subspan(static_cast<size_t>(begin));
    missing.push_back({proposing.slot, begin,
                       tokens.subspan(0, static_cast<size_t>(proposing.position - begin)), slot.block_ids});
  }
  return draft_model_->CatchUp(missing, arrays_.slot_tables());
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
