// The BlockManager's part for the prefix cache in the host tier.

#include <algorithm>

#include "base/check.h"
#include "coordinator/block_manager/block_manager.h"

namespace somnus {
namespace {

// How many of the cached blocks that are given out next are looked at for each one that may be stored: those
// before it are there already, or it is too early.
constexpr int32_t kLooksPerBlock = 16;

}  // namespace

void BlockManager::MakeHostRoom() {
  if (host_pool_.num_free() == 0) SOMNUS_CHECK(host_cache_.Evict());
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
  // The beginning is used last, so that it is given up last.
  for (auto entry = table->on_host.rbegin(); entry != table->on_host.rend(); ++entry)
    host_cache_.Use((*entry)->content_id);
  table->on_host.clear();
  pins_.DropForgotten(&PinReleases::forgotten);
}

std::vector<uint64_t> BlockManager::StoreCached(int32_t count, int64_t step,
                                                std::vector<BlockCopyOp>* swap_outs) {
  std::vector<uint64_t> stored;
  // What this call stores it does not give up again.
  const int32_t room = std::min(count, host_pool_.num_free() + host_cache_.size());
  for (const KvBlock* block : pool_.FirstCached(kLooksPerBlock * count)) {
    if (static_cast<int32_t>(stored.size()) == room) break;
    if (host_cache_.Has(block->content_id)) continue;
    MakeHostRoom();
    swap_outs->push_back({block->id, host_cache_.Store(*block, step)});
    stored.push_back(block->content_id);
  }
  return stored;
}

}  // namespace somnus
