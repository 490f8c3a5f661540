#pragma once
// Stamps rounds and waits for the other ranks' stamps: spins for a moment, then sleeps on a futex, and checks
// now and then whether the other ranks are still alive.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/group_options.h"
#include "worker/comm/rank_locks.h"
#include "worker/comm/shm_segment.h"

namespace somnus {

// Used by a single thread, except Abort and Health. Borrows the header and the locks.
class ShmWaiter {
 public:
  // `options`: the rank, the times, and the ranks' numbers in messages.
  ShmWaiter(ShmHeader* header, const RankLocks* locks, const GroupOptions& options);
  ~ShmWaiter();

  // Stamps `round`: this rank's buffer is filled, for the collective that `call` describes.
  void Publish(uint32_t round, uint64_t call);
  // Waits until every rank has stamped `round`. Unavailable: a rank died or left; Aborted; DeadlineExceeded;
  // Internal: a rank is in a different call.
  absl::Status AwaitAll(uint32_t round, uint64_t call);
  // Waits until `rank` has stamped `round`; errors as AwaitAll, but for the call, which CallOf tells.
  absl::Status AwaitRank(int rank, uint32_t round);
  // The call with which `rank` has stamped `round`, or, where the rank is ahead by two or more, a later call.
  uint64_t CallOf(int rank, uint32_t round) const { return header_->ranks[rank].call[round % 2]; }
  // Ends every rank's waits, now and later.
  void Abort(const std::string& reason);
  // Aborted, whether or not a round waits.
  absl::Status CheckAborted() const;
  // Aborted, or Unavailable once a rank has died or left, also while no round waits.
  absl::Status Health() const;

 private:
  bool Spin(const ShmRank& peer, uint32_t round) const;
  absl::Status Sleep(int rank, uint32_t round);
  absl::Status CheckGroup(uint32_t round) const;
  absl::Status CheckPeer(int rank) const;
  absl::Status AbortStatus() const;
  void WakeEverybody();
  int NumberOf(int rank) const { return numbers_.empty() ? rank : numbers_[rank]; }

  ShmHeader* const header_;
  const RankLocks* const locks_;
  const std::vector<int> numbers_;  // by rank; empty: the ranks themselves
  const int rank_;
  const absl::Duration spin_time_, timeout_;
};

}  // namespace somnus
