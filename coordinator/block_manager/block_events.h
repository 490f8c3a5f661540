#pragma once
// What enters and leaves the prefix cache, in order, for whoever follows it from outside: events that,
// replayed from the first one on, give what is cached in each medium. Values, and what records them. Not
// thread safe.
//
// A content keeps its id when it is copied from one medium to the other, and may be in both: each of them has
// its own events.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

// Where a cached block is.
enum class CacheMedium {
  kDevice,  // in the KV cache
  kHost,    // in the host tier behind it, from where it can be copied back
};

struct BlockEvent {
  enum class Kind {
    kStored,
    kRemoved,
    kCleared,  // whatever was stored before, in every medium, is not cached any more
  };
  Kind kind = Kind::kCleared;
  CacheMedium medium = CacheMedium::kDevice;
  // Of contents, which are unique over the cache's life. Stored: a chain, each of them is the next one's
  // parent.
  std::vector<uint64_t> content_ids;
  // Of what was stored.
  uint64_t parent_content_id = 0;  // of the first block; 0: it begins a sequence
  std::vector<int32_t> tokens;     // of all blocks
  std::string salt;                // of a chain that begins a sequence

  bool operator==(const BlockEvent&) const = default;
};

// How much of a bound an event takes: one for each block.
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

// Owned by the block manager, whose pool and host cache note what they do; whoever wants events takes them
// after every step.
class BlockEventRecorder {
 public:
  // Blocks of one chain that come one after the other make one event.
  void NoteStored(const CachedContent& content, CacheMedium medium = CacheMedium::kDevice);
  void NoteRemoved(uint64_t content_id, CacheMedium medium = CacheMedium::kDevice);
  // What was not taken yet is dropped: it changes nothing any more.
  void NoteCleared();
  // Returns the events since the last call.
  std::vector<BlockEvent> Take();

 private:
  std::vector<BlockEvent> events_;
};

}  // namespace somnus
