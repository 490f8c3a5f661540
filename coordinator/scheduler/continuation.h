#pragma once
// Which running sequences go on in the step in the making, as Admission says which waiting sequences start:
// decodes first, then chunks of prompts, both in the order of service, while the budget lasts
// (docs/scheduling.md). Also which sequences are preempted where a running sequence has too few blocks.
//
// Invariant: between two calls of Run no sequence is held here.
//
// Decisions only: LiveSequences changes states. Owned by the Scheduler, whose other parts are borrowed. Not
// thread safe.

#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/drafts.h"
#include "coordinator/scheduler/live_sequences.h"
#include "coordinator/scheduler/long_prompts.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/step_builder.h"

namespace somnus {

class Continuation {
 public:
  Continuation(const SchedulerOptions& options, const LongPrompts& long_prompts, BlockManager* blocks,
               Beams* beams, Drafts* drafts, LiveSequences* sequences)
      : options_(options),
        long_prompts_(long_prompts),
        blocks_(*blocks),
        beams_(*beams),
        drafts_(*drafts),
        sequences_(*sequences) {}
  Continuation(const Continuation&) = delete;

  // Spends the budget of a new step on decodes and on chunks of running prompts. Returns whether a sequence
  // was preempted. Long prompts beyond max_long_partial_prefills become the builder's overtakers.
  bool Run(StepBuilder* builder);
  // Gives those long prompts the tokens that nothing else took.
  void AddOvertakers(StepBuilder* builder);

 private:
  // The first decode in the order of service comes first.
  void AddDecodes(StepBuilder* builder);
  bool IsDecodeDue(const Sequence& sequence);
  // Adds the next token of a sequence whose blocks are full, or of a group of beams.
  void AddDecode(const SequencePtr& sequence, StepBuilder* builder);
  // Preempts for a prompt, too, that gives blocks back on the way, so that the prompt has a block for its
  // next token.
  void AddUnfinished(StepBuilder* builder);
  void AddPrefills(const SequencePtr& sequence, StepBuilder* builder);
  // Preempts the last sequence in the order of service with the other choices of its request, or lets a pin
  // give way where only that sequence runs. False: `sequence` itself was preempted, or nothing was, since the
  // step computes beams of the last sequence already.
  bool PreemptFor(const SequencePtr& sequence, StepBuilder* builder);

  const SchedulerOptions& options_;
  const LongPrompts& long_prompts_;
  BlockManager& blocks_;
  Beams& beams_;
  Drafts& drafts_;
  LiveSequences& sequences_;
  // The running sequences that have more than one token to compute, or beams, in the order of service.
  std::vector<SequencePtr> unfinished_;
  bool preempted_ = false;  // a sequence, or a pin gave way, in the step in the making
};

}  // namespace somnus
