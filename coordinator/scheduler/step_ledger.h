#pragma once
// The steps in flight: sent, and not replied to yet. The ledger numbers steps, and says whose results a reply
// brings and which results do not count any more.
//
// Replies come in the order of the steps. Sequences in the ledger may have ended since their step was sent.
// Owned by the Scheduler; not thread safe.

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

// A sequence's part of a step.
struct ScheduledEntry {
  SequencePtr sequence;
  int32_t slot = -1;
  int64_t start = 0;  // first position computed
  int64_t num_tokens = 0;
  bool samples = false;
  bool fills_blocks = false;          // perhaps: there is something to commit
  bool has_forks = false;             // forks that begin in the step
  bool adopted = false;               // the first entry after an admission with a prefix hit
  bool dropped = false;               // the results do not count: the sequence is computed again
  int32_t num_proposals = 0;          // for which the workers' draft model is asked
  std::vector<int32_t> draft_tokens;  // computed beyond num_tokens
  SequencePtr leader;                 // of a beam that is not the first of its group
  int32_t beam = 0;                   // which of the live beams of its group

  // The sequence that stands for the request.
  const SequencePtr& owner() const { return leader == nullptr ? sequence : leader; }
};

struct InFlightStep {
  int64_t step_id = 0;
  std::vector<ScheduledEntry> entries;
  std::vector<SequencePtr> swapped_out;
  std::vector<uint64_t> stored;  // contents of cached blocks that the step copies to the host tier
  bool awaits_masks = false;     // for rank 0, which has not got them yet (Constraints)
};

class StepLedger {
 public:
  // The number of the step that is made next.
  int64_t next_step() const { return next_step_; }
  bool empty() const { return steps_.empty(); }
  // Whether the reply to `step`, which was sent, has not come yet.
  bool Awaits(int64_t step) const { return !steps_.empty() && steps_.front().step_id <= step; }

  // The step whose reply is due next; null: no step is in flight.
  InFlightStep* oldest() { return steps_.empty() ? nullptr : &steps_.front(); }

  // Adds a step that is about to be sent. Returns its number.
  int64_t Add(InFlightStep step);
  // Takes the oldest step out. Internal, and nothing has changed, when the reply to `step_id` is not due.
  absl::StatusOr<InFlightStep> Take(int64_t step_id);

  // The results in flight do not count for the sequence any more.
  void Drop(const SequencePtr& sequence);
  // The live sequences in flight, except `bad`, that were admitted with a prefix hit and may have adopted
  // blocks of a sequence for which `may_share` is true.
  std::vector<SequencePtr> Adopters(const SequencePtr& bad,
                                    absl::FunctionRef<bool(const Sequence&)> may_share) const;
  // Gives all steps up. Returns their live sequences, each once, in the order in which they were sent.
  std::vector<SequencePtr> DropAll();

  // The memory of messages and entries whose steps are done, for the next step.
  void Reuse(v1::StepRequest sent);
  void Reuse(std::vector<ScheduledEntry> entries);
  void TakeMemory(v1::StepRequest* request, std::vector<ScheduledEntry>* entries) {
    request->Swap(&spare_request_);
    entries->swap(spare_entries_);
  }

 private:
  std::deque<InFlightStep> steps_;  // the oldest first
  int64_t next_step_ = 1;
  v1::StepRequest spare_request_;              // empty
  std::vector<ScheduledEntry> spare_entries_;  // empty
};

}  // namespace somnus
