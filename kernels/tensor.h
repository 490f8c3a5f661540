#pragma once
// Views of device memory. A TensorView owns nothing and allocates nothing; whoever made it keeps the memory
// alive.

#include <cstdint>

namespace somnus {

// kF8E4M3: of a KV cache only. From kQ8_0 on: of weights only, GGUF's types of blocks of 32 values, which
// share a scale, and in the types "_1" a minimum.
enum class DataType { kF32, kBF16, kF16, kI32, kF8E4M3, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1 };
inline constexpr int kNumDataTypes = 10;

constexpr bool IsQuantized(DataType type) { return type >= DataType::kQ8_0; }

// Of a type that is not quantized.
constexpr int64_t SizeOf(DataType type) {
  return type == DataType::kF32 || type == DataType::kI32 ? 4 : type == DataType::kF8E4M3 ? 1 : 2;
}

// Values and bytes of one block of a quantized type.
inline constexpr int64_t kQuantBlock = 32;
constexpr int64_t QuantBlockBytes(DataType type) {
  constexpr int64_t kBytes[] = {34, 18, 20, 22, 24};
  return kBytes[static_cast<int>(type) - static_cast<int>(DataType::kQ8_0)];
}

// Bytes of a dense row of k values.
constexpr int64_t MatrixRowBytes(DataType type, int64_t k) {
  return IsQuantized(type) ? k / kQuantBlock * QuantBlockBytes(type) : k * SizeOf(type);
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
