#pragma once
// The contents that enter and leave the prefix cache, in order, for programs that follow the cache from
// outside: all events, replayed from the first event on, give the contents that are cached in each medium.
// Values, and their recorder. Not thread safe.
//
// A content that is copied from one medium to the other keeps its id, and may be in both media: each medium
// has events of its own.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

// Where a cached block is.
enum class CacheMedium {
  kDevice,  // in the KV cache
  kHost,    // in the host tier, from where a block can be copied back
};

struct BlockEvent {
  enum class Kind {
    kStored,
    kRemoved,
    kCleared,  // no content that was stored before, in any medium, is cached any more
  };
  Kind kind = Kind::kCleared;
  CacheMedium medium = CacheMedium::kDevice;
  // The contents' ids, which are unique over the cache's life. Stored: a chain, in which each content is the
  // parent of the next content.
  std::vector<uint64_t> content_ids;
  // The next fields describe stored blocks.
  uint64_t parent_content_id = 0;  // of the first block; 0: the block begins a sequence
  std::vector<int32_t> tokens;     // of all blocks
  std::string salt;                // of a chain that begins a sequence

  bool operator==(const BlockEvent&) const = default;
};

// How much of a bound an event takes: 1 for each block.
inline int64_t SizeOf(const BlockEvent& event) {
  return event.content_ids.empty() ? 1 : static_cast<int64_t>(event.content_ids.size());
}

// A block of the cache without its place.
struct CachedContent {
  uint64_t content_id = 0;
  uint64_t parent_content_id = 0;
  absl::Span<const int32_t> tokens;
  absl::string_view salt;  // of a first block
};

// Owned by the block manager, whose pool and host cache note their changes; a reader of events takes the
// events after every step.
class BlockEventRecorder {
 public:
  // Consecutive blocks of a chain make a single event.
  void NoteStored(const CachedContent& content, CacheMedium medium = CacheMedium::kDevice);
  void NoteRemoved(uint64_t content_id, CacheMedium medium = CacheMedium::kDevice);
  // Events that were not taken yet are dropped, since they change nothing any more.
  void NoteCleared();
  // Returns the events since the last call.
  std::vector<BlockEvent> Take();

 private:
  std::vector<BlockEvent> events_;
};

}  // namespace somnus
