#include "coordinator/engine/commands/set_adapters_command.h"

#include <utility>

#include "base/log.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

void SetAdaptersCommand::Start(LoopAccess* loop) {
  if (by_next_workers_ && loop->state() == EngineState::kFailed) {
    loop->parts().holdings.NoteAdapters(adapters_);
    return loop->End(TransitionReport());
  }
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  Compare(*loop);
  const std::vector<HeldAdapter> unread = Unread();
  if (phase_ == Phase::kChanges || unread.empty()) return Change(loop);
  phase_ = Phase::kReads;
  loop->parts().executor.ReadAdaptersAsync(unread, loop->ExpectTransition());
}

void SetAdaptersCommand::Compare(const LoopAccess& loop) {
  kept_ = loop.parts().holdings.adapters();
  std::erase_if(adapters_, [this](const HeldAdapter& adapter) {
    return adapter.must_be_held && !HasId(kept_, adapter.id);
  });
  std::erase_if(kept_, [this](const HeldAdapter& adapter) { return !HasId(adapters_, adapter.id); });
}

std::vector<HeldAdapter> SetAdaptersCommand::Unread() const {
  std::vector<HeldAdapter> unread = adapters_;
  std::erase_if(unread, [this](const HeldAdapter& adapter) { return HasId(kept_, adapter.id); });
  return unread;
}

void SetAdaptersCommand::Change(LoopAccess* loop) {
  const bool nothing_goes = kept_.size() == loop->parts().holdings.adapters().size();
  if (!read_.ok() && nothing_goes) return loop->End(read_);
  if (loop->Computes()) {
    if (!loop->FinishSteps()) return;
    // No worker has a sequence any more that ended with an adapter which goes.
    if (!loop->FlushFreedSlots()) return;
  }
  loop->parts().executor.SetAdaptersAsync(read_.ok() ? adapters_ : kept_, kept_, loop->ExpectTransition());
}

void SetAdaptersCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  if (phase_ == Phase::kReads) {
    phase_ = Phase::kChanges;
    read_ = result.result.status();
    return Start(loop);
  }
  if (result.result.ok() && !read_.ok()) result.result = read_;
  EndChange(loop, std::move(result.result));
}

void SetAdaptersCommand::EndChange(LoopAccess* loop, absl::StatusOr<TransitionReport> set) {
  if (!set.ok()) {
    loop->parts().holdings.NoteAdapters(kept_);
  } else {
    LogInfo("{}the workers hold {} adapters", loop->parts().options.log_name, adapters_.size());
    // A worker that comes later is to have the same files.
    std::vector<HeldAdapter> held = adapters_;
    for (HeldAdapter& adapter : held) adapter.fingerprint = set->adapters[adapter.id];
    loop->parts().holdings.NoteAdapters(std::move(held));
  }
  loop->RestartStepDeadline();
  loop->End(std::move(set));
}

// The next workers read the files anew.
bool SetAdaptersCommand::OnLoss(LoopAccess* /*loop*/) {
  phase_ = Phase::kBegins;
  read_ = absl::OkStatus();
  return true;
}

}  // namespace somnus
