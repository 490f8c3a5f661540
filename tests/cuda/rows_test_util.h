#pragma once
// What tests of row ops share: matrices in the device's memory with any padding and any misalignment, and the
// CPU's ops as the oracle.

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace somnus::cuda_test {

// How a matrix lies in memory, in elements.
struct Layout {
  int64_t pad = 0;     // between rows
  int64_t offset = 0;  // of the first row from 256-byte alignment
};

// Aligned and dense; aligned with a gap; odd strides; an odd start.
inline constexpr Layout kLayouts[] = {{0, 0}, {8, 8}, {3, 0}, {0, 1}};

// A matrix in the device's memory. What nobody wrote holds kGap; the gaps between rows are checked at the
// end.
class DeviceMatrix {
 public:
  static constexpr unsigned char kGap = 0xa7;

  DeviceMatrix(DataType type, int64_t rows, int64_t cols, Layout layout = {})
      : type_(type),
        rows_(rows),
        cols_(cols),
        stride_(cols + layout.pad),
        offset_(layout.offset),
        buffer_((layout.offset + rows * stride_) * SizeOf(type)) {
    std::memset(buffer_.as<char>(), kGap, static_cast<size_t>(buffer_.bytes()));
  }
  ~DeviceMatrix() {
    for (int64_t i = 0; i < offset_ * SizeOf(type_); ++i) ExpectGap(i);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t i = cols_ * SizeOf(type_); i < stride_ * SizeOf(type_); ++i) {
        ExpectGap((offset_ + r * stride_) * SizeOf(type_) + i);
      }
    }
  }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  TensorView view() { return view(0, rows_); }
  TensorView view(int64_t begin, int64_t rows) {
    return {buffer_.as<char>() + (offset_ + begin * stride_) * SizeOf(type_), type_, rows, cols_, stride_};
  }
  template <typename T>
  T* row(int64_t r) {
    return view().row<T>(r);
  }
  void Set(int64_t r, int64_t c, float x) {
    if (type_ == DataType::kF32) {
      row<float>(r)[c] = x;
    } else {
      row<uint16_t>(r)[c] = type_ == DataType::kBF16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(x);
    }
  }
  float Get(int64_t r, int64_t c) {
    if (type_ == DataType::kF32) return row<float>(r)[c];
    const uint16_t bits = row<uint16_t>(r)[c];
    if (type_ == DataType::kF16) return kernel_test::F16ToFloat(bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  // Random values, rounded to the type; `host` (f32) gets the same.
  void Randomize(uint32_t seed, float scale = 1, kernel_test::Matrix* host = nullptr) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        Set(r, c, normal(random));
        if (host != nullptr) host->Set(r, c, Get(r, c));
      }
    }
  }
  std::string Bytes(int64_t r) { return {row<char>(0) + r * stride_ * SizeOf(type_), RowBytes()}; }
  size_t RowBytes() const { return static_cast<size_t>(cols_ * SizeOf(type_)); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  void ExpectGap(int64_t byte) {
    EXPECT_EQ(buffer_.as<unsigned char>()[byte], kGap) << "written between the rows, byte " << byte;
  }

  DataType type_;
  int64_t rows_, cols_, stride_, offset_;
  DeviceBuffer buffer_;
};

// An array in the device's memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : buffer_(std::max<int64_t>(1, values.size()) * sizeof(T)) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() { return buffer_.template as<T>(); }

 private:
  DeviceBuffer buffer_;
};

inline std::unique_ptr<Device> Oracle() { return kernel_test::MakeDevice(CpuIsa::kBest, 1); }

inline constexpr DataType kActTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
inline const char* NameOf(DataType type) {
  return type == DataType::kF32 ? "f32" : type == DataType::kBF16 ? "bf16" : "f16";
}
inline std::string TypeName(const testing::TestParamInfo<DataType>& info) { return NameOf(info.param); }

// The types that a Linear's output may have beside an act type: act or f32.
inline std::vector<DataType> SumTypes(DataType act) {
  return act == DataType::kF32 ? std::vector<DataType>{act} : std::vector<DataType>{act, DataType::kF32};
}

// An f32 result rounded once to `type`, whose f32 value may be off by f32_error relative to 1 + |value|.
inline double Allowed(DataType type, double value, double f32_error) {
  return f32_error * (1 + std::fabs(value)) +
         (type == DataType::kF32 ? 0 : kernel_test::Epsilon(type) * std::fabs(value) + 1e-7);
}

// Caches of nine blocks that tests move about: every type, with block sizes and heads of all kinds.
inline constexpr KvCacheView kMovedShapes[] = {
    {nullptr, DataType::kBF16, 9, 16, 3, 64}, {nullptr, DataType::kF32, 9, 16, 2, 24},
    {nullptr, DataType::kF16, 9, 5, 1, 7},    {nullptr, DataType::kF8E4M3, 9, 16, 2, 80},
    {nullptr, DataType::kF8E4M3, 9, 1, 1, 1}, {nullptr, DataType::kBF16, 9, 32, 4, 128},
};

}  // namespace somnus::cuda_test
