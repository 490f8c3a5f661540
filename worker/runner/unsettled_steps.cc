#include "worker/runner/unsettled_steps.h"

#include <algorithm>

#include "base/status_macros.h"
#include "worker/runner/staging.h"

namespace somnus {

void UnsettledSteps::AppendSampled(bool asynchronous, StepOutcome* step) {
  const std::vector<LogitRow>& rows = step->sampled.rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t slot = rows[i].slot;
    if (rows[i].has_draft) continue;  // the sequence's next step names the input
    if (!asynchronous) {
      // A sequence that got no token runs on with token 0, until the coordinator frees the slot.
      state_.AppendToken(slot, std::max(0, step->sampled.tokens[i]));
    } else {
      step->unknown.push_back(
          {slot, state_.slot(slot).generation, state_.AppendToken(slot, kUnknownToken), i});
    }
  }
}

absl::Status UnsettledSteps::SettleOldest() {
  const std::shared_ptr<StepOutcome> oldest = steps_.front();
  steps_.pop_front();
  // The thread that makes the step's reply waits for the device; this thread never does.
  oldest->read.WaitForNotification();
  RETURN_IF_ERROR(oldest->status);
  for (const StepOutcome::Unknown& place : oldest->unknown) {
    state_.SetToken(place.slot, place.generation, place.index,
                    std::max(0, oldest->sampled.tokens[place.row]));
  }
  return absl::OkStatus();
}

absl::Status UnsettledSteps::SettleAll() {
  while (!steps_.empty()) RETURN_IF_ERROR(SettleOldest());
  return absl::OkStatus();
}

absl::Status UnsettledSteps::MakeRoom() {
  while (!steps_.empty() &&
         (static_cast<int>(steps_.size()) >= kStepsInFlight || steps_.front()->read.HasBeenNotified())) {
    RETURN_IF_ERROR(SettleOldest());
  }
  return absl::OkStatus();
}

void UnsettledSteps::Drain() {
  for (; !steps_.empty(); steps_.pop_front()) steps_.front()->read.WaitForNotification();
}

}  // namespace somnus
