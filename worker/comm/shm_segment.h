#pragma once
// The layout of the memory that the ranks of a shared-memory group have in common, and nothing else.
//
// Header, then for each rank two buffers. A collective is a round or more, numbered 1, 2, 3, ... by every
// rank alike. In round k a rank fills the rank's own buffer k % 2 and then stamps k, and reads each other
// rank's buffer after that rank's stamp k. Two buffers are enough: a rank that fills for round k + 2 has seen
// everybody's stamp k + 1, and nobody stamps k + 1 before being done with reading round k.

#include <atomic>
#include <cstdint>

namespace somnus {

constexpr int kMaxShmRanks = 64;
constexpr uint64_t kShmMagic = 0x334d4853'534e4d53;  // of a rank's Hello; changes with the layout

// A record per rank, written by that rank alone (waiters excepted). Records share no cache line, so that
// ranks do not slow each other down.
struct alignas(128) ShmRank {
  std::atomic<uint32_t> stamp;  // last round that the rank has filled; the futex of waiting ranks
  std::atomic<uint32_t> left;   // 1 once the rank has closed the communicator
  uint64_t call[2];  // by parity of the round: kind and size of the call, to catch ranks out of step
  int64_t pid;       // as the process sees itself, for messages; set before the group is complete
  alignas(128) std::atomic<uint32_t> waiters;  // threads asleep on stamp
};

struct ShmHeader {
  int32_t world_size;
  int64_t buffer_bytes;
  // 0: fine; 1: someone writes the reason; 2: aborted, reason readable.
  alignas(128) std::atomic<uint32_t> aborted;
  char reason[256];
  ShmRank ranks[kMaxShmRanks];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

inline int64_t ShmBytes(int world_size, int64_t buffer_bytes) {
  return static_cast<int64_t>(sizeof(ShmHeader)) + 2 * world_size * buffer_bytes;
}

}  // namespace somnus
