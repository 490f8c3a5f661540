#pragma once
// The host memory of all backups of one rank: few large pieces instead of a piece for each region, because a
// piece of pinned memory costs milliseconds, and huge pages need room. A region takes any free space, in
// parts.

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Owns its chunks; borrows the driver. Not thread safe.
class HostArena {
 public:
  struct Extent {
    char* data;
    int64_t bytes;
  };

  HostArena(VmmDriver* driver, int64_t chunk_bytes) : driver_(driver), chunk_bytes_(chunk_bytes) {}
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // How many bytes are going to be taken: new chunks become that large, up to chunk_bytes.
  void Expect(int64_t bytes) { expected_ = bytes; }
  // Takes from 1 to `bytes` bytes: free space in one place, or a part of a new chunk. ResourceExhausted says
  // how much is missing of the expected bytes.
  absl::StatusOr<Extent> Take(int64_t bytes);
  // Gives back an extent that Take returned. A chunk of which nothing is taken any longer is freed.
  void Give(const Extent& extent);

 private:
  struct Chunk {
    int64_t bytes = 0;
    int64_t free_bytes = 0;
    std::map<char*, int64_t> free;  // disjoint, never touching
  };

  Extent TakeFrom(Chunk* chunk, int64_t bytes);

  VmmDriver* const driver_;
  const int64_t chunk_bytes_;
  int64_t expected_ = 0;
  std::map<char*, Chunk> chunks_;
};

}  // namespace somnus
