#include "coordinator/engine/commands/restart_command.h"

#include <utility>

#include "base/log.h"
#include "base/request_bounds.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

void RestartCommand::Start(LoopAccess* loop) {
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  if (!loop->MayServe()) return loop->End(absl::FailedPreconditionError(WhyNotReady(loop->state())));
  if (!loop->parts().holdings.weights().readable()) {
    return loop->End(absl::FailedPreconditionError(
        "the weights came from an update, which new workers could not have; somnus reload-weights first"));
  }
  // Offer takes no request from now on.
  loop->SwitchState(EngineState::kRecovering, "its workers are restarted, one replica after the other");
  if (!loop->FinishSteps()) return;
  loop->parts().scheduler.Recover();
  loop->HandOver();
  LogInfo("{}the workers are restarted", loop->parts().options.log_name);
  restarts_ = true;
  loop->parts().recovery.BeginRestart(loop->parts().options.monotonic_now());
  loop->parts().executor.Restart(loop->parts().holdings.held());
  loop->NoteNewEpoch();
}

bool RestartCommand::OnLoss(LoopAccess* /*loop*/) {
  restarts_ = false;
  return true;
}

void RestartCommand::OnRecovered(LoopAccess* loop) {
  if (!restarts_) return Start(loop);
  loop->End(TransitionReport());
}

void ReviveCommand::Start(LoopAccess* loop) {
  // The engine drains, or the group was lost once more in between and is whole again.
  if (loop->state() != EngineState::kRecovering) return loop->End(TransitionReport());
  LogInfo("{}it is tried again", loop->parts().options.log_name);
  GroupHoldings& holdings = loop->parts().holdings;
  if (options_.weights.has_value()) {
    Residency residency;
    residency.SetWeightsStale(options_.weights->overwritten);
    holdings.Restore(residency, *options_.weights);
  } else {
    if (options_.asleep) holdings.NoteSlept({.level = kMaxSleepLevel});
    loop->parts().recovery.ForgetLosses();
  }
  loop->parts().check.Forget();
  loop->parts().paused = false;
  loop->parts().scheduler.Recover();
  loop->parts().recovery.Begin(loop->parts().options.monotonic_now());
  if (options_.restart_workers) {
    loop->parts().executor.Restart(holdings.held());
  } else {
    loop->parts().executor.Recover(holdings.held());
  }
  loop->NoteNewEpoch();
}

}  // namespace somnus
