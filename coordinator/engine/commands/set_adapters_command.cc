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
  if (loop->Computes()) {
    if (!loop->FinishSteps()) return;
    // No worker has a sequence any more that ended with an adapter which goes.
    if (!loop->FlushFreedSlots()) return;
  }
  kept_ = loop->parts().holdings.adapters();
  std::erase_if(adapters_, [this](const HeldAdapter& adapter) {
    return adapter.must_be_held && !HasId(kept_, adapter.id);
  });
  std::erase_if(kept_, [this](const HeldAdapter& adapter) { return !HasId(adapters_, adapter.id); });
  loop->parts().executor.SetAdaptersAsync(adapters_, kept_, loop->ExpectTransition());
}

void SetAdaptersCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  if (!result.result.ok()) {
    loop->parts().holdings.NoteAdapters(kept_);
  } else {
    LogInfo("{}the workers hold {} adapters", loop->parts().options.log_name, adapters_.size());
    // A worker that comes later is to have the same files.
    std::vector<HeldAdapter> held = adapters_;
    for (HeldAdapter& adapter : held) adapter.fingerprint = result.result->adapters[adapter.id];
    loop->parts().holdings.NoteAdapters(std::move(held));
  }
  loop->RestartStepDeadline();
  loop->End(std::move(result.result));
}

}  // namespace somnus
