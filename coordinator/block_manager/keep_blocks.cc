// The BlockManager's part for what outlives a sleep of the cache.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_manager.h"

namespace somnus {

std::vector<int64_t> BlockManager::ChooseKept(absl::Span<const Computed> sequences,
                                              const KeepLimits& limits) {
  SOMNUS_CHECK(kept_.empty());
  const auto room = [&] {  // what is swapped out is in the host's memory, too
    const int64_t taken = num_swapped_blocks_ + static_cast<int64_t>(kept_.size());
    return std::max<int64_t>(0, std::min<int64_t>(host_pool_.num_free(), limits.num_blocks - taken));
  };
  std::vector<bool> chosen(options_.num_blocks, false);
  const auto choose = [&](int32_t id) {
    if (chosen[id]) return;  // another sequence shares it
    chosen[id] = true;
    kept_.push_back({id, host_pool_.Allocate()});
  };
  std::vector<int64_t> without_room;
  for (const Computed& computed : sequences) {
    const BlockTable& table = TableOf(computed.sequence);
    const auto begin = table.blocks.begin(), end = begin + BlocksFor(computed.num_tokens);
    const auto more = std::count_if(begin, end, [&](const KvBlock* block) { return !chosen[block->id]; });
    if (more > room()) {
      without_room.push_back(computed.sequence);
      continue;
    }
    std::for_each(begin, end, [&](const KvBlock* block) { choose(block->id); });
  }
  for (const int64_t sequence : without_room) {
    for (const KvBlock* block : TableOf(sequence).blocks) {
      if (block->content_id == 0 || room() == 0) break;
      choose(block->id);
    }
  }
  for (const int32_t id : pins_.HeldBlocks()) {
    if (room() > 0) choose(id);
  }
  if (limits.cached_blocks) {
    for (const int32_t id : pool_.LastCached(static_cast<int32_t>(room()))) choose(id);
  }
  return without_room;
}

void BlockManager::ForgetUnkept() {
  std::vector<bool> stays(options_.num_blocks, false);
  for (const KeptBlock& kept : kept_) stays[kept.device_block] = true;
  pool_.ForgetAllBut(stays, CacheLoss::kSleep);
  pins_.DropForgotten(&PinReleases::forgotten);
}

void BlockManager::ReleaseKept() {
  // In the other order, so that the next choice takes the same ones.
  for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) host_pool_.Release(it->host_block);
  kept_.clear();
}

absl::Status BlockManager::CheckKept() const {
  if (absl::Status status = host_pool_.CheckIntegrity(); !status.ok()) return status;
  std::vector<bool> on_device(options_.num_blocks, false), on_host(host_pool_.num_total(), false);
  for (const KeptBlock& kept : kept_) {
    const bool exists = kept.device_block > kNullBlock && kept.device_block < options_.num_blocks;
    if (!exists || on_device[kept.device_block] || !host_pool_.is_used(kept.host_block) ||
        on_host[kept.host_block]) {
      return absl::InternalError(absl::StrCat("block ", kept.device_block, " is kept as host block ",
                                              kept.host_block, ", which cannot be"));
    }
    on_device[kept.device_block] = on_host[kept.host_block] = true;
  }
  int32_t num_swapped = 0;
  for (const auto& [sequence, table] : swapped_) {
    for (const int32_t id : table.blocks) {
      if (!host_pool_.is_used(id) || on_host[id]) {
        return absl::InternalError(
            absl::StrCat("sequence ", sequence, " is swapped out to host block ", id, ", which cannot be"));
      }
      on_host[id] = true;
    }
    num_swapped += static_cast<int32_t>(table.blocks.size());
    if (tables_.contains(sequence))
      return absl::InternalError(absl::StrCat("sequence ", sequence, " is swapped out and has a table"));
  }
  if (num_swapped != num_swapped_blocks_ ||
      static_cast<int32_t>(kept_.size()) + num_swapped != host_pool_.num_used()) {
    return absl::InternalError(absl::StrCat(host_pool_.num_used(), " host blocks are used, ", kept_.size(),
                                            " are kept, ", num_swapped, " swapped"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
