#include "coordinator/block_manager/host_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"

namespace somnus {

int32_t HostBlocks::Take() {
  if (pool_.num_free() == 0) SOMNUS_CHECK(cache_.Evict());
  return pool_.Allocate();
}

AllocStatus HostBlocks::CanTake(int32_t num_blocks) const {
  if (num_blocks > pool_.num_total()) return AllocStatus::kNever;
  return num_blocks <= pool_.num_free() + cache_.size() ? AllocStatus::kOk : AllocStatus::kLater;
}

void HostBlocks::SwapOut(absl::Span<const Leaving> sequences, std::vector<BlockCopyOp>* swap_outs) {
  absl::flat_hash_map<const KvBlock*, int32_t> on_host;
  for (const Leaving& leaving : sequences) {
    Table table;
    table.is_forgotten = leaving.is_forgotten;
    for (const KvBlock* block : leaving.blocks) {
      const auto [copy, is_new] = on_host.try_emplace(block, 0);
      if (is_new) {
        copy->second = Take();
        swap_outs->push_back({block->id, copy->second});
      } else {
        pool_.Reference(copy->second);
      }
      table.blocks.push_back(copy->second);
    }
    tables_.emplace(leaving.sequence, std::move(table));
  }
  num_swapped_blocks_ += static_cast<int32_t>(on_host.size());
}

void HostBlocks::Drop(int64_t sequence) {
  const auto table = tables_.find(sequence);
  SOMNUS_CHECK(table != tables_.end());
  const std::vector<int32_t>& blocks = table->second.blocks;
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) num_swapped_blocks_ -= pool_.Release(*it);
  tables_.erase(table);
}

const HostBlocks::Table* HostBlocks::Find(int64_t sequence) const {
  const auto table = tables_.find(sequence);
  return table == tables_.end() ? nullptr : &table->second;
}

std::vector<int32_t> HostBlocks::SwappedBlocks() const {
  std::vector<int32_t> blocks = cache_.HostBlocks();
  blocks.reserve(blocks.size() + static_cast<size_t>(num_swapped_blocks_));
  for (const auto& [sequence, table] : tables_)
    blocks.insert(blocks.end(), table.blocks.begin(), table.blocks.end());
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

void HostBlocks::ForgetContents() {
  for (auto& [sequence, table] : tables_) table.is_forgotten = true;
}

std::vector<uint64_t> HostBlocks::Store(absl::Span<const KvBlock* const> cached, int32_t count, int64_t step,
                                        std::vector<BlockCopyOp>* swap_outs) {
  std::vector<uint64_t> stored;
  // No block that this call stores is given up by it again.
  const int32_t room = std::min(count, pool_.num_free() + cache_.size());
  for (const KvBlock* block : cached) {
    if (static_cast<int32_t>(stored.size()) == room) break;
    if (cache_.Has(block->content_id)) continue;
    if (pool_.num_free() == 0) SOMNUS_CHECK(cache_.Evict());
    swap_outs->push_back({block->id, cache_.Store(*block, step)});
    stored.push_back(block->content_id);
  }
  return stored;
}

int64_t HostBlocks::RoomToKeep(int64_t limit) const {
  // Swapped blocks are in the host's memory, too. Cached blocks there give way.
  const int64_t taken = num_swapped_blocks_ + static_cast<int64_t>(kept_.size());
  return std::max<int64_t>(0, std::min<int64_t>(pool_.num_free() + cache_.size(), limit - taken));
}

void HostBlocks::Keep(int32_t device_block) {
  if (kept_ids_.insert(device_block).second) kept_.push_back({device_block, Take()});
}

void HostBlocks::EvictDownTo(int64_t limit) {
  while (static_cast<int64_t>(pool_.num_used()) > limit && cache_.Evict()) continue;
}

void HostBlocks::ReleaseKept() {
  // In reverse order, so that the next choice takes the same host blocks.
  for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) pool_.Release(it->host_block);
  kept_.clear();
  kept_ids_.clear();
}

absl::Status HostBlocks::CheckCounts() const {
  const auto num_kept = static_cast<int32_t>(kept_.size());
  if (num_kept + num_swapped_blocks_ + cache_.size() == pool_.num_used()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(pool_.num_used(), " host blocks are used, ", num_kept, " kept, ",
                                          num_swapped_blocks_, " swapped out, ", cache_.size(), " cached"));
}

absl::Status HostBlocks::CheckKept(int32_t num_device_blocks, std::vector<bool>* on_host) const {
  std::vector<bool> on_device(num_device_blocks, false);
  for (const KeptBlock& kept : kept_) {
    const bool exists = kept.device_block > kNullBlock && kept.device_block < num_device_blocks;
    if (!exists || on_device[kept.device_block] || !pool_.is_used(kept.host_block) ||
        (*on_host)[kept.host_block]) {
      return absl::InternalError(absl::StrCat("block ", kept.device_block, " is kept as host block ",
                                              kept.host_block, ", which cannot be"));
    }
    on_device[kept.device_block] = (*on_host)[kept.host_block] = true;
  }
  return absl::OkStatus();
}

absl::Status HostBlocks::CheckIntegrity(int32_t num_device_blocks) const {
  if (absl::Status status = pool_.CheckIntegrity(); !status.ok()) return status;
  std::vector<bool> on_host(pool_.num_total(), false);
  if (absl::Status status = CheckKept(num_device_blocks, &on_host); !status.ok()) return status;
  absl::flat_hash_map<int32_t, int32_t> swapped;  // by host block: how many tables have it
  for (const auto& [sequence, table] : tables_) {
    for (const int32_t id : table.blocks) ++swapped[id];
  }
  std::vector<int32_t> cached(pool_.num_total(), 0);
  if (absl::Status status = cache_.CheckIntegrity(&cached); !status.ok()) return status;
  for (int32_t id = 0; id < pool_.num_total(); ++id) {
    if (cached[id] == 0) continue;
    if (on_host[id] || pool_.ref_count(id) != 1 || cached[id] != 1)
      return absl::InternalError(absl::StrCat("host block ", id, " is cached, and something else"));
    on_host[id] = true;
  }
  for (const auto& [id, count] : swapped) {
    if (on_host[id] || pool_.ref_count(id) != count) {
      return absl::InternalError(absl::StrCat("host block ", id, " is in the tables of ", count,
                                              " swapped sequences, which cannot be"));
    }
  }
  if (static_cast<int32_t>(swapped.size()) != num_swapped_blocks_)
    return absl::InternalError(absl::StrCat(num_swapped_blocks_, " host blocks are said to be swapped out, ",
                                            swapped.size(), " are in tables"));
  return CheckCounts();
}

}  // namespace somnus
