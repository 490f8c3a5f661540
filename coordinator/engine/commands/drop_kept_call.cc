#include "coordinator/engine/commands/drop_kept_call.h"

#include "base/memory_tags.h"
#include "base/request_bounds.h"

namespace somnus {

void DropKeptCall::Begin(LoopAccess* loop) {
  under_way_ = true;
  loop->parts().executor.SleepAsync({kMaxSleepLevel, {kKvCacheTag}}, {}, loop->ExpectTransition());
}

void DropKeptCall::OnResult(LoopAccess* loop, const absl::Status& status) {
  under_way_ = false;
  if (status.ok()) loop->parts().scheduler.ForgetComputed(CacheLoss::kSleep);
}

}  // namespace somnus
