#include "coordinator/engine/commands/weights_command.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {
namespace {

// There are always next versions. Nanoseconds since 1970 are versions, too.
constexpr int64_t kMaxVersion = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

absl::Status WeightsCommand::CheckVersion(int64_t version) {
  if (version >= 0 && version <= kMaxVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("weights_version: must be from 1 to ", kMaxVersion));
}

bool WeightsCommand::BeginChange(LoopAccess* loop) {
  const auto refuse = [loop](const absl::Status& status) {
    loop->End(status);
    return false;
  };
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return refuse(status);
  GroupHoldings& holdings = loop->parts().holdings;
  if (holdings.residency().asleep().count(kWeightsTag) > 0)
    return refuse(absl::FailedPreconditionError(kWeightsSleep));
  if (!SettleOpenRequests(loop)) return false;
  if (Abandoned()) {
    loop->SwitchToRest();  // the command may have waited
    return refuse(absl::CancelledError(kAbandoned));
  }
  if (holdings.awake()) {
    loop->SwitchState(EngineState::kFallingAsleep);
    if (!loop->Quiesce(CacheLoss::kWeights)) return false;
  }
  loop->parts().scheduler.ForgetComputed(CacheLoss::kWeights);
  before_ = holdings.held();
  holdings.NoteOverwriting();
  loop->SwitchState(EngineState::kAsleep);
  loop->SwitchState(EngineState::kWaking);
  return true;
}

int64_t WeightsCommand::ChooseVersion(const LoopAccess& loop) {
  change_.version = version_ > 0 ? version_ : loop.parts().holdings.weights().version + 1;
  return change_.version;
}

void WeightsCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  const WeightsOutcome& outcome = result.weights;
  if (outcome.status.ok()) return OnOutcome(loop, outcome);
  if (outcome.untouched) loop->parts().holdings.Restore(before_.residency, before_.weights);
  EndChange(loop, outcome.status);
}

void WeightsCommand::Take(LoopAccess* loop, Weights weights, const WeightsOutcome& outcome) {
  weights.version = change_.version;
  loop->parts().holdings.NoteWeights(std::move(weights));
  // Before the first step with the new weights.
  if (const auto& labels = loop->parts().options.weight_labels; labels != nullptr && !label_.empty())
    labels->Set(change_.version, label_);
  change_.fingerprint = outcome.fingerprint;
  change_.received = outcome.received;
  EndChange(loop, absl::OkStatus());
}

void WeightsCommand::EndChange(LoopAccess* loop, const absl::Status& status) {
  const GroupHoldings& holdings = loop->parts().holdings;
  const EngineOptions& options = loop->parts().options;
  loop->RestartStepDeadline();
  if (holdings.NeedsWeights()) loop->parts().stale.NoteMissing(options.monotonic_now());
  if (status.ok()) {
    loop->parts().check.NoteNewWeights(holdings.awake());
    loop->QueueSelfCheck();
  }
  loop->SwitchToRest(status.ok() ? "" : absl::StrCat(Name(), ": ", status.message()));
  const Weights& weights = holdings.weights();
  if (status.ok()) {
    LogInfo("{}version {} of the weights, from {}", options.log_name, weights.version, weights.source());
    loop->parts().observer.OnWeightsChanged({.updates = updates(),
                                             .duration = options.monotonic_now() - began(),
                                             .version = weights.version,
                                             .source = weights.source()});
    return loop->End(TransitionReport());
  }
  if (!holdings.residency().weights_stale()) return loop->End(status);
  LogWarning("{}the weights are stale: {}", options.log_name, std::string(status.message()));
  // Something has changed, so a reload must not return the error of a refusal.
  const bool is_other = IsRefusal(status) && !updates();
  loop->End(absl::Status(
      is_other ? absl::StatusCode::kInternal : status.code(),
      absl::StrCat(status.message(), "; the weights are stale until a reload or an update succeeds")));
}

}  // namespace somnus
