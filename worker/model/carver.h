#pragma once
// Lays arrays out in one region. Run the same code twice: over nullptr to learn the size, over the region for
// the pointers.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// Every array and every weight starts at a multiple of this many bytes. A GPU's matrix products are fastest
// there, and a choice that was measured at one such address holds at all.
constexpr int64_t kArrayAlignment = 256;
constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

class Carver {
 public:
  explicit Carver(void* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    const uintptr_t address = base_ + static_cast<uintptr_t>(bytes_);
    bytes_ += AlignedBytes(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(address);
  }

  TensorView TakeMatrix(DataType dtype, int64_t rows, int64_t cols) {
    return {Take<uint8_t>(rows * cols * SizeOf(dtype)), dtype, rows, cols, cols};
  }

  int64_t bytes() const { return bytes_; }

 private:
  const uintptr_t base_;
  int64_t bytes_ = 0;
};

// The first `rows` rows of `view`.
inline TensorView FirstRows(TensorView view, int64_t rows) {
  view.rows = rows;
  return view;
}

}  // namespace somnus
