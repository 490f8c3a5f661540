#include "coordinator/engine/commands/wake_up_command.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "coordinator/engine/loop_access.h"
#include "coordinator/residency/declined.h"

namespace somnus {

void WakeUpCommand::Start(LoopAccess* loop) {
  NoteBegin(*loop);
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  if (loop->parts().paused && options_.for_arrivals)
    return loop->End(DeclinedError(WhyNotReady(EngineState::kPaused)));
  const GroupHoldings& holdings = loop->parts().holdings;
  std::vector<std::string> tags = holdings.residency().ToWake(this->tags());
  if (tags.empty()) return Check(loop, TransitionReport());
  const absl::StatusOr<bool> reads = holdings.WillReadWeights(tags, options_.load_weights);
  if (!reads.ok()) return loop->End(reads.status());
  if (!*reads && holdings.residency().weights_stale())
    std::erase(tags, kWeightsTag);  // stale weights stay stale
  if (tags.empty()) return Check(loop, TransitionReport());
  loop->SwitchState(EngineState::kWaking, Why());
  waking_ = Waking{.tags = tags, .weights_stale = !*reads};
  loop->parts().executor.WakeUpAsync(tags, *reads, loop->parts().kept.BroughtBackBy(tags),
                                     loop->ExpectTransition());
}

std::string WakeUpCommand::Why() const { return options_.for_arrivals ? "a request needs the model" : ""; }

void WakeUpCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  if (sleep_.under_way()) return OnDamagedSlept(loop, result.result);
  if (check_.under_way()) return OnChecked(loop, result);
  OnWoken(loop, std::move(result.result));
}

void WakeUpCommand::OnWoken(LoopAccess* loop, absl::StatusOr<TransitionReport> report) {
  const Waking waking = *std::exchange(waking_, std::nullopt);
  if (!report.ok()) return Refuse(loop, report.status());
  loop->parts().holdings.NoteWoken(waking.tags, waking.weights_stale);
  loop->parts().check.NoteWoken(waking.tags);
  loop->parts().kept.NoteWoken(waking.tags);
  loop->RestartStepDeadline();  // pages may be touched for the first time
  ReportTransition(loop, *report, /*wakes=*/true);
  Check(loop, *std::move(report));
}

void WakeUpCommand::Check(LoopAccess* loop, TransitionReport report) {
  if (!loop->parts().check.due() || !loop->parts().holdings.awake()) return Serve(loop, std::move(report));
  woken_ = std::move(report);
  loop->SwitchState(EngineState::kWaking, Why());
  check_.Begin(loop);
}

void WakeUpCommand::OnChecked(LoopAccess* loop, const LoopMail::CallResult& result) {
  if (!result.result.ok()) {
    check_.End();
    loop->SwitchToRest();
    return loop->End(result.result.status());
  }
  const std::optional<SelfCheckOutcome> outcome = check_.Judge(loop, result.check);
  if (!outcome.has_value()) return;
  check_.End();
  if (*outcome == SelfCheckOutcome::kRefused) return GiveUpDamaged(loop, result.check);
  loop->RestartStepDeadline();
  loop->parts().check.NoteServed();
  Serve(loop, std::move(woken_));
}

void WakeUpCommand::Serve(LoopAccess* loop, TransitionReport report) {
  const bool ends_pause = loop->parts().holdings.awake() || options_.ends_pause;
  if (ends_pause && !options_.keeps_pause) loop->parts().paused = false;
  loop->SwitchToRest();
  Done(loop, std::move(report));
}

void WakeUpCommand::Refuse(LoopAccess* loop, const absl::Status& status) {
  loop->SwitchToRest(absl::StrCat("wake_up: ", status.message()));
  loop->End(status);
}

// The memory that woke is not used again, and neither is a backup of the memory.
void WakeUpCommand::GiveUpDamaged(LoopAccess* loop, const SelfCheckResult& result) {
  damage_ = absl::DataLossError(absl::StrFormat(
      "self-check: with version %d of the weights every rank is awake, but their logits have fingerprint "
      "%016x, not %016x as before the sleep; the memory and its backups are given up, and %s",
      result.weights_version, result.fingerprint, loop->parts().check.fingerprint(),
      loop->parts().holdings.weights().readable() ? "the next wake-up reads the checkpoint"
                                                  : "a reload or an update has to bring the weights"));
  LogError("{}{}", loop->parts().options.log_name, std::string(damage_.message()));
  sleep_.Begin(loop, {.level = kMaxSleepLevel});
}

void WakeUpCommand::OnDamagedSlept(LoopAccess* loop, const absl::StatusOr<TransitionReport>& report) {
  if (!sleep_.OnResult(loop, report.status())) return;
  loop->SwitchToRest();
  if (report.ok()) ReportTransition(loop, *report, /*wakes=*/false);
  loop->End(damage_);
}

bool WakeUpCommand::OnLoss(LoopAccess* loop) {
  if (waking_.has_value() && loop->parts().executor.committed()) {
    loop->parts().holdings.NoteWoken(waking_->tags, waking_->weights_stale);
    loop->parts().check.NoteWoken(waking_->tags);
  }
  waking_.reset();
  check_.End();
  sleep_.OnLoss(loop);
  return true;
}

}  // namespace somnus
