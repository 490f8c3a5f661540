#include "kernels/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/float_convert.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

WeightUploader::~WeightUploader() {
  absl::MutexLock lock(&mutex_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const auto& slot : slots_) FreeSlot(slot.get());
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void WeightUploader::UploadRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                                const float* rows) {
  const int64_t bytes = SizeOf(weight.dtype);
  SendAll(static_cast<char*>(weight.data) + row_begin * weight.k * bytes, num_rows * weight.k, bytes,
          [&](char* staging, int64_t begin, int64_t count) {
            ConvertFromFloat(rows + begin, count, weight.dtype, staging);
          });
}

void WeightUploader::UploadBytes(void* device_data, const void* host_data, int64_t bytes) {
  SendAll(static_cast<char*>(device_data), bytes, 1, [&](char* staging, int64_t begin, int64_t count) {
    std::memcpy(staging, static_cast<const char*>(host_data) + begin, static_cast<size_t>(count));
  });
}

void WeightUploader::SendAll(char* to, int64_t elements, int64_t element_bytes,
                             absl::FunctionRef<void(char*, int64_t, int64_t)> fill) {
  const int64_t piece = kSlotBytes / element_bytes;
  for (int64_t begin = 0; begin < elements; begin += piece) {
    const int64_t count = std::min(piece, elements - begin);
    const absl::StatusOr<Buffer*> buffer = Acquire();
    if (!buffer.ok()) return;  // Wait() returns it.
    fill((*buffer)->data, begin, count);
    Send(*buffer, to + begin * element_bytes, count * element_bytes, "a weight");
  }
}

absl::StatusOr<DeviceUploader::Buffer*> WeightUploader::Acquire() {
  {
    absl::MutexLock lock(&mutex_);
    used_ = true;
    if (!error_.ok()) return error_;
  }
  // Loader threads have not chosen a device.
  const cudaError_t error = cudaSetDevice(device_index_);
  Slot* const slot = error == cudaSuccess ? TakeSlot() : nullptr;
  if (slot != nullptr) return slot;
  absl::MutexLock lock(&mutex_);
  if (error != cudaSuccess) Record(error, "choosing the device for weights");
  return error_;
}

WeightUploader::Slot* WeightUploader::TakeSlot() {
  Slot* slot = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      slot = free_.front();
      free_.pop_front();
    }
  }
  if (slot == nullptr || cudaEventQuery(slot->copied) == cudaErrorNotReady) {
    cudaGetLastError();  // Not being ready is no error.
    Slot* const added = AddSlot();
    absl::MutexLock lock(&mutex_);
    if (added != nullptr && slot != nullptr) free_.push_front(slot);
    if (added != nullptr) return added;
    if (slot == nullptr) {
      const auto ready = [this] { return !free_.empty() || !error_.ok(); };
      mutex_.Await(absl::Condition(&ready));
      if (free_.empty()) return nullptr;
      slot = free_.front();
      free_.pop_front();
    }
  }
  const cudaError_t error = cudaEventSynchronize(slot->copied);
  if (error == cudaSuccess) return slot;
  absl::MutexLock lock(&mutex_);
  Record(error, absl::StrCat("copying ", slot->what, " to the device"));
  free_.push_front(slot);
  return nullptr;
}

void WeightUploader::Send(Buffer* buffer, void* device, int64_t bytes, absl::string_view what) {
  Slot* const slot = static_cast<Slot*>(buffer);
  absl::MutexLock lock(&mutex_);
  if (bytes > 0) {
    slot->what = std::string(what);
    cudaError_t error =
        cudaMemcpyAsync(device, slot->data, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_);
    if (error == cudaSuccess) error = cudaEventRecord(slot->copied, stream_);
    if (error != cudaSuccess) Record(error, absl::StrCat("copying ", what, " to the device"));
  }
  free_.push_back(slot);
}

WeightUploader::Slot* WeightUploader::AddSlot() {
  {
    absl::MutexLock lock(&mutex_);
    if (num_slots_ >= max_slots_) return nullptr;
    ++num_slots_;
    if (stream_ == nullptr) {
      const cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
      if (error != cudaSuccess) Record(error, "a stream for weights");
    }
  }
  auto slot = std::make_unique<Slot>();
  const cudaError_t error = MakeSlot(slot.get());  // slow: other threads go on meanwhile
  absl::MutexLock lock(&mutex_);
  if (error == cudaSuccess && stream_ != nullptr) {
    slots_.push_back(std::move(slot));
    return slots_.back().get();
  }
  FreeSlot(slot.get());
  // The slots that exist must suffice; if there are none, the next call tries again.
  max_slots_ = std::max(1, --num_slots_);
  if (num_slots_ == 0) Record(error, "pinned memory for weights");
  return nullptr;
}

cudaError_t WeightUploader::MakeSlot(Slot* slot) {
  // A thread that waits for a copy sleeps, and leaves the CPU to other loader threads.
  const cudaError_t error =
      cudaEventCreateWithFlags(&slot->copied, cudaEventDisableTiming | cudaEventBlockingSync);
  if (error != cudaSuccess) return error;
  return cudaHostAlloc(reinterpret_cast<void**>(&slot->data), kSlotBytes, cudaHostAllocPortable);
}

void WeightUploader::FreeSlot(Slot* slot) {
  if (slot->data != nullptr) cudaFreeHost(slot->data);
  if (slot->copied != nullptr) cudaEventDestroy(slot->copied);
}

absl::Status WeightUploader::Wait() {
  absl::MutexLock lock(&mutex_);
  if (!used_) return absl::OkStatus();
  if (const cudaError_t error = cudaSetDevice(device_index_); error != cudaSuccess)
    Record(error, "choosing the device for weights");
  // Slots that are being filled belong to uploads that have not returned.
  for (Slot* const slot : free_) {
    const cudaError_t error = cudaEventSynchronize(slot->copied);
    if (error != cudaSuccess) Record(error, absl::StrCat("copying ", slot->what, " to the device"));
  }
  used_ = free_.size() != slots_.size();
  return std::exchange(error_, absl::OkStatus());
}

void WeightUploader::Record(cudaError_t error, absl::string_view what) {
  cudaGetLastError();  // So that a later check does not find the error again.
  if (!error_.ok()) return;
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  error_ =
      error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
