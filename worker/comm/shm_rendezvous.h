#pragma once
// How the ranks of a group on a single host find the shared memory. Rank 0 creates the memory without a name
// (memfd) and hands the memory to the other ranks over a Unix socket in the abstract namespace. Neither is in
// a file system, so nothing is left behind however the ranks end. Only processes of the same user may join.

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rank_locks.h"
#include "worker/comm/shm_segment.h"

namespace somnus {

// The mapped segment; the destructor unmaps. Every rank's pid is filled in, and every rank holds a lock.
class ShmMapping {
 public:
  ShmMapping(void* data, int64_t bytes, RankLocks locks)
      : data_(data), bytes_(bytes), locks_(std::move(locks)) {}
  ~ShmMapping();
  ShmMapping(const ShmMapping&) = delete;
  ShmMapping& operator=(const ShmMapping&) = delete;

  const RankLocks& locks() const { return locks_; }
  ShmHeader* header() const { return static_cast<ShmHeader*>(data_); }
  // Buffer `parity` (0 or 1) of a rank.
  char* Buffer(int rank, uint32_t parity) const {
    return static_cast<char*>(data_) + sizeof(ShmHeader) + (2 * rank + parity) * header()->buffer_bytes;
  }

 private:
  void* const data_;
  const int64_t bytes_;
  const RankLocks locks_;
};

// Returns on every rank once all are attached; on no rank otherwise (DeadlineExceeded says who is missing,
// Unavailable that a rank went away, InvalidArgument that ranks disagree about the group, Aborted that
// options.cancelled said so). `options` have been checked, and have a connect_timeout and buffer_bytes.
absl::StatusOr<std::unique_ptr<ShmMapping>> MeetInSharedMemory(const GroupOptions& options);

}  // namespace somnus
