#pragma once
// The effects of replies: which token belongs to which sequence, which sequences end, and which sequences are
// computed again after an error.
//
// Slot errors. A reply may say that one sequence has no result: the sequence ends with kError, its blocks are
// freed, and the contents that it may have written leave the prefix cache. Sequences that could have adopted
// those blocks are computed again (docs/scheduling.md).
//
// Owned by the Scheduler, whose other parts are borrowed. Not thread safe.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/drafts.h"
#include "coordinator/scheduler/host_tier.h"
#include "coordinator/scheduler/live_sequences.h"
#include "coordinator/scheduler/reply_by_slot.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/step_plan.h"

namespace somnus {

class Results {
 public:
  Results(const SchedulerOptions& options, BlockManager* blocks, StepLedger* ledger, HostTier* host_tier,
          Beams* beams, Drafts* drafts, LiveSequences* sequences, SchedulerStats* stats)
      : options_(options),
        blocks_(*blocks),
        ledger_(*ledger),
        host_tier_(*host_tier),
        beams_(*beams),
        drafts_(*drafts),
        sequences_(*sequences),
        stats_(*stats) {}
  Results(const Results&) = delete;

  // Applies the reply to `step`, which the ledger has given up: every entry, in the order of the step.
  std::vector<SequenceOutput> Apply(const InFlightStep& step, const v1::StepReply& reply);

 private:
  void ApplyEntry(const ScheduledEntry& entry, const ReplyBySlot& reply,
                  std::vector<SequenceOutput>* outputs);
  absl::Status ApplyResult(const ScheduledEntry& entry, const ReplyBySlot& reply, RequestOutput* output);
  absl::Status ApplyPooled(const ScheduledEntry& entry, const v1::PooledState* pooled, RequestOutput* output);
  absl::Status ApplyBeam(const ScheduledEntry& entry, const v1::SampledToken& token, RequestOutput* output);
  // Applies the tokens of an entry without beams: one token, and before it those of a draft that was right.
  absl::Status ApplyTokens(const ScheduledEntry& entry, absl::Span<const v1::SampledToken* const> tokens,
                           const v1::DraftTokens* proposals, RequestOutput* output);
  absl::Status AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token, RequestOutput* output);
  // Ends a live sequence with kError, and drops its results in flight.
  void EndWithError(const SequencePtr& sequence, absl::Status error, std::vector<SequenceOutput>* outputs);
  FinishReason CheckStop(const Sequence& sequence, RequestOutput* output) const;

  // False when the sequence is computed again instead of ended.
  bool ApplySlotError(const ScheduledEntry& entry, const absl::Status& error);
  // False only when no block can be in both sequences' tables.
  bool MayShareBlocks(const Sequence& a, const Sequence& b) const;
  // Drops the results in flight, and puts the sequence back to waiting without its blocks.
  void Recompute(const SequencePtr& sequence);

  const SchedulerOptions& options_;
  BlockManager& blocks_;
  StepLedger& ledger_;
  HostTier& host_tier_;
  Beams& beams_;
  Drafts& drafts_;
  LiveSequences& sequences_;
  SchedulerStats& stats_;
};

}  // namespace somnus
