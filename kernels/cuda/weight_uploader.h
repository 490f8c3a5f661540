#pragma once
// Uploads weights to the device from several loader threads at once: pinned staging memory of bounded size,
// one stream for all copies, and an event per buffer that says when the buffer may be written again. A thread
// reads or converts into one buffer while other buffers are copied.
//
// Every method may be called from any thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda_api.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

class WeightUploader final : public DeviceUploader {
 public:
  // Slots are large enough that a copy's start costs nothing beside the copy, and as many as there are loader
  // threads.
  static constexpr int64_t kSlotBytes = int64_t{4} << 20;
  static constexpr int kMaxSlots = 16;  // Pinned memory is at most their product, 64 MiB.

  // Takes no memory before the first use, and then no more than is filled or copied at a time; keeps the
  // memory until destruction.
  explicit WeightUploader(int device_index) : device_index_(device_index) {}
  ~WeightUploader() override;
  WeightUploader(const WeightUploader&) = delete;
  WeightUploader& operator=(const WeightUploader&) = delete;

  int64_t buffer_bytes() const override { return kSlotBytes; }
  absl::StatusOr<Buffer*> Acquire() override;
  void Send(Buffer* buffer, void* device, int64_t bytes, absl::string_view what) override;
  // Cheap when there was nothing since the last call.
  absl::Status Wait() override;

  // Rows [row_begin, row_begin + num_rows) of the weight from f32 `rows` (host), rounded to nearest even.
  // `rows` is free again when the call returns; the weight is whole after Wait(). Errors come from Wait().
  void UploadRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const float* rows);

  // Uploads bytes unchanged. `host_data` is free again when the call returns; errors come from Wait().
  void UploadBytes(void* device_data, const void* host_data, int64_t bytes);

 private:
  struct Slot : Buffer {
    cudaEvent_t copied = nullptr;  // behind the slot's last copy
    std::string what;              // the bytes that were copied last
  };

  // Sends `elements` of `element_bytes` each to `to`, in pieces: fill(staging, begin, count) writes elements
  // [begin, begin + count).
  void SendAll(char* to, int64_t elements, int64_t element_bytes,
               absl::FunctionRef<void(char*, int64_t, int64_t)> fill);
  // The slot whose last copy is the oldest, once that copy is done, or a new slot; nullptr after an error.
  Slot* TakeSlot();
  // Makes another slot; nullptr when there are as many as there may be, or no memory.
  Slot* AddSlot();
  cudaError_t MakeSlot(Slot* slot);
  void FreeSlot(Slot* slot);
  void Record(cudaError_t error, absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int device_index_;
  absl::Mutex mutex_;
  cudaStream_t stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
  int num_slots_ ABSL_GUARDED_BY(mutex_) = 0;  // slots under construction included
  int max_slots_ ABSL_GUARDED_BY(mutex_) = kMaxSlots;
  std::deque<Slot*> free_ ABSL_GUARDED_BY(mutex_);  // Written by nobody; the oldest copy first.
  bool used_ ABSL_GUARDED_BY(mutex_) = false;       // Since the last Wait().
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
