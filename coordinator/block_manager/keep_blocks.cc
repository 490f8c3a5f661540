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
  // What is swapped out is in the host's memory, too. The prefix cache there gives way.
  const auto room = [&] {
    const int64_t taken = num_swapped_blocks_ + static_cast<int64_t>(kept_.size());
    return std::max<int64_t>(
        0, std::min<int64_t>(host_pool_.num_free() + host_cache_.size(), limits.num_blocks - taken));
  };
  std::vector<bool> chosen(options_.num_blocks, false);
  const auto choose = [&](int32_t id) {
    if (chosen[id]) return;  // another sequence shares it
    chosen[id] = true;
    MakeHostRoom();
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
  for (const int32_t id : pool_.LastCached(limits.cached_blocks ? pool_.num_cached() : 0)) {
    const bool is_on_host = host_cache_.Has(pool_.block(id)->content_id);
    if (room() > 0 && !is_on_host) choose(id);
  }
  while (static_cast<int64_t>(host_pool_.num_used()) > limits.num_blocks && host_cache_.Evict()) continue;
  return without_room;
}

void BlockManager::ForgetUnkept() {
  std::vector<bool> stays(options_.num_blocks, false);
  for (const KeptBlock& kept : kept_) stays[kept.device_block] = true;
  const bool had_any = CachesAny();
  pool_.ForgetAllBut(stays, CacheLoss::kSleep);
  NoteIfCleared(had_any);
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
  absl::flat_hash_map<int32_t, int32_t> swapped;  // by host block: how many tables have it
  for (const auto& [sequence, table] : swapped_) {
    for (const int32_t id : table.blocks) ++swapped[id];
    if (tables_.contains(sequence))
      return absl::InternalError(absl::StrCat("sequence ", sequence, " is swapped out and has a table"));
  }
  std::vector<int32_t> cached(host_pool_.num_total(), 0);
  if (absl::Status status = host_cache_.CheckIntegrity(&cached); !status.ok()) return status;
  for (int32_t id = 0; id < host_pool_.num_total(); ++id) {
    if (cached[id] == 0) continue;
    if (on_host[id] || host_pool_.ref_count(id) != 1 || cached[id] != 1)
      return absl::InternalError(absl::StrCat("host block ", id, " is cached, and something else"));
    on_host[id] = true;
  }
  for (const auto& [id, count] : swapped) {
    if (on_host[id] || host_pool_.ref_count(id) != count) {
      return absl::InternalError(absl::StrCat("host block ", id, " is in the tables of ", count,
                                              " swapped sequences, which cannot be"));
    }
  }
  const auto num_swapped = static_cast<int32_t>(swapped.size());
  if (num_swapped != num_swapped_blocks_ ||
      static_cast<int32_t>(kept_.size()) + num_swapped + host_cache_.size() != host_pool_.num_used()) {
    return absl::InternalError(absl::StrCat(host_pool_.num_used(), " host blocks are used, ", kept_.size(),
                                            " are kept, ", num_swapped, " swapped, ", host_cache_.size(),
                                            " cached"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
