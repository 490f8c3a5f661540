#include "coordinator/block_manager/passed_contents.h"

#include <iterator>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/block_manager/block_pool.h"

namespace somnus {

void PassedContents::Note(const KvBlock& block) {
  if (most_ == 0) return;
  // Another content has the same hash by a collision, or the content is kept already.
  if (const auto other = by_hash_.find(block.hash); other != by_hash_.end()) {
    entries_.erase(other->second);
    by_hash_.erase(other);
  }
  if (size() == most_) {
    by_hash_.erase(entries_.front().hash);
    entries_.pop_front();
  }
  entries_.push_back({block.content_id, block.parent_content_id, block.hash, block.tokens, block.salt});
  by_hash_[block.hash] = std::prev(entries_.end());
}

uint64_t PassedContents::IdOf(const BlockContent& content) {
  const auto found = by_hash_.find(content.hash);
  if (found == by_hash_.end()) return 0;
  const Entry& entry = *found->second;
  const bool same = entry.parent_content_id == content.parent_content_id && entry.salt == content.salt &&
                    absl::MakeConstSpan(entry.tokens) == content.tokens;
  if (!same) return 0;
  entries_.splice(entries_.end(), entries_, found->second);
  return entry.content_id;
}

void PassedContents::Clear() {
  entries_.clear();
  by_hash_.clear();
}

}  // namespace somnus
