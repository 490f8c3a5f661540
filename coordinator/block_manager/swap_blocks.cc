// The BlockManager's part for sequences whose blocks are in host memory.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_manager.h"

namespace somnus {

AllocStatus BlockManager::CanSwapOut(int64_t num_computed) const {
  const int32_t needed = BlocksFor(num_computed);
  if (needed > host_pool_.num_total()) return AllocStatus::kNever;
  return needed <= host_pool_.num_free() ? AllocStatus::kOk : AllocStatus::kLater;
}

void BlockManager::SwapOut(int64_t sequence, int64_t num_computed, std::vector<BlockCopyOp>* swap_outs) {
  BlockTable& table = TableOf(sequence);
  HostTable host;
  host.is_forgotten = table.num_committed > 0 && table.last_content_id == 0;
  const int32_t num_blocks = BlocksFor(num_computed);
  for (int32_t i = 0; i < num_blocks; ++i) {
    host.blocks.push_back(host_pool_.Allocate());
    swap_outs->push_back({table.blocks[i]->id, host.blocks.back()});
  }
  num_swapped_blocks_ += num_blocks;
  swapped_.emplace(sequence, std::move(host));
  std::vector<uint64_t> hashes = std::move(table.hashes);
  Free(sequence);
  if (!hashes.empty()) waiting_hashes_[sequence] = std::move(hashes);
}

AllocStatus BlockManager::SwapIn(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                                 bool use_cache, bool ignore_watermark, std::vector<BlockCopyOp>* swap_ins,
                                 int64_t* num_adopted) {
  const auto swapped = swapped_.find(sequence);
  SOMNUS_CHECK(swapped != swapped_.end());
  const HostTable& host = swapped->second;
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (BlocksFor(num_tokens) > TotalBlocks(options_.num_blocks)) return AllocStatus::kNever;
  BlockTable table = BeginTable(sequence, tokens, salt, use_cache && !host.is_forgotten);
  if (!HasRoom(table, num_tokens, ignore_watermark)) {
    GiveUpTable(sequence, std::move(table));
    return AllocStatus::kLater;
  }
  const size_t adopted = table.blocks.size();
  NoteAdopted(table, adopted);
  const auto size = static_cast<size_t>(BlocksFor(num_tokens));
  while (table.blocks.size() < size) table.blocks.push_back(pool_.Allocate());
  for (size_t i = adopted; i < host.blocks.size(); ++i)
    swap_ins->push_back({host.blocks[i], table.blocks[i]->id});
  // The chain is broken, so that the sequence's later blocks stay out of the prefix cache, too.
  if (host.is_forgotten) table.num_committed = 1;
  *num_adopted = static_cast<int64_t>(adopted) * options_.block_size;
  tables_.emplace(sequence, std::move(table));
  DropSwapped(sequence);
  return AllocStatus::kOk;
}

void BlockManager::DropSwapped(int64_t sequence) {
  const auto swapped = swapped_.find(sequence);
  SOMNUS_CHECK(swapped != swapped_.end());
  const std::vector<int32_t>& blocks = swapped->second.blocks;
  num_swapped_blocks_ -= static_cast<int32_t>(blocks.size());
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) host_pool_.Release(*it);
  swapped_.erase(swapped);
}

std::vector<int32_t> BlockManager::SwappedBlocks() const {
  std::vector<int32_t> blocks;
  blocks.reserve(num_swapped_blocks_);
  for (const auto& [sequence, table] : swapped_)
    blocks.insert(blocks.end(), table.blocks.begin(), table.blocks.end());
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

}  // namespace somnus
