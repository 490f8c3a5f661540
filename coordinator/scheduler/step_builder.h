#pragma once
// What the Scheduler notes of a step: in the making, and until its reply has come. Plain state of one
// Scheduler.

#include <cstdint>
#include <vector>

#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/step_messages.h"
#include "coordinator/scheduler/step_plan.h"

namespace somnus {

// A sequence's part of a step.
struct ScheduledEntry {
  SequencePtr sequence;
  int32_t slot = -1;
  int64_t start = 0;  // first position computed
  int64_t num_tokens = 0;
  bool samples = false;
  bool fills_blocks = false;          // perhaps: there is something to commit
  bool has_forks = false;             // that begin in the step
  bool adopted = false;               // the first entry after an admission with a prefix hit
  bool dropped = false;               // its sequence is computed again, so its results do not count
  int32_t num_proposals = 0;          // that the workers' draft model is asked for
  std::vector<int32_t> draft_tokens;  // computed beyond num_tokens
  SequencePtr leader;                 // of another beam than the first of its group
  int32_t beam = 0;                   // which of the live beams of its group

  // Whose request it is for.
  const SequencePtr& owner() const { return leader == nullptr ? sequence : leader; }
};

struct InFlightStep {
  int64_t step_id;
  std::vector<ScheduledEntry> entries;
  std::vector<SequencePtr> swapped_out;
  std::vector<uint64_t> stored;  // contents of cached blocks that it copies to the host tier
};

// A prompt's part of a step in the making. What is said of its length is meant before the step.
struct PrefillEntry {
  SequencePtr sequence;
  int entry;  // its place in the step
  bool is_long;
  int64_t rank;
};

// A long prompt that the step does not complete, or passes over: what others have to overtake.
struct LongPrompt {
  const Sequence* sequence;
  int64_t rank;
};

// A step in the making.
struct StepBuilder {
  StepPlan plan;
  InFlightStep step;
  int64_t budget = 0;         // tokens left
  int64_t request_bytes = 0;  // left for new sequences
  int64_t reply_bytes = 0;    // left for prompt log-probabilities
  NewSequenceWriter writer{&plan.request};
  // Those that run, have more than a token to compute, or beams, in the order of service.
  std::vector<SequencePtr> unfinished;
  std::vector<PrefillEntry> prefills;
  // Of the unfinished ones: long prompts beyond max_long_partial_prefills, which get what others leave.
  std::vector<SequencePtr> overtakers;
  // Waiting ones that admission has passed over.
  std::vector<LongPrompt> passed;
};

}  // namespace somnus
