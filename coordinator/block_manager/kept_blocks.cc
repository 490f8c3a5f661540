#include "coordinator/block_manager/kept_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/cache_counts.h"

namespace somnus {

int64_t KeptBlocks::Room(int64_t limit) const {
  // Swapped blocks are in the host's memory, too. Cached blocks there give way.
  return std::max<int64_t>(0, std::min<int64_t>(host_.num_available(), limit - host_.num_taken()));
}

void KeptBlocks::Keep(int32_t device_block) {
  if (ids_.insert(device_block).second) blocks_.push_back({device_block, host_.Take()});
}

std::vector<int64_t> KeptBlocks::Choose(absl::Span<const ComputedTokens> sequences,
                                        const KeepLimits& limits) {
  SOMNUS_CHECK(blocks_.empty());
  std::vector<int64_t> without_room;
  for (const auto& [sequence, num_tokens] : sequences) {
    const BlockTable& table = TableOf(sequence, tables_);
    const auto begin = table.blocks.begin(), end = begin + BlocksFor(num_tokens, options_.block_size);
    const auto is_new = [&](const KvBlock* block) { return !IsNull(*block) && !ids_.contains(block->id); };
    const auto more = std::count_if(begin, end, is_new);
    if (more > Room(limits.num_blocks)) {
      without_room.push_back(sequence);
      continue;
    }
    for (auto block = begin; block != end; ++block) {
      if (!IsNull(**block)) Keep((*block)->id);
    }
  }
  KeepCached(without_room, limits);
  host_.EvictDownTo(limits.num_blocks);
  return without_room;
}

void KeptBlocks::KeepCached(absl::Span<const int64_t> without_room, const KeepLimits& limits) {
  const auto has_room = [&] { return Room(limits.num_blocks) > 0; };
  for (const int64_t sequence : without_room) {
    for (const KvBlock* block : TableOf(sequence, tables_).blocks) {
      if (IsNull(*block)) continue;
      if (block->content_id == 0 || !has_room()) break;
      Keep(block->id);
    }
  }
  for (const int32_t id : pins_.HeldBlocks()) {
    if (has_room()) Keep(id);
  }
  for (const int32_t id : pool_.LastCached(limits.cached_blocks ? pool_.num_cached() : 0)) {
    const bool is_on_host = host_.cache().Has(pool_.block(id)->content_id);
    if (has_room() && !is_on_host) Keep(id);
  }
}

void KeptBlocks::ForgetOthers() {
  std::vector<bool> stays(options_.num_blocks, false);
  for (const KeptBlock& block : blocks_) stays[block.device_block] = true;
  cache_.ForgetAllBut(stays, CacheLoss::kSleep);
}

void KeptBlocks::Release() {
  // In reverse order, so that the next choice takes the same host blocks.
  for (auto it = blocks_.rbegin(); it != blocks_.rend(); ++it) host_.mutable_pool()->Release(it->host_block);
  blocks_.clear();
  ids_.clear();
}

absl::Status KeptBlocks::CheckIntegrity(std::vector<bool>* taken) const {
  std::vector<bool> on_device(options_.num_blocks, false);
  for (const KeptBlock& kept : blocks_) {
    const bool exists = kept.device_block > kNullBlock && kept.device_block < options_.num_blocks;
    if (!exists || on_device[kept.device_block] || !host_.pool().is_used(kept.host_block) ||
        (*taken)[kept.host_block]) {
      return absl::InternalError(absl::StrCat("block ", kept.device_block, " is kept as host block ",
                                              kept.host_block, ", which cannot be"));
    }
    on_device[kept.device_block] = (*taken)[kept.host_block] = true;
  }
  return absl::OkStatus();
}

}  // namespace somnus
