#include "coordinator/scheduler/speculation.h"

#include <algorithm>
#include <utility>

namespace somnus {

bool Speculation::MayDraft(const Sequence& sequence) const {
  return options_.num_speculative_tokens > 0 && sequence.beam.group == nullptr && !sequence.runs_alone;
}

int64_t Speculation::MostUseful(const Sequence& sequence, int32_t num_pending) const {
  const int64_t outputs = sequence.request.max_tokens - sequence.num_outputs();
  const int64_t places = max_model_len_ - static_cast<int64_t>(sequence.tokens.size());
  // Behind the draft one more token is sampled.
  return std::min(outputs, places) - num_pending - 1;
}

void Speculation::BeginReply(int32_t num_sequences, bool only_decodes, bool has_drafts) {
  replied_ = {num_sequences, only_decodes, has_drafts, {}};
}

void Speculation::NoteStepTime(double seconds) {
  abstains_ = false;
  if (!options_.must_pay || options_.num_speculative_tokens == 0 || !replied_.only_decodes) return;
  replied_.has_drafts ? Charge(seconds) : plain_steps_.Observe(replied_.num_sequences, seconds);
  abstains_ = plain_steps_.Lacks(replied_.num_sequences);
}

void Speculation::Charge(double seconds) {
  plain_steps_.NoteStepWithDrafts(replied_.num_sequences);
  const double plain = plain_steps_.Seconds(replied_.num_sequences);
  double num_tokens = 0;
  for (const Spent& spent : replied_.spent) num_tokens += static_cast<double>(spent.num_tokens);
  if (plain <= 0 || num_tokens == 0) return;
  const double cost = (seconds / plain - 1) * replied_.num_sequences;
  for (const Spent& spent : replied_.spent) {
    const double share = static_cast<double>(spent.num_tokens) / num_tokens;
    Settle(spent.state.get(),
           spent.state->account.Note(static_cast<double>(spent.num_accepted), share * cost));
  }
}

void Speculation::Settle(DraftState* state, DraftAccount::Verdict verdict) {
  if (verdict == DraftAccount::Verdict::kPays) {
    state->next_rest = std::max(DraftState::kLeastRest, state->next_rest / 2);
    state->is_judged = true;
    trials_.NoteSuccess();
  } else if (verdict == DraftAccount::Verdict::kDoesNotPay) {
    state->length.End();
    state->rest = state->next_rest;
    state->next_rest = std::min(DraftState::kMostRest, 2 * state->next_rest);
    NoteFailure(state);
  }
}

bool Speculation::IsAwaited(const Sequence& sequence) {
  DraftState* state = sequence.draft.get();
  if (state == nullptr) return false;
  if (state->num_in_flight > 0) return true;
  if (sequence.num_pending == 0 || !has_room_ || abstains_) return false;
  if (MostUseful(sequence, sequence.num_pending) < 1) return false;
  if (!state->forced.empty()) return state->forced.size() > static_cast<size_t>(sequence.num_pending);
  if (state->length.value() == 0) return false;
  if (options_.asks_workers) return state->num_asking > 0;
  if (state->guess < 0) return false;
  // The pending token is expected to be the first token of the draft.
  state->drafter->Propose(sequence.tokens, 2, &draft_);
  return draft_.size() == 2;
}

const std::vector<int32_t>& Speculation::Propose(const Sequence& sequence, int64_t most) {
  draft_.clear();
  DraftState* state = sequence.draft.get();
  if (state == nullptr || abstains_) return draft_;
  most = std::min(most, MostUseful(sequence, 0));
  if (!state->forced.empty()) {
    const int64_t count = std::clamp<int64_t>(most, 0, static_cast<int64_t>(state->forced.size()));
    draft_.assign(state->forced.begin(), state->forced.begin() + count);
    return draft_;
  }
  most = std::min(most, static_cast<int64_t>(state->length.value()));
  if (most > 0 && state->drafter != nullptr)
    state->drafter->Propose(sequence.tokens, static_cast<int32_t>(most), &draft_);
  return draft_;
}

void Speculation::NoteSent(Sequence* sequence, size_t num_draft) {
  sequence->draft->num_in_flight = static_cast<int32_t>(num_draft);
  sequence->draft->sends_forced = !sequence->draft->forced.empty();
  sequence->draft->names_input = true;
}

bool Speculation::TakeNamesInput(Sequence* sequence) {
  return sequence->draft != nullptr && std::exchange(sequence->draft->names_input, false);
}

DraftState& Speculation::StateOf(Sequence* sequence) {
  if (sequence->draft == nullptr) {
    sequence->draft = std::make_shared<DraftState>(options_.num_speculative_tokens);
    if (options_.asks_workers) sequence->draft->pause = trials_.FirstPause();
  }
  return *sequence->draft;
}

Drafter& Speculation::DrafterOf(DraftState* state) const {
  if (state->drafter == nullptr) state->drafter = options_.make_drafter();
  return *state->drafter;
}

int32_t Speculation::NumToAsk(Sequence* sequence, int64_t most) {
  if (!options_.asks_workers || !MayDraft(*sequence) || abstains_) return 0;
  const DraftState& state = StateOf(sequence);
  if (state.rest > 0 || (state.length.value() == 0 && state.pause > 0)) return 0;
  // Where steps have no room for drafts, a guess is enough.
  const int32_t length = has_room_ ? state.length.value() : 0;
  most = std::min({most, MostUseful(*sequence, sequence->num_pending), int64_t{std::max(1, length)}});
  return static_cast<int32_t>(std::max<int64_t>(0, most));
}

void Speculation::NoteAsked(Sequence* sequence) { ++StateOf(sequence).num_asking; }

void Speculation::TakeProposals(Sequence* sequence, absl::Span<const int32_t> proposals) {
  DraftState& state = StateOf(sequence);
  state.num_asking = std::max(0, state.num_asking - 1);
  replied_.spent.push_back({sequence->draft, proposals.size(), 0});
  DrafterOf(&state).TakeProposals(sequence->tokens.size(), proposals);
}

void Speculation::NoteToken(Sequence* sequence) {
  if (!MayDraft(*sequence)) return;
  AskConstraint(sequence);
  DraftState& state = StateOf(sequence);
  state.pause = std::max(0, state.pause - 1);
  if (state.rest > 0) {
    --state.rest;
    state.guess = -1;
    return;
  }
  if (state.guess >= 0) {
    state.length.NoteGuess(sequence->tokens.back() == state.guess);
    state.pause = state.length.pause();
    NoteWrongGuesses(&state);
  }
  Guess(sequence);
}

void Speculation::NoteWrongGuesses(DraftState* state) {
  if (state->length.value() == 0 && state->pause >= DraftTrials::kWrongPause) NoteFailure(state);
}

void Speculation::NoteFailure(DraftState* state) {
  if (std::exchange(state->is_judged, true)) return;
  trials_.NoteFailure();
}

void Speculation::NoteDraft(Sequence* sequence, size_t num_draft, size_t num_accepted) {
  counts_.AddDraft(num_draft, num_accepted);
  DraftState& state = *sequence->draft;
  if (sequence->state == SequenceState::kRunning) AskConstraint(sequence);
  if (std::exchange(state.sends_forced, false)) {
    state.num_in_flight = 0;
    if (sequence->state == SequenceState::kRunning) Guess(sequence);
    return;
  }
  state.length.NoteDraft(static_cast<int32_t>(num_draft), static_cast<int32_t>(num_accepted));
  state.num_in_flight = 0;
  state.pause = state.length.pause();
  replied_.spent.push_back({sequence->draft, num_draft, num_accepted});
  // Where time is measured, that tells more (Settle).
  if (num_accepted == num_draft && plain_steps_.Seconds(replied_.num_sequences) == 0) {
    state.is_judged = true;
    trials_.NoteSuccess();
  }
  if (sequence->state == SequenceState::kRunning) Guess(sequence);
}

void Speculation::AskConstraint(Sequence* sequence) {
  DraftState& state = StateOf(sequence);
  state.forced.clear();
  if (sequence->matcher != nullptr)
    sequence->matcher->ForcedTokens(options_.num_speculative_tokens, &state.forced);
}

void Speculation::Guess(Sequence* sequence) {
  DraftState& state = *sequence->draft;
  DrafterOf(&state).Propose(sequence->tokens, 1, &draft_);
  state.guess = draft_.empty() ? -1 : draft_[0];
}

void Speculation::Leave(Sequence* sequence) {
  if (sequence->draft == nullptr) return;
  DraftState& state = *sequence->draft;
  state.drafter.reset();
  state.guess = -1;
  state.forced.clear();
  state.sends_forced = false;
  state.num_in_flight = state.num_asking = 0;
  state.names_input = false;
}

}  // namespace somnus
