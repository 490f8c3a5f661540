#include "coordinator/scheduler/drafts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/limits.h"

namespace somnus {

namespace {

// Takes blocks for lookahead slots, where more than `reserve` are free. Returns how many tokens of a draft of
// `num_draft` there is room for.
size_t TakeLookahead(const Sequence& sequence, size_t num_draft, int32_t reserve, BlockManager* blocks,
                     v1::ScheduledSequence* scheduled) {
  std::vector<int32_t> new_blocks;
  const int64_t num_computed = sequence.num_computed;
  if (blocks->GrowAhead(sequence.id, num_computed + static_cast<int64_t>(num_draft), reserve, &new_blocks)) {
    scheduled->mutable_new_block_ids()->Add(new_blocks.begin(), new_blocks.end());
    return num_draft;
  }
  return static_cast<size_t>(blocks->BlocksFor(num_computed) * int64_t{blocks->block_size()} - num_computed);
}

}  // namespace

void Drafts::AddTo(int32_t num_running, bool preempted, StepBuilder* builder) {
  speculation_.SetHasRoom(!preempted);
  if (preempted || options_.speculation.num_speculative_tokens == 0) return;
  AddTokens(num_running, builder);
  AskForProposals(num_running, builder);
}

void Drafts::AddTokens(int32_t num_running, StepBuilder* builder) {
  v1::StepRequest& request = builder->plan.request;
  int64_t room = std::min<int64_t>(builder->budget, kMaxStepDraftTokens);
  bool has_room = room > 0;
  for (int i = 0; i < request.sequences_size() && room > 0; ++i) {
    ScheduledEntry& entry = builder->step.entries[i];
    Sequence& sequence = *entry.sequence;
    // The sequence decodes, and all of its tokens are known.
    const bool may_have = entry.samples && entry.num_tokens == 1 && sequence.num_pending == 1 &&
                          sequence.num_outputs() > 0 && sequence.draft != nullptr;
    if (!may_have) continue;
    const std::vector<int32_t>& proposed = speculation_.Propose(sequence, room);
    if (proposed.empty()) continue;
    v1::ScheduledSequence* scheduled = request.mutable_sequences(i);
    const size_t count = TakeLookahead(sequence, proposed.size(), num_running, &blocks_, scheduled);
    has_room &= count == proposed.size();
    if (count == 0) continue;
    entry.draft_tokens.assign(proposed.begin(), proposed.begin() + static_cast<std::ptrdiff_t>(count));
    if (scheduled->input_token_ids_size() == 0) NameInput(sequence, scheduled);
    scheduled->mutable_input_token_ids()->Add(entry.draft_tokens.begin(), entry.draft_tokens.end());
    scheduled->set_num_draft_tokens(static_cast<int32_t>(count));
    scheduled->set_num_tokens(static_cast<int32_t>(1 + count));
    Speculation::NoteSent(&sequence, count);
    room -= static_cast<int64_t>(count);
    builder->budget -= static_cast<int64_t>(count);
    builder->plan.num_tokens += static_cast<int32_t>(count);
  }
  speculation_.SetHasRoom(has_room);
}

void Drafts::AskForProposals(int32_t num_running, StepBuilder* builder) {
  v1::StepRequest& request = builder->plan.request;
  int64_t room = std::min<int64_t>(options_.max_num_batched_tokens, kMaxStepDraftTokens);
  for (int i = 0; i < request.sequences_size() && room > 0; ++i) {
    ScheduledEntry& entry = builder->step.entries[i];
    Sequence& sequence = *entry.sequence;
    if (!entry.samples || entry.leader != nullptr) continue;
    entry.num_proposals = speculation_.NumToAsk(&sequence, room);
    if (entry.num_proposals == 0) continue;
    request.mutable_sequences(i)->set_num_proposals(entry.num_proposals);
    room -= entry.num_proposals;
    speculation_.NoteAsked(&sequence);
    if (entry.draft_tokens.empty()) continue;  // workers propose as far as its blocks reach
    // The blocks behind a draft are given back anyway, so that more blocks may be taken ahead.
    const int64_t end = sequence.num_computed + static_cast<int64_t>(entry.draft_tokens.size());
    std::vector<int32_t> new_blocks;
    blocks_.GrowAhead(sequence.id, std::min<int64_t>(end + entry.num_proposals, options_.max_model_len),
                      num_running, &new_blocks);
    request.mutable_sequences(i)->mutable_new_block_ids()->Add(new_blocks.begin(), new_blocks.end());
  }
}

void Drafts::BeginReply(const InFlightStep& step) {
  bool only_decodes = !step.entries.empty() && step.swapped_out.empty() && step.stored.empty();
  bool has_drafts = false;
  for (const ScheduledEntry& entry : step.entries) {
    only_decodes &= entry.num_tokens == 1;
    has_drafts |= entry.num_proposals > 0 || !entry.draft_tokens.empty();
  }
  speculation_.BeginReply(static_cast<int32_t>(step.entries.size()), only_decodes, has_drafts);
}

void Drafts::TakeProposals(const ScheduledEntry& entry, const v1::DraftTokens* proposals) {
  if (entry.num_proposals == 0 || entry.sequence->state != SequenceState::kRunning) return;
  absl::Span<const int32_t> tokens;
  if (proposals != nullptr)
    tokens = {proposals->token_ids().data(), static_cast<size_t>(proposals->token_ids_size())};
  speculation_.TakeProposals(entry.sequence.get(),
                             tokens.subspan(0, static_cast<size_t>(entry.num_proposals)));
}

absl::Status Drafts::Check(const ScheduledEntry& entry, absl::Span<const v1::SampledToken* const> tokens) {
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (i >= entry.draft_tokens.size() || tokens[i]->token_id() != entry.draft_tokens[i])
      return absl::InternalError(absl::StrCat(
          "the reply goes on behind a token that is not that of the draft in slot ", entry.slot));
  }
  return absl::OkStatus();
}

void Drafts::NoteAccepted(const ScheduledEntry& entry, size_t num_tokens, const v1::DraftTokens* proposals) {
  Sequence* const sequence = entry.sequence.get();
  TakeProposals(entry, proposals);
  const bool is_running = sequence->state == SequenceState::kRunning;
  if (!entry.draft_tokens.empty()) {
    speculation_.NoteDraft(sequence, entry.draft_tokens.size(), num_tokens - 1);
    if (is_running) blocks_.Shrink(sequence->id, sequence->num_computed);
  } else if (is_running) {
    speculation_.NoteToken(sequence);
  }
}

}  // namespace somnus
