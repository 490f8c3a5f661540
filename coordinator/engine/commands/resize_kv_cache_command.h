#pragma once
// ResizeKvCacheRequest: how many blocks of the KV cache have memory. The scheduler gives out no other
// blocks. A shrinking takes blocks out of the scheduler's hands first, and then memory from the ranks, as far
// down as no used block is touched; growth goes the other way round.

#include <cstdint>

#include "coordinator/engine/lifecycle_command.h"

namespace somnus {

class ResizeKvCacheCommand : public LifecycleCommand {
 public:
  // `num_blocks`: as asked for, the null block included, and at most the cache's.
  explicit ResizeKvCacheCommand(int32_t num_blocks) : num_blocks_(num_blocks) {}

  const char* Name() const override { return "a change of the KV cache's size"; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;
  bool OnLoss(LoopAccess* loop) override;

  // Of a command that has ended well: how many blocks have memory.
  int32_t num_mapped() const { return num_mapped_; }

 private:
  void Done(LoopAccess* loop);

  const int32_t num_blocks_;
  int32_t limit_before_ = 0;  // of the block manager
  int32_t target_ = 0;        // of the call of the executor that is under way; 0: none is
  int32_t num_mapped_ = 0;
};

}  // namespace somnus
