#pragma once
// The common code of tests of Linear: products of small integers. Sums of these are exact in f32 in any
// order, so results are compared bit for bit, and a single missing or doubled term shows.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/gemv_plan.h"
#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {

inline OpsLimits LinearLimits(int64_t rows, int64_t n, int64_t k) {
  return {.max_tokens = rows, .max_k = k, .max_n = n};
}

// Integers in [-limit, limit]; exact in every element type up to 256.
inline std::vector<float> RandomIntegers(int64_t count, uint32_t seed, int limit) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = static_cast<float>(static_cast<int>(random() % (2 * limit + 1)) - limit);
  return values;
}

// A packed weight in the device's memory.
struct DeviceWeight {
  DeviceWeight(const Device& device, DataType type, int64_t n, int64_t k, const std::vector<float>& rows)
      : buffer(PackedWeightBytes(device, type, n, k)), weight{buffer.device<void>(), type, n, k} {
    kernel_test::PackInPieces(device, weight, rows);
  }
  DeviceBuffer buffer;
  LinearWeight weight;
};

// One product of integers: operands, Linear's result, and the right result.
class IntegerProduct {
 public:
  struct Shape {
    DataType act, out;
    int64_t rows, n, k;
    bool bias;
    Layout x_layout, y_layout;
  };

  IntegerProduct(Device& device, const Shape& shape)
      : device_(device),
        shape_(shape),
        // Products of at most 12, some thousand products: sums stay far below 2^24.
        x_values_(RandomIntegers(shape.rows * shape.k, 1, 3)),
        w_values_(RandomIntegers(shape.n * shape.k, 2, 4)),
        bias_values_(RandomIntegers(shape.n, 3, 200)),
        bias_(bias_values_),
        w_(device, shape.act, shape.n, shape.k, w_values_),
        x_(shape.act, shape.rows, shape.k, shape.x_layout),
        y_(shape.out, shape.rows, shape.n, shape.y_layout) {
    SetX();
  }

  // Other values of x.
  void ChangeX(uint32_t seed) {
    x_values_ = RandomIntegers(shape_.rows * shape_.k, seed, 3);
    SetX();
  }
  void Run() { Linear(device_, x_.view(), w_.weight, shape_.bias ? bias_.data() : nullptr, y_.view()); }
  bool Tune() {
    return TuneLinear(device_, x_.view(), &w_.weight, 1, shape_.bias ? bias_.data() : nullptr, y_.view());
  }
  // After a Synchronize.
  void Check() {
    for (int64_t r = 0; r < shape_.rows; ++r) {
      const std::vector<float> got = y_.GetRow(r);
      for (int64_t n = 0; n < shape_.n; ++n) {
        float sum = shape_.bias ? bias_values_[n] : 0;
        for (int64_t i = 0; i < shape_.k; ++i)
          sum += x_values_[r * shape_.k + i] * w_values_[n * shape_.k + i];
        ASSERT_NEAR(got[n], kernel_test::Round(shape_.out, sum), Allowed(sum, n))
            << "row " << r << ", column " << n;
      }
    }
  }

 private:
  // 0, with one exception: for more rows than our own kernels take, some algorithms of cuBLASLt for a bf16
  // product with a bias round before adding the bias (seen on an H100 with n of 129, splitting the sum).
  float Allowed([[maybe_unused]] float sum, [[maybe_unused]] int64_t column) const {
#ifndef SOMNUS_CUDA_EMULATOR
    if (shape_.bias && shape_.out == DataType::kBF16 && shape_.rows > kMaxGemvRows)
      return (std::abs(sum - bias_values_[column]) + std::abs(sum) + 512) / 128;
#endif
    return 0;
  }
  void SetX() {
    for (int64_t r = 0; r < shape_.rows; ++r) {
      const auto row = x_values_.begin() + r * shape_.k;
      x_.SetRow(r, {row, row + shape_.k});
    }
  }

  Device& device_;
  const Shape shape_;
  std::vector<float> x_values_, w_values_, bias_values_;
  DeviceArray<float> bias_;
  DeviceWeight w_;
  DeviceMatrix x_, y_;
};

inline void ExpectIntegerProduct(const IntegerProduct::Shape& shape) {
  SCOPED_TRACE(testing::Message() << NameOf(shape.act) << " to " << NameOf(shape.out) << ", rows "
                                  << shape.rows << ", n " << shape.n << ", k " << shape.k << ", bias "
                                  << shape.bias);
  CudaBench bench(LinearLimits(shape.rows, shape.n, shape.k));
  IntegerProduct product(*bench.device, shape);
  ASSERT_TRUE(bench.device->Synchronize().ok());
  product.Run();
  ASSERT_TRUE(bench.device->Synchronize().ok());
  product.Check();
}

}  // namespace somnus::cuda_test
