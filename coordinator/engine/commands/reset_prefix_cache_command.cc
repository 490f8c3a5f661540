#include "coordinator/engine/commands/reset_prefix_cache_command.h"

#include <utility>

#include "coordinator/engine/loop_access.h"

namespace somnus {

void ResetPrefixCacheCommand::Start(LoopAccess* loop) {
  if (!preempt_running_) {
    loop->parts().scheduler.ResetPrefixCache();
  } else if (loop->Computes()) {
    if (!loop->Quiesce(CacheLoss::kReset)) return;
  } else if (loop->parts().kept.Holds(loop->parts().holdings.residency())) {
    return drop_.Begin(loop);
  } else if (!loop->parts().holdings.awake()) {
    loop->parts().scheduler.ForgetComputed();
  } else {
    loop->parts().scheduler.ResetPrefixCache();
  }
  loop->End(TransitionReport());
}

void ResetPrefixCacheCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  drop_.OnResult(loop, result.result.status());
  loop->End(std::move(result.result));
}

}  // namespace somnus
