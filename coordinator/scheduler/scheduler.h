#pragma once
// Continuous batching: decides which sequences compute how many tokens in the next step, and keeps their
// blocks.
//
// Order of service. FCFS: by arrival. Priority: by effective priority, smaller first, then by arrival;
// waiting improves it (waiting_queue.h), so that nobody waits for ever. Where users have accounts, the one
// who had less service goes first among equals in priority (user_accounts.h, fair_sharing.cc).
//
// One step has one token budget, spent in this order:
//  1. one token for each running sequence that decodes;
//  2. chunks of the prompts that are running already. A long one, with more than
//     long_prefill_token_threshold tokens to compute, gets at most that many, and long ones beyond
//     max_long_partial_prefills come after 3;
//  3. waiting sequences, in the order of service, while slots, blocks and budget last. A sequence that has no
//     room stops admission, so that those behind it do not take what it waits for. There are two bounds for
//     prompts that one step does not complete: max_long_partial_prefills for long ones, and
//     max_num_partial_prefills for all of them, which stops admission. Where a long one finds no place, the
//     others behind it go ahead. A prompt counts with what the prefix cache does not have of it, and only
//     against sequences that are not less urgent;
//  4. what is left goes to the prompts of 2 and 3, the shortest first.
// Of long prompts that are equally urgent the one with the fewest tokens to compute is served first (RankOf).
// Each step that a prompt has waited counts as an eighth of the budget computed. A prompt overtakes those
// that come after it in that order: max_long_partial_prefills does not count them. One that was running keeps
// its chunk of each step. So a prompt has its first token soon though much longer ones came before, no stream
// of others starves a long one, and a long one that is alone gets the whole budget.
//
// New sequences and prompt log-probabilities also have a budget in bytes each (step_bytes), so that the
// step's messages stay far below what its stream takes: admission stops, and chunks end, where it is spent.
//
// Preemption. When blocks run out, the last running sequence of the order of service is preempted, whole: its
// blocks are freed. By recompute it is computed again from its tokens later; by swap its blocks are copied to
// the host tier first, if that has room, and back when it is admitted again: nothing is computed twice. Which
// of both is an option, or the cheaper one by prices that somebody measures. Running choices of one request
// go together, and come back together (choices.cc); only one that has the cache to itself gives its choices
// up one by one. Waiting sequences are admitted only in steps in which nobody was preempted so, and no step
// swaps both ways. Under the priority policy the first waiting sequence also displaces running ones, the
// least urgent first, when it has no slot or no blocks: only sequences whose effective priority is worse than
// its request's own priority, and only when that makes enough room. What a sequence gained by waiting thus
// protects it, but displaces nobody: two sequences never displace each other in turn.
//
// Suspension. A sequence that ran may also wait with its blocks, for a sleep during which they are kept. It
// goes on where it was: it is sent whole again, and nothing is computed twice. When blocks run out, suspended
// sequences are preempted first, and one that is ahead in the order of service takes the blocks of those
// behind it.
//
// Pinned prefixes (block_manager/prefix_pins.h) take blocks from sequences as others that run do, but they
// never stop the last one: where nothing runs and the first waiting sequence finds no room, or the only one
// that runs lacks a block, pins give way, one after the other.
//
// Forks. Of the choices of one prompt the first computes it. The others wait, others go ahead of them, and
// they begin in the step in which it samples its first token: they share its full blocks, and have a copy of
// the last, partly filled one, which the next step makes before it computes anything. A choice for which
// there is no room then is admitted as any other, and finds the prompt in the prefix cache.
//
// New prefixes. While a prompt is computed that another one begins with, be it for one whole block that is
// not cached yet, the other one waits for what they share, and others go ahead of it. It waits for no prompt
// that is less urgent, and in no step in which that one gets no tokens.
//
// Asynchronous scheduling. Schedule may be called again before the previous steps' replies were given to
// Update: a sequence's tokens that are sampled but not known yet are pending. No sequence is scheduled beyond
// its max_tokens or max_model_len, so the only surplus is the one token per step in flight of a sequence that
// stopped otherwise or was aborted; Update drops it. A preempted sequence keeps the tokens of the steps in
// flight; it is admitted again once they are known.
//
// Beam search. The beams of a request are a group (beam_group.h) that waits, runs and is preempted as a
// whole: its first sequence stands for all, and takes slots for all when it is admitted. The prompt is
// computed once. Once the candidates of all beams are known, the next step lets slots go on as copies of
// others, with tokens that it names, and copies the last, partly filled blocks of those that branch; all
// beams are in one step, and the group is in every other one where steps overlap. Where they were preempted
// by recompute, beams are computed again, each from the first block on that it shares with no earlier one.
//
// The host's prefix cache (host_prefix_cache.cc). Steps copy cached blocks to the host tier before they are
// lost, and the step that admits a sequence copies back what it begins with.
//
// Speculative decoding. Once all others have their tokens, budget that is left goes to drafts of sequences
// that decode (speculation.h). Their blocks are lookahead slots: taken where more are free than what runs may
// need next, and given back where the draft was wrong. Tokens of a draft count as computed only once they are
// known to be right.
//
// A sequence that runs_alone is admitted when no other runs, and none is admitted beside it: when the workers
// fail again, it is known whose step it was.
//
// Slot errors. A reply may say that one sequence has no result: it ends with kError, its blocks are freed,
// and what it may have written leaves the prefix cache. Sequences that could have adopted those blocks are
// computed again: those admitted with a prefix hit in the steps still in flight, and, once and without the
// prefix cache, a sequence that has bad logits itself on adopted blocks.
//
// Contract: no I/O, no clock, no randomness: the same calls give the same steps. Not thread safe (engine loop
// only). Replies must be given to Update in the order of the steps.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/choice_group.h"
#include "coordinator/scheduler/expiry_queue.h"
#include "coordinator/scheduler/preemption_cost.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/speculation.h"
#include "coordinator/scheduler/step_builder.h"
#include "coordinator/scheduler/step_plan.h"
#include "coordinator/scheduler/waiting_queue.h"
#include "proto/worker.pb.h"

namespace somnus {

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // InvalidArgument for a request that can never be served: an empty prompt, one beyond max_model_len, more
  // blocks than there are, or more bytes than a step carries. Depends on the options alone.
  static absl::Status Check(const SchedulerOptions& options, const EngineRequest& request);

  // Queues a request that passed Check; its id must not be live. One that has progress goes on with that: its
  // sequence waits as one that was preempted.
  SequencePtr Add(EngineRequest request);
  // Ends a live sequence and frees its blocks at once (see block_manager.h for why that is safe with steps in
  // flight). Null when the id is not live.
  SequencePtr Abort(const std::string& request_id);
  // Ends all sequences, in order.
  std::vector<SequencePtr> AbortAll();
  // Ends the sequences that have expired by `now`, waiting or running, as Abort does.
  std::vector<ExpiredSequence> Expire(MonotonicTime now);
  MonotonicTime NextExpiry() const { return expiries_.next(); }
  // How many prompt tokens are computed before a waiting sequence has its first token, its own included: an
  // estimate from what is known now and the order of service. It looks at every sequence ahead.
  int64_t BacklogOf(const Sequence& sequence);

  // What preemptions cost from now on.
  void SetPrices(const PreemptionPrices& prices) { prices_ = prices; }

  // Makes the next step. When it is empty(), nothing can be computed now, and it must not be sent.
  StepPlan Schedule();
  // Gives back the message of a step that was sent, whose memory later steps use again.
  void Reuse(v1::StepRequest sent);
  // Applies the reply to the oldest step not yet updated: every entry, in the order of the step's sequences,
  // which is that of the outputs. A sequence with a slot error, or that the reply does not fit, ends with
  // kError; the others still get their results. Internal when the reply is not to that step; nothing has
  // changed then.
  absl::StatusOr<std::vector<SequenceOutput>> Update(const v1::StepReply& reply);
  // What the step of the last Update has taken. Without it drafts need not pay.
  void NoteStepTime(double seconds) { speculation_.NoteStepTime(seconds); }

  // All running sequences go back to waiting, and none has blocks any more. No step may be in flight.
  void PreemptAll() { PreemptAll(PreemptionCause::kReset); }
  // All running sequences wait, and keep their blocks. No step may be in flight.
  void SuspendAll();

  // What outlives a sleep of the KV cache (BlockManager::ChooseKept). No sequence may be running from the
  // choice until RestoreKept or ForgetComputed, and nothing may be scheduled. ChooseKept takes the blocks of
  // suspended sequences in the order of service. ForgetUnkept: the sleep has happened; `keeps_swapped`: the
  // workers keep what is swapped out. RestoreKept: the blocks are on the device again. AbandonKept: the sleep
  // has not happened, nothing has changed.
  const std::vector<KeptBlock>& ChooseKept(const KeepLimits& limits = {});
  void ForgetUnkept(bool keeps_swapped);
  void RestoreKept();
  void AbandonKept();
  // Everything is computed again: no sequence has blocks, nothing is cached, nothing is kept. No step may be
  // in flight.
  void ForgetComputed(CacheLoss cause = CacheLoss::kReset);

  // Gives up the steps in flight after a failure in which their results and the workers' batch state were
  // lost. Their sequences go on with the tokens that were delivered, all running ones wait again, and no
  // block that was computed before is adopted any more. Afterwards the workers must have no slot taken.
  // Returns the live sequences of those steps, each once, in the order in which they were sent.
  std::vector<SequencePtr> Recover();
  // Gives all sequences away, in the order of service, each with its progress: another scheduler's Add goes
  // on with exactly the same tokens. No sequence may be running, which Recover and PreemptAll see to.
  std::vector<EngineRequest> ReleaseAll();
  // Makes a step that frees slots, and computes nothing; it must not be sent when it frees none.
  StepPlan FlushFreedSlots();
  void ResetPrefixCache() { blocks_.ResetPrefixCache(); }
  std::vector<BlockEvent> TakeCacheEvents() { return blocks_.TakeEvents(); }
  void Pin(PrefixPin pin) { blocks_.Pin(std::move(pin)); }
  void Unpin(const std::string& id) { blocks_.Unpin(id); }
  // BlockManager::SetLimit. One sequence of max_model_len must fit.
  void SetBlockLimit(int32_t num_blocks) { blocks_.SetLimit(num_blocks); }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // How many of the waiting ones have run before.
  int32_t num_preempted() const { return num_preempted_; }
  // How many of these are suspended, and swapped out.
  int32_t num_suspended() const { return num_suspended_; }
  int32_t num_swapped() const { return num_swapped_; }
  bool has_sequences() const { return !live_.empty(); }
  const SchedulerStats& stats() const { return stats_; }
  const SpeculationCounts& speculation() const { return speculation_.counts(); }
  const BlockManager& blocks() const { return blocks_; }

  // Internal unless blocks add up, tables belong to running and suspended sequences, and every slot is used
  // once.
  absl::Status CheckIntegrity() const;
  // The same of sequences, and of blocks BlockManager::CheckNextBlocks: its time does not grow with their
  // number.
  absl::Status CheckSome();

 private:
  StepPlan MakeStep();
  bool WillFinish(const Sequence& sequence) const;
  bool UsesPrefixCache(const Sequence& sequence) const;
  // Spends the budget on decodes, the first in its order. Returns whether it preempted a sequence.
  bool ScheduleDecodes(StepBuilder* builder);
  void ScheduleRunningPrefills(StepBuilder* builder);
  void ScheduleOvertakers(StepBuilder* builder);
  void AddPrefills(const SequencePtr& sequence, StepBuilder* builder);
  void ScheduleWaiting(StepBuilder* builder);
  void OrderByService();
  static void ChargePrompt(Sequence* sequence);
  void SpendRest(StepBuilder* builder);
  // Preempts less urgent sequences for the first waiting one, when that has no room otherwise.
  void DisplaceForFirstWaiting();
  // Whether a sequence that runs alone, this one or a running one, keeps it from being admitted.
  bool IsKeptApart(const Sequence& sequence) const;
  // Whether prompts of this step compute, now or later, so much of what a waiting sequence would have to. It
  // compares tokens once for each prompt that the sequence waits for.
  bool AwaitsPrefix(Sequence* sequence, const StepBuilder& builder);
  enum class Admission { kOk, kSkip, kStop };
  // Notes long prompts that are passed over.
  Admission CheckPartialPrefills(const Sequence& sequence, StepBuilder* builder);
  // How early a prompt is served that has `num_tokens` to compute, the least first: each step that it came
  // earlier makes up for some tokens more.
  int64_t RankOf(const Sequence& sequence, int64_t num_tokens) const;
  static bool Overtakes(const LongPrompt& a, const LongPrompt& b);
  bool HasBytes(const Sequence& sequence, const StepBuilder& builder) const;
  int64_t TakeBlocks(const SequencePtr& sequence);
  // What sequences that leave together, and their beams, have computed.
  std::vector<BlockManager::Computed> ComputedOf(const std::vector<SequencePtr>& all) const;
  // Whether they are preempted by swap; counts why not.
  bool PreemptsBySwap(const std::vector<SequencePtr>& all, PreemptionCause cause);
  SwapObstacle FindSwapObstacle(const std::vector<SequencePtr>& all) const;
  void SwapOut(const std::vector<SequencePtr>& all);
  // Whether those of them that are swapped out may come back in the step in the making, if they have room.
  bool MaySwapIn(const std::vector<SequencePtr>& all);
  // The sequence, and those that come back with it, are suspended then. False: they have no room.
  bool SwapIn(const SequencePtr& sequence);
  // What was swapped out is computed again.
  void DropSwapped(Sequence* sequence);
  void DropAllSwapped();
  // Returns the sequences that the step swaps out.
  std::vector<SequencePtr> SendSwaps(v1::StepRequest* request);
  void NoteSwaps(const InFlightStep& step, const v1::StepReply& reply);
  // The prefix cache in the host tier (host_prefix_cache.cc).
  bool UsesHostCache() const;
  void SetReadsHost(const Sequence& sequence);
  void TakeHostHits(const Sequence& sequence);
  void StoreCached(StepBuilder* builder);
  // Whether no copy of a fork touches what this step may swap in.
  bool CopiesAreApart();
  int32_t BlocksMissing(const SequencePtr& sequence);
  bool Admit(const SequencePtr& sequence, StepBuilder* builder);
  // Takes a slot for a waiting sequence that has blocks.
  void StartRunning(const SequencePtr& sequence, int64_t num_computed);
  // Preempts the last sequence in the order of service with the other choices of its request, or lets a pin
  // give way where that is the only one. False: it has preempted this one.
  bool PreemptForDecode(const SequencePtr& sequence, StepBuilder* builder);
  bool IsDecodeDue(const Sequence& sequence);
  // `preempted`: it has preempted this or another one.
  void ScheduleDecode(const SequencePtr& sequence, bool* preempted, StepBuilder* builder);
  // Choices of one request (choices.cc).
  void JoinChoices(const SequencePtr& sequence);
  void LeaveChoices(Sequence* sequence);
  // These return the sequence and those of its request's other choices that run; that were preempted with it
  // and wait; that are suspended and behind that place.
  static std::vector<SequencePtr> RunningChoices(const SequencePtr& sequence);
  static std::vector<SequencePtr> WaitingTogether(const SequencePtr& sequence);
  static std::vector<SequencePtr> SuspendedChoices(const SequencePtr& sequence, const ServiceKey& behind);
  static void KeepTogether(const std::vector<SequencePtr>& preempted);
  BlockManager::Room RoomFor(const std::vector<SequencePtr>& all, bool ignore_watermark);
  // Whether there is room for all that wait together with a sequence.
  bool MayComeBack(const SequencePtr& sequence, size_t num_slots);
  bool IgnoresWatermark(const Sequence& sequence) const;
  static void Unschedule(const SequencePtr& sequence, StepBuilder* builder);
  void LinkFork(const SequencePtr& sequence);
  void NoteForkOnItsWay(const SequencePtr& fork);
  // The sequence whose prompt a waiting one waits for; null: it waits for none.
  SequencePtr ForkSource(const Sequence& sequence) const;
  // Begins the forks of sequences that sample their first token in the step.
  void ForkSequences(StepBuilder* builder);
  bool Fork(const Sequence& source, const SequencePtr& sequence, StepBuilder* builder);
  void SendCopies(v1::StepRequest* request);
  // Speculative decoding (draft_tokens.cc).
  void AddDraftTokens(StepBuilder* builder);
  void AskForProposals(StepBuilder* builder);
  void BeginDraftReply(const InFlightStep& step);
  void TakeProposals(const ScheduledEntry& entry, const v1::DraftTokens* proposals);
  absl::Status AcceptDraft(const ScheduledEntry& entry, absl::Span<const v1::SampledToken* const> tokens,
                           const v1::DraftTokens* proposals, RequestOutput* output);
  // Beam search (beams.cc).
  static absl::Status CheckBeams(const SchedulerOptions& options, const EngineRequest& request);
  void BeginBeams(const BeamState* state, Sequence* leader) const;
  void MakeOtherBeams(const SequencePtr& leader);
  void TakeBeamSlots(const SequencePtr& leader);
  void ReturnBeamSlots(Sequence* leader);
  int64_t TakeBeamBlocks(const SequencePtr& leader);  // as TakeBlocks
  void ScheduleBeams(const SequencePtr& leader, bool* preempted, StepBuilder* builder);
  void SendBeam(const SequencePtr& leader, int32_t place, int32_t copied, StepBuilder* builder);
  void ScheduleReplays(const SequencePtr& leader, StepBuilder* builder);
  void AddBeamPrefills(const SequencePtr& leader, StepBuilder* builder);
  bool SendReplay(const SequencePtr& leader, int32_t place, StepBuilder* builder);
  // Notes which beam of which group an entry is for.
  static void NoteBeam(ScheduledEntry* entry);
  absl::Status ApplyBeam(const ScheduledEntry& entry, const v1::SampledToken& token, RequestOutput* output);
  int64_t Chunk(const Sequence& sequence, int64_t num_tokens, const StepBuilder& builder) const;
  void AddPrefill(const SequencePtr& sequence, StepBuilder* builder);
  void AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks,
                StepBuilder* builder);
  void ExtendEntry(int index, int64_t num_tokens, StepBuilder* builder);
  bool FillsBlocks(const Sequence& sequence, int64_t num_new) const;
  // Tells the block manager which blocks are full.
  void Commit(const Sequence& sequence);
  void Preempt(const std::vector<SequencePtr>& all, PreemptionCause cause);
  void PreemptAll(PreemptionCause cause);
  void Suspend(SequencePtr sequence);
  // Takes suspended sequences' blocks.
  void PreemptSuspended(const std::vector<SequencePtr>& all, PreemptionCause cause);
  // Does that with the last suspended one in the order of service, if it is behind `key`, and the other
  // choices of its request, unless `taker` is one of these. False: there is none.
  bool PreemptSuspendedBehind(const ServiceKey& key, const Sequence& taker);
  absl::Status CheckSequences() const;
  absl::Status CheckSuspended() const;
  void LeaveRunning(Sequence* sequence);
  void Finish(const SequencePtr& sequence);
  struct ReplyBySlot;
  void ApplyEntry(const ScheduledEntry& entry, const ReplyBySlot& reply,
                  std::vector<SequenceOutput>* outputs);
  absl::Status ApplyResult(const ScheduledEntry& entry, const ReplyBySlot& reply, RequestOutput* output);
  // False when the sequence is computed again instead of ended.
  bool ApplySlotError(const ScheduledEntry& entry, const absl::Status& error);
  // False only when no block can be in both sequences' tables.
  bool MayShareBlocks(const Sequence& a, const Sequence& b) const;
  void Recompute(const SequencePtr& sequence);
  void DropInFlight(const SequencePtr& sequence);
  void AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token, RequestOutput* output);
  FinishReason CheckStop(const Sequence& sequence, RequestOutput* output) const;
  void NoteScheduled(const SequencePtr& sequence, StepPlan* plan);

  const SchedulerOptions options_;
  const int64_t long_prefill_tokens_;  // the threshold, resolved
  BlockManager blocks_;
  SchedulerStats stats_;
  Speculation speculation_;
  WaitingQueue waiting_;
  std::map<ServiceKey, SequencePtr> running_;
  absl::flat_hash_map<std::string, SequencePtr> live_;  // waiting or running, by request id
  absl::flat_hash_map<std::string, std::shared_ptr<ChoiceGroup>> choice_groups_;  // by the first one's id
  std::vector<int32_t> free_slots_;                                               // a stack
  std::vector<int32_t> freed_slots_;               // of which the next step tells the workers
  std::vector<BlockCopyOp> copies_;                // of forks, which the next step has to do
  std::vector<BlockCopyOp> swap_outs_, swap_ins_;  // of the step in the making
  std::vector<SequencePtr> swapped_out_;           // likewise
  std::deque<InFlightStep> in_flight_;
  // Of steps that are done: empty, with their memory.
  v1::StepRequest spare_request_;
  std::vector<ScheduledEntry> spare_entries_;
  int64_t next_sequence_id_ = 1;
  int64_t next_step_id_ = 1;
  int32_t num_preempted_ = 0;
  int32_t num_suspended_ = 0;
  int32_t num_swapped_ = 0;
  int64_t swap_again_step_ = 0;  // before it nothing is swapped out
  PreemptionPrices prices_;
  ExpiryQueue expiries_;
};

}  // namespace somnus
