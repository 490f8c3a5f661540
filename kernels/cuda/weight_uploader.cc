#include "kernels/cuda/weight_uploader.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

inline __attribute__((always_inline)) uint16_t RoundToBf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}

// Whole blocks of a fixed count, so that the compiler makes vectors of them.
inline __attribute__((always_inline)) void ToBf16(const float* src, int64_t n, uint16_t* dst) {
  constexpr int64_t kBlock = 32;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) dst[i + j] = RoundToBf16(src[i + j]);
  }
  for (; i < n; ++i) dst[i] = RoundToBf16(src[i]);
}

void ToF16(const float* src, int64_t n, uint16_t* dst) {
  for (int64_t i = 0; i < n; ++i) dst[i] = FromFloat<f16>(src[i]).bits;
}

#if defined(__x86_64__)
// Loading waits for it. Measured with data in cache: 38 GB/s of f32 instead of 14 (bf16), 62 instead of 3
// (f16).
__attribute__((target("avx2"))) void ToBf16Avx2(const float* src, int64_t n, uint16_t* dst) {
  ToBf16(src, n, dst);
}

__attribute__((target("avx2,f16c"))) void ToF16Avx2(const float* src, int64_t n, uint16_t* dst) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), half);
  }
  ToF16(src + i, n - i, dst + i);
}

const bool kHasAvx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
constexpr bool kHasAvx2 = false;
void ToBf16Avx2(const float*, int64_t, uint16_t*) {}
void ToF16Avx2(const float*, int64_t, uint16_t*) {}
#endif

}  // namespace

void ConvertFromFloat(const float* src, int64_t n, DataType type, void* dst) {
  auto* const halves = static_cast<uint16_t*>(dst);
  if (type == DataType::kF32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DataType::kBF16) {
    kHasAvx2 ? ToBf16Avx2(src, n, halves) : ToBf16(src, n, halves);
  } else {
    kHasAvx2 ? ToF16Avx2(src, n, halves) : ToF16(src, n, halves);
  }
}

WeightUploader::~WeightUploader() {
  absl::MutexLock lock(&mutex_);
  for (const auto& slot : slots_) {
    cudaStreamSynchronize(slot->stream);
    cudaStreamDestroy(slot->stream);
    cudaFreeHost(slot->staging);
  }
}

void WeightUploader::UploadRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                                const float* rows) {
  const int64_t bytes = SizeOf(weight.dtype);
  Send(static_cast<char*>(weight.data) + row_begin * weight.k * bytes, num_rows * weight.k, bytes,
       [&](char* staging, int64_t begin, int64_t count) {
         ConvertFromFloat(rows + begin, count, weight.dtype, staging);
       });
}

void WeightUploader::UploadBytes(void* device_data, const void* host_data, int64_t bytes) {
  Send(static_cast<char*>(device_data), bytes, 1, [&](char* staging, int64_t begin, int64_t count) {
    std::memcpy(staging, static_cast<const char*>(host_data) + begin, static_cast<size_t>(count));
  });
}

void WeightUploader::Send(char* to, int64_t elements, int64_t element_bytes,
                          absl::FunctionRef<void(char*, int64_t, int64_t)> fill) {
  const int64_t piece = kSlotBytes / element_bytes;
  for (int64_t begin = 0; begin < elements; begin += piece) {
    const int64_t count = std::min(piece, elements - begin);
    Slot* const slot = Acquire();
    if (slot == nullptr) return;
    fill(slot->staging, begin, count);
    const cudaError_t error =
        cudaMemcpyAsync(to + begin * element_bytes, slot->staging, static_cast<size_t>(count * element_bytes),
                        cudaMemcpyHostToDevice, slot->stream);
    if (error != cudaSuccess) {
      absl::MutexLock lock(&mutex_);
      Record(error, "the copy of a weight");
    }
    Release(slot);
  }
}

WeightUploader::Slot* WeightUploader::Acquire() {
  Slot* slot = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    used_ = true;
    // Two free ones let a single thread write one while the other is copied.
    if (free_.size() < 2 && slots_.size() < kMaxSlots) {
      std::unique_ptr<Slot> made = MakeSlot();
      if (made == nullptr) return nullptr;
      slots_.push_back(std::move(made));
      return slots_.back().get();
    }
    mutex_.Await(absl::Condition(
        +[](std::deque<Slot*>* free) { return !free->empty(); }, &free_));
    slot = free_.front();
    free_.pop_front();
  }
  const cudaError_t error = cudaStreamSynchronize(slot->stream);
  if (error == cudaSuccess) return slot;
  absl::MutexLock lock(&mutex_);
  Record(error, "waiting for the copy of a weight");
  free_.push_back(slot);
  return nullptr;
}

void WeightUploader::Release(Slot* slot) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(slot);
}

std::unique_ptr<WeightUploader::Slot> WeightUploader::MakeSlot() {
  auto slot = std::make_unique<Slot>();
  // Loader threads have not chosen a device.
  cudaError_t error = cudaSetDevice(device_index_);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&slot->stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    Record(error, "a stream for weights");
    return nullptr;
  }
  error = cudaHostAlloc(reinterpret_cast<void**>(&slot->staging), kSlotBytes, cudaHostAllocPortable);
  if (error == cudaSuccess) return slot;
  Record(error, "pinned memory for weights");
  cudaStreamDestroy(slot->stream);
  return nullptr;
}

absl::Status WeightUploader::Wait() {
  absl::MutexLock lock(&mutex_);
  if (!used_) return absl::OkStatus();
  // Slots that are being filled belong to uploads that have not returned; their streams are waited for all
  // the same.
  for (const auto& slot : slots_) {
    const cudaError_t error = cudaStreamSynchronize(slot->stream);
    if (error != cudaSuccess) Record(error, "waiting for the copies of weights");
  }
  used_ = free_.size() != slots_.size();
  return std::exchange(error_, absl::OkStatus());
}

void WeightUploader::Record(cudaError_t error, const char* what) {
  if (error_.ok()) error_ = absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
