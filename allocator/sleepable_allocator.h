#pragma once
// Device memory that can be given back and come again at the same address. Memory lives in regions, each with a tag
// ("weights", "kv_cache", "workspace"); Sleep releases the physical memory under tags, WakeUp maps new one there.
//
// Ownership: owns every region; the VmmDriver is borrowed and must outlive it. Thread safety: all methods are
// thread safe, but whoever reads or writes the memory must be quiet while Sleep or WakeUp runs. The allocator never
// knows what the bytes mean. After an error in WakeUp the regions it had mapped are released again: still asleep, and
// it can be retried.

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

class SleepableAllocator {
 public:
  static std::unique_ptr<SleepableAllocator> Create(VmmDriver* driver);
  virtual ~SleepableAllocator() = default;

  // A new region of at least `bytes`, reserved and mapped, zeroed on the host. ResourceExhausted says how much was missing.
  virtual absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) = 0;
  // Frees a whole region by its address.
  virtual absl::Status Free(void* data) = 0;

  // Releases every resident region whose tag is in `modes`. Answers bytes freed by tag. All or nothing.
  virtual absl::StatusOr<std::map<std::string, int64_t>> Sleep(const std::map<std::string, RestoreMode>& modes) = 0;
  // Maps every sleeping region whose tag is in `tags` (empty: all) and restores backups. Answers bytes mapped by tag.
  virtual absl::StatusOr<std::map<std::string, int64_t>> WakeUp(const std::vector<std::string>& tags) = 0;

  // Resident bytes by tag.
  virtual std::map<std::string, int64_t> ResidentBytes() const = 0;
};

}  // namespace somnus
