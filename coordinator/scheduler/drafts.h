#pragma once
// Speculative decoding in the schedule: budget, blocks and messages of drafts, and which tokens of a draft a
// reply confirms. Speculation (speculation.h) decides which sequences have drafts, and how long the drafts
// are.
//
// Budget that is left once all sequences have their tokens goes to drafts. The blocks of a draft are
// lookahead slots: taken where more blocks are free than the running sequences may need next, and given back
// where the draft was wrong. Tokens of a draft count as computed only once they are known to be right.
//
// Owned by the Scheduler; owns the Speculation, borrows the blocks. Not thread safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/speculation.h"
#include "coordinator/scheduler/step_builder.h"
#include "coordinator/scheduler/step_ledger.h"

namespace somnus {

class Drafts {
 public:
  Drafts(const SchedulerOptions& options, BlockManager* blocks)
      : options_(options), blocks_(*blocks), speculation_(options.speculation, options.max_model_len) {}
  Drafts(const Drafts&) = delete;

  // Whether a sequence that decodes may be in the step in the making; else the sequence waits for its draft.
  bool MayRun(const Sequence& sequence) {
    return sequence.draft == nullptr || !speculation_.IsAwaited(sequence);
  }
  // The sequence runs no more.
  static void OnPreempt(Sequence* sequence) { Speculation::Leave(sequence); }

  // Adds drafts to the step, and asks the workers' draft model for proposals. `preempted`: the step has
  // preempted a sequence, so that it has no drafts.
  void AddTo(int32_t num_running, bool preempted, StepBuilder* builder);

  // The reply to `step` is applied from now on.
  void BeginReply(const InFlightStep& step);
  // Internal unless all tokens of an entry with a draft but the last are those of the draft.
  static absl::Status Check(const ScheduledEntry& entry, absl::Span<const v1::SampledToken* const> tokens);
  // All `num_tokens` tokens of an entry, with or without a draft, were accepted. `proposals` may be null.
  void NoteAccepted(const ScheduledEntry& entry, size_t num_tokens, const v1::DraftTokens* proposals);
  // How long the step of the last reply has taken.
  void NoteStepTime(double seconds) { speculation_.NoteStepTime(seconds); }

  const SpeculationCounts& counts() const { return speculation_.counts(); }

 private:
  void AddTokens(int32_t num_running, StepBuilder* builder);
  void AskForProposals(int32_t num_running, StepBuilder* builder);
  void TakeProposals(const ScheduledEntry& entry, const v1::DraftTokens* proposals);

  const SchedulerOptions& options_;
  BlockManager& blocks_;
  Speculation speculation_;
};

}  // namespace somnus
