#include "coordinator/block_manager/swapped_sequences.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"

namespace somnus {

SwappedSequences::SwappedSequences(const BlockManagerOptions& options, BlockPool* pool, BlockTables* tables,
                                   PrefixCache* cache, HostBlocks* host, Watermark* watermark)
    : options_(options),
      pool_(*pool),
      tables_(*tables),
      cache_(*cache),
      host_(*host),
      watermark_(*watermark) {}

int32_t SwappedSequences::CountBlocks(absl::Span<const ComputedTokens> sequences) const {
  absl::flat_hash_set<const KvBlock*> blocks;
  for (const auto& [sequence, num_tokens] : sequences) {
    const auto begin = TableOf(sequence, std::as_const(tables_)).blocks.begin();
    blocks.insert(begin, begin + BlocksFor(num_tokens, options_.block_size));
  }
  blocks.erase(pool_.null_block());
  return static_cast<int32_t>(blocks.size());
}

void SwappedSequences::SwapOut(absl::Span<const ComputedTokens> sequences,
                               std::vector<BlockCopyOp>* swap_outs) {
  absl::flat_hash_map<const KvBlock*, int32_t> on_host;
  for (const auto& [sequence, num_tokens] : sequences) {
    const BlockTable& table = TableOf(sequence, &tables_);
    const auto count = static_cast<size_t>(BlocksFor(num_tokens, options_.block_size));
    HostTable host;
    host.is_forgotten = table.is_broken();
    host.num_given_back = std::min(table.num_given_back, static_cast<int32_t>(count));
    for (const KvBlock* block : absl::MakeConstSpan(table.blocks).first(count)) {
      if (IsNull(*block)) {
        host.blocks.push_back(kNone);
        continue;
      }
      const auto [copy, is_new] = on_host.try_emplace(block, 0);
      if (is_new) {
        copy->second = host_.Take();
        swap_outs->push_back({block->id, copy->second});
      } else {
        host_.mutable_pool()->Reference(copy->second);
      }
      host.blocks.push_back(copy->second);
    }
    host_tables_.emplace(sequence, std::move(host));
  }
  num_blocks_ += static_cast<int32_t>(on_host.size());
  for (const ComputedTokens& computed : sequences) {
    const auto left = tables_.find(computed.sequence);
    cache_.GiveUp(computed.sequence, std::move(left->second));
    tables_.erase(left);
  }
}

BlockTable SwappedSequences::BeginSwapped(const Returning& one, const HostTable& host) {
  const bool use_cache = one.use_cache && !host.is_forgotten;
  BlockTable table = cache_.Begin(one.sequence, one.tokens, one.salt, use_cache, {.whole = one.whole});
  if (table.num_blocks() > host.num_given_back) {
    // The sequence needs no block again that it gave back: in a small cache there may be no room for it.
    GiveBackBefore(host.num_given_back, &pool_, &table);
    return table;
  }
  if (table.blocks.empty()) return table;
  // All blocks that were found lie before the window, so no query would attend them.
  cache_.GiveUp(one.sequence, std::move(table));
  return cache_.Begin(one.sequence, one.tokens, one.salt, /*use_cache=*/false, {});
}

int32_t SwappedSequences::SizeOf(const Returning& one, const HostTable& host, const BlockTable& table) const {
  const auto num_tokens = static_cast<int64_t>(one.tokens.size());
  if (one.whole) return BlocksFor(num_tokens, options_.block_size);
  return TableSize(options_, num_tokens, std::max(table.num_given_back, host.num_given_back));
}

int32_t SwappedSequences::NeededToSwapIn(const HostTable& host, const BlockTable& table, int32_t size,
                                         absl::flat_hash_set<int32_t>* seen) {
  const auto adopted = table.blocks.size();
  const auto known = static_cast<int32_t>(std::max(adopted, host.blocks.size()));
  auto needed = std::max(0, size - known);
  for (size_t i = adopted; i < host.blocks.size(); ++i)
    needed += host.blocks[i] != kNone && seen->insert(host.blocks[i]).second ? 1 : 0;
  return needed;
}

void SwappedSequences::FillFromHost(const HostTable& host, int32_t size,
                                    absl::flat_hash_map<int32_t, KvBlock*>* came_back, BlockTable* table,
                                    std::vector<BlockCopyOp>* swap_ins) {
  table->num_given_back = std::max(table->num_given_back, host.num_given_back);
  for (size_t i = table->blocks.size(); i < host.blocks.size(); ++i) {
    if (host.blocks[i] == kNone) {
      table->blocks.push_back(pool_.null_block());
      continue;
    }
    const auto [block, is_new] = came_back->try_emplace(host.blocks[i], nullptr);
    if (is_new) {
      block->second = pool_.Allocate();
      swap_ins->push_back({host.blocks[i], block->second->id});
    } else {
      pool_.Reference(block->second);
    }
    table->blocks.push_back(block->second);
  }
  while (table->num_blocks() < size) table->blocks.push_back(pool_.Allocate());
}

SwappedSequences::Room SwappedSequences::RoomFor(absl::Span<const Returning> all, bool ignore_watermark) {
  absl::flat_hash_set<const KvBlock*> had;
  absl::flat_hash_set<int32_t> seen;
  std::vector<std::pair<int64_t, BlockTable>> begun;
  int32_t needed = 0;
  for (const Returning& one : all) {
    if (const auto table = tables_.find(one.sequence); table != tables_.end()) {
      had.insert(table->second.blocks.begin(), table->second.blocks.end());
      needed += std::max(0, SizeOf(one, {}, table->second) - table->second.num_blocks());
      continue;
    }
    if (const auto host = host_tables_.find(one.sequence); host != host_tables_.end()) {
      const BlockTable& table = begun.emplace_back(one.sequence, BeginSwapped(one, host->second)).second;
      had.insert(table.blocks.begin(), table.blocks.end());
      needed += NeededToSwapIn(host->second, table, SizeOf(one, host->second, table), &seen);
      continue;
    }
    const BlockTable& table =
        begun.emplace_back(one.sequence, cache_.Begin(one.sequence, one.tokens, one.salt, one.use_cache, {}))
            .second;
    had.insert(table.blocks.begin(), table.blocks.end());
    const auto shared = static_cast<int32_t>(one.num_shared / options_.block_size);
    needed += std::max(0, SizeOf(one, {}, table) - std::max(table.num_blocks(), shared));
  }
  had.erase(pool_.null_block());
  const Room room = {watermark_.Missing(needed, ignore_watermark), needed + static_cast<int32_t>(had.size())};
  for (auto it = begun.rbegin(); it != begun.rend(); ++it) cache_.GiveUp(it->first, std::move(it->second));
  return room;
}

AllocStatus SwappedSequences::SwapIn(absl::Span<Returning> all, bool ignore_watermark,
                                     std::vector<BlockCopyOp>* swap_ins) {
  for (const Returning& one : all) {
    if (SizeOf(one, {}, {}) > TotalBlocks(options_.num_blocks)) return AllocStatus::kNever;
  }
  absl::flat_hash_set<int32_t> seen;
  std::vector<BlockTable> tables;
  std::vector<int32_t> sizes;
  int32_t needed = 0;
  for (const Returning& one : all) {
    const HostTable& host = host_tables_.at(one.sequence);
    tables.push_back(BeginSwapped(one, host));
    sizes.push_back(SizeOf(one, host, tables.back()));
    needed += NeededToSwapIn(host, tables.back(), sizes.back(), &seen);
  }
  if (!watermark_.Admits(needed, ignore_watermark)) {
    for (size_t i = all.size(); i > 0; --i) cache_.GiveUp(all[i - 1].sequence, std::move(tables[i - 1]));
    return AllocStatus::kLater;
  }
  absl::flat_hash_map<int32_t, KvBlock*> came_back;
  for (size_t i = 0; i < all.size(); ++i) {
    Returning& one = all[i];
    BlockTable& table = tables[i];
    const HostTable& host = host_tables_.at(one.sequence);
    one.num_adopted = static_cast<int64_t>(table.blocks.size()) * options_.block_size;
    cache_.Adopt(one.tokens, &table);
    // The chain is broken, so that the sequence's later blocks stay out of the prefix cache, too.
    const size_t adopted = table.blocks.size();
    const bool has_gap = adopted < host.blocks.size() && host.blocks[adopted] == kNone;
    FillFromHost(host, sizes[i], &came_back, &table, swap_ins);
    if (host.is_forgotten || has_gap) {
      table.num_committed = std::max(table.num_committed, 1);
      table.last_content_id = 0;
    }
    tables_.emplace(one.sequence, std::move(table));
  }
  for (const Returning& one : all) Drop(one.sequence);
  return AllocStatus::kOk;
}

void SwappedSequences::Drop(int64_t sequence) {
  const auto table = host_tables_.find(sequence);
  SOMNUS_CHECK(table != host_tables_.end());
  const std::vector<int32_t>& blocks = table->second.blocks;
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it)
    num_blocks_ -= *it != kNone && host_.mutable_pool()->Release(*it) ? 1 : 0;
  host_tables_.erase(table);
}

void SwappedSequences::ForgetContents() {
  for (auto& [sequence, table] : host_tables_) table.is_forgotten = true;
}

std::vector<int32_t> SwappedSequences::Sources() const {
  std::vector<int32_t> blocks = host_.cache().HostBlocks();
  blocks.reserve(blocks.size() + static_cast<size_t>(num_blocks_));
  for (const auto& [sequence, table] : host_tables_)
    blocks.insert(blocks.end(), table.blocks.begin(), table.blocks.end());
  std::erase(blocks, kNone);
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

absl::Status SwappedSequences::CheckIntegrity(const std::vector<bool>& taken) const {
  absl::flat_hash_map<int32_t, int32_t> counts;  // by host block: how many tables have it
  for (const auto& [sequence, table] : host_tables_) {
    if (tables_.contains(sequence))
      return absl::InternalError(absl::StrCat("sequence ", sequence, " is swapped out and has a table"));
    for (const int32_t id : table.blocks) {
      if (id != kNone) ++counts[id];
    }
  }
  for (const auto& [id, count] : counts) {
    if (taken[id] || host_.pool().ref_count(id) != count) {
      return absl::InternalError(absl::StrCat("host block ", id, " is in the tables of ", count,
                                              " swapped sequences, which cannot be"));
    }
  }
  if (static_cast<int32_t>(counts.size()) == num_blocks_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(num_blocks_, " host blocks are said to be swapped out, ",
                                          counts.size(), " are in tables"));
}

}  // namespace somnus
