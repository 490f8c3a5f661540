#include "coordinator/block_manager/host_prefix_cache.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

const HostPrefixCache::Entry* HostPrefixCache::Find(const BlockContent& content) const {
  const auto found = by_hash_.find(content.hash);
  if (found == by_hash_.end()) return nullptr;
  const Entry* entry = &*found->second;
  const bool same = entry->parent_content_id == content.parent_content_id && entry->salt == content.salt &&
                    absl::MakeConstSpan(entry->tokens) == content.tokens;
  return same ? entry : nullptr;
}

void HostPrefixCache::Use(uint64_t content_id) {
  entries_.splice(entries_.end(), entries_, by_id_.at(content_id));
}

uint64_t HostPrefixCache::IdOf(const BlockContent& content) const {
  const Entry* entry = Find(content);
  return entry == nullptr ? 0 : entry->content_id;
}

int32_t HostPrefixCache::Store(const KvBlock& block, int64_t step) {
  SOMNUS_CHECK(block.content_id != 0 && !Has(block.content_id));
  // Another content has the same hash by a collision, or since no chain leads to the other content any more.
  if (const auto other = by_hash_.find(block.hash); other != by_hash_.end()) Erase(other->second);
  Entry entry = {block.content_id, block.parent_content_id, block.hash, block.tokens, block.salt};
  entry.host_block = pool_->Allocate();
  entry.step = step;
  const auto place = entries_.insert(entries_.end(), std::move(entry));
  by_hash_[block.hash] = by_id_[block.content_id] = place;
  return place->host_block;
}

void HostPrefixCache::NoteStored(const std::vector<uint64_t>& content_ids, int64_t step, bool is_ready) {
  // Events tell parents before their children, and a chain in a single event.
  for (auto id = content_ids.rbegin(); id != content_ids.rend(); ++id) {
    const auto found = by_id_.find(*id);
    // The content may have been evicted since, and stored again by a later step.
    if (found == by_id_.end() || found->second->step != step) continue;
    if (!is_ready) {
      Erase(found->second);
      continue;
    }
    Entry& entry = *found->second;
    entry.is_ready = true;
    if (recorder_ == nullptr) continue;
    recorder_->NoteStored({entry.content_id, entry.parent_content_id, entry.tokens, entry.salt},
                          CacheMedium::kHost);
  }
}

bool HostPrefixCache::Evict() {
  if (entries_.empty()) return false;
  ++num_evicted_;
  Erase(entries_.begin());
  return true;
}

void HostPrefixCache::Forget(uint64_t content_id) {
  if (const auto found = by_id_.find(content_id); found != by_id_.end()) Erase(found->second);
}

void HostPrefixCache::Clear() {
  while (!entries_.empty()) Erase(std::prev(entries_.end()));
}

void HostPrefixCache::Erase(Entries::iterator entry) {
  if (entry->is_ready && recorder_ != nullptr) recorder_->NoteRemoved(entry->content_id, CacheMedium::kHost);
  pool_->Release(entry->host_block);
  by_hash_.erase(entry->hash);
  by_id_.erase(entry->content_id);
  entries_.erase(entry);
}

std::vector<int32_t> HostPrefixCache::HostBlocks() const {
  std::vector<int32_t> ids;
  ids.reserve(entries_.size());
  for (const Entry& entry : entries_) ids.push_back(entry.host_block);
  return ids;
}

absl::Status HostPrefixCache::CheckIntegrity(std::vector<int32_t>* counts) const {
  if (by_hash_.size() != entries_.size() || by_id_.size() != entries_.size())
    return absl::InternalError("the entries of the host's prefix cache do not add up");
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const auto by_hash = by_hash_.find(entry->hash);
    const auto by_id = by_id_.find(entry->content_id);
    const bool is_indexed = by_hash != by_hash_.end() && &*by_hash->second == &*entry &&
                            by_id != by_id_.end() && &*by_id->second == &*entry;
    if (!is_indexed || entry->content_id == 0 || !pool_->is_used(entry->host_block)) {
      return absl::InternalError(
          absl::StrCat("host block ", entry->host_block, " is cached, but not in the index"));
    }
    ++(*counts)[entry->host_block];
  }
  return absl::OkStatus();
}

}  // namespace somnus
