#include "allocator/host_account.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "allocator/host_memory.h"
#include "allocator/memory_shortage.h"
#include "base/byte_lock.h"
#include "base/monotonic.h"

namespace somnus {
namespace {

// The file: a process locks byte 0 while it uses the table, and byte 1 + i as long as it holds slot i. The
// int64 at kTable + 8 * i is the number of bytes that slot i reserves.
constexpr int kSlots = 512;
constexpr off_t kTable = 4096;
constexpr absl::Duration kPoll = absl::Milliseconds(2);
// All ranks of a host ask at once at a wake-up, and each holds the table for some tenths of a millisecond.
constexpr absl::Duration kShortestPoll = absl::Microseconds(50);
// A process holds the table only to read and write some numbers, unless it is stopped in between.
constexpr absl::Duration kTablePatience = absl::Seconds(1);

// Returns -1 where the file cannot be opened, or belongs to another user.
int OpenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  struct stat info;
  if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

absl::Status HostShortage(int64_t bytes, int64_t left) {
  const int64_t missing = MissingBytes(bytes, left);
  return WithShortages(
      absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of host memory asked for, ", bytes - missing,
                                                " available, ", missing, " missing")),
      {{.needed_bytes = bytes, .missing_bytes = missing, .memory = MemoryKind::kHost}});
}

HostReservation& HostReservation::operator=(HostReservation&& other) noexcept {
  std::swap(release_, other.release_);
  return *this;
}

HostReservation::~HostReservation() {
  if (release_) release_();
}

class HostMemoryAccountImpl : public HostMemoryAccount,
                              public std::enable_shared_from_this<HostMemoryAccountImpl> {
 public:
  explicit HostMemoryAccountImpl(const HostMemoryAccountOptions& options)
      : options_(options),
        fd_(OpenFile(options.path.empty() ? absl::StrCat("/dev/shm/somnus-memory-", geteuid())
                                          : options.path)) {
    if (!options_.available) options_.available = [] { return AvailableHostMemory(); };
  }
  ~HostMemoryAccountImpl() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::StatusOr<HostReservation> Reserve(int64_t bytes) override {
    const MonotonicTime deadline = MonotonicNow() + options_.patience;
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        const TableLock table(fd_);
        const int64_t foreign = ForeignBytes();
        const int64_t left = options_.available() - own_bytes_ - foreign;
        if (bytes <= left) return Take(bytes);
        if (foreign == 0 || MonotonicNow() >= deadline) {
          return HostShortage(bytes, left);
        }
      }
      absl::SleepFor(kPoll);
    }
  }

  int64_t Available() override {
    absl::MutexLock lock(&mu_);
    const TableLock table(fd_);
    return std::max<int64_t>(0, options_.available() - own_bytes_ - ForeignBytes());
  }

 private:
  // Excludes other processes; mu_ excludes other threads. A process that is stopped while it holds the table
  // is ignored after kTablePatience: the table is read anyway.
  class TableLock {
   public:
    explicit TableLock(int fd) : fd_(fd) {
      struct flock range = ByteLock(F_WRLCK, 0);
      const MonotonicTime deadline = MonotonicNow() + kTablePatience;
      absl::Duration pause = kShortestPoll;
      while (fd_ >= 0 && fcntl(fd_, F_OFD_SETLK, &range) != 0 && IsHeld(errno) && MonotonicNow() < deadline) {
        absl::SleepFor(pause);
        pause = std::min(2 * pause, kPoll);
      }
    }
    ~TableLock() {
      struct flock range = ByteLock(F_UNLCK, 0);
      if (fd_ >= 0) fcntl(fd_, F_OFD_SETLK, &range);
    }
    TableLock(const TableLock&) = delete;

   private:
    static bool IsHeld(int error) { return error == EAGAIN || error == EACCES || error == EINTR; }

    const int fd_;
  };

  bool HeldByOthers(int slot) const {
    struct flock range = ByteLock(F_WRLCK, 1 + slot);
    return fcntl(fd_, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
  }

  int64_t ForeignBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int64_t sizes[kSlots] = {};
    if (fd_ < 0 || pread(fd_, sizes, sizeof(sizes), kTable) < 0) return 0;
    int64_t sum = 0;
    for (int slot = 0; slot < kSlots; ++slot) {
      if (sizes[slot] > 0 && own_.count(slot) == 0 && HeldByOthers(slot)) sum += sizes[slot];
    }
    return sum;
  }

  absl::StatusOr<HostReservation> Take(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int slot = 0;
    for (; slot < kSlots && fd_ >= 0; ++slot) {
      struct flock range = ByteLock(F_WRLCK, 1 + slot);
      if (own_.count(slot) == 0 && fcntl(fd_, F_OFD_SETLK, &range) == 0) break;
    }
    while (fd_ < 0 && own_.count(slot) > 0) ++slot;
    if (slot == kSlots) return absl::ResourceExhaustedError("too many reservations of host memory at once");
    if (fd_ >= 0 && pwrite(fd_, &bytes, sizeof(bytes), kTable + 8 * slot) != sizeof(bytes)) {
      // The file system is full. The bytes are this process's own, as without a file.
      struct flock range = ByteLock(F_UNLCK, 1 + slot);
      fcntl(fd_, F_OFD_SETLK, &range);
    }
    own_[slot] = bytes;
    own_bytes_ += bytes;
    HostReservation reservation;
    reservation.release_ = [self = shared_from_this(), slot] { self->Release(slot); };
    return reservation;
  }

  void Release(int slot) {
    absl::MutexLock lock(&mu_);
    own_bytes_ -= own_[slot];
    own_.erase(slot);
    struct flock range = ByteLock(F_UNLCK, 1 + slot);
    if (fd_ >= 0) fcntl(fd_, F_OFD_SETLK, &range);
  }

  HostMemoryAccountOptions options_;
  const int fd_;  // -1: no file
  absl::Mutex mu_;
  std::map<int, int64_t> own_ ABSL_GUARDED_BY(mu_);  // bytes by slot
  int64_t own_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

std::shared_ptr<HostMemoryAccount> HostMemoryAccount::Open(const HostMemoryAccountOptions& options) {
  return std::make_shared<HostMemoryAccountImpl>(options);
}

}  // namespace somnus
