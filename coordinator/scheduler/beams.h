#pragma once
// Beam search in the schedule: blocks, slots and messages of the beams of a group. beam_search.h decides
// which beams go on; beam_group.h has the state of a group.
//
// The beams of a request are a group that waits, runs and is preempted as a whole. The group's first
// sequence, the leader, stands for all beams in the scheduler's queues, and takes slots for all beams when it
// is admitted. The prompt is computed once. Once the candidates of all beams are known, the next step lets
// slots go on as copies of other slots, with tokens that the step names, and copies the last, partly filled
// blocks of beams that branch. All beams are in one step, and the group is in every other step where steps
// overlap. Beams that were preempted by recompute are computed again ("replays"), each from the first block
// on that it shares with no earlier beam.
//
// Owned by the Scheduler, whose blocks and slots are borrowed. Not thread safe.

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/fork_copies.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/scheduler_stats.h"
#include "coordinator/scheduler/slots.h"
#include "coordinator/scheduler/step_builder.h"

namespace somnus {

class Beams {
 public:
  Beams(const SchedulerOptions& options, BlockManager* blocks, Slots* slots, ForkCopies* copies,
        SchedulerStats* stats)
      : options_(options), blocks_(*blocks), slots_(*slots), copies_(*copies), stats_(*stats) {}
  Beams(const Beams&) = delete;

  // InvalidArgument for a search that can never be served.
  static absl::Status Check(const SchedulerOptions& options, const EngineRequest& request);
  // Makes a new sequence the leader of a group, if its request is a search. `state`: how far the search has
  // come elsewhere; null: nowhere.
  void Begin(const BeamState* state, Sequence* leader) const;

  // Admission. Makes the sequences of the other beams, at the first admission; `next_id` numbers sequences.
  void MakeOthers(const SequencePtr& leader, int64_t* next_id) const;
  // Takes blocks for all beams of a group that is not swapped out. Returns how many tokens of the first beam
  // are in the cache already; -1: there are too few blocks.
  int64_t TakeBlocks(const SequencePtr& leader, bool ignore_watermark);
  // The leader starts to run, and has its slot: takes slots for the other beams.
  void OnStart(const SequencePtr& leader);
  // The leader runs no more: returns the slots of the other beams.
  void OnPreempt(Sequence* leader);

  // The step. Whether the step has room for the next token of all beams.
  bool MayGoOn(const Sequence& leader, const StepBuilder& builder) const;
  // Returns how many more blocks the beams need for their next token; 0 or less: none.
  int32_t BlocksMissing(const Sequence& leader) const;
  // Adds the next token of all beams, for which there is room.
  void AddDecodes(const SequencePtr& leader, StepBuilder* builder);
  // Adds chunks of the prompt, or of replays.
  void AddPrefills(const SequencePtr& leader, StepBuilder* builder);

  // The reply. Applies the candidates of one beam; with those of the last beam the search advances.
  absl::Status Apply(const ScheduledEntry& entry, const v1::SampledToken& token, RequestOutput* output);
  // The search has ended with `output`, and the leader has finished: its tokens become the best answer's.
  static void TakeBestBeam(const RequestOutput& output, Sequence* leader);

 private:
  void AddBeam(const SequencePtr& leader, int32_t place, int32_t copied, StepBuilder* builder);
  void AddReplays(const SequencePtr& leader, StepBuilder* builder);
  bool SendReplay(const SequencePtr& leader, int32_t place, StepBuilder* builder);

  const SchedulerOptions& options_;
  BlockManager& blocks_;
  Slots& slots_;
  ForkCopies& copies_;
  SchedulerStats& stats_;
};

}  // namespace somnus
