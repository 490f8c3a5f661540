#include "coordinator/block_manager/block_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/block_manager/pin_releases.h"

namespace somnus {

BlockManager::BlockManager(const BlockManagerOptions& options)
    : options_(options),
      recorder_(options.records_events ? std::make_unique<BlockEventRecorder>() : nullptr),
      residency_(options.residency_sample > 0
                     ? std::make_unique<BlockResidency>(options.residency_sample, options.residency_clock)
                     : nullptr),
      passed_(options.attention_reach > 0 && options.enable_prefix_caching ? options.max_passed_contents : 0),
      pool_(options.num_blocks, options.block_size, recorder_.get(), residency_.get(), &passed_),
      watermark_(options_, pool_),
      pins_(&pool_, options.block_size),
      host_(options.num_host_blocks, recorder_.get()),
      cache_(options_, &pool_, &passed_, &tables_, &pins_, &host_, recorder_.get()),
      swapped_(options_, &pool_, &tables_, &cache_, &host_, &watermark_),
      kept_(options_, pool_, tables_, pins_, &cache_, &host_),
      sharing_(options_.block_size, &pool_, &tables_, &watermark_),
      audit_(options_.num_blocks, pool_, tables_, pins_, host_, swapped_, kept_) {}

AllocStatus BlockManager::CanAllocate(int64_t num_tokens, bool ignore_watermark, int32_t num_adopted) const {
  return watermark_.Check(BlocksFor(num_tokens), num_adopted, ignore_watermark);
}

AllocStatus BlockManager::CanAppend(int64_t sequence, int64_t num_tokens) const {
  const BlockTable& table = TableOf(sequence, tables_);
  return watermark_.Check(BlocksFor(num_tokens) - table.num_given_back,
                          table.num_blocks() - table.num_given_back, /*ignored=*/true);
}

int32_t BlockManager::Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                               bool use_cache, bool ignore_watermark, bool whole) {
  BlockTable table = cache_.Begin(sequence, tokens, salt, use_cache, {.reads_host = true, .whole = whole});
  const auto size = static_cast<size_t>(SizeOf(table, static_cast<int64_t>(tokens.size()), whole));
  if (!watermark_.Admits(static_cast<int32_t>(size) - table.num_blocks(), ignore_watermark)) {
    cache_.GiveUp(sequence, std::move(table));
    return -1;
  }
  const int32_t adopted = table.num_committed;
  if (residency_ != nullptr) {
    for (const KvBlock* block : table.blocks) {
      if (!IsNull(*block)) residency_->NoteAccess(block->id);
    }
  }
  cache_.Adopt(tokens, &table);
  while (table.blocks.size() < size) table.blocks.push_back(pool_.Allocate());
  tables_.emplace(sequence, std::move(table));
  return adopted * options_.block_size;
}

int32_t BlockManager::BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens,
                                    absl::string_view salt, bool use_cache, bool ignore_watermark,
                                    bool whole) {
  BlockTable table = cache_.Begin(sequence, tokens, salt, use_cache, {.whole = whole});
  const int32_t needed = SizeOf(table, static_cast<int64_t>(tokens.size()), whole) - table.num_blocks();
  const int32_t missing = watermark_.Missing(needed, ignore_watermark);
  cache_.GiveUp(sequence, std::move(table));
  return missing;
}

void BlockManager::FreedBlocks::Add(const BlockManager& manager, int64_t sequence) {
  for (const KvBlock* block : TableOf(sequence, manager.tables_).blocks) {
    if (IsNull(*block) || block->id >= manager.pool_.limit()) continue;
    if (block->ref_count == 1 || ++references_[block->id] == block->ref_count) ++count_;
  }
}

bool BlockManager::Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks) {
  if (CanAppend(sequence, num_tokens) != AllocStatus::kOk) return false;
  BlockTable& table = TableOf(sequence, &tables_);
  for (int32_t missing = Needed(table, num_tokens); missing > 0; --missing) {
    KvBlock* block = pool_.Allocate();
    table.blocks.push_back(block);
    new_blocks->push_back(block->id);
  }
  return true;
}

void BlockManager::GrowForStep(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks) {
  BlockTable& table = TableOf(sequence, &tables_);
  const int32_t size = SizeOf(table, num_tokens, /*whole=*/false);
  while (table.num_blocks() < size && pool_.num_free() > 0) {
    KvBlock* block = pool_.Allocate();
    table.blocks.push_back(block);
    new_blocks->push_back(block->id);
  }
}

int32_t BlockManager::BlocksMissingForStep(int64_t sequence, int64_t num_tokens) const {
  const BlockTable& table = TableOf(sequence, tables_);
  return watermark_.Missing(SizeOf(table, num_tokens, /*whole=*/false) - table.num_blocks(),
                            /*ignored=*/true);
}

bool BlockManager::GrowAhead(int64_t sequence, int64_t num_tokens, int32_t reserve,
                             std::vector<int32_t>* new_blocks) {
  const int32_t missing = Needed(TableOf(sequence, tables_), num_tokens);
  const int32_t left = std::max(reserve, watermark_.height());
  if (missing > 0 && pool_.num_free() - missing < left) return false;
  return Grow(sequence, num_tokens, new_blocks);
}

void BlockManager::Shrink(int64_t sequence, int64_t num_tokens) {
  BlockTable& table = TableOf(sequence, &tables_);
  const auto size = static_cast<size_t>(BlocksFor(num_tokens));
  SOMNUS_CHECK(table.num_committed <= static_cast<int32_t>(size));
  for (; table.blocks.size() > size; table.blocks.pop_back()) pool_.Release(table.blocks.back());
}

int32_t BlockManager::BlocksMissingToGrow(int64_t sequence, int64_t num_tokens) const {
  return watermark_.Missing(Needed(TableOf(sequence, tables_), num_tokens), /*ignored=*/true);
}

void BlockManager::Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed) {
  if (options_.enable_prefix_caching) cache_.Commit(tokens, num_computed, &TableOf(sequence, &tables_));
}

int32_t BlockManager::GiveBackUnseen(int64_t sequence, int64_t next_position) {
  int32_t end = FirstSeenBlock(options_, next_position);
  if (end == 0) return 0;
  BlockTable& table = TableOf(sequence, &tables_);
  if (options_.enable_prefix_caching && !table.is_broken()) end = std::min(end, table.num_committed);
  return GiveBackBefore(end, &pool_, &table);
}

void BlockManager::Free(int64_t sequence) {
  BlockTable& table = TableOf(sequence, &tables_);
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) pool_.Release(*it);
  tables_.erase(sequence);
}

void BlockManager::ResetPrefixCache(CacheLoss cause) {
  cache_.Clear(cause);
  swapped_.ForgetContents();
}

void BlockManager::SetLimit(int32_t num_blocks) {
  pool_.SetLimit(num_blocks);
  pins_.DropForgotten(&PinReleases::shrunk);
}

int32_t BlockManager::EndOfUsed() const {
  int32_t end = pool_.EndOfUsed();
  for (const KeptBlock& block : kept_.blocks()) end = std::max(end, block.device_block + 1);
  return end;
}

std::vector<int32_t> BlockManager::Table(int64_t sequence) const {
  const BlockTable& table = TableOf(sequence, tables_);
  std::vector<int32_t> ids;
  ids.reserve(table.blocks.size());
  for (const KvBlock* block : table.blocks) ids.push_back(block->id);
  return ids;
}

}  // namespace somnus
