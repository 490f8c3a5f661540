#include "allocator/host_vmm_driver.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "allocator/host_pages.h"
#include "allocator/parallel.h"
#include "base/cpus.h"
#include "base/numa.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int64_t kCountedBytes = 32 << 20;           // populated by one call of the kernel
constexpr int64_t kReleasedBytes = int64_t{1} << 30;  // by one call, behind which the meter advances
constexpr int kMaxThreads = 4;  // two already reach the speed of memory on the machines that we measured

class HostVmmDriver : public VmmDriver {
 public:
  explicit HostVmmDriver(const HostVmmDriverOptions& options)
      : threads_(options.num_threads > 0 ? options.num_threads : std::min(NumAllowedCpus(), kMaxThreads)),
        limit_(options.memory_limit_bytes),
        numa_nodes_(options.numa_nodes),
        account_(options.account != nullptr ? options.account : HostMemoryAccount::Open()) {}

  int64_t Granularity() const override { return kHugePage; }
  // Mapping is cheap and access is set per range: chunks would gain nothing.
  int64_t ChunkBytes() const override { return int64_t{1} << 40; }

  absl::StatusOr<int64_t> TotalBytes() override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  absl::StatusOr<int64_t> AvailableBytes() override {
    const int64_t host = account_->Available();
    absl::MutexLock lock(&mutex_);
    return limit_ > 0 ? std::clamp<int64_t>(limit_ - LiveLocked(), 0, host) : host;
  }

  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    return MapAtHugePage(bytes, PROT_NONE, MAP_NORESERVE);
  }

  absl::Status FreeAddress(void* address, int64_t bytes) override {
    if (munmap(address, bytes) != 0) return ErrnoError("freeing an address range", bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<Handle> Create(int64_t bytes) override {
    std::vector<Handle> handles;
    RETURN_IF_ERROR(CreateAll({bytes}, &handles));
    return handles.front();
  }

  // The pieces share a reservation: the account has room for few.
  absl::Status CreateAll(absl::Span<const int64_t> sizes, std::vector<Handle>* handles) override {
    const int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    // Linux overcommits: without this check a shortage would show as an OOM kill at populate.
    ASSIGN_OR_RETURN(HostReservation reservation, account_->Reserve(bytes));
    absl::MutexLock lock(&mutex_);
    if (limit_ > 0 && bytes > limit_ - LiveLocked()) return HostShortage(bytes, limit_ - LiveLocked());
    const auto absent = std::make_shared<Absent>(Absent{bytes, std::move(reservation)});
    for (const int64_t size : sizes) {
      const Handle handle = next_handle_++;
      handles_[handle].bytes = size;
      handles_[handle].absent = absent;
      handles->push_back(handle);
    }
    return absl::OkStatus();
  }

  absl::Status Release(Handle handle) override {
    std::vector<Handle> kept;
    return ReleaseAll({{handle, /*bytes=*/0}}, &kept);  // which counts nothing
  }

  // One call of the kernel for memory that lies side by side: a call for each 2 MiB takes three times as
  // long.
  absl::Status ReleaseAll(absl::Span<const Piece> pieces, std::vector<Handle>* kept) override {
    absl::MutexLock lock(&mutex_);
    absl::Status first;
    while (!pieces.empty()) {
      size_t count = 1;
      absl::Status status = Releasable(pieces[0].handle);
      if (status.ok()) {
        count = CountAdjacent(pieces);
        status = ReleaseAdjacent(pieces.first(count));
      }
      for (const Piece& piece : pieces.first(count)) {
        if (status.ok()) {
          Count(piece.bytes);
        } else {
          kept->push_back(piece.handle);
        }
      }
      first.Update(status);
      pieces.remove_prefix(count);
    }
    return first;
  }

  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    absl::MutexLock lock(&mutex_);
    const auto it = handles_.find(handle);
    if (it == handles_.end()) return absl::NotFoundError(absl::StrCat("no memory handle ", handle));
    Memory& memory = it->second;
    const bool elsewhere = memory.address != nullptr && memory.address != address;
    if (memory.mapped || elsewhere || memory.bytes != bytes) {
      return absl::FailedPreconditionError(
          "host memory is mapped once, whole, and again only at its address");
    }
    memory.address = address;
    memory.mapped = true;
    return absl::OkStatus();
  }

  absl::Status Unmap(void* address, int64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    const char* const begin = static_cast<char*>(address);
    std::vector<Memory*> inside;
    int64_t mapped_bytes = 0;
    for (auto& [handle, memory] : handles_) {
      const char* const at = static_cast<char*>(memory.address);
      if (!memory.mapped || at < begin || at + memory.bytes > begin + bytes) continue;
      inside.push_back(&memory);
      mapped_bytes += memory.bytes;
    }
    if (mapped_bytes != bytes) {
      return absl::FailedPreconditionError("unmap of a range that mappings do not fill");
    }
    if (mprotect(address, bytes, PROT_NONE) != 0) return ErrnoError("unmapping memory", bytes);
    for (Memory* memory : inside) memory->mapped = false;
    return absl::OkStatus();
  }

  absl::Status SetAccess(void* address, int64_t bytes) override {
    if (absl::Status status = Open(address, bytes); !status.ok()) return status;
    absl::Status status = Populate(address, bytes);
    NoteResident(address, bytes);
    return status;
  }
  // Counted at once: the copy that makes the pages resident counts the copied bytes.
  absl::Status SetAccessForCopy(void* address, int64_t bytes) override {
    absl::Status status = Open(address, bytes);
    if (status.ok()) Count(bytes);
    return status;
  }

  bool HostIsDevice() const override { return true; }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    bytes = WholePages(bytes);
    ASSIGN_OR_RETURN(HostReservation reservation, account_->Reserve(bytes));
    ASSIGN_OR_RETURN(void* const data, Reserve(bytes));
    if (absl::Status status = Open(data, bytes); !status.ok()) {
      munmap(data, bytes);
      return status;
    }
    absl::MutexLock lock(&mutex_);
    host_memory_[data] = {bytes, std::move(reservation)};
    return data;
  }
  void FreeHost(void* data, int64_t bytes) override {
    {
      absl::MutexLock lock(&mutex_);
      host_memory_.erase(data);
    }
    // Last: from here on another thread's AllocateHost may get the same address.
    munmap(data, WholePages(bytes));
  }

  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    absl::Status status = Copy(host, device, bytes);
    NoteHostWritten(host, bytes);
    return status;
  }
  void NoteHostWritten(void* host, int64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    const auto next = host_memory_.upper_bound(host);
    if (next != host_memory_.begin()) NoteCopied(bytes, &std::prev(next)->second);
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    absl::Status status = Copy(device, host, bytes);
    NoteResident(device, bytes);
    return status;
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // The bytes of some memory that are not resident yet, and reserved until all are.
  struct Absent {
    int64_t bytes = 0;
    HostReservation reservation;
  };
  struct Memory {
    int64_t bytes = 0;
    void* address = nullptr;  // of the pages, once mapped
    bool mapped = false;
    std::shared_ptr<Absent> absent;  // of all pieces that were created together
  };

  static int64_t WholePages(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
  }

  static void NoteCopied(int64_t bytes, Absent* absent) {
    absent->bytes -= bytes;
    if (absent->bytes <= 0) absent->reservation = HostReservation();
  }

  // [address, address + bytes) lies within one handle's memory, or holds whole handles' memory.
  void NoteResident(void* address, int64_t bytes) {
    const char* const begin = static_cast<char*>(address);
    absl::MutexLock lock(&mutex_);
    for (auto& [handle, memory] : handles_) {
      const char* const at = static_cast<char*>(memory.address);
      const int64_t inside = std::min(begin + bytes, at + memory.bytes) - std::max(begin, at);
      if (memory.mapped && inside > 0) NoteCopied(inside, memory.absent.get());
    }
  }

  absl::Status Releasable(Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = handles_.find(handle);
    if (it == handles_.end()) return absl::NotFoundError(absl::StrCat("no memory handle ", handle));
    if (it->second.mapped) return absl::FailedPreconditionError("memory is released while mapped");
    return absl::OkStatus();
  }
  // How many of the first pieces can be released by one call; the first can be released.
  size_t CountAdjacent(absl::Span<const Piece> pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Memory* last = &handles_[pieces[0].handle];
    int64_t bytes = last->bytes;
    size_t count = 1;
    for (; last->address != nullptr && bytes < kReleasedBytes && count < pieces.size(); ++count) {
      const Handle handle = pieces[count].handle;
      const void* const end = static_cast<char*>(last->address) + last->bytes;
      if (!Releasable(handle).ok() || handles_[handle].address != end) break;
      last = &handles_[handle];
      bytes += last->bytes;
    }
    return count;
  }
  absl::Status ReleaseAdjacent(absl::Span<const Piece> pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    void* const begin = handles_[pieces[0].handle].address;
    int64_t bytes = 0;
    for (const Piece& piece : pieces) bytes += handles_[piece.handle].bytes;
    if (begin != nullptr) {
      void* fresh =
          mmap(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      if (fresh == MAP_FAILED) return ErrnoError("releasing memory", bytes);
    }
    for (const Piece& piece : pieces) handles_.erase(piece.handle);
    return absl::OkStatus();
  }

  int64_t LiveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t live = 0;
    for (const auto& [handle, memory] : handles_) live += memory.bytes;
    return live;
  }

  absl::Status Open(void* address, int64_t bytes) {
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) return ErrnoError("opening memory", bytes);
    // Hints: without huge pages, and with memory of another node, the memory is only slower.
    madvise(address, bytes, MADV_HUGEPAGE);
    PlacePages(address, bytes, numa_nodes_).IgnoreError();
    return absl::OkStatus();
  }

  absl::Status Populate(void* address, int64_t bytes) {
    return InParallel("populating memory", bytes, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kCountedBytes) {
        const int64_t step = std::min(kCountedBytes, end - at);
        if (const int error = PopulateRange(static_cast<char*>(address) + at, step); error != 0) return error;
        Count(step);
      }
      return 0;
    });
  }

  // A page is filled as soon as the kernel has cleared the page, while the page is in the cache.
  absl::Status Copy(void* to, const void* from, int64_t bytes) {
    return InParallel("populating memory", bytes, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kHugePage) {
        char* const target = static_cast<char*>(to) + at;
        const int64_t step = std::min(kHugePage, end - at);
        if (const int error = PopulateRange(target, step); error != 0) return error;
        memcpy(target, static_cast<const char*>(from) + at, step);
        Count(step);
      }
      return 0;
    });
  }

  // `work` returns 0 or an errno.
  absl::Status InParallel(absl::string_view what, int64_t bytes,
                          const std::function<int(int64_t, int64_t)>& work) {
    std::atomic<int> error{0};
    ParallelRanges(bytes, kHugePage, threads_, [&](int64_t begin, int64_t end) {
      if (const int failed = work(begin, end); failed != 0) error = failed;
    });
    if (error == 0) return absl::OkStatus();
    errno = error == EFAULT ? ENOMEM : error.load();
    return ErrnoError(what, bytes);
  }

  const int threads_;
  const int64_t limit_;
  const std::vector<int> numa_nodes_;
  const std::shared_ptr<HostMemoryAccount> account_;
  absl::Mutex mutex_;
  std::map<Handle, Memory> handles_ ABSL_GUARDED_BY(mutex_);
  Handle next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<void*, Absent> host_memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<VmmDriver> MakeHostVmmDriver(const HostVmmDriverOptions& options) {
  return std::make_unique<HostVmmDriver>(options);
}

}  // namespace somnus
