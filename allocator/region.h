#pragma once
// One reserved address range and the physical chunks under it. The range consists of rows of equal size (a
// single row, unless asked otherwise), and every row's tail can be without memory: Resize says how many bytes
// of each row are wanted, and chunks without a wanted byte are released.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct RegionShape {
  int64_t row_bytes = 0;
  int64_t num_rows = 1;
  int64_t wanted_row_bytes = 0;  // the first of each row; at least 1
  int64_t chunk_bytes = 0;       // rounded down to the driver's granularity; 0: the driver's chunks
};

// Borrows the driver. Not thread safe: the allocator's lock covers it. Every step either happens whole or is
// undone, except where a comment says so.
class Region {
 public:
  enum class State {
    kEmpty,     // addresses only
    kResident,  // usable
    kDetached,  // chunks exist with their contents, but not all are mapped
  };

  // Reserves addresses, rounded up to the driver's granularity.
  static absl::StatusOr<std::unique_ptr<Region>> Reserve(VmmDriver* driver, std::string tag,
                                                         const RegionShape& shape);
  // Releases all remaining memory, as far as the driver allows.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& tag() const { return tag_; }
  void* data() const { return base_; }
  int64_t row_bytes() const { return shape_.row_bytes; }
  int64_t wanted_row_bytes() const { return shape_.wanted_row_bytes; }
  State state() const { return state_; }
  // Physical memory held, in any state.
  int64_t held_bytes() const;
  // Physical memory of the resident region, in whole chunks.
  int64_t wanted_bytes() const { return wanted_bytes_; }
  // The ranges of that memory, each as long as can be, in order.
  struct Extent {
    int64_t offset, bytes;
  };
  std::vector<Extent> Extents() const;

  // Afterwards all wanted chunks exist and are mapped; chunks that existed before keep their contents. With
  // `copy_follows` the caller fills the memory with CopyFromHost next.
  absl::Status Populate(bool copy_follows = false);
  // kResident -> kDetached. After an error a part may still be mapped; a later call goes on.
  absl::Status Detach();
  // Releases the chunks that are not mapped; kDetached -> kEmpty where that is all. A chunk that the driver
  // fails to release stays in held_bytes and is tried again by every later call and by the destructor.
  // Returns the first such error.
  absl::Status Release();
  // Detach, and then Release; each keeps its partial work, so that a later call goes on.
  absl::Status Vacate();
  // Changes wanted_row_bytes, which is at most row_bytes. A resident region stays resident: bytes that are
  // wanted before and afterwards keep their contents, and new bytes are undefined. Only growth can fail.
  // Chunks that the driver fails to unmap or to release stay in held_bytes and are tried again by later
  // calls.
  absl::Status Resize(int64_t wanted_row_bytes);
  // Vacate; then the addresses are free, too, and the region is only good for destruction.
  absl::Status Free();

 private:
  struct Chunk {
    VmmDriver::Handle handle;
    int64_t offset, bytes;
    bool mapped = false;
  };

  Region(VmmDriver* driver, std::string tag, void* base, const RegionShape& shape, int64_t bytes);
  char* At(int64_t offset) const { return static_cast<char*>(base_) + offset; }
  bool Wants(int64_t offset, int64_t bytes) const;
  void CountWanted();
  std::vector<Extent> MissingChunks() const;
  absl::Status AddChunks(const std::vector<Extent>& missing);
  absl::Status MapChunks(bool copy_follows);
  absl::Status SetAccess(const std::vector<size_t>& chunks, bool copy_follows);
  template <typename Chosen>
  absl::Status UnmapChunks(const Chosen& chosen);
  template <typename Chosen>
  absl::Status ReleaseChunks(const Chosen& chosen);
  absl::Status WithShortage(const absl::Status& status, int64_t needed) const;

  VmmDriver* const driver_;
  const std::string tag_;
  void* base_;
  RegionShape shape_;
  const int64_t bytes_;  // of addresses
  int64_t wanted_bytes_ = 0;
  State state_ = State::kEmpty;
  std::vector<Chunk> chunks_;  // by offset
  std::vector<Chunk> unreleased_;
};

}  // namespace somnus
