#include "allocator/host_backup.h"

#include <utility>
#include <vector>

#include "allocator/host_arena.h"

namespace somnus {
namespace {

class HostBackup : public Backup {
 public:
  HostBackup(VmmDriver* driver, HostArena* arena) : driver_(driver), arena_(arena) {}
  ~HostBackup() override {
    for (const HostArena::Extent& extent : extents_) arena_->Give(extent);
  }

  int64_t stored_bytes() const override {
    int64_t bytes = 0;
    for (const HostArena::Extent& extent : extents_) bytes += extent.bytes;
    return bytes;
  }

  absl::Status Save(const char* data, int64_t bytes) {
    while (bytes > 0) {
      absl::StatusOr<HostArena::Extent> extent = arena_->Take(bytes);
      if (!extent.ok()) return extent.status();
      extents_.push_back(*extent);
      if (absl::Status status = driver_->CopyToHost(extent->data, data, extent->bytes); !status.ok())
        return status;
      data += extent->bytes;
      bytes -= extent->bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Restore(void* data) override {
    char* to = static_cast<char*>(data);
    for (const HostArena::Extent& extent : extents_) {
      if (absl::Status status = driver_->CopyFromHost(to, extent.data, extent.bytes); !status.ok())
        return status;
      to += extent.bytes;
    }
    return absl::OkStatus();
  }

 private:
  VmmDriver* const driver_;
  HostArena* const arena_;
  std::vector<HostArena::Extent> extents_;
};

class HostBackupStore : public BackupStore {
 public:
  HostBackupStore(VmmDriver* driver, int64_t chunk_bytes) : driver_(driver), arena_(driver, chunk_bytes) {}

  bool in_host_memory() const override { return true; }
  void Expect(int64_t bytes) override { arena_.Expect(bytes); }
  absl::StatusOr<std::unique_ptr<Backup>> Save(const void* data, int64_t bytes) override {
    auto backup = std::make_unique<HostBackup>(driver_, &arena_);
    if (absl::Status status = backup->Save(static_cast<const char*>(data), bytes); !status.ok()) {
      driver_->Synchronize().IgnoreError();  // copies of the first parts may still run
      return status;
    }
    return backup;
  }

 private:
  VmmDriver* const driver_;
  HostArena arena_;
};

}  // namespace

std::unique_ptr<BackupStore> MakeHostBackupStore(VmmDriver* driver, int64_t chunk_bytes) {
  return std::make_unique<HostBackupStore>(driver, chunk_bytes);
}

}  // namespace somnus
