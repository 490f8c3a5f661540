#pragma once
// Which sequences have drafts, how long the drafts are, and how many of their tokens were right. State and
// decisions; Drafts (drafts.h), the owner, gives drafts their budget and blocks. Engine loop thread only.
//
// A step with a draft samples at each token of the draft as if that token was certain. The samples count up
// to and with the first that differs from the draft, so that the tokens are those of steps without drafts. A
// draft begins after tokens that are all known. So a sequence that is likely to gain by a draft waits for its
// pending token where steps overlap, as long as steps have budget left for the draft.
//
// Drafts may come from the workers, which run a draft model beside the model. A step then asks for as many
// proposals as the sequence's next draft may have. For a sequence without drafts, a step asks now and then
// for one proposal, to compare it with the token that is sampled next. The reply brings the proposals, so
// that the sequence waits for the reply. Where proposals were wrong in one sequence after the other, few new
// sequences ask (DraftTrials).
//
// Where step times are told, drafts must pay (draft_account.h): a sequence whose drafts, and guesses for
// them, take more time than they save has none for a while. Now and then some steps have no drafts at all, to
// measure how long such steps take.
//
// Where a sequence's constraint leaves no choice (TokenMatcher::ForcedTokens), the draft is the forced
// tokens, whatever the drafter expects. Forced drafts are nearly always right: the account of the other
// drafts does not see them.
//
// Beam searches have no drafts, since their tokens are chosen from all beams' candidates; nor has a sequence
// that runs alone, since it may make workers fail.

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
  int32_t num_speculative_tokens = 0;  // most tokens of a draft; 0: there are no drafts
  MakeDrafter make_drafter;            // called for each sequence
  bool asks_workers = false;           // drafts are proposals of the workers' draft model
  bool must_pay = true;                // by the time that steps take
};

// The part of a sequence that is about drafts.
struct DraftState {
  static constexpr int32_t kLeastRest = 64, kMostRest = 4096;

  DraftLength length;
  std::unique_ptr<Drafter> drafter;  // null: made when it is needed
  int32_t guess = -1;                // the token that the drafter expects next; -1: none
  int32_t num_in_flight = 0;         // draft tokens of the step in flight
  int32_t num_asking = 0;            // steps in flight that ask for proposals
  int32_t pause = 0;                 // without drafts: tokens to come before workers are asked again
  bool is_judged = false;            // trials_ knows how the sequence fared
  DraftAccount account;
  int32_t rest = 0;  // tokens to come without drafts and guesses, which did not pay
  int32_t next_rest = kLeastRest;
  std::vector<int32_t> forced;  // behind the known tokens
  bool sends_forced = false;    // the step in flight has a forced draft
  bool names_input = false;     // workers hold tokens of a draft: the next step names its input instead

  explicit DraftState(int32_t most) : length(most) {}
};

class Speculation {
 public:
  Speculation(const SpeculationOptions& options, int32_t max_model_len)
      : options_(options), max_model_len_(max_model_len) {}

  // The reply to a step with `num_sequences` sequences is applied from now on. `only_decodes`: each sequence
  // computes one token, beside its draft. `has_drafts`: the step has drafts, or asks for proposals.
  void BeginReply(int32_t num_sequences, bool only_decodes, bool has_drafts);
  // How long that step has taken, once the reply is applied.
  void NoteStepTime(double seconds);

  // Whether the sequence is left out of the step in the making: its draft is in flight, or it waits for its
  // pending token to have one.
  bool IsAwaited(const Sequence& sequence);
  // Returns the sequence's draft for a step in which the sequence decodes and all its tokens are known: at
  // most `most` tokens, and none beyond the end of the request.
  const std::vector<int32_t>& Propose(const Sequence& sequence, int64_t most);
  // The step has that draft, of `num_draft` tokens.
  static void NoteSent(Sequence* sequence, size_t num_draft);
  // Returns for how many proposals, at most `most`, a step asks in which the sequence samples: none where
  // workers have no draft model, or no draft could follow.
  int32_t NumToAsk(Sequence* sequence, int64_t most);
  void NoteAsked(Sequence* sequence);
  // The reply to a step that has asked: proposals for the tokens behind the known ones. To be called before
  // NoteToken and NoteDraft, for a running sequence.
  void TakeProposals(Sequence* sequence, absl::Span<const int32_t> proposals);
  // The token of a step without a draft has become the last token of a running sequence; or all tokens of a
  // step with a draft have been accepted.
  void NoteToken(Sequence* sequence);
  void NoteDraft(Sequence* sequence, size_t num_draft, size_t num_accepted);
  // The sequence runs no more, and its computed tokens are lost.
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
  void AskConstraint(Sequence* sequence);
  // Notes a failure if the guesses for a sequence without drafts were wrong too often.
  void NoteWrongGuesses(DraftState* state);
  void NoteFailure(DraftState* state);
  // Charges the last step's time to the sequences that had drafts in it, or for which it asked for proposals.
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
