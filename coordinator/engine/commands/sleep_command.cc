#include "coordinator/engine/commands/sleep_command.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

SleepCommand::SleepCommand(const SleepRequest& request)
    : TransitionCommand(request.tags, request.mode),
      spec_{request.level, request.tags},
      only_if_idle_(request.only_if_idle),
      spares_only_copy_(request.spares_only_copy),
      force_(request.force),
      sleep_(request.max_kept_bytes) {}

absl::Status SleepCommand::Check(LoopAccess* loop) const {
  RETURN_IF_ERROR(loop->CheckLifecycle());
  const std::vector<std::string> changes = loop->parts().holdings.residency().ToSleep(spec_);
  // A sleep that was committed when the group was lost has happened.
  const bool has_happened = was_interrupted_ && changes.empty();
  if (only_if_idle_ && !has_happened && !loop->IsIdle()) return absl::AbortedError("the engine is not idle");
  const bool may_lose_only_copy = spec_.level >= kMaxSleepLevel && loop->parts().holdings.HasOnlyCopy();
  if (may_lose_only_copy && spares_only_copy_) return absl::AbortedError(kSparesOnlyCopy);
  const bool loses_only_copy =
      may_lose_only_copy && std::find(changes.begin(), changes.end(), kWeightsTag) != changes.end();
  if (loses_only_copy && !force_) return absl::FailedPreconditionError(kForceLosesOnlyCopy);
  return absl::OkStatus();
}

void SleepCommand::Start(LoopAccess* loop) {
  NoteBegin(*loop);
  if (absl::Status status = Check(loop); !status.ok()) return loop->End(std::move(status));
  if (!SettleOpenRequests(loop)) return;
  const Residency& residency = loop->parts().holdings.residency();
  if (residency.ToSleep(spec_).empty()) {
    if (loop->state() == EngineState::kAsleep) loop->SwitchToRest();  // the state has another reason now
    if (loop->parts().kept.DroppedBy(spec_, residency)) return drop_.Begin(loop);
    return Done(loop, TransitionReport());
  }
  if (residency.awake()) {
    loop->SwitchState(EngineState::kFallingAsleep);
    const bool quiet = loop->parts().kept.KeptBy(spec_) ? loop->Suspend() : loop->Quiesce(CacheLoss::kSleep);
    if (!quiet) return;
  }
  sleep_.Begin(loop, spec_);
}

void SleepCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  absl::StatusOr<TransitionReport>& report = result.result;
  if (drop_.under_way()) {
    drop_.OnResult(loop, report.status());
  } else {
    if (!sleep_.OnResult(loop, report.status())) return;
    loop->SwitchToRest();
    if (report.ok()) ReportTransition(loop, *report, /*wakes=*/false);
  }
  if (!report.ok()) return loop->End(report.status());
  Done(loop, *std::move(report));
}

bool SleepCommand::OnLoss(LoopAccess* loop) {
  was_interrupted_ = true;
  sleep_.OnLoss(loop);
  drop_.OnLoss();
  return true;
}

}  // namespace somnus
