#include "worker/comm/shm_rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "worker/comm/socket_io.h"

namespace somnus {
namespace {

// A rank's first message to rank 0.
struct Hello {
  uint64_t magic;
  int32_t rank, world_size;
  int64_t buffer_bytes;
};

absl::Status ErrnoError(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::StatusOr<std::unique_ptr<ShmMapping>> MapSegment(int fd, int64_t bytes, int rank) {
  ASSIGN_OR_RETURN(RankLocks locks, RankLocks::Take(fd, rank));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoError("mapping the group's shared memory");
  return std::make_unique<ShmMapping>(data, bytes, std::move(locks));
}

absl::StatusOr<UniqueFd> CreateSegment(int64_t bytes) {
  UniqueFd fd(memfd_create("somnus-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return ErrnoError("creating the group's shared memory");
  if (ftruncate(fd.get(), bytes) != 0) return ErrnoError("sizing the group's shared memory");
  // Sealed memory cannot be shrunk, which would be a SIGBUS in the other ranks.
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// Rank 0's side.
class Host {
 public:
  Host(const GroupOptions& options, const WaitLimit& limit) : options_(options), limit_(limit) {}

  absl::StatusOr<std::unique_ptr<ShmMapping>> Meet() {
    const int64_t bytes = ShmBytes(options_.world_size, *options_.buffer_bytes);
    ASSIGN_OR_RETURN(UniqueFd segment, CreateSegment(bytes));
    ASSIGN_OR_RETURN(std::unique_ptr<ShmMapping> mapping, MapSegment(segment.get(), bytes, 0));
    auto* header = new (mapping->header()) ShmHeader{};
    header->world_size = options_.world_size;
    header->buffer_bytes = *options_.buffer_bytes;
    header->ranks[0].pid = getpid();

    ASSIGN_OR_RETURN(UniqueFd listener, ListenAbstract(options_.group_name, options_.world_size));
    peers_.resize(options_.world_size);
    for (int present = 1; present < options_.world_size;) {
      absl::StatusOr<UniqueFd> connection = AcceptSameUser(listener.get(), limit_);
      if (absl::IsDeadlineExceeded(connection.status())) return Missing();
      RETURN_IF_ERROR(connection.status());
      ASSIGN_OR_RETURN(const bool admitted, Admit(*std::move(connection), segment.get()));
      present += admitted;
    }
    return Complete(std::move(mapping));
  }

 private:
  // Returns false for a process that sends no valid Hello: the connection is closed, and the group goes on
  // waiting.
  absl::StatusOr<bool> Admit(UniqueFd connection, int segment) {
    Hello hello;
    const MonotonicTime soon = std::min(limit_.deadline, RunningNow() + absl::Seconds(2));
    if (!ReceiveBytes(connection.get(), &hello, sizeof(hello), {soon, limit_.cancelled}).ok() ||
        hello.magic != kShmMagic)
      return false;
    if (hello.world_size != options_.world_size || hello.buffer_bytes != *options_.buffer_bytes ||
        hello.rank < 1 || hello.rank >= options_.world_size || peers_[hello.rank].get() >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("group ", options_.group_name,
                                                     ": a process came as rank ", hello.rank, " of ",
                                                     hello.world_size, ", which is not wanted"));
    }
    const int64_t bytes = ShmBytes(options_.world_size, *options_.buffer_bytes);
    if (!SendFd(connection.get(), segment, bytes).ok()) return Gone(hello.rank);
    peers_[hello.rank] = std::move(connection);
    return true;
  }

  // Every rank reports that the memory is mapped and the rank's lock is held; then every rank is told that
  // all ranks are ready.
  absl::StatusOr<std::unique_ptr<ShmMapping>> Complete(std::unique_ptr<ShmMapping> mapping) {
    char byte = 0;
    for (int r = 1; r < options_.world_size; ++r) {
      if (!ReceiveBytes(peers_[r].get(), &byte, 1, limit_).ok()) return Gone(r);
    }
    for (int r = 1; r < options_.world_size; ++r) {
      if (!SendBytes(peers_[r].get(), &byte, 1).ok()) return Gone(r);
    }
    return mapping;
  }

  absl::Status Gone(int rank) const {
    return absl::UnavailableError(absl::StrCat("group ", options_.group_name, ": rank ",
                                               NumberOf(options_, rank),
                                               " went away while the group was forming"));
  }

  absl::Status Missing() const {
    std::vector<int> missing;
    for (int r = 1; r < options_.world_size; ++r) {
      if (peers_[r].get() < 0) missing.push_back(NumberOf(options_, r));
    }
    return absl::DeadlineExceededError(absl::StrCat("group ", options_.group_name, ": no sign of rank ",
                                                    absl::StrJoin(missing, ", "), " within ",
                                                    absl::FormatDuration(*options_.connect_timeout)));
  }

  const GroupOptions& options_;
  const WaitLimit limit_;
  std::vector<UniqueFd> peers_;
};

// The other ranks' side.
absl::StatusOr<std::unique_ptr<ShmMapping>> Join(const GroupOptions& options, const WaitLimit& limit) {
  absl::StatusOr<UniqueFd> connection = ConnectAbstract(options.group_name, limit);
  if (absl::IsDeadlineExceeded(connection.status())) {
    return absl::DeadlineExceededError(absl::StrCat("group ", options.group_name,
                                                    ": no sign of rank 0 within ",
                                                    absl::FormatDuration(*options.connect_timeout)));
  }
  RETURN_IF_ERROR(connection.status());
  const auto lost = [&](const absl::Status& status) {
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(absl::StrCat("group ", options.group_name,
                                                      ": not all ranks came within ",
                                                      absl::FormatDuration(*options.connect_timeout)));
    }
    return absl::UnavailableError(
        absl::StrCat("group ", options.group_name, ": rank 0 gave up the group while it was forming"));
  };
  const Hello hello = {kShmMagic, options.rank, options.world_size, *options.buffer_bytes};
  if (absl::Status status = SendBytes(connection->get(), &hello, sizeof(hello)); !status.ok())
    return lost(status);
  absl::StatusOr<ReceivedFd> segment = ReceiveFd(connection->get(), limit);
  if (!segment.ok()) return lost(segment.status());
  const int64_t bytes = ShmBytes(options.world_size, *options.buffer_bytes);
  if (segment->tag != bytes) return absl::InvalidArgumentError("the group's shared memory has another size");
  ASSIGN_OR_RETURN(std::unique_ptr<ShmMapping> mapping, MapSegment(segment->fd.get(), bytes, options.rank));
  mapping->header()->ranks[options.rank].pid = getpid();
  char byte = 0;
  if (absl::Status status = SendBytes(connection->get(), &byte, 1); !status.ok()) return lost(status);
  if (absl::Status status = ReceiveBytes(connection->get(), &byte, 1, limit); !status.ok())
    return lost(status);
  return mapping;
}

}  // namespace

ShmMapping::~ShmMapping() { munmap(data_, bytes_); }

absl::StatusOr<std::unique_ptr<ShmMapping>> MeetInSharedMemory(const GroupOptions& options) {
  const WaitLimit limit(RunningNow() + *options.connect_timeout, options.cancelled);
  absl::StatusOr<std::unique_ptr<ShmMapping>> mapping =
      options.rank == 0 ? Host(options, limit).Meet() : Join(options, limit);
  if (!mapping.ok() && options.cancelled != nullptr && options.cancelled()) {
    return absl::AbortedError(absl::StrCat("group ", options.group_name, ": cancelled while it was forming"));
  }
  return mapping;
}

}  // namespace somnus
