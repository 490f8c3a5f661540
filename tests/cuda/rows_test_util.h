#pragma once
// The common code of tests of row ops: matrices in the device's memory with any padding and any misalignment,
// and the CPU's ops as the oracle.

#include <bit>
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

// A matrix in the device's memory. Unwritten elements hold kGap; the gaps between rows are checked at the
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
    const std::string gap(static_cast<size_t>(buffer_.bytes()), static_cast<char>(kGap));
    buffer_.Write(0, gap.data(), buffer_.bytes());
  }
  ~DeviceMatrix() {
    const std::string all = buffer_.Bytes();
    const auto expect_gap = [&](int64_t i) {
      EXPECT_EQ(static_cast<unsigned char>(all[i]), kGap) << "written between the rows, byte " << i;
    };
    for (int64_t i = 0; i < offset_ * SizeOf(type_); ++i) expect_gap(i);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t i = cols_ * SizeOf(type_); i < stride_ * SizeOf(type_); ++i) expect_gap(Offset(r, 0) + i);
    }
  }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  // For ops.
  TensorView view() { return view(0, rows_); }
  TensorView view(int64_t begin, int64_t rows) {
    return {buffer_.device<char>() + Offset(begin, 0), type_, rows, cols_, stride_};
  }
  // Sets an element, or a row from the row's start, rounded to the type.
  void Set(int64_t r, int64_t c, float x) { Put(r, c, &x, 1); }
  void SetRow(int64_t r, const std::vector<float>& values) {
    Put(r, 0, values.data(), static_cast<int64_t>(values.size()));
  }
  // Elements of a row that are read in order come from a single copy: a copy for each took a GPU's tests
  // minutes. So no op may change the row in between.
  float Get(int64_t r, int64_t c) const {
    if (r != read_row_ || c <= read_column_) {
      read_ = GetRow(r);
      read_row_ = r;
    }
    read_column_ = c;
    return read_[static_cast<size_t>(c)];
  }
  std::vector<float> GetRow(int64_t r) const { return Take(r, 0, cols_); }
  // Random values, rounded to the type; `host` (f32) gets the same.
  void Randomize(uint32_t seed, float scale = 1, kernel_test::Matrix* host = nullptr) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(static_cast<size_t>(cols_));
    for (int64_t r = 0; r < rows_; ++r) {
      for (float& x : values) x = normal(random);
      SetRow(r, values);
      if (host == nullptr) continue;
      const std::vector<float> rounded = GetRow(r);
      for (int64_t c = 0; c < cols_; ++c) host->Set(r, c, rounded[c]);
    }
  }
  std::string Bytes(int64_t r) const { return buffer_.Bytes(Offset(r, 0), static_cast<int64_t>(RowBytes())); }
  // All rows, gaps included.
  std::string Contents() const { return buffer_.Bytes(Offset(0, 0), buffer_.bytes() - Offset(0, 0)); }
  size_t RowBytes() const { return static_cast<size_t>(cols_ * SizeOf(type_)); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  int64_t Offset(int64_t r, int64_t c) const { return (offset_ + r * stride_ + c) * SizeOf(type_); }
  void Put(int64_t r, int64_t c, const float* values, int64_t n) {
    read_row_ = -1;
    std::vector<uint16_t> halves;
    for (int64_t i = 0; i < n && type_ != DataType::kF32; ++i) {
      halves.push_back(type_ == DataType::kBF16 ? kernel_test::Bf16Of(values[i])
                                                : kernel_test::F16Of(values[i]));
    }
    const void* const from = type_ == DataType::kF32 ? static_cast<const void*>(values) : halves.data();
    buffer_.Write(Offset(r, c), from, n * SizeOf(type_));
  }
  std::vector<float> Take(int64_t r, int64_t c, int64_t n) const {
    std::vector<float> values(static_cast<size_t>(n));
    if (type_ == DataType::kF32) {
      buffer_.Read(Offset(r, c), values.data(), n * 4);
      return values;
    }
    std::vector<uint16_t> halves(values.size());
    buffer_.Read(Offset(r, c), halves.data(), n * 2);
    for (int64_t i = 0; i < n; ++i) {
      values[i] = type_ == DataType::kF16 ? kernel_test::F16ToFloat(halves[i])
                                          : std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
    }
    return values;
  }

  DataType type_;
  int64_t rows_, cols_, stride_, offset_;
  DeviceBuffer buffer_;
  mutable std::vector<float> read_;  // the last read of Get
  mutable int64_t read_row_ = -1, read_column_ = -1;
};

// An array in the device's memory, and the initial contents in the host's memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : host_(values), buffer_(std::max<int64_t>(1, values.size()) * sizeof(T)) {
    buffer_.Write(0, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  // data() is for ops of the CUDA device, On() for ops of `device`, which may be the CPU.
  T* data() { return buffer_.template device<T>(); }
  T* On(const Device& device) { return device.kind() == DeviceKind::kCuda ? data() : host_.data(); }
  void Set(int64_t i, const T& value) {
    buffer_.Write(i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
  std::vector<T> Values() const { return buffer_.template Values<T>(); }
  const std::vector<T>& host() const { return host_; }

 private:
  std::vector<T> host_;
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

// The tolerance of an f32 result rounded once to `type`; the f32 value may be off by f32_error relative to 1
// + |value|.
inline double Allowed(DataType type, double value, double f32_error) {
  return f32_error * (1 + std::fabs(value)) +
         (type == DataType::kF32 ? 0 : kernel_test::Epsilon(type) * std::fabs(value) + 1e-7);
}

// Caches of nine blocks that tests move about: every type, with block sizes and heads of all kinds.
inline constexpr KvCacheView kMovedShapes[] = {
    {nullptr, DataType::kBF16, 9, 16, 3, 64}, {nullptr, DataType::kF32, 9, 16, 2, 24},
    {nullptr, DataType::kF16, 9, 5, 1, 7},    {nullptr, DataType::kF8E4M3, 9, 16, 2, 80},
    {nullptr, DataType::kF8E4M3, 9, 1, 1, 1}, {nullptr, DataType::kBF16, 9, 32, 4, 128},
    {nullptr, DataType::kI8, 9, 16, 2, 80},   {nullptr, DataType::kI8, 9, 5, 1, 7},
};

}  // namespace somnus::cuda_test
