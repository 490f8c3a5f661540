// EngineLoop's part for the size of the KV cache: how many of its blocks have memory. The scheduler gives out
// no others. A shrinking takes blocks out of its hands first, and then memory from the ranks, as far down as
// no used block is touched; growth goes the other way round.

#include <algorithm>

#include "base/log.h"
#include "base/null_block.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {

int32_t EngineLoop::SmallestCache() const {
  const SchedulerOptions& scheduler = options_.scheduler;
  const int64_t longest =
      (int64_t{scheduler.max_model_len} + scheduler.blocks.block_size - 1) / scheduler.blocks.block_size;
  return static_cast<int32_t>(std::min<int64_t>(NumBlocks(longest), scheduler.blocks.num_blocks));
}

void EngineLoop::StartResizeKvCache() {
  if (absl::Status status = CheckLifecycle(); !status.ok()) return EndCommand(std::move(status));
  if (Computes()) {
    // The workers know of no block that nobody uses any more.
    ReceiveAll();
    if (Computes()) FlushFreedSlots();
    if (!Computes()) return;  // the command waits for the recovery, or the engine has failed
  }
  const BlockManager& blocks = scheduler_.blocks();
  const int32_t wanted = std::max(command_->num_blocks, SmallestCache());
  command_->limit_before = blocks.limit();
  if (wanted <= mapped_blocks_) scheduler_.SetBlockLimit(wanted);
  const int32_t num_blocks = std::max(wanted, blocks.EndOfUsed());
  if (num_blocks == mapped_blocks_) {
    *command_->num_mapped = mapped_blocks_;
    return EndCommand(TransitionReport());
  }
  Executor::LifecycleDone done = Call({.level = 0});
  call_->num_blocks = num_blocks;
  executor_->ResizeKvCacheAsync(num_blocks, mapped_blocks_, std::move(done));
}

void EngineLoop::NoteMappedBlocks(int32_t num_blocks) {
  num_cache_grows_ += num_blocks > mapped_blocks_;
  num_cache_shrinks_ += num_blocks < mapped_blocks_;
  mapped_blocks_ = num_blocks;
}

void EngineLoop::FinishResizeKvCache(int32_t num_blocks, const absl::StatusOr<TransitionReport>& report) {
  if (!report.ok()) {
    scheduler_.SetBlockLimit(command_->limit_before);
    return EndCommand(report.status());
  }
  const bool grows = num_blocks > mapped_blocks_;
  if (grows) scheduler_.SetBlockLimit(num_blocks);
  LogInfo("{}the KV cache has {} blocks, {} before, of {}", options_.log_name, TotalBlocks(num_blocks),
          TotalBlocks(mapped_blocks_), TotalBlocks(options_.scheduler.blocks.num_blocks));
  NoteMappedBlocks(num_blocks);
  *command_->num_mapped = mapped_blocks_;
  EndCommand(TransitionReport());
}

}  // namespace somnus
