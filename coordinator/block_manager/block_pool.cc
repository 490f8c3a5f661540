#include "coordinator/block_manager/block_pool.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

uint64_t HashBlock(uint64_t parent_hash, absl::Span<const int32_t> tokens, absl::string_view salt) {
  const uint64_t seed =
      salt.empty() ? parent_hash : XXH3_64bits_withSeed(salt.data(), salt.size(), parent_hash);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof(int32_t), seed);
}

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size, BlockEventRecorder* recorder,
                     BlockResidency* residency, PassedContents* passed)
    : block_size_(block_size),
      blocks_(num_blocks),
      unknown_(num_blocks),
      limit_(num_blocks),
      recorder_(recorder),
      residency_(residency),
      passed_(passed) {
  SOMNUS_CHECK(num_blocks >= 1 && block_size >= 1);
  list_.prev = list_.next = &list_;
  for (int32_t id = 0; id < num_blocks; ++id) blocks_[id].id = id;
  for (int32_t id = kNullBlock + 1; id < num_blocks; ++id) unknown_.Insert(id);
}

void BlockPool::AddFree(KvBlock* block) {
  if (block->content_id == 0) return unknown_.Insert(block->id);
  block->prev = list_.prev;
  block->next = &list_;
  block->prev->next = block->next->prev = block;
  ++num_cached_;
}

void BlockPool::RemoveFree(KvBlock* block) {
  if (block->content_id == 0) return unknown_.Erase(block->id);
  block->prev->next = block->next;
  block->next->prev = block->prev;
  block->prev = block->next = nullptr;
  --num_cached_;
}

void BlockPool::ClearContent(KvBlock* block, CacheLoss cause) {
  if (block->content_id == 0) return;
  ++counts_.lost[static_cast<size_t>(cause)];
  if (recorder_ != nullptr) recorder_->NoteRemoved(block->content_id);
  num_used_forgotten_ += block->ref_count > 0 ? 1 : 0;
  auto it = index_.find(block->hash);
  if (it != index_.end() && it->second == block) index_.erase(it);
  block->content_id = block->parent_content_id = block->hash = 0;
  block->tokens.clear();
  block->salt.clear();
}

void BlockPool::MoveContent(KvBlock* from, KvBlock* to) {
  RemoveFree(from);
  to->content_id = std::exchange(from->content_id, 0);
  to->parent_content_id = std::exchange(from->parent_content_id, 0);
  to->hash = std::exchange(from->hash, 0);
  to->tokens = std::exchange(from->tokens, {});
  to->salt = std::exchange(from->salt, {});
  index_[to->hash] = to;
  AddFree(from);
}

void BlockPool::Forget(KvBlock* block, CacheLoss cause) {
  const bool is_cached = block->ref_count == 0 && block->content_id != 0;
  if (is_cached) RemoveFree(block);
  ClearContent(block, cause);
  if (is_cached) AddFree(block);
}

KvBlock* BlockPool::Allocate() {
  SOMNUS_CHECK(num_free() > 0);
  KvBlock* block = unknown_.size() > 0 ? &blocks_[unknown_.Lowest()] : list_.next;
  RemoveFree(block);
  if (residency_ != nullptr) residency_->NoteAllocated(block->id, block->content_id != 0);
  if (passed_ != nullptr && block->content_id != 0) passed_->Note(*block);
  ClearContent(block, CacheLoss::kEvicted);
  block->ref_count = 1;
  ++num_used_;
  return block;
}

void BlockPool::Reference(KvBlock* block) {
  if (block->id == kNullBlock || block->ref_count++ > 0) return;
  RemoveFree(block);
  ++num_used_;
}

void BlockPool::Release(KvBlock* block) {
  if (block->id == kNullBlock) return;
  SOMNUS_CHECK(block->ref_count > 0);
  if (--block->ref_count > 0) return;
  --num_used_;
  if (block->id < limit_) AddFree(block);
}

void BlockPool::SetLimit(int32_t num_blocks) {
  SOMNUS_CHECK(num_blocks > kNullBlock && num_blocks <= static_cast<int32_t>(blocks_.size()));
  for (int32_t id = num_blocks; id < limit_; ++id) {
    if (blocks_[id].ref_count == 0) RemoveFree(&blocks_[id]);
    ClearContent(&blocks_[id], CacheLoss::kShrunk);
  }
  for (int32_t id = limit_; id < num_blocks; ++id) {
    if (blocks_[id].ref_count == 0) AddFree(&blocks_[id]);
  }
  limit_ = num_blocks;
}

int32_t BlockPool::EndOfUsed() const {
  int32_t end = static_cast<int32_t>(blocks_.size());
  while (end > 0 && blocks_[end - 1].ref_count == 0) --end;
  return end;
}

KvBlock* BlockPool::Find(const BlockContent& content) {
  auto it = index_.find(content.hash);
  if (it == index_.end()) return nullptr;
  KvBlock* block = it->second;
  const bool same = block->parent_content_id == content.parent_content_id && block->salt == content.salt &&
                    absl::MakeConstSpan(block->tokens) == content.tokens;
  return same ? block : nullptr;
}

void BlockPool::Remember(KvBlock* block, const BlockContent& content, uint64_t content_id) {
  SOMNUS_CHECK(block->ref_count > 0 && static_cast<int32_t>(content.tokens.size()) == block_size_);
  if (block->id >= limit_ || block->content_id != 0) return;
  if (KvBlock* const known = Find(content); known != nullptr) {
    if (known->ref_count == 0) MoveContent(known, block);
    return;
  }
  // Another block has the same hash by a collision, or because the other block's parent was evicted since, so
  // that no chain leads to the other block any more. The newer block takes its place.
  auto [it, inserted] = index_.try_emplace(content.hash, block);
  if (!inserted) {
    Forget(it->second, CacheLoss::kOrphaned);
    index_[content.hash] = block;
  }
  block->content_id = content_id != 0 ? content_id : next_content_id_++;
  block->parent_content_id = content.parent_content_id;
  block->hash = content.hash;
  block->tokens.assign(content.tokens.begin(), content.tokens.end());
  block->salt = std::string(content.salt);
  ++counts_.stored;
  if (recorder_ != nullptr)
    recorder_->NoteStored({block->content_id, block->parent_content_id, block->tokens, block->salt});
}

void BlockPool::ForgetAll(CacheLoss cause) {
  for (KvBlock& block : blocks_) {
    if (block.content_id != 0) Forget(&block, cause);
  }
}

void BlockPool::ForgetAllBut(const std::vector<bool>& stays, CacheLoss cause) {
  for (KvBlock& block : blocks_) {
    if (block.content_id != 0 && !stays[block.id]) Forget(&block, cause);
  }
}

std::vector<int32_t> BlockPool::LastCached(int32_t count) const {
  std::vector<int32_t> ids;
  for (const KvBlock* block = list_.prev; block != &list_; block = block->prev) {
    if (static_cast<int32_t>(ids.size()) == count) break;
    ids.push_back(block->id);
  }
  return ids;
}

std::vector<const KvBlock*> BlockPool::FirstCached(int32_t count) const {
  std::vector<const KvBlock*> blocks;
  for (const KvBlock* block = list_.next; block != &list_; block = block->next) {
    if (static_cast<int32_t>(blocks.size()) == count) break;
    blocks.push_back(block);
  }
  return blocks;
}

absl::Status BlockPool::CheckIntegrity() const {
  int32_t cached = 0;
  for (const KvBlock* block = list_.next; block != &list_; block = block->next, ++cached) {
    if (block->next->prev != block || block->prev->next != block)
      return absl::InternalError(absl::StrCat("the list of cached blocks is broken at block ", block->id));
    if (block->ref_count != 0 || block->content_id == 0 || unknown_.contains(block->id))
      return absl::InternalError(absl::StrCat("block ", block->id, " is cached, and something else"));
    if (cached > static_cast<int32_t>(blocks_.size()))
      return absl::InternalError("the list of cached blocks has a cycle");
  }
  int32_t used = 0, known = 0, unknown = 0;
  for (const KvBlock& block : blocks_) {
    if (absl::Status status = CheckBlock(block); !status.ok()) return status;
    used += block.ref_count > 0 ? 1 : 0;
    known += block.content_id != 0 ? 1 : 0;
    unknown += unknown_.contains(block.id) ? 1 : 0;
  }
  if (used != num_used_ || cached != num_cached_ || unknown != unknown_.size() ||
      known != static_cast<int32_t>(index_.size())) {
    return absl::InternalError(absl::StrCat("blocks do not add up: used ", used, ", cached ", cached,
                                            ", free without known contents ", unknown, "; counted ",
                                            num_used_, ", ", num_cached_, ", ", unknown_.size(), "; ", known,
                                            " are known, ", index_.size(), " indexed"));
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckBlocks(int32_t first, int32_t end) const {
  if (num_total() < TotalBlocks(limit_) || num_total() > TotalBlocks(static_cast<int64_t>(blocks_.size())) ||
      counts_.num_cached() != static_cast<int64_t>(index_.size())) {
    return absl::InternalError(absl::StrCat("blocks do not add up: ", num_free(), " free and ", num_used_,
                                            " used of ", limit_, "; ", counts_.num_cached(), " are known, ",
                                            index_.size(), " indexed"));
  }
  for (int32_t id = first; id < end; ++id) {
    const KvBlock& block = blocks_[id];
    if (absl::Status status = CheckBlock(block); !status.ok()) return status;
    if (block.next != nullptr && (block.next->prev != &block || block.prev->next != &block))
      return absl::InternalError(absl::StrCat("the list of cached blocks is broken at block ", id));
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckBlock(const KvBlock& block) const {
  const bool listed = block.next != nullptr, is_free = listed || unknown_.contains(block.id);
  if (block.id == kNullBlock) {
    return block.ref_count == 0 && !is_free ? absl::OkStatus()
                                            : absl::InternalError("the null block is in use");
  }
  if (block.ref_count < 0)
    return absl::InternalError(absl::StrCat("block ", block.id, " has a negative count"));
  if (is_free != (block.ref_count == 0 && block.id < limit_)) {
    return absl::InternalError(absl::StrCat("block ", block.id, " with ", block.ref_count,
                                            " references and a limit of ", limit_, " is ",
                                            is_free ? "free" : "not free"));
  }
  if (block.content_id == 0) return absl::OkStatus();
  auto it = index_.find(block.hash);
  const bool indexed = it != index_.end() && it->second == &block;
  if (!indexed)
    return absl::InternalError(absl::StrCat("block ", block.id, " is known but not in the index"));
  if (block.id >= limit_)
    return absl::InternalError(absl::StrCat("block ", block.id, " is known beyond the limit ", limit_));
  return absl::OkStatus();
}

}  // namespace somnus
