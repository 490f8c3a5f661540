#include "worker/runner/step_outcome.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/runner/trace_range.h"

namespace somnus {
namespace {

class LaunchedStep : public PendingStep {
 public:
  explicit LaunchedStep(std::shared_ptr<StepOutcome> outcome) : outcome_(std::move(outcome)) {}
  ~LaunchedStep() override {
    if (outcome_->read.HasBeenNotified()) return;
    outcome_->SetRead(outcome_->Wait());  // the runner reports the error
  }

  absl::StatusOr<v1::StepReply> Wait() override {
    const absl::Status status = outcome_->Wait();
    v1::StepReply reply = std::move(outcome_->reply);
    if (status.ok() && outcome_->reports_tokens) {
      outcome_->sampled.FillReply(&reply);
      outcome_->pooled.FillReply(&reply);
    }
    if (status.ok()) outcome_->experts.FillReply(&reply);
    outcome_->SetRead(status);
    RETURN_IF_ERROR(status);
    return reply;
  }

 private:
  const std::shared_ptr<StepOutcome> outcome_;
};

}  // namespace

absl::Status StepOutcome::Wait() const {
  if (done == nullptr) return absl::OkStatus();
  const TraceRange range("wait");
  RETURN_IF_ERROR(done->Wait());
  RETURN_IF_ERROR(communicator->status());
  for (size_t i = 0; i < sampled.rows.size(); ++i) {
    if (sampled.tokens[i] >= vocab_size) {
      return absl::InternalError(absl::StrCat("slot ", sampled.rows[i].slot, ": token ", sampled.tokens[i],
                                              " of a vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

void StepOutcome::SetRead(absl::Status result) {
  status = std::move(result);
  read.Notify();
}

std::unique_ptr<PendingStep> MakePendingStep(std::shared_ptr<StepOutcome> outcome) {
  return std::make_unique<LaunchedStep>(std::move(outcome));
}

absl::StatusOr<v1::StepReply> ModelRunner::Execute(const v1::StepRequest& request) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PendingStep> step, Launch(request));
  return step->Wait();
}

}  // namespace somnus
