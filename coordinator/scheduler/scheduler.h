#pragma once
// Continuous batching: decides which sequences compute how many tokens in the next step, and keeps their
// blocks. docs/scheduling.md has the policy: the order of service, how a step spends its budget, preemption
// and suspension, forks and beams, drafts, and slot errors.
//
// The Scheduler itself makes the steps; its parts decide and remember the rest. LiveSequences: which
// sequences run and which wait. Continuation: which running sequences go on. Admission: which waiting
// sequences start. Results: the effects of a reply. StepLedger: the steps in flight. Slots, BlockManager and
// ForkCopies: the resources of sequences. HostTier, Beams, Choices, Drafts and KeptSequences: one feature
// each.
//
// Contract: no I/O, no clock, no randomness: the same calls give the same steps. Not thread safe (engine loop
// only). Replies must be given to Update in the order of the steps.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/constraints.h"
#include "coordinator/scheduler/continuation.h"
#include "coordinator/scheduler/drafts.h"
#include "coordinator/scheduler/fork_copies.h"
#include "coordinator/scheduler/host_tier.h"
#include "coordinator/scheduler/kept_sequences.h"
#include "coordinator/scheduler/live_sequences.h"
#include "coordinator/scheduler/long_prompts.h"
#include "coordinator/scheduler/preemption_cost.h"
#include "coordinator/scheduler/results.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/slots.h"
#include "coordinator/scheduler/step_builder.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/step_plan.h"
#include "proto/worker.pb.h"

namespace somnus {

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;

  // Queues a request that passed CheckRequest; its id must not be live. A request with progress goes on from
  // there: its sequence waits like a preempted sequence.
  SequencePtr Add(EngineRequest request) { return sequences_.Add(std::move(request)); }
  // Ends a live sequence and frees its blocks at once (see block_manager.h for why that is safe with steps in
  // flight). Null when the id is not live.
  SequencePtr Abort(const std::string& request_id);
  // Ends all sequences, in order.
  std::vector<SequencePtr> AbortAll();
  // Ends the sequences that have expired by `now`, waiting or running, as Abort does.
  std::vector<ExpiredSequence> Expire(MonotonicTime now);
  MonotonicTime NextExpiry() const { return sequences_.expiries().next(); }
  // Admission::BacklogOf.
  int64_t BacklogOf(const Sequence& sequence) { return admission_.BacklogOf(sequence); }

  // The prices of preemptions from now on.
  void SetPrices(const PreemptionPrices& prices) { host_tier_.SetPrices(prices); }

  // Makes the next step. When the plan is empty(), nothing can be computed now, and the plan must not be
  // sent.
  StepPlan Schedule();
  // Gives back the message of a step that was sent, whose memory later steps use again.
  void Reuse(v1::StepRequest sent) { ledger_.Reuse(std::move(sent)); }
  // The masks that the oldest step in flight awaits, once: masks depend on the replies to the steps before.
  // Without a value the step awaits none.
  std::optional<v1::StepMasks> TakeMasks();
  // Applies the reply to the oldest step not yet updated: every entry, in the order of the step's sequences,
  // which is also the order of the outputs. A sequence with a slot error, or that the reply does not fit,
  // ends with kError; the other sequences still get their results. Internal when the reply is not to that
  // step; nothing has changed then.
  absl::StatusOr<std::vector<SequenceOutput>> Update(const v1::StepReply& reply);
  // How long the step of the last Update has taken. Without times drafts need not pay.
  void NoteStepTime(double seconds) { drafts_.NoteStepTime(seconds); }

  // All running sequences go back to waiting, and none has blocks any more. No step may be in flight.
  void PreemptAll();
  // All running sequences wait, and keep their blocks. No step may be in flight.
  void SuspendAll();

  // Blocks that outlive a sleep of the KV cache.
  KeptSequences& kept() { return kept_; }
  // Everything is computed again: no sequence has blocks, nothing is cached, nothing is kept. No step may be
  // in flight.
  void ForgetComputed(CacheLoss cause = CacheLoss::kReset);

  // Gives up the steps in flight after a failure in which their results and the workers' batch state were
  // lost. Their sequences go on with the tokens that were delivered, all running sequences wait again, and no
  // block that was computed before is adopted any more. Afterwards the workers must have no slot taken.
  // Returns the live sequences of these steps, each once, in the order in which they were sent.
  std::vector<SequencePtr> Recover();
  // Gives all sequences away, in the order of service, each with its progress: another scheduler's Add goes
  // on with exactly the same tokens. No sequence may be running, which Recover and PreemptAll see to.
  std::vector<EngineRequest> ReleaseAll();
  // Makes a step that frees slots, and computes nothing; a step that frees no slot must not be sent.
  StepPlan FlushFreedSlots();
  void ResetPrefixCache() { blocks_.ResetPrefixCache(); }
  std::vector<BlockEvent> TakeCacheEvents() { return blocks_.cache().TakeEvents(); }
  std::vector<BlockStay> TakeBlockStays() { return blocks_.TakeStays(); }
  PrefixPins& pins() { return blocks_.pins(); }
  // BlockManager::SetLimit. One sequence of max_model_len must fit.
  void SetBlockLimit(int32_t num_blocks) { blocks_.SetLimit(num_blocks); }

  int32_t num_running() const { return sequences_.num_running(); }
  int32_t num_waiting() const { return static_cast<int32_t>(sequences_.waiting().size()); }
  // How many of the waiting sequences have run before; of these, how many are swapped out.
  int32_t num_preempted() const { return sequences_.num_preempted(); }
  int32_t num_swapped() const { return host_tier_.num_swapped(); }
  bool has_sequences() const { return !sequences_.empty(); }
  const SchedulerStats& stats() const { return stats_; }
  const SpeculationCounts& speculation() const { return drafts_.counts(); }
  const BlockManager& blocks() const { return blocks_; }
  const LiveSequences& sequences() const { return sequences_; }

  // Internal unless blocks add up, tables belong to running and suspended sequences, and every slot is used
  // once.
  absl::Status CheckIntegrity() const;
  // The same check of sequences, and BlockManager::CheckNextBlocks, whose time does not grow with the number
  // of blocks.
  absl::Status CheckSome();

 private:
  StepPlan MakeStep();
  // Completes a step whose tokens are decided, by swaps, copies, forks and drafts, and hands it to the
  // ledger.
  StepPlan Send(bool preempted, StepBuilder* builder);
  // Blocks that the step attends last are free for the next step.
  void GiveBackUnseen(const StepBuilder& builder);

  const SchedulerOptions options_;
  const LongPrompts long_prompts_;
  SchedulerStats stats_;
  BlockManager blocks_;
  StepLedger ledger_;
  Slots slots_;
  ForkCopies copies_;
  HostTier host_tier_;
  Beams beams_;
  Drafts drafts_;
  Constraints constraints_;
  LiveSequences sequences_;
  Continuation continuation_;
  Admission admission_;
  Results results_;
  KeptSequences kept_;
};

}  // namespace somnus
