// The Scheduler's part for the prefix cache in the host tier. Steps that swap nothing in copy the cached
// blocks there that would be lost next (write-behind), and a sequence whose beginning is there has it copied
// back by the step that admits it. Sequences that are swapped out come first: for them the cache gives way.

#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/scheduler.h"
#include "proto/limits.h"

namespace somnus {

bool Scheduler::UsesHostCache() const {
  if (options_.host_prefix_caching == HostPrefixCaching::kOff || !options_.blocks.enable_prefix_caching ||
      blocks_.total_host_blocks() == 0)
    return false;
  return options_.host_prefix_caching == HostPrefixCaching::kOn ||
         SwapIsCheaper(prices_, options_.blocks.block_size, 1);
}

// To be called before blocks are taken: no step swaps both ways. Beams that are computed again may find too
// few blocks for all of them when the first ones have theirs, so that they take nothing from there.
void Scheduler::SetReadsHost(const Sequence& sequence) {
  const bool is_whole = sequence.beams == nullptr || sequence.beams->places.size() == 1;
  const int64_t most = blocks_.BlocksFor(options_.max_model_len);
  const bool has_room =
      swap_ins_.empty() || static_cast<int64_t>(swap_ins_.size()) + most <= int64_t{kMaxStepSwaps};
  blocks_.SetReadsHost(is_whole && UsesHostCache() && swap_outs_.empty() && has_room && CopiesAreApart());
}

void Scheduler::TakeHostHits(const Sequence& sequence) {
  const std::vector<BlockCopyOp> hits = blocks_.TakeHostHits();
  swap_ins_.insert(swap_ins_.end(), hits.begin(), hits.end());
  const auto num_blocks = static_cast<int64_t>(hits.size());
  stats_.swaps.in_blocks += num_blocks;
  if (!sequence.was_scheduled) stats_.swaps.host_hit_tokens += num_blocks * options_.blocks.block_size;
}

// Only as far as blocks without known contents may run out soon: until then nothing is lost.
void Scheduler::StoreCached(StepBuilder* builder) {
  if (!UsesHostCache() || builder->plan.empty() || !swap_ins_.empty() || next_step_id_ < swap_again_step_)
    return;
  const int32_t unknown = blocks_.free_blocks() - blocks_.cached_blocks();
  const auto room = kMaxStepSwaps - static_cast<int64_t>(swap_outs_.size());
  if (unknown > options_.max_step_stores + num_running() || room < options_.max_step_stores) return;
  const size_t first = swap_outs_.size();
  builder->step.stored = blocks_.StoreCached(options_.max_step_stores, next_step_id_, &swap_outs_);
  const auto num_stored = static_cast<int64_t>(swap_outs_.size() - first);
  stats_.swaps.out_blocks += num_stored;
  stats_.swaps.stored_blocks += num_stored;
}

}  // namespace somnus
