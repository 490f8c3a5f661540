#pragma once
// Stamps rounds and waits for the other ranks' stamps: spins for a moment, then sleeps on a futex, and checks
// now and then whether the other ranks are still alive.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/rank_locks.h"
#include "worker/comm/shm_segment.h"

namespace somnus {

// Used by a single thread, except Abort and Health. Borrows the header and the locks.
class ShmWaiter {
 public:
  ShmWaiter(ShmHeader* header, const RankLocks* locks, int rank, absl::Duration spin_time,
            absl::Duration timeout);
  ~ShmWaiter();

  // Stamps `round`: this rank's buffer is filled, for the collective that `call` describes.
  void Publish(uint32_t round, uint64_t call);
  // Waits until every rank has stamped `round`. Unavailable: a rank died or left; Aborted; DeadlineExceeded;
  // Internal: a rank is in a different call.
  absl::Status AwaitAll(uint32_t round, uint64_t call);
  // Ends every rank's waits, now and later.
  void Abort(const std::string& reason);
  // Aborted, or Unavailable once a rank has died or left, also while no round waits.
  absl::Status Health() const;

 private:
  absl::Status AwaitRank(int rank, uint32_t round);
  bool Spin(const ShmRank& peer, uint32_t round) const;
  absl::Status Sleep(int rank, uint32_t round);
  absl::Status CheckGroup(uint32_t round) const;
  absl::Status CheckPeer(int rank) const;
  absl::Status AbortStatus() const;
  void WakeEverybody();

  ShmHeader* const header_;
  const RankLocks* const locks_;
  const int rank_;
  const absl::Duration spin_time_, timeout_;
};

}  // namespace somnus
