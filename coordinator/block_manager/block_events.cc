#include "coordinator/block_manager/block_events.h"

#include <utility>

namespace somnus {

void BlockEventRecorder::NoteStored(const CachedContent& content, CacheMedium medium) {
  const BlockEvent* const last = events_.empty() ? nullptr : &events_.back();
  const bool goes_on = last != nullptr && last->kind == BlockEvent::Kind::kStored && last->medium == medium &&
                       last->content_ids.back() == content.parent_content_id;
  if (!goes_on) {
    BlockEvent& event = events_.emplace_back();
    event.kind = BlockEvent::Kind::kStored;
    event.medium = medium;
    event.parent_content_id = content.parent_content_id;
    event.salt = std::string(content.salt);
  }
  BlockEvent& event = events_.back();
  event.content_ids.push_back(content.content_id);
  event.tokens.insert(event.tokens.end(), content.tokens.begin(), content.tokens.end());
}

void BlockEventRecorder::NoteRemoved(uint64_t content_id, CacheMedium medium) {
  const bool goes_on = !events_.empty() && events_.back().kind == BlockEvent::Kind::kRemoved &&
                       events_.back().medium == medium;
  if (!goes_on) events_.push_back({.kind = BlockEvent::Kind::kRemoved, .medium = medium});
  events_.back().content_ids.push_back(content_id);
}

void BlockEventRecorder::NoteCleared() {
  events_.clear();
  events_.emplace_back();
}

std::vector<BlockEvent> BlockEventRecorder::Take() { return std::exchange(events_, {}); }

}  // namespace somnus
