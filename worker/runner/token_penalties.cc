#include "worker/runner/token_penalties.h"

#include <algorithm>

#include "base/status_macros.h"
#include "worker/runner/logit_edits.h"

namespace somnus {

TokenPenalties::TokenPenalties(const BatchLimits& limits, MirroredBlock* inputs) : limits_(limits) {
  penalties_ = inputs->Take<PenaltyRow>(limits.max_num_seqs + kMaxStepDraftTokens);
  count_slots_ = inputs->Take<int32_t>(limits.max_num_seqs + kMaxStepDraftTokens);
}

void TokenPenalties::Carve(Carver* carver, const Device& device) {
  const int64_t slots = limits_.max_num_seqs, words = (limits_.vocab_size + 31) / 32;
  counts_.vocab = limits_.vocab_size;
  if (!device.asynchronous()) return;  // see AllocateHostCounts
  counts_.outputs = carver->Take<int32_t>(slots * limits_.vocab_size);
  counts_.in_prompt = carver->Take<uint32_t>(slots * words);
}

absl::Status TokenPenalties::AllocateHostCounts() {
  const int64_t slots = limits_.max_num_seqs, words = (limits_.vocab_size + 31) / 32;
  host_counts_.reset();  // first: the pages that were touched need not be kept, since no slot is in use
  host_counts_.reset(std::calloc(slots * (limits_.vocab_size + words), sizeof(int32_t)));
  if (host_counts_ == nullptr) {
    return absl::ResourceExhaustedError("no host memory for the token counts of max_num_seqs sequences");
  }
  counts_.outputs = static_cast<int32_t*>(host_counts_.get());
  counts_.in_prompt = reinterpret_cast<uint32_t*>(counts_.outputs + slots * limits_.vocab_size);
  return absl::OkStatus();
}

absl::Status TokenPenalties::Bind(Device* device) {
  device_ = device;
  return device->asynchronous() ? absl::OkStatus() : AllocateHostCounts();
}

void TokenPenalties::Build(absl::Span<const LogitRow> rows, const BatchState& state) {
  rows_ = rows;
  places_.clear();
  any_ = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot& slot = state.slot(rows[i].slot);
    const bool has_penalties = slot.sampling->has_penalties();
    any_ |= has_penalties;
    const bool continues = has_penalties && i > 0 && rows[i - 1].slot == rows[i].slot;
    places_.push_back(continues ? places_[i - 1] + 1 : 0);
    penalties_.host()[i] = PenaltyOf(slot, continues ? -1 : rows[i].slot);
    count_slots_.host()[i] = rows[i].has_draft ? -1 : penalties_.host()[i].slot;
  }
}

absl::Status TokenPenalties::QueueCounts(const BatchState& state, SideStage* side) {
  for (const int32_t index : state.added_slots()) {
    const Slot& slot = state.slot(index);
    if (!slot.sampling->has_penalties()) continue;
    ASSIGN_OR_RETURN(const int32_t* cleared, side->Stage(&index, 1));
    ClearTokenCounts(*device_, counts_, cleared, 1);
    RETURN_IF_ERROR(side->ForEachPiece(
        slot.tokens.data(), slot.num_prompt_tokens,
        [&](int64_t, const int32_t* ids, int64_t n) { MarkPromptTokens(*device_, counts_, index, ids, n); }));
    const int32_t num_outputs = slot.num_outputs() - slot.num_drafts;
    const std::vector<int32_t> slots(num_outputs, index);
    RETURN_IF_ERROR(side->ForEachPiece(slot.tokens.data() + slot.num_prompt_tokens, num_outputs,
                                       [&](int64_t first, const int32_t* ids, int64_t n) {
                                         absl::StatusOr<const int32_t*> staged =
                                             side->Stage(slots.data() + first, n);
                                         if (staged.ok()) CountTokens(*device_, counts_, *staged, ids, n);
                                       }));
  }
  return absl::OkStatus();
}

// At each token of a draft the earlier tokens of the draft count as outputs. The slot's next step, which
// names the input, counts anew.
absl::Status TokenPenalties::QueuePenalties(const TensorView& logits, int64_t first, const BatchState& state,
                                            SideStage* side) {
  if (!any_) return absl::OkStatus();
  ApplyPenalties(*device_, logits, penalties_.device() + first, counts_);
  const auto places = places_.begin() + first;
  const int32_t last = *std::max_element(places, places + logits.rows);
  for (int32_t place = 1; place <= last; ++place) {
    std::vector<PenaltyRow> penalties(logits.rows, PenaltyRow{-1, 1, 0, 0});
    std::vector<int32_t> slots, ids;
    for (int64_t i = 0; i < logits.rows; ++i) {
      if (places[i] != place) continue;
      slots.push_back(rows_[first + i].slot);
      ids.push_back(rows_[first + i - 1].guess);
      penalties[i] = PenaltyOf(state.slot(slots.back()), slots.back());
    }
    if (slots.empty()) continue;
    const auto count = static_cast<int64_t>(slots.size());
    ASSIGN_OR_RETURN(const int32_t* staged_slots, side->Stage(slots.data(), count));
    ASSIGN_OR_RETURN(const int32_t* staged_ids, side->Stage(ids.data(), count));
    ASSIGN_OR_RETURN(const PenaltyRow* staged, side->Stage(penalties.data(), logits.rows));
    CountTokens(*device_, counts_, staged_slots, staged_ids, count);
    ApplyPenalties(*device_, logits, staged, counts_);
  }
  return absl::OkStatus();
}

void TokenPenalties::QueueFinish(const int32_t* tokens) {
  if (!any_) return;
  CountTokens(*device_, counts_, count_slots_.device(), tokens, static_cast<int64_t>(rows_.size()));
}

}  // namespace somnus
