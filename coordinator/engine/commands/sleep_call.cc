#include "coordinator/engine/commands/sleep_call.h"

#include <utility>

#include "base/request_bounds.h"

namespace somnus {

void SleepCall::Begin(LoopAccess* loop, const SleepSpec& spec) {
  const Residency& residency = loop->parts().holdings.residency();
  spec_ = spec;
  // Stale weights have nothing to keep.
  changes_ = {residency.weights_stale() ? kMaxSleepLevel : spec.level, residency.ToSleep(spec)};
  KeptKv& kept = loop->parts().kept;
  loop->parts().executor.SleepAsync(
      *changes_, keeps_nothing_ ? kept.ChooseNothing(*changes_) : kept.Choose(*changes_, max_kept_bytes_),
      loop->ExpectTransition());
}

bool SleepCall::OnResult(LoopAccess* loop, const absl::Status& status) {
  const SleepSpec changes = *std::exchange(changes_, std::nullopt);
  if (status.ok()) {
    loop->parts().holdings.NoteSlept(changes);
    loop->parts().kept.NoteSlept(changes);
    return true;
  }
  if (!loop->parts().kept.Abandon(changes, status)) return true;
  keeps_nothing_ = true;
  Begin(loop, spec_);
  return false;
}

void SleepCall::OnLoss(LoopAccess* loop) {
  if (changes_.has_value() && loop->parts().executor.committed()) loop->parts().holdings.NoteSlept(*changes_);
  changes_.reset();
}

}  // namespace somnus
