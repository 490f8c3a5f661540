#include "coordinator/engine/commands/resize_kv_cache_command.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/null_block.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

void ResizeKvCacheCommand::Start(LoopAccess* loop) {
  if (absl::Status status = loop->CheckLifecycle(); !status.ok()) return loop->End(std::move(status));
  if (loop->Computes()) {
    if (!loop->FinishSteps()) return;
    // The workers know of no block that nobody uses any more.
    if (!loop->FlushFreedSlots()) return;
  }
  const BlockManager& blocks = loop->parts().scheduler.blocks();
  const int32_t mapped = loop->parts().holdings.mapped_blocks();
  const int32_t wanted = std::max(num_blocks_, loop->parts().holdings.smallest_cache());
  limit_before_ = blocks.pool().limit();
  if (wanted <= mapped) loop->parts().scheduler.SetBlockLimit(wanted);
  const int32_t num_blocks = std::max(wanted, blocks.EndOfUsed());
  if (num_blocks == mapped) return Done(loop);
  target_ = num_blocks;
  loop->parts().executor.ResizeKvCacheAsync(num_blocks, mapped, loop->ExpectTransition());
}

void ResizeKvCacheCommand::OnResult(LoopAccess* loop, LoopMail::CallResult result) {
  const int32_t num_blocks = std::exchange(target_, 0);
  if (!result.result.ok()) {
    loop->parts().scheduler.SetBlockLimit(limit_before_);
    return loop->End(result.result.status());
  }
  const int32_t mapped = loop->parts().holdings.mapped_blocks();
  if (num_blocks > mapped) loop->parts().scheduler.SetBlockLimit(num_blocks);
  LogInfo("{}the KV cache has {} blocks, {} before, of {}", loop->parts().options.log_name,
          TotalBlocks(num_blocks), TotalBlocks(mapped),
          TotalBlocks(loop->parts().options.scheduler.blocks.num_blocks));
  loop->parts().holdings.NoteMappedBlocks(num_blocks);
  Done(loop);
}

// Some ranks may have changed: the recovery brings all ranks to the size that surely has memory.
bool ResizeKvCacheCommand::OnLoss(LoopAccess* loop) {
  const int32_t mapped = loop->parts().holdings.mapped_blocks();
  if (target_ > 0) loop->parts().holdings.NoteMappedBlocks(std::min(mapped, target_));
  target_ = 0;
  return true;
}

void ResizeKvCacheCommand::Done(LoopAccess* loop) {
  num_mapped_ = loop->parts().holdings.mapped_blocks();
  loop->End(TransitionReport());
}

}  // namespace somnus
