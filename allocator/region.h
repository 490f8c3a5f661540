#pragma once
// One reserved address range and the physical chunks under it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Borrows the driver. Not thread safe: the allocator's lock covers it. Every step either happens whole or is
// undone.
class Region {
 public:
  enum class State {
    kEmpty,     // addresses only
    kResident,  // usable
    kDetached,  // chunks exist with their contents, but are not mapped
  };

  // Reserves addresses for `bytes`, rounded up to the driver's granularity. Memory is created in chunks of
  // `chunk_bytes`, rounded down to it; 0: in the driver's chunks.
  static absl::StatusOr<std::unique_ptr<Region>> Reserve(VmmDriver* driver, std::string tag, int64_t bytes,
                                                         int64_t chunk_bytes);
  // Releases whatever is left, as far as the driver lets it.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& tag() const { return tag_; }
  void* data() const { return base_; }
  int64_t bytes() const { return bytes_; }
  State state() const { return state_; }
  // Physical memory held, whatever the state.
  int64_t held_bytes() const;

  // kEmpty -> kResident, new memory. With `copy_follows` the caller fills it with CopyFromHost next.
  absl::Status Populate(bool copy_follows = false);
  absl::Status Attach();  // kDetached -> kResident, the same memory
  absl::Status Detach();  // kResident -> kDetached
  // kDetached -> kEmpty. A chunk that the driver fails to release stays in held_bytes and is tried again by
  // every later call and by the destructor; the state is kEmpty all the same. Returns the first such error.
  absl::Status Release();
  // kEmpty only; afterwards the region is only good for destruction.
  absl::Status FreeAddress();

 private:
  struct Chunk {
    VmmDriver::Handle handle;
    int64_t offset, bytes;
  };

  Region(VmmDriver* driver, std::string tag, void* base, int64_t bytes, int64_t chunk_bytes)
      : driver_(driver), tag_(std::move(tag)), base_(base), bytes_(bytes), chunk_bytes_(chunk_bytes) {}
  char* At(const Chunk& chunk) const { return static_cast<char*>(base_) + chunk.offset; }
  absl::Status CreateChunks();
  absl::Status MapChunks(bool copy_follows);
  absl::Status WithShortage(const absl::Status& status) const;

  VmmDriver* const driver_;
  const std::string tag_;
  void* base_;
  const int64_t bytes_;
  const int64_t chunk_bytes_;
  State state_ = State::kEmpty;
  std::vector<Chunk> chunks_;
  std::vector<Chunk> unreleased_;
};

}  // namespace somnus
