#include "coordinator/block_manager/block_pool.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

uint64_t HashBlock(uint64_t parent_hash, absl::Span<const int32_t> tokens, absl::string_view salt) {
  const uint64_t seed =
      salt.empty() ? parent_hash : XXH3_64bits_withSeed(salt.data(), salt.size(), parent_hash);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof(int32_t), seed);
}

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size) : block_size_(block_size), blocks_(num_blocks) {
  SOMNUS_CHECK(num_blocks >= 1 && block_size >= 1);
  list_.prev = list_.next = &list_;
  for (int32_t id = 0; id < num_blocks; ++id) blocks_[id].id = id;
  for (int32_t id = kNullBlock + 1; id < num_blocks; ++id) Link(&blocks_[id], list_.prev);
}

void BlockPool::Link(KvBlock* block, KvBlock* after) {
  block->prev = after;
  block->next = after->next;
  after->next->prev = block;
  after->next = block;
  ++num_free_;
  if (block->content_id != 0) ++num_cached_;
}

void BlockPool::Unlink(KvBlock* block) {
  block->prev->next = block->next;
  block->next->prev = block->prev;
  block->prev = block->next = nullptr;
  --num_free_;
  if (block->content_id != 0) --num_cached_;
}

void BlockPool::ClearContent(KvBlock* block) {
  if (block->content_id == 0) return;
  auto it = index_.find(block->hash);
  if (it != index_.end() && it->second == block) index_.erase(it);
  block->content_id = block->parent_content_id = block->hash = 0;
  block->tokens.clear();
  block->salt.clear();
}

void BlockPool::Forget(KvBlock* block) {
  const bool is_listed = block->ref_count == 0;
  if (is_listed) Unlink(block);
  ClearContent(block);
  if (is_listed) Link(block, &list_);
}

KvBlock* BlockPool::Allocate() {
  SOMNUS_CHECK(num_free_ > 0);
  KvBlock* block = list_.next;
  Unlink(block);
  ClearContent(block);
  block->ref_count = 1;
  return block;
}

void BlockPool::Reference(KvBlock* block) {
  SOMNUS_CHECK(block->id != kNullBlock);
  if (block->ref_count++ == 0) Unlink(block);
}

void BlockPool::Release(KvBlock* block) {
  SOMNUS_CHECK(block->ref_count > 0);
  if (--block->ref_count > 0) return;
  Link(block, block->content_id != 0 ? list_.prev : &list_);
}

KvBlock* BlockPool::Find(const BlockContent& content) {
  auto it = index_.find(content.hash);
  if (it == index_.end()) return nullptr;
  KvBlock* block = it->second;
  const bool same = block->parent_content_id == content.parent_content_id && block->salt == content.salt &&
                    absl::MakeConstSpan(block->tokens) == content.tokens;
  return same ? block : nullptr;
}

void BlockPool::Remember(KvBlock* block, const BlockContent& content) {
  SOMNUS_CHECK(block->ref_count > 0 && static_cast<int32_t>(content.tokens.size()) == block_size_);
  if (block->content_id != 0 || Find(content) != nullptr) return;
  // Another block has the same hash by a collision, or because its parent was evicted since, so that no chain
  // leads to it any more. The newer block takes its place.
  auto [it, inserted] = index_.try_emplace(content.hash, block);
  if (!inserted) {
    Forget(it->second);
    index_[content.hash] = block;
  }
  block->content_id = next_content_id_++;
  block->parent_content_id = content.parent_content_id;
  block->hash = content.hash;
  block->tokens.assign(content.tokens.begin(), content.tokens.end());
  block->salt = std::string(content.salt);
}

void BlockPool::ForgetAll() {
  for (KvBlock& block : blocks_) ClearContent(&block);
  num_cached_ = 0;
}

void BlockPool::ForgetAllBut(const std::vector<bool>& stays) {
  for (KvBlock& block : blocks_) {
    if (block.content_id != 0 && !stays[block.id]) Forget(&block);
  }
}

// All cached blocks are at the tail of the list.
std::vector<int32_t> BlockPool::LastCached(int32_t count) const {
  std::vector<int32_t> ids;
  for (const KvBlock* block = list_.prev; block != &list_ && block->content_id != 0; block = block->prev) {
    if (static_cast<int32_t>(ids.size()) == count) break;
    ids.push_back(block->id);
  }
  return ids;
}

absl::Status BlockPool::CheckIntegrity() const {
  int32_t listed = 0, cached = 0, used = 0, known = 0;
  for (const KvBlock* block = list_.next; block != &list_; block = block->next) {
    if (block->ref_count != 0)
      return absl::InternalError(absl::StrCat("block ", block->id, " is free and used"));
    if (block->next->prev != block || block->prev->next != block) {
      return absl::InternalError(absl::StrCat("free list is broken at block ", block->id));
    }
    if (block->content_id != 0) ++cached;
    if (++listed > num_total()) return absl::InternalError("free list has a cycle");
  }
  for (const KvBlock& block : blocks_) {
    if (block.ref_count < 0)
      return absl::InternalError(absl::StrCat("block ", block.id, " has a negative count"));
    if (block.ref_count > 0) ++used;
    if (block.content_id == 0) continue;
    ++known;
    auto it = index_.find(block.hash);
    if (it == index_.end() || it->second != &block) {
      return absl::InternalError(absl::StrCat("block ", block.id, " is cached but not in the index"));
    }
  }
  if (blocks_[kNullBlock].ref_count != 0 || blocks_[kNullBlock].next != nullptr)
    return absl::InternalError("the null block is in use");
  if (listed + used != num_total() || listed != num_free_ || cached != num_cached_ ||
      known != static_cast<int32_t>(index_.size())) {
    return absl::InternalError(absl::StrCat("blocks do not add up: free ", listed, " (cached ", cached,
                                            ") + used ", used, " of ", num_total(), "; counted ", num_free_,
                                            " free, ", num_cached_, " cached, ", index_.size(), " indexed"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
