// The BlockManager's part for sequences whose blocks are in host memory.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_manager.h"

namespace somnus {

int32_t BlockManager::CountBlocks(absl::Span<const Computed> sequences) const {
  absl::flat_hash_set<const KvBlock*> blocks;
  for (const Computed& computed : sequences) {
    const auto begin = tables_.at(computed.sequence).blocks.begin();
    blocks.insert(begin, begin + BlocksFor(computed.num_tokens));
  }
  return static_cast<int32_t>(blocks.size());
}

AllocStatus BlockManager::CanSwapOut(int32_t num_blocks) const {
  if (num_blocks > host_pool_.num_total()) return AllocStatus::kNever;
  const int32_t room = host_pool_.num_free() + host_cache_.size();
  return num_blocks <= room ? AllocStatus::kOk : AllocStatus::kLater;
}

void BlockManager::SwapOut(absl::Span<const Computed> sequences, std::vector<BlockCopyOp>* swap_outs) {
  absl::flat_hash_map<const KvBlock*, int32_t> on_host;
  for (const auto& [sequence, num_tokens] : sequences) {
    const BlockTable& table = TableOf(sequence);
    HostTable host;
    host.is_forgotten = table.num_committed > 0 && table.last_content_id == 0;
    for (int32_t i = 0; i < BlocksFor(num_tokens); ++i) {
      const auto [copy, is_new] = on_host.try_emplace(table.blocks[i], 0);
      if (is_new) {
        MakeHostRoom();
        copy->second = host_pool_.Allocate();
        swap_outs->push_back({table.blocks[i]->id, copy->second});
      } else {
        host_pool_.Reference(copy->second);
      }
      host.blocks.push_back(copy->second);
    }
    swapped_.emplace(sequence, std::move(host));
  }
  num_swapped_blocks_ += static_cast<int32_t>(on_host.size());
  for (const Computed& computed : sequences) {
    std::vector<uint64_t> hashes = std::move(TableOf(computed.sequence).hashes);
    Free(computed.sequence);
    if (!hashes.empty()) waiting_hashes_[computed.sequence] = std::move(hashes);
  }
}

int32_t BlockManager::NeededToSwapIn(const HostTable& host, const BlockTable& table, int64_t num_tokens,
                                     absl::flat_hash_set<int32_t>* seen) const {
  const auto adopted = table.blocks.size();
  auto needed =
      std::max(0, BlocksFor(num_tokens) - static_cast<int32_t>(std::max(adopted, host.blocks.size())));
  for (size_t i = adopted; i < host.blocks.size(); ++i) needed += seen->insert(host.blocks[i]).second ? 1 : 0;
  return needed;
}

void BlockManager::FillFromHost(const HostTable& host, int64_t num_tokens,
                                absl::flat_hash_map<int32_t, KvBlock*>* came_back, BlockTable* table,
                                std::vector<BlockCopyOp>* swap_ins) {
  for (size_t i = table->blocks.size(); i < host.blocks.size(); ++i) {
    const auto [block, is_new] = came_back->try_emplace(host.blocks[i], nullptr);
    if (is_new) {
      block->second = pool_.Allocate();
      swap_ins->push_back({host.blocks[i], block->second->id});
    } else {
      pool_.Reference(block->second);
    }
    table->blocks.push_back(block->second);
  }
  const auto size = static_cast<size_t>(BlocksFor(num_tokens));
  while (table->blocks.size() < size) table->blocks.push_back(pool_.Allocate());
}

BlockManager::Room BlockManager::RoomFor(absl::Span<const Returning> all, bool ignore_watermark) {
  absl::flat_hash_set<const KvBlock*> had;
  absl::flat_hash_set<int32_t> seen;
  std::vector<std::pair<int64_t, BlockTable>> begun;
  int32_t needed = 0;
  for (const Returning& one : all) {
    const auto num_tokens = static_cast<int64_t>(one.tokens.size());
    if (const auto table = tables_.find(one.sequence); table != tables_.end()) {
      had.insert(table->second.blocks.begin(), table->second.blocks.end());
      needed += std::max(0, Needed(table->second, num_tokens));
      continue;
    }
    const auto host = swapped_.find(one.sequence);
    const bool is_swapped = host != swapped_.end();
    const bool use_cache = one.use_cache && !(is_swapped && host->second.is_forgotten);
    begun.emplace_back(one.sequence, BeginTable(one.sequence, one.tokens, one.salt, use_cache));
    const BlockTable& table = begun.back().second;
    had.insert(table.blocks.begin(), table.blocks.end());
    const auto shared = static_cast<int32_t>(one.num_shared / options_.block_size);
    needed += is_swapped ? NeededToSwapIn(host->second, table, num_tokens, &seen)
                         : std::min(Needed(table, num_tokens), BlocksFor(num_tokens) - shared);
  }
  const Room room = {needed + Watermark(ignore_watermark) - pool_.num_free(),
                     needed + static_cast<int32_t>(had.size())};
  for (auto it = begun.rbegin(); it != begun.rend(); ++it) GiveUpTable(it->first, std::move(it->second));
  return room;
}

AllocStatus BlockManager::SwapIn(absl::Span<Returning> all, bool ignore_watermark,
                                 std::vector<BlockCopyOp>* swap_ins) {
  for (const Returning& one : all) {
    if (BlocksFor(static_cast<int64_t>(one.tokens.size())) > TotalBlocks(options_.num_blocks))
      return AllocStatus::kNever;
  }
  absl::flat_hash_set<int32_t> seen;
  std::vector<BlockTable> tables;
  int32_t needed = 0;
  for (const Returning& one : all) {
    const HostTable& host = swapped_.at(one.sequence);
    tables.push_back(BeginTable(one.sequence, one.tokens, one.salt, one.use_cache && !host.is_forgotten));
    needed += NeededToSwapIn(host, tables.back(), static_cast<int64_t>(one.tokens.size()), &seen);
  }
  if (!HasRoom(needed, ignore_watermark)) {
    NoteRefusal(needed);
    for (size_t i = all.size(); i > 0; --i) GiveUpTable(all[i - 1].sequence, std::move(tables[i - 1]));
    return AllocStatus::kLater;
  }
  absl::flat_hash_map<int32_t, KvBlock*> came_back;
  for (size_t i = 0; i < all.size(); ++i) {
    Returning& one = all[i];
    BlockTable& table = tables[i];
    const HostTable& host = swapped_.at(one.sequence);
    one.num_adopted = static_cast<int64_t>(table.blocks.size()) * options_.block_size;
    NoteAdopted(table, table.blocks.size());
    FillFromHost(host, static_cast<int64_t>(one.tokens.size()), &came_back, &table, swap_ins);
    // The chain is broken, so that the sequence's later blocks stay out of the prefix cache, too.
    if (host.is_forgotten) table.num_committed = 1;
    tables_.emplace(one.sequence, std::move(table));
  }
  for (const Returning& one : all) DropSwapped(one.sequence);
  return AllocStatus::kOk;
}

void BlockManager::DropSwapped(int64_t sequence) {
  const auto swapped = swapped_.find(sequence);
  SOMNUS_CHECK(swapped != swapped_.end());
  const std::vector<int32_t>& blocks = swapped->second.blocks;
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) num_swapped_blocks_ -= host_pool_.Release(*it);
  swapped_.erase(swapped);
}

std::vector<int32_t> BlockManager::SwappedBlocks() const {
  std::vector<int32_t> blocks = host_cache_.HostBlocks();
  blocks.reserve(blocks.size() + static_cast<size_t>(num_swapped_blocks_));
  for (const auto& [sequence, table] : swapped_)
    blocks.insert(blocks.end(), table.blocks.begin(), table.blocks.end());
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

}  // namespace somnus
