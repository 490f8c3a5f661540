#pragma once
// The operations of virtual memory management, as in CUDA (cuMem*), over any kind of memory: reserve
// addresses, create physical memory, map memory at addresses, give access, unmap, release.
//
// Memory that was mapped keeps its contents, also after Unmap, and can be mapped again at the same address,
// until Release ends the handle. Thread safety: calls for different addresses and handles may come from
// different threads. Errors: ResourceExhausted where memory is missing, Unavailable without a device,
// Internal for anything else.
//
// With a ByteMeter the driver counts the bytes that become resident, and the bytes that are copied, once
// each: on a device with memory of its own in Create, on the host as pages are populated, and copies as they
// end.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "allocator/byte_meter.h"

namespace somnus {

class VmmDriver {
 public:
  using Handle = uint64_t;

  virtual ~VmmDriver() = default;

  // Every address and size below is a multiple of Granularity(). A power of two.
  virtual int64_t Granularity() const = 0;
  // The size in which physical memory is best created; a multiple of Granularity().
  virtual int64_t ChunkBytes() const = 0;
  // Bytes that the device has, and bytes that Create could still hand out, now.
  virtual absl::StatusOr<int64_t> TotalBytes() = 0;
  virtual absl::StatusOr<int64_t> AvailableBytes() = 0;

  virtual absl::StatusOr<void*> Reserve(int64_t bytes) = 0;
  virtual absl::Status FreeAddress(void* address, int64_t bytes) = 0;

  virtual absl::StatusOr<Handle> Create(int64_t bytes) = 0;
  // Creates pieces of these sizes and appends their handles to *handles; after an error the handles of the
  // pieces created so far.
  virtual absl::Status CreateAll(absl::Span<const int64_t> sizes, std::vector<Handle>* handles) {
    for (const int64_t bytes : sizes) {
      absl::StatusOr<Handle> handle = Create(bytes);
      if (!handle.ok()) return handle.status();
      handles->push_back(*handle);
    }
    return absl::OkStatus();
  }
  virtual absl::Status Release(Handle handle) = 0;
  struct Piece {
    Handle handle;
    int64_t bytes;
  };
  // Releases `pieces` and counts their bytes; fastest in the order of addresses. Goes on after an error,
  // appends the handles that stay to *kept, in order, and returns the first error.
  virtual absl::Status ReleaseAll(absl::Span<const Piece> pieces, std::vector<Handle>* kept) {
    absl::Status first;
    for (const Piece& piece : pieces) {
      const absl::Status status = Release(piece.handle);
      if (status.ok()) {
        Count(piece.bytes);
      } else {
        kept->push_back(piece.handle);
        first.Update(status);
      }
    }
    return first;
  }

  virtual absl::Status Map(void* address, int64_t bytes, Handle handle) = 0;
  // Unmaps a range that whole mappings fill, so that one call serves many chunks. After an error the whole
  // range is still mapped.
  virtual absl::Status Unmap(void* address, int64_t bytes) = 0;
  // Makes a whole mapped range readable and writable. One call for many chunks, because this is the expensive
  // call.
  virtual absl::Status SetAccess(void* address, int64_t bytes) = 0;
  // As SetAccess, for a range that CopyFromHost is going to fill as a whole: pages need not be resident
  // before the copy reaches them.
  virtual absl::Status SetAccessForCopy(void* address, int64_t bytes) { return SetAccess(address, bytes); }

  // Host memory that copies run fastest to and from: pinned, where the device can use that, and then mapped
  // for the device's kernels.
  virtual absl::StatusOr<void*> AllocateHost(int64_t bytes) = 0;
  // Whether that is the memory which Create hands out, too: then a copy there frees nothing, and the
  // device's memory can be used for reads and writes of files.
  virtual bool HostIsDevice() const { return false; }
  virtual void FreeHost(void* data, int64_t bytes) = 0;
  // Bytes of AllocateHost were written otherwise than by CopyToHost: the pages are resident.
  virtual void NoteHostWritten(void* /*host*/, int64_t /*bytes*/) {}

  // May return before the bytes have moved; Synchronize waits for all, and returns the first error.
  virtual absl::Status CopyToHost(void* host, const void* device, int64_t bytes) = 0;
  virtual absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) = 0;
  virtual absl::Status Synchronize() = 0;

  // Sets the meter; null removes it. No other call may run. A wrapping driver must forward this call.
  virtual void SetMeter(ByteMeter* meter) { meter_ = meter; }
  // Also for bytes that are moved without the driver: read from a file.
  void Count(int64_t bytes) {
    if (meter_ != nullptr) meter_->Advance(bytes);
  }

 protected:
  ByteMeter* meter() const { return meter_; }

 private:
  ByteMeter* meter_ = nullptr;
};

// The driver counts as long as the scope exists.
class MeterScope {
 public:
  MeterScope(VmmDriver* driver, ByteMeter* meter) : driver_(driver) { driver_->SetMeter(meter); }
  ~MeterScope() { driver_->SetMeter(nullptr); }
  MeterScope(const MeterScope&) = delete;

 private:
  VmmDriver* const driver_;
};

}  // namespace somnus
