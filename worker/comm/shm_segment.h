#pragma once
// The memory that the ranks of a shared-memory group have in common: its layout, and nothing else.
//
// Header, then for each rank two buffers. A collective is one or more rounds, numbered 1, 2, 3, ... by every
// rank alike. In round k a rank fills buffer k % 2 of its own and then stamps k; it reads the others' buffers
// once they stamped k. Two buffers are enough: a rank that fills for round k + 2 has seen everybody's stamp k
// + 1, and nobody stamps k + 1 before it is done reading round k.

#include <atomic>
#include <cstdint>

namespace somnus {

constexpr int kMaxShmRanks = 64;
constexpr uint64_t kShmMagic = 0x334d4853'534e4d53;  // of a rank's Hello; changes with the layout

// One per rank, written by that rank alone (waiters excepted). Each has cache lines of its own, so that ranks
// do not slow each other down.
struct alignas(128) ShmRank {
  std::atomic<uint32_t> stamp;  // last round this rank has filled; the futex that others sleep on
  std::atomic<uint32_t> left;   // 1 once the rank has closed its communicator
  uint64_t call[2];  // by parity of the round: kind and size of the call, to catch ranks out of step
  int64_t pid;       // as the process itself sees it, for messages; set before the group is complete
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
