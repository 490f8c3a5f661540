#include "coordinator/block_manager/block_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"

namespace somnus {
namespace {

// How many of the cached blocks that are given out next are looked at for each block that may be stored in
// the host tier: the earlier ones are there already, or the time to store them has not come.
constexpr int32_t kLooksPerBlock = 16;

}  // namespace

BlockManager::BlockManager(const BlockManagerOptions& options)
    : options_(options),
      recorder_(options.records_events ? std::make_unique<BlockEventRecorder>() : nullptr),
      pool_(options.num_blocks, options.block_size, recorder_.get()),
      pins_(&pool_, options.block_size),
      host_(options.num_host_blocks, recorder_.get()) {
  if (recorder_ != nullptr) recorder_->NoteCleared();
}

int32_t BlockManager::BlocksFor(int64_t num_tokens) const {
  return static_cast<int32_t>((num_tokens + options_.block_size - 1) / options_.block_size);
}

AllocStatus BlockManager::CanHave(int32_t num_blocks, int32_t num_had, bool ignore_watermark) const {
  if (num_blocks > TotalBlocks(options_.num_blocks)) return AllocStatus::kNever;
  const int32_t needed = std::max(0, num_blocks - num_had);
  return HasRoom(needed, ignore_watermark) ? AllocStatus::kOk : AllocStatus::kLater;
}

AllocStatus BlockManager::CanAllocate(int64_t num_tokens, bool ignore_watermark, int32_t num_adopted) const {
  return CanHave(BlocksFor(num_tokens), num_adopted, ignore_watermark);
}

AllocStatus BlockManager::CanAppend(int64_t sequence, int64_t num_tokens) const {
  const auto table = tables_.find(sequence);
  SOMNUS_CHECK(table != tables_.end());
  const auto num_had = static_cast<int32_t>(table->second.blocks.size());
  return CanHave(BlocksFor(num_tokens), num_had, /*ignore_watermark=*/true);
}

BlockManager::BlockTable& BlockManager::TableOf(int64_t sequence) {
  auto it = tables_.find(sequence);
  SOMNUS_CHECK(it != tables_.end());
  return it->second;
}

BlockContent BlockManager::ContentAt(BlockTable* table, absl::Span<const int32_t> tokens) {
  const auto index = static_cast<size_t>(table->num_committed);
  BlockContent content;
  content.parent_content_id = table->last_content_id;
  content.tokens = tokens.subspan(index * options_.block_size, options_.block_size);
  content.salt = index == 0 ? absl::string_view(table->salt) : absl::string_view();
  if (table->hashes.size() == index) {
    const uint64_t parent_hash = index == 0 ? 0 : table->hashes.back();
    table->hashes.push_back(HashBlock(parent_hash, content.tokens, content.salt));
    ++num_blocks_hashed_;
  }
  content.hash = table->hashes[index];
  return content;
}

BlockManager::BlockTable BlockManager::BeginTable(int64_t sequence, absl::Span<const int32_t> tokens,
                                                  absl::string_view salt, bool use_cache, bool reads_host) {
  SOMNUS_CHECK(!tokens.empty() && !tables_.contains(sequence));
  BlockTable table;
  table.salt = std::string(salt);
  if (auto kept = waiting_hashes_.find(sequence); kept != waiting_hashes_.end()) {
    table.hashes = std::move(kept->second);
    waiting_hashes_.erase(kept);
  }
  if (!use_cache || !options_.enable_prefix_caching) return table;
  // At least one token must be computed, or there would be no logits to sample from.
  const int64_t max_blocks = (static_cast<int64_t>(tokens.size()) - 1) / options_.block_size;
  while (table.num_committed < max_blocks) {
    const BlockContent content = ContentAt(&table, tokens);
    if (KvBlock* block = table.on_host.empty() ? pool_.Find(content) : nullptr; block != nullptr) {
      pool_.Reference(block);
      table.blocks.push_back(block);
      table.last_content_id = block->content_id;
    } else {
      const HostPrefixCache::Entry* entry = reads_host ? host_.cache().Find(content) : nullptr;
      if (entry == nullptr || !entry->is_ready) break;
      table.on_host.push_back(entry);
      table.last_content_id = entry->content_id;
    }
    ++table.num_committed;
  }
  return table;
}

void BlockManager::GiveUpTable(int64_t sequence, BlockTable table) {
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) pool_.Release(*it);
  if (!table.hashes.empty()) waiting_hashes_[sequence] = std::move(table.hashes);
}

int32_t BlockManager::Missing(const BlockTable& table, int64_t num_tokens, bool ignore_watermark) const {
  return Needed(table, num_tokens) + Watermark(ignore_watermark) - pool_.num_free();
}

int32_t BlockManager::Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                               bool use_cache, bool ignore_watermark) {
  BlockTable table = BeginTable(sequence, tokens, salt, use_cache, reads_host_);
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  const auto num_adopted = static_cast<int32_t>(table.blocks.size());
  if (CanAllocate(num_tokens, ignore_watermark, num_adopted) != AllocStatus::kOk) {
    NoteRefusal(Needed(table, num_tokens));
    GiveUpTable(sequence, std::move(table));
    return -1;
  }
  const int32_t adopted = table.num_committed;
  NoteAdopted(table, table.blocks.size());
  TakeFromHost(tokens, &table);
  const auto size = static_cast<size_t>(BlocksFor(num_tokens));
  while (table.blocks.size() < size) table.blocks.push_back(pool_.Allocate());
  tables_.emplace(sequence, std::move(table));
  return adopted * options_.block_size;
}

void BlockManager::NoteAdopted(const BlockTable& table, size_t count) {
  for (size_t i = 0; i < count; ++i) pins_.Note(*table.blocks[i]);
}

int32_t BlockManager::BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens,
                                    absl::string_view salt, bool use_cache, bool ignore_watermark) {
  BlockTable table = BeginTable(sequence, tokens, salt, use_cache);
  const int32_t missing = Missing(table, static_cast<int64_t>(tokens.size()), ignore_watermark);
  GiveUpTable(sequence, std::move(table));
  return missing;
}

int32_t BlockManager::CountCached(int64_t sequence, absl::Span<const int32_t> tokens,
                                  absl::string_view salt) {
  BlockTable table = BeginTable(sequence, tokens, salt, /*use_cache=*/true, reads_host_);
  const int32_t cached = table.num_committed * options_.block_size;
  GiveUpTable(sequence, std::move(table));
  return cached;
}

void BlockManager::FreedBlocks::Add(const BlockManager& manager, int64_t sequence) {
  auto table = manager.tables_.find(sequence);
  SOMNUS_CHECK(table != manager.tables_.end());
  for (const KvBlock* block : table->second.blocks) {
    if (block->id >= manager.limit()) continue;
    if (block->ref_count == 1 || ++references_[block->id] == block->ref_count) ++count_;
  }
}

bool BlockManager::Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks) {
  if (CanAppend(sequence, num_tokens) != AllocStatus::kOk) return false;
  BlockTable& table = TableOf(sequence);
  for (int32_t missing = Needed(table, num_tokens); missing > 0; --missing) {
    KvBlock* block = pool_.Allocate();
    table.blocks.push_back(block);
    new_blocks->push_back(block->id);
  }
  return true;
}

bool BlockManager::GrowAhead(int64_t sequence, int64_t num_tokens, int32_t reserve,
                             std::vector<int32_t>* new_blocks) {
  const int32_t missing = BlocksFor(num_tokens) - static_cast<int32_t>(TableOf(sequence).blocks.size());
  const int32_t left = std::max(reserve, Watermark(/*ignored=*/false));
  if (missing > 0 && pool_.num_free() - missing < left) return false;
  return Grow(sequence, num_tokens, new_blocks);
}

void BlockManager::Shrink(int64_t sequence, int64_t num_tokens) {
  BlockTable& table = TableOf(sequence);
  const auto size = static_cast<size_t>(BlocksFor(num_tokens));
  SOMNUS_CHECK(table.num_committed <= static_cast<int32_t>(size));
  for (; table.blocks.size() > size; table.blocks.pop_back()) pool_.Release(table.blocks.back());
}

int32_t BlockManager::BlocksMissingToGrow(int64_t sequence, int64_t num_tokens) const {
  const auto table = tables_.find(sequence);
  SOMNUS_CHECK(table != tables_.end());
  return Missing(table->second, num_tokens, /*ignore_watermark=*/true);
}

void BlockManager::Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed) {
  if (!options_.enable_prefix_caching) return;
  BlockTable& table = TableOf(sequence);
  const int64_t known = std::min<int64_t>(num_computed, static_cast<int64_t>(tokens.size()));
  const int32_t full = static_cast<int32_t>(known / options_.block_size);
  while (table.num_committed < full) {
    if (table.is_broken()) return;
    const BlockContent content = ContentAt(&table, tokens);
    KvBlock* block = table.blocks[table.num_committed];
    pool_.Remember(block, content, host_.cache().IdOf(content));
    // Where the pool knows another block for this content, that block becomes the parent of the next block,
    // so that both sequences' chains meet again.
    KvBlock* known_block = pool_.Find(content);
    table.last_content_id = known_block == nullptr ? 0 : known_block->content_id;
    ++table.num_committed;
    pins_.DropForgotten(&PinReleases::forgotten);  // a newer block may have taken another one's place
    if (known_block != nullptr) pins_.Note(*known_block);
  }
}

void BlockManager::Free(int64_t sequence) {
  BlockTable& table = TableOf(sequence);
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) pool_.Release(*it);
  tables_.erase(sequence);
}

void BlockManager::Fork(int64_t parent, int64_t child) {
  SOMNUS_CHECK(!tables_.contains(child));
  BlockTable table = TableOf(parent);
  for (KvBlock* block : table.blocks) pool_.Reference(block);
  tables_.emplace(child, std::move(table));
}

void BlockManager::ForkPrefix(int64_t parent, int64_t child, int32_t num_blocks) {
  SOMNUS_CHECK(!tables_.contains(child));
  BlockTable table = TableOf(parent);
  table.blocks.resize(num_blocks);
  if (table.num_committed > num_blocks) {
    table.num_committed = num_blocks;
    table.last_content_id = num_blocks == 0 ? 0 : table.blocks.back()->content_id;
  }
  if (table.hashes.size() > static_cast<size_t>(num_blocks)) table.hashes.resize(num_blocks);
  for (KvBlock* block : table.blocks) pool_.Reference(block);
  tables_.emplace(child, std::move(table));
}

bool BlockManager::ForkAt(int64_t parent, int64_t child, int64_t num_tokens,
                          std::vector<BlockCopyOp>* copies) {
  SOMNUS_CHECK(static_cast<int32_t>(TableOf(parent).blocks.size()) == BlocksFor(num_tokens));
  const bool has_partial = num_tokens % options_.block_size != 0;
  const int32_t needed = has_partial ? 1 : 0;
  if (!HasRoom(needed, /*ignore_watermark=*/false)) {
    NoteRefusal(needed);
    return false;
  }
  Fork(parent, child);
  return !has_partial || MakeWritable(child, num_tokens, copies);
}

bool BlockManager::MakeWritable(int64_t sequence, int64_t position, std::vector<BlockCopyOp>* copies) {
  BlockTable& table = TableOf(sequence);
  const size_t index = static_cast<size_t>(position / options_.block_size);
  SOMNUS_CHECK(index < table.blocks.size());
  KvBlock* shared = table.blocks[index];
  if (shared->ref_count == 1) return true;
  if (pool_.num_free() == 0) return false;
  KvBlock* own = pool_.Allocate();
  copies->push_back({shared->id, own->id});
  pool_.Release(shared);
  table.blocks[index] = own;
  return true;
}

void BlockManager::ForgetPrefix(absl::Span<const int32_t> tokens, absl::string_view salt) {
  BlockTable chain;
  chain.salt = std::string(salt);
  const int32_t full = static_cast<int32_t>(static_cast<int64_t>(tokens.size()) / options_.block_size);
  while (chain.num_committed < full) {
    const BlockContent content = ContentAt(&chain, tokens);
    KvBlock* block = pool_.Find(content);
    chain.last_content_id = block == nullptr ? host_.cache().IdOf(content) : block->content_id;
    if (chain.last_content_id == 0) break;  // blocks further down the chain cannot be found either
    ++chain.num_committed;
    if (block != nullptr) pool_.Forget(block, CacheLoss::kBadContents);
    host_.mutable_cache()->Forget(chain.last_content_id);
  }
  pins_.DropForgotten(&PinReleases::forgotten);
}

std::vector<BlockEvent> BlockManager::TakeEvents() {
  return recorder_ == nullptr ? std::vector<BlockEvent>() : recorder_->Take();
}

void BlockManager::NoteIfCleared(bool had_any) {
  if (recorder_ != nullptr && had_any && !CachesAny()) recorder_->NoteCleared();
}

void BlockManager::ResetPrefixCache(CacheLoss cause) {
  const bool had_any = CachesAny();
  pool_.ForgetAll(cause);
  host_.mutable_cache()->Clear();
  NoteIfCleared(had_any);
  pins_.DropForgotten(&PinReleases::forgotten);
  // The last committed blocks of live tables are forgotten, so that later blocks stay out of the cache.
  for (auto& [id, table] : tables_) {
    if (table.num_committed > 0) table.last_content_id = 0;
  }
  host_.ForgetContents();
}

int32_t BlockManager::CountBlocks(absl::Span<const Computed> sequences) const {
  absl::flat_hash_set<const KvBlock*> blocks;
  for (const Computed& computed : sequences) {
    const auto begin = tables_.at(computed.sequence).blocks.begin();
    blocks.insert(begin, begin + BlocksFor(computed.num_tokens));
  }
  return static_cast<int32_t>(blocks.size());
}

void BlockManager::SwapOut(absl::Span<const Computed> sequences, std::vector<BlockCopyOp>* swap_outs) {
  std::vector<HostBlocks::Leaving> leaving;
  for (const auto& [sequence, num_tokens] : sequences) {
    const BlockTable& table = TableOf(sequence);
    const auto count = static_cast<size_t>(BlocksFor(num_tokens));
    leaving.push_back({sequence, absl::MakeConstSpan(table.blocks).first(count), table.is_broken()});
  }
  host_.SwapOut(leaving, swap_outs);
  for (const Computed& computed : sequences) {
    std::vector<uint64_t> hashes = std::move(TableOf(computed.sequence).hashes);
    Free(computed.sequence);
    if (!hashes.empty()) waiting_hashes_[computed.sequence] = std::move(hashes);
  }
}

int32_t BlockManager::NeededToSwapIn(const HostBlocks::Table& host, const BlockTable& table,
                                     int64_t num_tokens, absl::flat_hash_set<int32_t>* seen) const {
  const auto adopted = table.blocks.size();
  auto needed =
      std::max(0, BlocksFor(num_tokens) - static_cast<int32_t>(std::max(adopted, host.blocks.size())));
  for (size_t i = adopted; i < host.blocks.size(); ++i) needed += seen->insert(host.blocks[i]).second ? 1 : 0;
  return needed;
}

void BlockManager::FillFromHost(const HostBlocks::Table& host, int64_t num_tokens,
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
    const HostBlocks::Table* host = host_.Find(one.sequence);
    const bool use_cache = one.use_cache && !(host != nullptr && host->is_forgotten);
    begun.emplace_back(one.sequence, BeginTable(one.sequence, one.tokens, one.salt, use_cache));
    const BlockTable& table = begun.back().second;
    had.insert(table.blocks.begin(), table.blocks.end());
    const auto shared = static_cast<int32_t>(one.num_shared / options_.block_size);
    needed += host != nullptr ? NeededToSwapIn(*host, table, num_tokens, &seen)
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
    const HostBlocks::Table& host = *host_.Find(one.sequence);
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
    const HostBlocks::Table& host = *host_.Find(one.sequence);
    one.num_adopted = static_cast<int64_t>(table.blocks.size()) * options_.block_size;
    NoteAdopted(table, table.blocks.size());
    FillFromHost(host, static_cast<int64_t>(one.tokens.size()), &came_back, &table, swap_ins);
    // The chain is broken, so that the sequence's later blocks stay out of the prefix cache, too.
    if (host.is_forgotten) table.num_committed = 1;
    tables_.emplace(one.sequence, std::move(table));
  }
  for (const Returning& one : all) host_.Drop(one.sequence);
  return AllocStatus::kOk;
}

void BlockManager::TakeFromHost(absl::Span<const int32_t> tokens, BlockTable* table) {
  const size_t first = table->blocks.size();
  for (size_t i = 0; i < table->on_host.size(); ++i) {
    const HostPrefixCache::Entry& entry = *table->on_host[i];
    BlockContent content;
    content.parent_content_id = entry.parent_content_id;
    content.hash = entry.hash;
    content.tokens = tokens.subspan((first + i) * options_.block_size, options_.block_size);
    content.salt = entry.salt;
    KvBlock* block = pool_.Allocate();
    host_hits_.push_back({entry.host_block, block->id});
    table->blocks.push_back(block);
    pool_.Remember(block, content, entry.content_id);
    if (block->content_id != 0) pins_.Note(*block);
  }
  // The beginning of the prefix is used last, so that it is given up last.
  for (auto entry = table->on_host.rbegin(); entry != table->on_host.rend(); ++entry)
    host_.mutable_cache()->Use((*entry)->content_id);
  table->on_host.clear();
  pins_.DropForgotten(&PinReleases::forgotten);
}

std::vector<uint64_t> BlockManager::StoreCached(int32_t count, int64_t step,
                                                std::vector<BlockCopyOp>* swap_outs) {
  return host_.Store(pool_.FirstCached(kLooksPerBlock * count), count, step, swap_outs);
}

std::vector<int64_t> BlockManager::ChooseKept(absl::Span<const Computed> sequences,
                                              const KeepLimits& limits) {
  SOMNUS_CHECK(kept().empty());
  const auto room = [&] { return host_.RoomToKeep(limits.num_blocks); };
  std::vector<int64_t> without_room;
  for (const Computed& computed : sequences) {
    const BlockTable& table = TableOf(computed.sequence);
    const auto begin = table.blocks.begin(), end = begin + BlocksFor(computed.num_tokens);
    const auto more =
        std::count_if(begin, end, [&](const KvBlock* block) { return !host_.Keeps(block->id); });
    if (more > room()) {
      without_room.push_back(computed.sequence);
      continue;
    }
    std::for_each(begin, end, [&](const KvBlock* block) { host_.Keep(block->id); });
  }
  for (const int64_t sequence : without_room) {
    for (const KvBlock* block : TableOf(sequence).blocks) {
      if (block->content_id == 0 || room() == 0) break;
      host_.Keep(block->id);
    }
  }
  for (const int32_t id : pins_.HeldBlocks()) {
    if (room() > 0) host_.Keep(id);
  }
  for (const int32_t id : pool_.LastCached(limits.cached_blocks ? pool_.num_cached() : 0)) {
    const bool is_on_host = host_.cache().Has(pool_.block(id)->content_id);
    if (room() > 0 && !is_on_host) host_.Keep(id);
  }
  host_.EvictDownTo(limits.num_blocks);
  return without_room;
}

void BlockManager::ForgetUnkept() {
  std::vector<bool> stays(options_.num_blocks, false);
  for (const KeptBlock& block : kept()) stays[block.device_block] = true;
  const bool had_any = CachesAny();
  pool_.ForgetAllBut(stays, CacheLoss::kSleep);
  NoteIfCleared(had_any);
  pins_.DropForgotten(&PinReleases::forgotten);
}

void BlockManager::SetLimit(int32_t num_blocks) {
  pool_.SetLimit(num_blocks);
  pins_.DropForgotten(&PinReleases::shrunk);
}

int32_t BlockManager::EndOfUsed() const {
  int32_t end = pool_.EndOfUsed();
  for (const KeptBlock& block : host_.kept()) end = std::max(end, block.device_block + 1);
  return end;
}

std::vector<int32_t> BlockManager::Table(int64_t sequence) const {
  auto it = tables_.find(sequence);
  SOMNUS_CHECK(it != tables_.end());
  std::vector<int32_t> ids;
  ids.reserve(it->second.blocks.size());
  for (const KvBlock* block : it->second.blocks) ids.push_back(block->id);
  return ids;
}

absl::Status BlockManager::CheckIntegrity() const {
  absl::Status pool_status = pool_.CheckIntegrity();
  if (!pool_status.ok()) return pool_status;
  std::vector<int32_t> counts(options_.num_blocks, 0);
  for (const auto& [id, table] : tables_) {
    for (const KvBlock* block : table.blocks) ++counts[block->id];
  }
  if (absl::Status status = pins_.CheckIntegrity(&counts); !status.ok()) return status;
  for (int32_t id = 0; id < options_.num_blocks; ++id) {
    const int32_t references = pool_.block(id)->ref_count;
    if (counts[id] != references) {
      return absl::InternalError(absl::StrCat("block ", id, " has ", references, " references but is in ",
                                              counts[id], " tables and pins"));
    }
  }
  for (const auto& [sequence, table] : host_.tables()) {
    if (tables_.contains(sequence))
      return absl::InternalError(absl::StrCat("sequence ", sequence, " is swapped out and has a table"));
  }
  return host_.CheckIntegrity(options_.num_blocks);
}

absl::Status BlockManager::CheckNextBlocks() {
  const int32_t first = next_checked_, end = std::min(options_.num_blocks, first + kCheckedBlocks);
  next_checked_ = end == options_.num_blocks ? 0 : end;
  if (absl::Status status = pool_.CheckBlocks(first, end); !status.ok()) return status;
  if (absl::Status status = host_.CheckCounts(); !status.ok()) return status;
  if (!tables_.empty()) return absl::OkStatus();
  if (pool_.num_used() != pins_.num_blocks()) {
    return absl::InternalError(absl::StrCat("no sequence has blocks, and pins have ", pins_.num_blocks(),
                                            ", but ", pool_.num_used(), " are used"));
  }
  for (int32_t id = first; id < end; ++id) {
    if (const int32_t references = pool_.block(id)->ref_count; references != pins_.num_holders(id)) {
      return absl::InternalError(absl::StrCat("no sequence has blocks, and ", pins_.num_holders(id),
                                              " pins have block ", id, ", but it has ", references,
                                              " references"));
    }
  }
  return absl::OkStatus();
}

}  // namespace somnus
