#pragma once
// Moves a step's small data between host and device. Where both share one memory, the host's side and the
// device's side are the same bytes; only results are copied, because the next step overwrites results.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/model/carver.h"

namespace somnus {

// Steps whose host buffers may be in use at once: the device works on one step while the next is prepared.
inline constexpr int kStepsInFlight = 2;

// A block of device memory with kStepsInFlight host buffers, which are pinned, laid out like the block and
// used in turn, so that one copy moves everything of a step. Used by the runner thread; other threads may
// read a host buffer until the buffer's turn comes again.
class MirroredBlock {
 public:
  // An array of the block, on both sides. Take all arrays first, then Carve, then Bind.
  template <typename T>
  class Array {
   public:
    T* host() const { return reinterpret_cast<T*>(block_->host_ + offset_); }  // in the current host buffer
    T* device() const { return reinterpret_cast<T*>(block_->device_ + offset_); }
    int64_t begin() const { return offset_; }
    int64_t end() const { return offset_ + bytes_; }  // the bytes of this array and all earlier arrays

   private:
    friend class MirroredBlock;
    MirroredBlock* block_ = nullptr;
    int64_t offset_ = 0;
    int64_t bytes_ = 0;
  };

  MirroredBlock() = default;
  ~MirroredBlock();
  MirroredBlock(const MirroredBlock&) = delete;
  MirroredBlock& operator=(const MirroredBlock&) = delete;

  template <typename T>
  Array<T> Take(int64_t count) {
    Array<T> array;
    array.block_ = this;
    array.offset_ = bytes_;
    array.bytes_ = count * static_cast<int64_t>(sizeof(T));
    bytes_ += (array.bytes_ + 63) / 64 * 64;
    return array;
  }
  int64_t bytes() const { return bytes_; }

  // Takes the device's side from the carver's region.
  void Carve(Carver* carver) { device_ = carver->Take<uint8_t>(bytes_); }
  // Makes the carved memory usable, once the region has memory. Allocates the host buffers on `device`, which
  // must outlive the block.
  absl::Status Bind(Device* device);

  // Goes on to the next host buffer. The caller makes sure that the device is past the step that used the
  // buffer last.
  void Turn();
  // Queue the copy of the first `bytes` from the current host buffer to the device, or back.
  void Upload(int64_t bytes);
  void Download(int64_t bytes) { DownloadPart(0, bytes); }
  // As above, for `bytes` from `begin` on. A step may download several parts.
  void DownloadPart(int64_t begin, int64_t bytes);

 private:
  Device* device_handle_ = nullptr;
  int64_t bytes_ = 0;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
  int turn_ = 0;
  uint8_t* host_buffers_[kStepsInFlight] = {};       // the device's memory where host and device share memory
  std::unique_ptr<uint8_t[]> kept_[kStepsInFlight];  // copies of results, where memory is shared
};

// For data that is rare and of no fixed size: copies go through a small ring, of which each step in flight
// has a part.
class SideStage {
 public:
  static constexpr int64_t kBytes = 1 << 20;  // of a step
  // The most bytes of a call; callers cut longer data.
  static constexpr int64_t kMaxPiece = kBytes / 4;

  SideStage() = default;
  ~SideStage();
  SideStage(const SideStage&) = delete;
  SideStage& operator=(const SideStage&) = delete;

  // Takes the device's memory from the carver's region; none where memory is shared.
  void Carve(Carver* carver, const Device& device) {
    device_ = carver->Take<uint8_t>(device.asynchronous() ? kStepsInFlight * kBytes : 0);
  }
  // As MirroredBlock::Bind.
  absl::Status Bind(Device* device);

  // Goes on to the next step's part, from the start of the part; as MirroredBlock::Turn.
  void Turn();

  // The device's copy of values[0..n), for ops of this step that are queued before kBytes more have been
  // staged. A step that stages more than kBytes waits for the device. Where memory is shared, the copy is
  // `values`, which must then live as long. An error is the device's.
  template <typename T>
  absl::StatusOr<const T*> Stage(const T* values, int64_t n) {
    absl::StatusOr<const void*> staged = StageBytes(values, n * static_cast<int64_t>(sizeof(T)));
    if (!staged.ok()) return staged.status();
    return static_cast<const T*>(*staged);
  }

  // Calls fn(first, device pointer, count) for pieces of values[0..n).
  template <typename T, typename Fn>
  absl::Status ForEachPiece(const T* values, int64_t n, const Fn& fn) {
    const int64_t most = kMaxPiece / static_cast<int64_t>(sizeof(T));
    for (int64_t first = 0; first < n; first += most) {
      const int64_t count = n - first < most ? n - first : most;
      absl::StatusOr<const T*> staged = Stage(values + first, count);
      if (!staged.ok()) return staged.status();
      fn(first, *staged, count);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const void*> StageBytes(const void* values, int64_t bytes);

  Device* device_handle_ = nullptr;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
  int turn_ = 0;
  int64_t used_ = 0;  // of the turn's part
};

}  // namespace somnus
