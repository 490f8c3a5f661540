#pragma once
// Device memory that can be released and mapped again at the same address. Memory is in regions, each with a
// tag ("weights", "kv_cache", "workspace"); Sleep releases the physical memory under tags, WakeUp maps new
// memory there.
//
// Ownership: owns every region; the VmmDriver is borrowed and must outlive it. Thread safety: all methods are
// thread safe, but nothing may read or write the memory while Sleep or WakeUp runs. The allocator never knows
// what the bytes mean. After an error in WakeUp the regions it had mapped are released again: still asleep,
// and it can be retried.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace somnus {

class VmmDriver;

enum class RestoreMode {
  kDiscard,     // contents are lost; zero pages afterwards on the host, undefined on a device
  kHostBackup,  // copied to host memory at Sleep, copied back at WakeUp
};

struct SleepableAllocatorOptions {
  // Backups outlive WakeUp, so that the next Sleep of an unchanged region copies nothing. Then whoever
  // changes a region's bytes must call DropBackups. Costs the region's size in host memory.
  bool retain_backups = true;
};

class SleepableAllocator {
 public:
  static std::unique_ptr<SleepableAllocator> Create(VmmDriver* driver,
                                                    const SleepableAllocatorOptions& options = {});
  virtual ~SleepableAllocator() = default;

  // A new region of at least `bytes`, reserved and mapped, zeroed on the host. ResourceExhausted says how
  // much was missing.
  virtual absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) = 0;
  // Frees a whole region by its address.
  virtual absl::Status Free(void* data) = 0;

  // Releases every resident region whose tag is in `modes`. Returns the bytes freed by tag. All or nothing:
  // after an error all are resident with their contents. A region that already sleeps loses its backup when
  // its mode is kDiscard (level 1 deepens to 2). Memory that the driver fails to release in the end stays in
  // ResidentBytes and is tried again later.
  virtual absl::StatusOr<std::map<std::string, int64_t>> Sleep(
      const std::map<std::string, RestoreMode>& modes) = 0;
  // Maps every sleeping region whose tag is in `tags` (empty: all) and restores backups. Returns the bytes
  // mapped by tag.
  virtual absl::StatusOr<std::map<std::string, int64_t>> WakeUp(const std::vector<std::string>& tags) = 0;

  // Drops the retained backups of resident regions with this tag, because their bytes have changed. Regions
  // asleep keep theirs.
  virtual void DropBackups(const std::string& tag) = 0;

  // Physical bytes held, by tag; a tag that holds nothing is there with 0. Returns at once, also while
  // another call works; the numbers then follow that call region by region.
  virtual std::map<std::string, int64_t> ResidentBytes() const = 0;
};

}  // namespace somnus
