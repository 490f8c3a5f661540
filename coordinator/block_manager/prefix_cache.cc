#include "coordinator/block_manager/prefix_cache.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/check.h"
#include "coordinator/block_manager/pin_releases.h"

namespace somnus {
namespace {

// How many of the cached blocks that are given out next are looked at for each block that may be stored in
// the host tier: earlier blocks are there already, or the time to store them has not come.
constexpr int32_t kLooksPerBlock = 16;

}  // namespace

PrefixCache::PrefixCache(const BlockManagerOptions& options, BlockPool* pool, PassedContents* passed,
                         BlockTables* tables, PrefixPins* pins, HostBlocks* host,
                         BlockEventRecorder* recorder)
    : options_(options),
      pool_(*pool),
      passed_(*passed),
      tables_(*tables),
      pins_(*pins),
      host_(*host),
      recorder_(recorder) {
  if (recorder_ != nullptr) recorder_->NoteCleared();
}

BlockContent PrefixCache::ContentAt(BlockTable* table, absl::Span<const int32_t> tokens) {
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

BlockTable PrefixCache::Begin(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                              bool use_cache, Beginning how) {
  SOMNUS_CHECK(!tokens.empty() && !tables_.contains(sequence));
  BlockTable table;
  table.salt = std::string(salt);
  if (auto kept = waiting_hashes_.find(sequence); kept != waiting_hashes_.end()) {
    table.hashes = std::move(kept->second);
    waiting_hashes_.erase(kept);
  }
  if (!use_cache || !options_.enable_prefix_caching) return table;
  const bool looks_on_host = how.reads_host && reads_host_;
  // At least one token must be computed, or there would be no logits to sample from.
  const int64_t max_blocks = (static_cast<int64_t>(tokens.size()) - 1) / options_.block_size;
  if (options_.attention_reach > 0 && !how.whole) {
    BeginInReach(tokens, max_blocks, looks_on_host, &table);
    return table;
  }
  while (table.num_committed < max_blocks) {
    const BlockContent content = ContentAt(&table, tokens);
    if (KvBlock* block = table.on_host.empty() ? pool_.Find(content) : nullptr; block != nullptr) {
      pool_.Reference(block);
      table.blocks.push_back(block);
      table.last_content_id = block->content_id;
    } else {
      const HostPrefixCache::Entry* entry = looks_on_host ? host_.cache().Find(content) : nullptr;
      if (entry == nullptr || !entry->is_ready) break;
      table.on_host.push_back(entry);
      table.last_content_id = entry->content_id;
    }
    ++table.num_committed;
  }
  return table;
}

uint64_t PrefixCache::IdElsewhere(const BlockContent& content) const {
  const uint64_t on_host = host_.cache().IdOf(content);
  return on_host != 0 ? on_host : passed_.IdOf(content);
}

PrefixCache::Link PrefixCache::FindLink(const BlockContent& content, bool looks_on_host) {
  if (KvBlock* block = pool_.Find(content); block != nullptr) return {block, nullptr, block->content_id};
  const HostPrefixCache::Entry* entry = host_.cache().Find(content);
  if (entry == nullptr) return {nullptr, nullptr, passed_.IdOf(content)};
  return {nullptr, looks_on_host && entry->is_ready ? entry : nullptr, entry->content_id};
}

void PrefixCache::BeginInReach(absl::Span<const int32_t> tokens, int64_t max_blocks, bool looks_on_host,
                               BlockTable* table) {
  std::vector<Link> chain;
  // From `run` on all blocks so far are there, the device's blocks before the blocks of the host tier.
  int32_t run = 0, found = 0, first = 0;
  while (table->num_committed < max_blocks) {
    const Link link = FindLink(ContentAt(table, tokens), looks_on_host);
    if (link.content_id == 0) break;
    const bool follows_host = !chain.empty() && chain.back().entry != nullptr;
    chain.push_back(link);
    table->last_content_id = link.content_id;
    const int32_t end = ++table->num_committed;
    if (link.block == nullptr && link.entry == nullptr) {
      run = end;
    } else if (link.block != nullptr && follows_host) {
      run = end - 1;
    }
    const int32_t seen = FirstSeenBlock(options_, int64_t{end} * options_.block_size);
    if (run <= seen && run < end) std::tie(found, first) = std::tuple(end, seen);
  }
  table->num_committed = found;
  table->last_content_id = found == 0 ? 0 : chain[found - 1].content_id;
  table->num_given_back = first;
  table->blocks.assign(first, pool_.null_block());
  for (int32_t i = first; i < found; ++i) {
    if (chain[i].block == nullptr) {
      table->on_host.push_back(chain[i].entry);
      continue;
    }
    pool_.Reference(chain[i].block);
    table->blocks.push_back(chain[i].block);
  }
}

void PrefixCache::GiveUp(int64_t sequence, BlockTable table) {
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) pool_.Release(*it);
  if (!table.hashes.empty()) waiting_hashes_[sequence] = std::move(table.hashes);
}

int32_t PrefixCache::CountCached(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt) {
  BlockTable table = Begin(sequence, tokens, salt, /*use_cache=*/true, {.reads_host = true});
  const int32_t cached = table.num_committed * options_.block_size;
  GiveUp(sequence, std::move(table));
  return cached;
}

void PrefixCache::Adopt(absl::Span<const int32_t> tokens, BlockTable* table) {
  for (const KvBlock* block : table->blocks) {
    if (!IsNull(*block)) pins_.Note(*block);
  }
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
  // The beginning of the prefix is used last, so that the beginning is given up last.
  for (auto entry = table->on_host.rbegin(); entry != table->on_host.rend(); ++entry)
    host_.mutable_cache()->Use((*entry)->content_id);
  table->on_host.clear();
  pins_.DropForgotten(&PinReleases::forgotten);
}

void PrefixCache::Commit(absl::Span<const int32_t> tokens, int64_t num_computed, BlockTable* table) {
  const int64_t known = std::min<int64_t>(num_computed, static_cast<int64_t>(tokens.size()));
  const int32_t full = static_cast<int32_t>(known / options_.block_size);
  while (table->num_committed < full) {
    if (table->is_broken()) return;
    const BlockContent content = ContentAt(table, tokens);
    KvBlock* block = table->blocks[table->num_committed];
    pool_.Remember(block, content, IdElsewhere(content));
    // Where the pool knows another block for this content, that block becomes the parent of the next block,
    // so that both sequences' chains meet again.
    KvBlock* known_block = pool_.Find(content);
    table->last_content_id = known_block == nullptr ? 0 : known_block->content_id;
    ++table->num_committed;
    pins_.DropForgotten(&PinReleases::forgotten);  // a newer block may have taken another one's place
    if (known_block != nullptr) pins_.Note(*known_block);
  }
}

std::vector<uint64_t> PrefixCache::StoreOnHost(int32_t count, int64_t step,
                                               std::vector<BlockCopyOp>* swap_outs) {
  return host_.Store(pool_.FirstCached(kLooksPerBlock * count), count, step, swap_outs);
}

void PrefixCache::ForgetPrefix(absl::Span<const int32_t> tokens, absl::string_view salt) {
  BlockTable chain;
  chain.salt = std::string(salt);
  const int32_t full = static_cast<int32_t>(static_cast<int64_t>(tokens.size()) / options_.block_size);
  while (chain.num_committed < full) {
    const BlockContent content = ContentAt(&chain, tokens);
    KvBlock* block = pool_.Find(content);
    chain.last_content_id = block == nullptr ? IdElsewhere(content) : block->content_id;
    if (chain.last_content_id == 0) break;  // blocks further down the chain cannot be found either
    ++chain.num_committed;
    if (block != nullptr) pool_.Forget(block, CacheLoss::kBadContents);
    host_.mutable_cache()->Forget(chain.last_content_id);
  }
  pins_.DropForgotten(&PinReleases::forgotten);
}

void PrefixCache::Clear(CacheLoss cause) {
  const bool had_any = CachesAny();
  pool_.ForgetAll(cause);
  passed_.Clear();
  host_.mutable_cache()->Clear();
  NoteIfCleared(had_any);
  pins_.DropForgotten(&PinReleases::forgotten);
  for (auto& [sequence, table] : tables_) {
    if (table.num_committed > 0) table.last_content_id = 0;
  }
}

void PrefixCache::ForgetAllBut(const std::vector<bool>& stays, CacheLoss cause) {
  const bool had_any = CachesAny();
  pool_.ForgetAllBut(stays, cause);
  NoteIfCleared(had_any);
  pins_.DropForgotten(&PinReleases::forgotten);
}

std::vector<BlockEvent> PrefixCache::TakeEvents() {
  return recorder_ == nullptr ? std::vector<BlockEvent>() : recorder_->Take();
}

void PrefixCache::NoteIfCleared(bool had_any) {
  if (recorder_ != nullptr && had_any && !CachesAny()) recorder_->NoteCleared();
}

}  // namespace somnus
