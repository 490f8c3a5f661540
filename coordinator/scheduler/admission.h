#pragma once
// Which waiting sequences start to run in the step in the making: in the order of service, while slots,
// blocks and budget last (docs/scheduling.md). Also which running sequences a more urgent waiting sequence
// displaces, and how much work is ahead of a waiting sequence.
//
// A sequence without room stops admission, so that later sequences do not take the awaited room. A
// sequence that waits for another sequence (a fork, a new prefix), for a place among long prompts or for its
// adapter is passed over.
//
// Decisions only: LiveSequences changes states. Owned by the Scheduler, whose other parts are borrowed. Not
// thread safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/fork_copies.h"
#include "coordinator/scheduler/host_tier.h"
#include "coordinator/scheduler/live_sequences.h"
#include "coordinator/scheduler/long_prompts.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/slots.h"
#include "coordinator/scheduler/step_builder.h"

namespace somnus {

class Admission {
 public:
  Admission(const SchedulerOptions& options, const LongPrompts& long_prompts, BlockManager* blocks,
            const Slots& slots, ForkCopies* copies, HostTier* host_tier, Beams* beams,
            LiveSequences* sequences, SchedulerStats* stats)
      : options_(options),
        long_prompts_(long_prompts),
        blocks_(*blocks),
        slots_(slots),
        copies_(*copies),
        host_tier_(*host_tier),
        beams_(*beams),
        sequences_(*sequences),
        stats_(*stats) {}
  Admission(const Admission&) = delete;

  // Admits waiting sequences to the step.
  void Run(StepBuilder* builder);
  // Preempts less urgent sequences for the first waiting sequence, when that has no room otherwise.
  void DisplaceForFirstWaiting();
  // Begins the forks of sequences that sample their first token in the step.
  void BeginForks(StepBuilder* builder);
  // How many prompt tokens, those of the sequence included, are computed before a waiting sequence has its
  // first token: an estimate from the present state and the order of service. Looks at every sequence ahead.
  int64_t BacklogOf(const Sequence& sequence);

 private:
  enum class Verdict { kOk, kSkip, kStop };
  // The state of one Run.
  struct Walk {
    StepBuilder* builder;
    size_t num_reserved = 0;                         // slots for forks of this step
    int skipped = 0;                                 // prompts that were passed over
    std::vector<LongPrompt> passed;                  // the long prompts among these
    std::shared_ptr<PreemptedTogether> coming_back;  // the choices that come back now
    bool adapter_waits = false;                      // a sequence was passed over for its adapter
  };

  // Whether the sequence may be admitted, is passed over, or stops admission, as far as other sequences
  // decide.
  Verdict CheckOthers(const SequencePtr& sequence, Walk* walk);
  // The same by the bounds for prompts that one step does not complete. Notes long prompts that are passed
  // over.
  Verdict CheckPartialPrefills(const Sequence& sequence, Walk* walk);
  // Whether the sequence must wait because it runs alone, or because a running sequence does.
  bool IsKeptApart(const Sequence& sequence) const;
  // Whether the sequence must wait for its adapter: as many others run as may run at once. Later sequences
  // with adapters wait, too, or the sequence might wait for ever.
  bool AwaitsAdapter(const Sequence& sequence, bool another_waits) const;
  // Whether prompts of this step compute, now or later, tokens that the sequence would have to compute
  // itself. Compares tokens once for each prompt that the sequence waits for.
  bool AwaitsPrefix(Sequence* sequence, const StepBuilder& builder);
  // Whether there is room for all that wait together with a sequence.
  bool MayComeBack(const SequencePtr& sequence, size_t num_slots);
  bool IgnoresWatermark(const Sequence& sequence) const;

  // Takes blocks and a slot for the sequence, and sends it. False: there is no room.
  bool Admit(const SequencePtr& sequence, StepBuilder* builder);
  // Returns how many tokens are in the cache already; -1 when there are too few blocks.
  int64_t TakeBlocks(const SequencePtr& sequence);
  void NoteScheduled(const SequencePtr& sequence, StepPlan* plan);
  bool Fork(const Sequence& source, const SequencePtr& sequence, StepBuilder* builder);

  // Prompt tokens that the prefix cache does not have.
  int64_t NumToCompute(const Sequence& sequence);
  SwappedSequences::Room RoomFor(const std::vector<SequencePtr>& all, bool ignore_watermark);
  // How many more blocks the sequence, or all that come back with it, need; 0 or less: none.
  int32_t BlocksMissing(const SequencePtr& sequence);

  const SchedulerOptions& options_;
  const LongPrompts& long_prompts_;
  BlockManager& blocks_;
  const Slots& slots_;
  ForkCopies& copies_;
  HostTier& host_tier_;
  Beams& beams_;
  LiveSequences& sequences_;
  SchedulerStats& stats_;
};

}  // namespace somnus
