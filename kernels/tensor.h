#pragma once
// Views of device memory. A TensorView owns nothing and allocates nothing; whoever made it keeps the memory
// alive.

#include <cstdint>

namespace somnus {

// kF8E4M3: of a KV cache only.
enum class DataType { kF32, kBF16, kF16, kI32, kF8E4M3 };

constexpr int64_t SizeOf(DataType type) {
  return type == DataType::kF32 || type == DataType::kI32 ? 4 : type == DataType::kF8E4M3 ? 1 : 2;
}

// A row-major matrix of `rows` x `cols`; row r starts at element r * stride.
struct TensorView {
  void* data = nullptr;
  DataType dtype = DataType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <typename T>
  T* row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
};

}  // namespace somnus
