#pragma once
// The common code of kernel tests: devices of every instruction set, deterministic random data, act-type
// rounding, packed weights and a paged cache filled through the ops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"

namespace somnus::kernel_test {

// Two threads are alike; three and more have different speeds, and so different shares.
inline std::unique_ptr<Device> MakeDevice(CpuIsa isa, int num_threads) {
  CpuDeviceOptions options{.num_threads = num_threads, .isa = isa};
  if (num_threads > 2) {
    for (int t = 0; t < num_threads; ++t) options.thread_speeds.push_back(t % 3 == 1 ? 0.3 : 1.0 / (1 + t));
  }
  auto device = Device::CreateCpu(options);
  return device.ok() ? *std::move(device) : nullptr;
}

inline std::vector<CpuIsa> AvailableIsas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : kCpuIsas) {
    if (MakeDevice(isa, 1) != nullptr) isas.push_back(isa);
  }
  return isas;
}

// The sets for tests of all ops but products with quantized weights. avx_vnni and avx512_vnni take every
// other kernel from the lesser set (kernels/cpu/kernels_avx512_vnni.cc), whose cases run the same code.
inline std::vector<CpuIsa> IsasWithOwnKernels() {
  std::vector<CpuIsa> isas = AvailableIsas();
  std::erase_if(isas, [](CpuIsa isa) { return isa == CpuIsa::kAvxVnni || isa == CpuIsa::kAvx512Vnni; });
  return isas;
}

inline std::string IsaName(const testing::TestParamInfo<CpuIsa>& info) {
  return std::string(CpuIsaName(info.param));
}

// 64-byte aligned bytes with guard bytes behind, which Check() finds unchanged unless an op wrote too far.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(bytes), memory_(bytes + 64 + kGuard, 0x5b) {
    data_ = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    std::fill_n(data_, std::max<int64_t>(0, bytes), static_cast<unsigned char>(0));
  }
  ~Buffer() {
    for (int64_t i = 0; i < kGuard; ++i)
      EXPECT_EQ(data_[bytes_ + i], 0x5b) << "written behind a buffer, byte " << i;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kGuard = 256;
  int64_t bytes_;
  std::vector<unsigned char> memory_;
  unsigned char* data_;
};

inline float RoundBf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (std::isnan(x)) return x;
  u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &u, 4);
  return x;
}
inline uint16_t Bf16Of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
// Rounds by the definition, through double: slow and plain.
inline uint16_t F16Of(float x) {
  if (std::isnan(x)) return 0x7e00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(static_cast<double>(x));
  if (a >= 65520.0) return sign | 0x7c00;
  int exponent;
  std::frexp(a, &exponent);
  const int scale = std::max(exponent - 11, -24);
  const double m = std::nearbyint(std::ldexp(a, -scale));
  if (m == 0) return sign;
  double value = std::ldexp(m, scale);
  std::frexp(value, &exponent);
  if (exponent < -13) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(value, 24)));
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 |
                               (static_cast<int>(std::ldexp(value, 11 - exponent)) & 0x3ff));
}
inline float F16ToFloat(uint16_t h) {
  const int e = h >> 10 & 31, m = h & 1023;
  double x = e == 0 ? std::ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : std::ldexp(1024 + m, e - 25);
  return static_cast<float>(h & 0x8000 ? -x : x);
}
inline double F8ToDouble(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return NAN;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
// Rounds by the definition: to the nearest of all values that an f8e4m3 can have, and among equals to the
// value with an even code.
inline uint8_t F8Of(float x) {
  static const std::vector<double> values = [] {
    std::vector<double> all;  // of codes 0 to 0x7e, ascending
    for (int code = 0; code < 0x7f; ++code) all.push_back(F8ToDouble(static_cast<uint8_t>(code)));
    return all;
  }();
  if (std::isnan(x)) return 0x7f;
  const double a = std::min(448.0, std::fabs(static_cast<double>(x)));
  const int above = static_cast<int>(std::lower_bound(values.begin(), values.end(), a) - values.begin());
  const int below = std::max(0, above - 1);
  const double nearer = (a - values[below]) - (values[above] - a);
  const int best = nearer > 0 || (nearer == 0 && above % 2 == 0) ? above : below;
  return static_cast<uint8_t>((std::signbit(x) ? 0x80 : 0) | best);
}
inline float Round(DataType type, float x) {
  if (type == DataType::kF8E4M3) return static_cast<float>(F8ToDouble(F8Of(x)));
  return type == DataType::kF32 ? x : type == DataType::kBF16 ? RoundBf16(x) : F16ToFloat(F16Of(x));
}
// Half of the distance between neighbours, relative.
inline double Epsilon(DataType type) {
  return type == DataType::kF32 ? 6e-8 : type == DataType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
}

// A matrix of an element type, with the elements' values as floats. Rows may be padded.
class Matrix {
 public:
  Matrix(DataType type, int64_t rows, int64_t cols, int64_t pad = 0)
      : type_(type), rows_(rows), cols_(cols), stride_(cols + pad), buffer_(rows * stride_ * SizeOf(type)) {}

  TensorView view() { return {buffer_.as<void>(), type_, rows_, cols_, stride_}; }
  TensorView view(int64_t row_begin, int64_t num_rows) {
    return {buffer_.as<char>() + row_begin * stride_ * SizeOf(type_), type_, num_rows, cols_, stride_};
  }
  void Set(int64_t r, int64_t c, float x) {
    const int64_t i = r * stride_ + c;
    if (type_ == DataType::kF32) {
      buffer_.as<float>()[i] = x;
    } else {
      buffer_.as<uint16_t>()[i] = type_ == DataType::kBF16 ? Bf16Of(x) : F16Of(x);
    }
  }
  float Get(int64_t r, int64_t c) {
    const int64_t i = r * stride_ + c;
    if (type_ == DataType::kF32) return buffer_.as<float>()[i];
    const uint16_t h = buffer_.as<uint16_t>()[i];
    if (type_ == DataType::kF16) return F16ToFloat(h);
    const uint32_t bits = static_cast<uint32_t>(h) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  float* row(int64_t r) { return buffer_.as<float>() + r * stride_; }
  void Randomize(uint32_t seed, float scale = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) Set(r, c, normal(random));
    }
  }
  // The bytes of a row, for bitwise comparison.
  std::string Bytes(int64_t r) {
    return std::string(buffer_.as<char>() + r * stride_ * SizeOf(type_),
                       static_cast<size_t>(cols_ * SizeOf(type_)));
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  DataType type_;
  int64_t rows_, cols_, stride_;
  Buffer buffer_;
};

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// A device with a workspace that fits `limits`.
struct Bench {
  Bench(CpuIsa isa, int num_threads, const OpsLimits& limits)
      : device(MakeDevice(isa, num_threads)), workspace(OpsWorkspaceBytes(*device, limits)) {
    device->SetWorkspace(workspace.as<void>(), workspace.bytes());
    device->BeginStep();
  }
  ~Bench() { device->EndStep(); }
  std::unique_ptr<Device> device;
  Buffer workspace;
};

// Each row alone, on the single thread of `alone`, has the same bits as in a batch of any size on any number
// of threads.
inline void ExpectRowsDoNotDependOnTheBatch(CpuIsa isa, const Bench& alone, const LinearWeight& weight,
                                            DataType x_type, int64_t tokens, int rounds) {
  Matrix x(x_type, tokens, weight.k), expected(DataType::kF32, tokens, weight.n);
  x.Randomize(5);
  for (int64_t t = 0; t < tokens; ++t)
    Linear(*alone.device, x.view(t, 1), weight, nullptr, expected.view(t, 1));
  std::mt19937 random(6);
  for (int round = 0; round < rounds; ++round) {
    const int64_t rows = round == 0 ? tokens : 1 + random() % (round % 4 == 0 ? tokens : 40);
    const int64_t begin = random() % (tokens - rows + 1);
    Bench bench(isa, 1 + round % 4, {.max_tokens = rows, .max_k = weight.k, .max_n = weight.n});
    Matrix y(DataType::kF32, rows, weight.n, 7);
    Linear(*bench.device, x.view(begin, rows), weight, nullptr, y.view());
    for (int64_t r = 0; r < rows; ++r)
      ASSERT_EQ(y.Bytes(r), expected.Bytes(begin + r)) << rows << " rows, row " << r;
  }
}

// Packs dense rows in two pieces that come out of order.
inline void PackInPieces(const Device& device, const LinearWeight& weight, const std::vector<float>& rows) {
  const int64_t cut = weight.n / 3;
  PackWeightRows(device, weight, cut, weight.n - cut, rows.data() + cut * weight.k);
  PackWeightRows(device, weight, 0, cut, rows.data());
}

// A packed weight made from dense rows.
struct Packed {
  Packed(const Device& device, DataType type, int64_t n, int64_t k, const std::vector<float>& rows)
      : buffer(PackedWeightBytes(device, type, n, k)), weight{buffer.as<void>(), type, n, k} {
    PackInPieces(device, weight, rows);
  }
  Buffer buffer;
  LinearWeight weight;
};

// A NaN and an infinity among the activations spoil their rows of the product and no other row. Weights of
// floats keep a NaN a NaN.
inline void ExpectNanAndInfStayInTheirRow(const Bench& bench, const LinearWeight& weight, DataType act,
                                          bool keeps_nan = false) {
  Matrix x(act, 20, weight.k), clean(DataType::kF32, 20, weight.n), y(DataType::kF32, 20, weight.n);
  x.Randomize(8);
  Linear(*bench.device, x.view(), weight, nullptr, clean.view());
  x.Set(3, 5, NAN);
  x.Set(9, std::min<int64_t>(63, weight.k - 1), INFINITY);
  Linear(*bench.device, x.view(), weight, nullptr, y.view());
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t n = 0; n < weight.n; ++n) {
      if (t == 3 && keeps_nan) {
        EXPECT_TRUE(std::isnan(y.Get(t, n)));
      } else if (t == 3 || t == 9) {
        EXPECT_FALSE(std::isfinite(y.Get(t, n)));
      } else {
        EXPECT_EQ(y.Get(t, n), clean.Get(t, n));
      }
    }
  }
}

// Ids of which some are within a table of kVocab rows for the ids from kVocabBegin on.
inline constexpr int64_t kVocab = 77, kVocabBegin = 100;
inline std::vector<int32_t> IdsAroundAShard() {
  std::vector<int32_t> ids = {100, 176, 177, 99, 0, 132, 131, -1, 2000000000};
  for (int i = 0; i < 100; ++i) ids.push_back(90 + i);
  return ids;
}

// Embedding gives each such id its row of `table`, whose values are `values`, or zeros.
inline void ExpectEmbeddingReads(const Bench& bench, const LinearWeight& table,
                                 const std::vector<float>& values) {
  const std::vector<int32_t> ids = IdsAroundAShard();
  const auto rows = static_cast<int64_t>(ids.size());
  Matrix out(DataType::kF32, rows, table.k, 2);
  out.Randomize(1);
  Embedding(*bench.device, ids.data(), table, kVocabBegin, kVocabBegin + kVocab, out.view());
  for (int64_t t = 0; t < rows; ++t) {
    const bool mine = ids[t] >= kVocabBegin && ids[t] < kVocabBegin + kVocab;
    for (int64_t i = 0; i < table.k; ++i)
      ASSERT_EQ(out.Get(t, i), mine ? values[(ids[t] - kVocabBegin) * table.k + i] : 0) << "token " << ids[t];
  }
}

}  // namespace somnus::kernel_test
