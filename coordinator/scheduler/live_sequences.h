#pragma once
// The live sequences: which sequences run and which wait, in the order of service, and how a sequence passes
// from one state to the next. Every change of a sequence's state is a function of this class.
//
//   Add -> waiting -> Start -> running -> Finish
//             ^                   |
//             +-- Preempt, SuspendAll
//
// A preempted sequence waits without blocks, or with blocks in host memory (HostTier). A suspended sequence
// waits with its blocks on the device, and is sent whole when it goes on: nothing is computed twice. When
// blocks run out, suspended sequences are preempted first.
//
// The features are told of each change: Beams and Drafts that a sequence runs no more, HostTier and Choices
// that a sequence has ended.
//
// Owned by the Scheduler, whose other parts are borrowed. Not thread safe.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/choices.h"
#include "coordinator/scheduler/expiry_queue.h"
#include "coordinator/scheduler/host_tier.h"
#include "coordinator/scheduler/long_prompts.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/slots.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/waiting_queue.h"

namespace somnus {

class LiveSequences {
 public:
  using Running = std::map<ServiceKey, SequencePtr>;

  LiveSequences(const SchedulerOptions& options, const LongPrompts& long_prompts, const StepLedger& ledger,
                BlockManager* blocks, Slots* slots, HostTier* host_tier, Beams* beams,
                PreemptionCounts* counts);
  LiveSequences(const LiveSequences&) = delete;

  // Makes a waiting sequence of a request whose id is not live.
  SequencePtr Add(EngineRequest request);
  // A waiting sequence that has blocks takes a slot and runs. The first `num_computed` tokens are in the
  // cache.
  void Start(const SequencePtr& sequence, int64_t num_computed);
  // The first start: from now on other times and deadlines hold, for the sequence's forks too.
  void NoteScheduled(const SequencePtr& sequence);
  // Running sequences, which leave together, go back to waiting: by swap, or without their blocks.
  void Preempt(const std::vector<SequencePtr>& all, PreemptionCause cause);
  // The blocks of suspended sequences are swapped out or freed.
  void PreemptSuspended(const std::vector<SequencePtr>& all, PreemptionCause cause);
  // Preempts the last suspended sequence in the order of service, if that is behind `key`, and the suspended
  // choices of the same request, unless `taker` is such a choice. False: there is no such sequence.
  bool PreemptSuspendedBehind(const ServiceKey& key, const Sequence& taker);
  // No sequence runs or is suspended any more.
  void PreemptAll(PreemptionCause cause);
  // Running sequences go back to waiting, and keep their blocks.
  void SuspendAll();
  // Swaps in the swapped ones of these waiting sequences. False: there is no room, and nothing has changed.
  bool SwapIn(const std::vector<SequencePtr>& all, bool ignore_watermark);
  // Ends a live sequence, and frees its blocks.
  void Finish(const SequencePtr& sequence);

  // Improves the priorities of waiting sequences that are due.
  void Age() { waiting_.Age(ledger_.next_step()); }
  // Puts the running sequences into the order of the service that their users have had by now, and the
  // waiting sequence that is next to the front. Nobody looks at the other waiting sequences.
  void OrderByService();

  // Null when no live sequence has the id.
  SequencePtr Find(const std::string& request_id) const;
  const Running& running() const { return running_; }
  // Callers may move sequences to their places (Refresh), and insert or erase none.
  WaitingQueue& waiting() { return waiting_; }
  const WaitingQueue& waiting() const { return waiting_; }
  const ExpiryQueue& expiries() const { return expiries_; }
  int64_t* next_id() { return &next_id_; }
  bool empty() const { return live_.empty(); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_preempted() const { return num_preempted_; }
  int32_t num_suspended() const { return num_suspended_; }

  // Internal unless tables belong to running and suspended sequences, every slot is used once, and the counts
  // are right.
  absl::Status CheckIntegrity() const;

 private:
  void Suspend(SequencePtr sequence);
  void LeaveRunning(Sequence* sequence);
  void InsertWaiting(const SequencePtr& sequence);
  absl::Status CheckRunning() const;
  absl::Status CheckWaiting() const;
  absl::Status CheckCapacity(const Sequence& sequence) const;

  const SchedulerOptions& options_;
  const StepLedger& ledger_;
  BlockManager& blocks_;
  Slots& slots_;
  HostTier& host_tier_;
  Beams& beams_;
  PreemptionCounts& counts_;
  Choices choices_;
  Running running_;
  WaitingQueue waiting_;
  absl::flat_hash_map<std::string, SequencePtr> live_;  // waiting or running, by request id
  ExpiryQueue expiries_;
  int64_t next_id_ = 1;
  int32_t num_preempted_ = 0;  // waiting sequences that have run
  int32_t num_suspended_ = 0;
};

}  // namespace somnus
