#pragma once
// Sequences whose outputs follow a constraint (request/token_constraint.h): the masks of the tokens that may
// come next, and the check of the tokens that came.
//
// A step with such a sequence awaits masks. The masks depend on the tokens of all steps before, so the masks
// are made when the step is the oldest in flight: while the workers compute the step. A draft has a mask for
// each of its tokens; a mask behind a token that the constraint does not allow does not matter, because the
// workers cannot sample that token.
//
// Each sequence has its matcher, which is made at the first need, from the tokens that the sequence has.
// Masks of many sequences are made on several threads, while the engine's loop waits: a matcher belongs to
// one thread at a time. Engine loop thread only.

#include "absl/status/status.h"
#include "base/threads.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/step_plan.h"
#include "proto/step.pb.h"

namespace somnus {

class Constraints {
 public:
  // `num_threads`: that may make masks at once, the engine's loop among them, as SchedulerOptions says.
  explicit Constraints(int32_t num_threads);
  Constraints(const Constraints&) = delete;

  // Notes, in the step and in its message, whether the step awaits masks. Comes once the step has its entries
  // and its drafts.
  static void AddTo(InFlightStep* step, v1::StepRequest* request);
  // The masks of a step that awaits masks, after the replies to all steps before it were applied.
  v1::StepMasks MakeMasks(const InFlightStep& step);

  // The sequence's next output is `token`. Internal: the constraint does not allow the token, which workers
  // with masks cannot have sampled.
  static absl::Status Accept(Sequence* sequence, int32_t token);
  // The error of a sequence for which rank 0 found no token: `error`, with that of the constraint where the
  // constraint has failed.
  static absl::Status Explain(const Sequence& sequence, const absl::Status& error);
  // Nothing may follow the outputs.
  static bool IsComplete(const Sequence& sequence) {
    return sequence.matcher != nullptr && sequence.matcher->IsTerminated();
  }

 private:
  const size_t num_helpers_;
  TaskThreads helpers_;
};

}  // namespace somnus
