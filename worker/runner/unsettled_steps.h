#pragma once
// The launched steps whose tokens the batch state does not know yet, oldest first. The tokens are on the
// device, so the next step can run without them; a step that looks at tokens on the host, or that needs the
// oldest step's host buffers, settles steps first.
//
// Borrows the batch state. Used by the runner thread; the threads that make replies read the outcomes.

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/step_outcome.h"

namespace somnus {

class UnsettledSteps {
 public:
  explicit UnsettledSteps(BatchState* state) : state_(*state) {}

  bool empty() const { return steps_.empty(); }
  void Add(std::shared_ptr<StepOutcome> step) { steps_.push_back(std::move(step)); }
  // Gives the sampled rows of a step a place in the batch state: with the tokens where the device is
  // synchronous, otherwise with kUnknownToken until the step is settled.
  void AppendSampled(bool asynchronous, StepOutcome* step);

  // Waits until somebody has read the oldest step, and takes the step's tokens into the batch state. An error
  // is the step's.
  absl::Status SettleOldest();
  absl::Status SettleAll();
  // Settles the steps that were read already, and the oldest where kStepsInFlight are in flight.
  absl::Status MakeRoom();
  // Waits until somebody has read each step, and forgets all steps and errors.
  void Drain();
  // Forgets all steps, which were read.
  void Clear() { steps_.clear(); }

 private:
  BatchState& state_;
  std::deque<std::shared_ptr<StepOutcome>> steps_;
};

}  // namespace somnus
