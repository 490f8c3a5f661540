#include "worker/runner/draft_runner.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "worker/runner/trace_range.h"

namespace somnus {

DraftRunner::DraftRunner(std::unique_ptr<DraftModel> model, Device* device, const BatchState* state,
                         const StepArrays* arrays, UnsettledSteps* steps)
    : model_(std::move(model)),
      device_(*device),
      state_(*state),
      arrays_(*arrays),
      steps_(*steps),
      progress_(state->limits().max_num_seqs),
      blocks_(state->limits().block_size) {}

absl::Status DraftRunner::AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
  RETURN_IF_ERROR(model_->AllocateBlocks(num_blocks, num_mapped_blocks));
  ForgetBlocks();
  return absl::OkStatus();
}

absl::Status DraftRunner::Copy(const v1::StepRequest& request, absl::Span<const BlockCopyCall> calls,
                               SideStage* side) {
  for (const v1::BlockCopy& copy : request.copies()) blocks_.Copy(copy.src(), copy.dst());
  return model_->cache().Copy(calls, side);
}

void DraftRunner::Swap(SwapDirection direction, const KvHostPool& pool, void* own,
                       absl::Span<const BlockSwap> swaps) {
  model_->cache().Swap(direction, {own, pool.num_blocks}, swaps);
  for (const BlockSwap& swapped : swaps) {
    const int64_t host_block = pool.first_block + swapped.host_block;
    direction == SwapDirection::kToHost ? blocks_.SwapOut(swapped.device_block, host_block)
                                        : blocks_.SwapIn(swapped.device_block, host_block);
  }
}

absl::Status DraftRunner::Run(StepOutcome* outcome) {
  const TraceRange range("draft model");
  NoteBlockEdits();
  NoteNewSequences();
  const auto& scheduled = state_.scheduled();
  const bool proposes = std::any_of(scheduled.begin(), scheduled.end(),
                                    [](const ScheduledSlot& slot) { return slot.num_proposals > 0; });
  if (!proposes) return absl::OkStatus();
  // Proposals begin behind the last token of a draft that counts, and the host must know that token.
  RETURN_IF_ERROR(device_.Synchronize());
  std::vector<ProposingSlot> slots = SlotsThatPropose(outcome->sampled);
  RETURN_IF_ERROR(CatchUp(&slots));
  if (slots.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto proposals, model_->Propose(slots, arrays_.slot_tables()));
  for (size_t i = 0; i < slots.size(); ++i) {
    // The draft model has computed each guess but the last.
    const size_t computed = std::min(proposals[i].size(), static_cast<size_t>(slots[i].count - 1));
    NoteComputed(slots[i].slot, slots[i].position + 1,
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

void DraftRunner::NoteBlockEdits() {
  if (state_.block_edits().empty()) return;
  std::vector<int32_t> starts(state_.limits().max_num_seqs, -1);
  for (const ScheduledSlot& scheduled : state_.scheduled()) starts[scheduled.slot] = scheduled.start;
  for (const BlockTableEdit& edit : state_.block_edits()) {
    const int32_t start = starts[edit.slot];  // -1: the step computes nothing of the sequence
    blocks_.Enter(edit.block_id, edit.index, start < 0 ? state_.slot(edit.slot).num_computed : start);
    progress_.CutAt(edit.slot, edit.index * state_.limits().block_size);
  }
}

void DraftRunner::NoteNewSequences() {
  for (const ScheduledSlot& scheduled : state_.scheduled()) {
    const Slot& slot = state_.slot(scheduled.slot);
    if (!progress_.IsNew(scheduled.slot, slot.generation)) continue;
    // The block of the next token may have served the sequence's source, which went on with other tokens.
    const int32_t index = scheduled.start / state_.limits().block_size;
    blocks_.Enter(slot.block_ids[static_cast<size_t>(index)], index, scheduled.start);
    progress_.Begin(scheduled.slot, slot.generation, blocks_.NumTokens(slot.block_ids));
  }
}

absl::StatusOr<MissingTokens> DraftRunner::MissingBefore(const ProposingSlot& proposing) {
  const Slot& slot = state_.slot(proposing.slot);
  const auto end = slot.tokens.begin() + proposing.position;
  const auto is_unknown = [](int32_t token) { return token < 0; };
  // An earlier step has sampled the unknown tokens, and the device is past that step.
  while (!steps_.empty() && std::any_of(slot.tokens.begin(), end, is_unknown))
    RETURN_IF_ERROR(steps_.SettleOldest());
  const int32_t begin = progress_.Reached(proposing.slot, slot.tokens, proposing.position);
  const auto tokens = absl::MakeConstSpan(slot.tokens);
  return MissingTokens{proposing.slot, begin, tokens.subspan(begin, proposing.position - begin),
                       slot.block_ids};
}

absl::Status DraftRunner::CatchUp(std::vector<ProposingSlot>* slots) {
  std::vector<MissingTokens> pieces;
  std::vector<ProposingSlot> ready;
  auto room = static_cast<size_t>(state_.limits().max_num_batched_tokens);
  for (const ProposingSlot& proposing : *slots) {
    ASSIGN_OR_RETURN(MissingTokens missing, MissingBefore(proposing));
    if (missing.token_ids.size() <= room) ready.push_back(proposing);
    missing.token_ids = missing.token_ids.subspan(0, room);
    room -= missing.token_ids.size();
    if (!missing.token_ids.empty()) pieces.push_back(missing);
  }
  *slots = std::move(ready);
  if (pieces.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(model_->CatchUp(pieces, arrays_.slot_tables()));
  for (const MissingTokens& piece : pieces) {
    const auto count = static_cast<int32_t>(piece.token_ids.size());
    NoteComputed(piece.slot, piece.position + count, {});
  }
  return absl::OkStatus();
}

void DraftRunner::NoteComputed(int32_t slot, int32_t end, absl::Span<const int32_t> guesses) {
  const Slot& own = state_.slot(slot);
  blocks_.NoteComputed(own.block_ids, progress_.noted(slot), end);
  progress_.Set(slot, end, guesses);
}

// Ranks must find the same slots, so log-probabilities, which only rank 0 has, do not count.
std::vector<ProposingSlot> DraftRunner::SlotsThatPropose(const SampledRows& sampled) const {
  const BatchLimits& limits = state_.limits();
  std::vector<int32_t> wanted(limits.max_num_seqs, 0);
  for (const ScheduledSlot& scheduled : state_.scheduled()) wanted[scheduled.slot] = scheduled.num_proposals;
  std::vector<ProposingSlot> slots;
  bool counts = true;
  for (size_t i = 0; i < sampled.rows.size(); ++i) {
    const LogitRow& row = sampled.rows[i];
    const bool is_first = i == 0 || sampled.rows[i - 1].slot != row.slot;
    // As in the reply: up to the first token that is not the draft's, and with that token.
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
