#pragma once
// Continuous batching: decides which sequences compute how many tokens in the next step, and keeps their
// blocks.
//
// One token budget: decodes and chunks of prompts share a step. Sequences are served in one fixed order,
// arrival (FCFS) or (priority, arrival); the running ones first, then the waiting ones. When blocks run out,
// the last running sequence of that order is preempted, whole: its blocks are freed, and it is computed again
// from its tokens later. Waiting sequences are admitted only in steps that preempted nobody.
//
// Overlap. Schedule may be called again before the previous steps' replies were given to Update: a sequence's
// sampled but unknown tokens are placeholders. No sequence is scheduled beyond its max_tokens or
// max_model_len, so the only surplus is the one token per step in flight of a sequence that stopped otherwise
// or was aborted; Update drops it. A preempted sequence keeps the tokens of the steps in flight; it is
// admitted again once they are known.
//
// Slot errors. A reply may say that one sequence has no result: it ends with kError, its blocks are freed,
// and what it may have written leaves the prefix cache. Sequences that could have adopted those blocks are
// computed again: those admitted with a prefix hit in the steps still in flight, and whoever has bad logits
// itself on adopted blocks, once and without the prefix cache.
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
#include "absl/time/time.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

enum class SchedulingPolicy { kFcfs, kPriority };

struct SchedulerOptions {
  int32_t max_num_seqs = 64;             // slots
  int32_t max_num_batched_tokens = 512;  // the token budget of one step
  int32_t max_model_len = 2048;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  BlockManagerOptions blocks;
};

struct SchedulerStats {
  int64_t num_preemptions = 0;
  int64_t prompt_tokens = 0;  // computed or adopted, of first admissions
  int64_t generation_tokens = 0;
  int64_t prefix_cache_queries = 0;  // tokens
  int64_t prefix_cache_hits = 0;     // tokens
};

// What one step is.
struct StepPlan {
  v1::StepRequest request;
  int32_t num_tokens = 0;
  std::vector<SequencePtr> first_scheduled;  // admitted for the first time

  bool empty() const { return request.sequences_size() == 0; }
};

// What happened to one sequence; its state is kFinished when output.finish_reason is set.
struct SequenceOutput {
  SequencePtr sequence;
  RequestOutput output;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // InvalidArgument for a request that can never be served: an empty prompt, one beyond max_model_len, or
  // more blocks than there are. Depends on the options alone.
  static absl::Status Check(const SchedulerOptions& options, const EngineRequest& request);

  // Queues a request that passed Check; its id must not be live.
  SequencePtr Add(EngineRequest request);
  // Ends a live sequence and frees its blocks at once (see block_manager.h for why that is safe with steps in
  // flight). Null when the id is not live.
  SequencePtr Abort(const std::string& request_id);
  // Ends all sequences, in order.
  std::vector<SequencePtr> AbortAll();
  // Ends the sequences never scheduled whose deadline is before `now`.
  std::vector<SequencePtr> Expire(absl::Time now);
  // The earliest deadline of a sequence never scheduled.
  absl::Time NextDeadline() const;

  // The next step; empty() when nothing can be computed now: it is not to be sent then.
  StepPlan Schedule();
  // Applies the reply to the oldest step not yet updated: every entry, in the order of the step's sequences,
  // which is that of the outputs. A sequence with a slot error, or that the reply does not fit, ends with
  // kError and does not keep the others from theirs. Internal when the reply is not to that step; nothing
  // has changed then.
  absl::StatusOr<std::vector<SequenceOutput>> Update(const v1::StepReply& reply);

  // All running sequences go back to waiting. No step may be in flight.
  void PreemptAll();
  // A step that only frees slots; nothing to send when it has none.
  StepPlan FlushFreedSlots();
  void ResetPrefixCache() { blocks_.ResetPrefixCache(); }

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  bool has_sequences() const { return !live_.empty(); }
  const SchedulerStats& stats() const { return stats_; }
  const BlockManager& blocks() const { return blocks_; }

  // Blocks add up, tables belong to running sequences, slots are used once.
  absl::Status CheckIntegrity() const;

 private:
  using Key = std::pair<int64_t, int64_t>;  // (priority or 0, id): the order of service
  struct ScheduledEntry {
    SequencePtr sequence;
    int32_t slot = -1;
    int64_t start = 0;  // first position computed
    int64_t num_tokens = 0;
    bool samples = false;
    bool adopted = false;  // the first since an admission with a prefix hit
    bool dropped = false;  // the sequence is computed again: what the step made of it does not count
  };
  struct InFlightStep {
    int64_t step_id;
    std::vector<ScheduledEntry> entries;
  };

  Key KeyOf(const Sequence& sequence) const;
  bool WillFinish(const Sequence& sequence) const;
  bool ScheduleRunning(StepPlan* plan, int64_t* budget, InFlightStep* step);
  void ScheduleWaiting(StepPlan* plan, int64_t* budget, InFlightStep* step);
  bool Admit(const SequencePtr& sequence, StepPlan* plan);
  void AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks,
                StepPlan* plan, InFlightStep* step);
  void Preempt(SequencePtr sequence);
  void LeaveRunning(Sequence* sequence);
  void Finish(const SequencePtr& sequence);
  struct ReplyBySlot;
  void ApplyEntry(const ScheduledEntry& entry, const ReplyBySlot& reply,
                  std::vector<SequenceOutput>* outputs);
  absl::Status ApplyResult(const ScheduledEntry& entry, const ReplyBySlot& reply, RequestOutput* output);
  // False when the sequence is computed again instead of ended.
  bool ApplySlotError(const ScheduledEntry& entry, const absl::Status& error);
  // False for certain when no block can be in both sequences' tables.
  bool MayShareBlocks(const Sequence& a, const Sequence& b) const;
  void Recompute(const SequencePtr& sequence);
  void DropInFlight(const SequencePtr& sequence);
  void AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token, RequestOutput* output);
  FinishReason CheckStop(const Sequence& sequence, RequestOutput* output) const;
  void NoteScheduled(const SequencePtr& sequence, StepPlan* plan);

  const SchedulerOptions options_;
  BlockManager blocks_;
  SchedulerStats stats_;
  std::map<Key, SequencePtr> waiting_;
  std::map<Key, SequencePtr> running_;
  absl::flat_hash_map<std::string, SequencePtr> live_;  // waiting or running, by request id
  std::vector<int32_t> free_slots_;                     // a stack
  std::vector<int32_t> freed_slots_;                    // that the workers have not been told of
  std::deque<InFlightStep> in_flight_;
  int64_t next_sequence_id_ = 1;
  int64_t next_step_id_ = 1;
  int64_t num_deadlines_ = 0;  // live sequences, never scheduled, with a finite deadline
};

}  // namespace somnus
