#pragma once
// Views of device memory. A TensorView owns nothing and allocates nothing; the maker of the view keeps the
// memory alive.

#include <cstdint>

namespace somnus {

// kF8E4M3: of a KV cache, and of weights, with f32 scales of whole rows or of blocks. kI8: of a KV cache
// only. From kQ8_0 on: of weights only, GGUF's types of blocks of values that share a scale, some also a
// minimum.
enum class DataType {
  kF32,
  kBF16,
  kF16,
  kI32,
  kF8E4M3,
  kI8,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,
  kMXFP4,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kNumDataTypes = 18;

// Whether a weight's type is quantized.
constexpr bool IsQuantized(DataType type) { return type >= DataType::kQ8_0 || type == DataType::kF8E4M3; }

// The size of an element of a type that is no GGUF type; for kF8E4M3 without the scale.
constexpr int64_t SizeOf(DataType type) {
  if (type == DataType::kF8E4M3 || type == DataType::kI8) return 1;
  return type == DataType::kF32 || type == DataType::kI32 ? 4 : 2;
}

// Activations that are rounded to 8 bits together; each block of a quantized type has a multiple of so many
// values.
inline constexpr int64_t kQuantBlock = 32;

// Values of one block of a quantized type: the K types' "super-blocks" have 256. A block of kF8E4M3 is an f32
// scale and the numbers.
constexpr int64_t QuantBlockValues(DataType type) { return type >= DataType::kQ2_K ? 256 : 32; }
constexpr int64_t QuantBlockBytes(DataType type) {
  if (type == DataType::kF8E4M3) return 36;
  constexpr int64_t kBytes[] = {34, 18, 20, 22, 24, 18, 17, 84, 110, 144, 176, 210};
  return kBytes[static_cast<int>(type) - static_cast<int>(DataType::kQ8_0)];
}

// Bytes of a dense row of k values.
constexpr int64_t MatrixRowBytes(DataType type, int64_t k) {
  return IsQuantized(type) ? k / QuantBlockValues(type) * QuantBlockBytes(type) : k * SizeOf(type);
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
