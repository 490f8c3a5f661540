#pragma once
// Copies weights to the device from several loader threads at once, through pinned staging memory of bounded
// size and streams of its own: the conversion of one piece overlaps with the copies of others.
//
// Every method may be called from any thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/api.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

class WeightUploader {
 public:
  static constexpr int64_t kSlotBytes = int64_t{8} << 20;
  static constexpr int kMaxSlots = 6;  // Pinned memory is at most their product.

  // Takes no memory until it is used.
  explicit WeightUploader(int device_index) : device_index_(device_index) {}
  ~WeightUploader();
  WeightUploader(const WeightUploader&) = delete;
  WeightUploader& operator=(const WeightUploader&) = delete;

  // Rows [row_begin, row_begin + num_rows) of the weight from f32 `rows` (host), rounded to nearest even.
  // `rows` is free again when the call returns; the weight is whole after Wait(). Errors come from Wait().
  void UploadRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const float* rows);

  // The same for bytes that are already what the device shall hold.
  void UploadBytes(void* device_data, const void* host_data, int64_t bytes);

  // Until all uploads that had returned before are done; the first error since the last call. Cheap when
  // there were none.
  absl::Status Wait();

 private:
  // A piece of staging memory and the stream that empties it.
  struct Slot {
    char* staging = nullptr;
    cudaStream_t stream = nullptr;
  };

  // Sends `elements` of `element_bytes` each to `to`, in pieces: fill(staging, begin, count) writes those
  // [begin, begin + count).
  void Send(char* to, int64_t elements, int64_t element_bytes,
            absl::FunctionRef<void(char*, int64_t, int64_t)> fill);
  // The slot whose last copy is the oldest, once that copy is done; nullptr after an error.
  Slot* Acquire();
  void Release(Slot* slot);
  std::unique_ptr<Slot> MakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Record(cudaError_t error, const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int device_index_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);  // All of them.
  std::deque<Slot*> free_ ABSL_GUARDED_BY(mutex_);  // Written by nobody; the oldest copy first.
  bool used_ ABSL_GUARDED_BY(mutex_) = false;       // Since the last Wait().
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// dst[i] = src[i] rounded to `type` (bf16, f16 or f32), to nearest even; NaN stays NaN. Host memory.
void ConvertFromFloat(const float* src, int64_t n, DataType type, void* dst);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
