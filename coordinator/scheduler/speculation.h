#pragma once
// Which sequences have drafts, how long ones, and what became of them. Plain state and decisions for the
// Scheduler (draft_tokens.cc), which gives drafts their budget and blocks. Engine loop thread only.
//
// A step with a draft samples at each of its tokens as if that was certain, so the tokens that come out are
// those of steps without: of the samples those count up to and with the first that differs from the draft. A
// draft begins after tokens that are all known. So a sequence that is likely to gain by one waits for its
// pending token where steps overlap, as long as steps have budget left for it.
//
// Drafts may come from the workers, which run a draft model beside the model. A step then asks for so many
// proposals as the sequence's next draft may have, and where it has no drafts now and then for one, to
// compare it with the token that is sampled next. The reply brings them, so the sequence waits for it. Where
// they were wrong in one sequence after the other, few new ones ask (DraftTrials).
//
// Where somebody says how long steps take, drafts must pay (draft_account.h): a sequence whose drafts, and
// guesses for them, take more time than they save has none for a while. Now and then some steps have none at
// all, to measure how long those take.
//
// No drafts have beam searches, whose tokens are chosen from all beams' candidates, and a sequence that runs
// alone, since it may make workers fail.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/request/speculation_counts.h"
#include "coordinator/scheduler/draft_account.h"
#include "coordinator/scheduler/draft_length.h"
#include "coordinator/scheduler/draft_trials.h"
#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

struct SpeculationOptions {
  int32_t num_speculative_tokens = 0;  // of a draft, at most; 0: there are none
  MakeDrafter make_drafter;            // of each sequence
  bool asks_workers = false;           // its drafts are what the workers' draft model proposes
  bool must_pay = true;                // by the time that steps take
};

// A sequence's part.
struct DraftState {
  static constexpr int32_t kLeastRest = 64, kMostRest = 4096;

  DraftLength length;
  std::unique_ptr<Drafter> drafter;  // null: made when it is needed
  int32_t guess = -1;                // what the drafter expects as the next token; -1: nothing
  int32_t num_in_flight = 0;         // draft tokens of the step in flight
  int32_t num_asking = 0;            // steps in flight that ask for proposals
  int32_t pause = 0;                 // tokens to come before workers are asked again; of no drafts
  bool is_judged = false;            // trials_ knows how it fared
  DraftAccount account;
  int32_t rest = 0;  // tokens to come without drafts and guesses, since these did not pay
  int32_t next_rest = kLeastRest;
  bool names_input = false;  // workers hold tokens of a draft, in whose place the next step names others

  explicit DraftState(int32_t most) : length(most) {}
};

class Speculation {
 public:
  Speculation(const SpeculationOptions& options, int32_t max_model_len)
      : options_(options), max_model_len_(max_model_len) {}

  // A reply of a step with `num_sequences` sequences is applied from now on. `only_decodes`: each computes
  // one token, beside its draft's; `has_drafts`: or was asked for proposals.
  void BeginReply(int32_t num_sequences, bool only_decodes, bool has_drafts);
  // How long that step has taken, once the reply is applied.
  void NoteStepTime(double seconds);

  // Whether the sequence is left out of the step in the making: its draft is in flight, or it waits for its
  // pending token to have one.
  bool IsAwaited(const Sequence& sequence);
  // Returns the sequence's draft for a step in which it decodes, all tokens before it being known: at most
  // `most` tokens, and none that could not count, since the request ends before.
  const std::vector<int32_t>& Propose(const Sequence& sequence, int64_t most);
  // The step has that draft, of `num_draft` tokens.
  static void NoteSent(Sequence* sequence, size_t num_draft);
  // Returns for how many proposals a step asks in which the sequence samples, `most` at most: none where
  // workers have no draft model, or no draft could follow.
  int32_t NumToAsk(Sequence* sequence, int64_t most);
  void NoteAsked(Sequence* sequence);
  // The reply to a step that has asked: tokens behind those that are known now. To be called before the two
  // below, of a running sequence.
  void TakeProposals(Sequence* sequence, absl::Span<const int32_t> proposals);
  // A token of a step without a draft has become the last one of a running sequence; or all those of one with
  // a draft have.
  void NoteToken(Sequence* sequence);
  void NoteDraft(Sequence* sequence, size_t num_draft, size_t num_accepted);
  // The sequence does not run any more: what is computed for it is lost.
  static void Leave(Sequence* sequence);
  // Whether the sequence's next step has to name its input, which that step does.
  static bool TakeNamesInput(Sequence* sequence);
  // Whether the last step had budget and blocks left for more drafts.
  void SetHasRoom(bool has_room) { has_room_ = has_room; }

  const SpeculationCounts& counts() const { return counts_; }

 private:
  bool MayDraft(const Sequence& sequence) const;
  // How many tokens a draft may have behind what is known, and `num_pending` more.
  int64_t MostUseful(const Sequence& sequence, int32_t num_pending) const;
  DraftState& StateOf(Sequence* sequence);
  Drafter& DrafterOf(DraftState* state) const;
  void Guess(Sequence* sequence);
  // Of a sequence without drafts whose guesses may have been wrong too often.
  void NoteWrongGuesses(DraftState* state);
  void NoteFailure(DraftState* state);
  // Puts the last step's time to the accounts of those that had drafts in it, or were asked for some.
  void Charge(double seconds);
  void Settle(DraftState* state, DraftAccount::Verdict verdict);

  const SpeculationOptions options_;
  const int32_t max_model_len_;
  bool has_room_ = true;
  DraftTrials trials_;
  PlainStepTimes plain_steps_;
  bool abstains_ = false;  // the next step has no drafts, and asks for none
  // The step whose reply is applied.
  struct Spent {
    std::shared_ptr<DraftState> state;
    size_t num_tokens;  // checked and proposed
    size_t num_accepted;
  };
  struct {
    int32_t num_sequences = 0;
    bool only_decodes = false;
    bool has_drafts = false;
    std::vector<Spent> spent;
  } replied_;
  SpeculationCounts counts_;
  std::vector<int32_t> draft_;  // of the last Propose
};

}  // namespace somnus
