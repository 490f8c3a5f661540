#include "worker/comm/shm_waiter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/pause.h"

namespace somnus {
namespace {

// How long a sleeping rank goes without checking for dead peers.
constexpr long kCheckNanoseconds = 100'000'000;
constexpr int kSpinsPerClock = 32;

// The difference is signed, so that rounds may wrap.
bool Reached(uint32_t stamp, uint32_t round) { return static_cast<int32_t>(stamp - round) >= 0; }

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  const timespec limit = {0, kCheckNanoseconds};  // relative, and so by the monotonic clock
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int64_t NowNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

ShmWaiter::ShmWaiter(ShmHeader* header, const RankLocks* locks, const GroupOptions& options)
    : header_(header),
      locks_(locks),
      numbers_(options.numbers),
      rank_(options.rank),
      spin_time_(options.spin ? options.spin_time : absl::ZeroDuration()),
      timeout_(options.collective_timeout) {}

ShmWaiter::~ShmWaiter() {
  header_->ranks[rank_].left.store(1, std::memory_order_seq_cst);
  WakeEverybody();
}

void ShmWaiter::Publish(uint32_t round, uint64_t call) {
  ShmRank& self = header_->ranks[rank_];
  self.call[round % 2] = call;
  // Sequentially consistent against the sleeper's count-then-look: at least one side sees the other.
  self.stamp.store(round, std::memory_order_seq_cst);
  if (self.waiters.load(std::memory_order_seq_cst) != 0) FutexWakeAll(self.stamp);
}

absl::Status ShmWaiter::AwaitAll(uint32_t round, uint64_t call) {
  for (int r = 0; r < header_->world_size; ++r) {
    if (r == rank_) continue;
    if (absl::Status status = AwaitRank(r, round); !status.ok()) return status;
    if (CallOf(r, round) != call) {
      const std::string reason =
          absl::StrCat("ranks ", NumberOf(rank_), " and ", NumberOf(r), " are in different collective calls");
      Abort(reason);
      return absl::InternalError(reason);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmWaiter::AwaitRank(int rank, uint32_t round) {
  const ShmRank& peer = header_->ranks[rank];
  if (Reached(peer.stamp.load(std::memory_order_acquire), round)) return absl::OkStatus();
  if (Spin(peer, round)) return absl::OkStatus();
  return Sleep(rank, round);
}

bool ShmWaiter::Spin(const ShmRank& peer, uint32_t round) const {
  if (spin_time_ <= absl::ZeroDuration()) return false;
  const int64_t end = NowNanoseconds() + absl::ToInt64Nanoseconds(spin_time_);
  do {
    for (int i = 0; i < kSpinsPerClock; ++i) {
      if (Reached(peer.stamp.load(std::memory_order_acquire), round)) return true;
      PauseCpu();
    }
  } while (NowNanoseconds() < end);
  return false;
}

absl::Status ShmWaiter::Sleep(int rank, uint32_t round) {
  ShmRank& peer = header_->ranks[rank];
  const int64_t start = NowNanoseconds();
  while (true) {
    if (absl::Status status = CheckGroup(round); !status.ok()) return status;
    peer.waiters.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t stamp = peer.stamp.load(std::memory_order_seq_cst);
    if (!Reached(stamp, round)) FutexWait(peer.stamp, stamp);
    peer.waiters.fetch_sub(1, std::memory_order_relaxed);
    if (Reached(peer.stamp.load(std::memory_order_acquire), round)) return absl::OkStatus();
    if (NowNanoseconds() - start > absl::ToInt64Nanoseconds(timeout_)) {
      const std::string reason = absl::StrCat(
          "rank ", NumberOf(rank), " did not come to a collective within ", absl::FormatDuration(timeout_));
      Abort(reason);
      return absl::DeadlineExceededError(reason);
    }
  }
}

// Returns an error for anything that keeps `round` from ever being complete.
absl::Status ShmWaiter::CheckGroup(uint32_t round) const {
  if (absl::Status status = CheckAborted(); !status.ok()) return status;
  for (int r = 0; r < header_->world_size; ++r) {
    const ShmRank& peer = header_->ranks[r];
    if (r == rank_ || Reached(peer.stamp.load(std::memory_order_acquire), round)) continue;
    const absl::Status status = CheckPeer(r);
    // The rank may have stamped before dying or leaving, so the stamp is read again.
    if (!status.ok() && !Reached(peer.stamp.load(std::memory_order_seq_cst), round)) return status;
  }
  return absl::OkStatus();
}

absl::Status ShmWaiter::Health() const {
  if (absl::Status status = CheckAborted(); !status.ok()) return status;
  for (int r = 0; r < header_->world_size; ++r) {
    if (r == rank_) continue;
    if (absl::Status status = CheckPeer(r); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ShmWaiter::CheckPeer(int rank) const {
  const ShmRank& peer = header_->ranks[rank];
  const bool held = locks_->Held(rank);  // read first: a rank that leaves says so before unlocking
  if (peer.left.load(std::memory_order_seq_cst) != 0) {
    return absl::UnavailableError(
        absl::StrCat("rank ", NumberOf(rank), " (pid ", peer.pid, ") left the group"));
  }
  if (!held)
    return absl::UnavailableError(absl::StrCat("rank ", NumberOf(rank), " (pid ", peer.pid, ") died"));
  return absl::OkStatus();
}

absl::Status ShmWaiter::CheckAborted() const {
  return header_->aborted.load(std::memory_order_acquire) == 0 ? absl::OkStatus() : AbortStatus();
}

absl::Status ShmWaiter::AbortStatus() const {
  if (header_->aborted.load(std::memory_order_acquire) != 2)
    return absl::AbortedError("the group was aborted");
  return absl::AbortedError(std::string(header_->reason, strnlen(header_->reason, sizeof(header_->reason))));
}

void ShmWaiter::Abort(const std::string& reason) {
  uint32_t expected = 0;
  if (header_->aborted.compare_exchange_strong(expected, 1)) {
    const size_t size = std::min(reason.size(), sizeof(header_->reason) - 1);
    memcpy(header_->reason, reason.data(), size);
    header_->reason[size] = '\0';
    header_->aborted.store(2, std::memory_order_release);
  }
  WakeEverybody();
}

void ShmWaiter::WakeEverybody() {
  for (int r = 0; r < header_->world_size; ++r) FutexWakeAll(header_->ranks[r].stamp);
}

}  // namespace somnus
