// Linear for few rows: every tail of rows, n and k against exact sums, and independence of the other rows.

#include <memory>

#include "tests/cuda/linear_test_util.h"

namespace somnus::cuda_test {
namespace {

class GemvTest : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice()); }
  int64_t MostRows() const { return GetParam() == DataType::kF32 ? 8 : 16; }
};
INSTANTIATE_TEST_SUITE_P(Types, GemvTest, testing::ValuesIn(kActTypes), TypeName);

TEST_P(GemvTest, SmallProducts) {
  for (const int64_t rows : {int64_t{1}, MostRows()})
    ExpectIntegerProduct({GetParam(), GetParam(), rows, 9, 64, true, {}, {}});
}

// Lines of k are 64 elements, vectors 8 (f32: 4), a round of all warps 512 times the elements that each warp
// has in flight.
TEST_P(GemvTest, EqualsTheExactSum) {
  const int64_t width = GetParam() == DataType::kF32 ? 4 : 8;
  for (const int64_t k :
       {width, 7 * width, int64_t{64}, 64 + width, int64_t{576}, int64_t{1536}, 4096 + width}) {
    for (const int64_t n : {1, 7, 64, 100}) {
      for (int64_t rows = 1; rows <= MostRows(); rows += k > 64 + width ? 5 : 1) {
        const bool bias = (rows + n) % 2 == 0;
        const DataType out = rows % 3 == 0 ? DataType::kF32 : GetParam();
        // Strides that keep vectors aligned, and odd strides for y, which needs no alignment.
        ExpectIntegerProduct({GetParam(), out, rows, n, k, bias, {8, 16}, {3, 1}});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(GemvTest, EveryWidthOfABlock) {
  // 8, 16 and 32 columns a block on a chip of 132 multiprocessors, each with a last block that is cut.
  const struct {
    int64_t rows, n, k;
  } shapes[] = {{1, 1001, 64}, {8, 3205, 64}, {16, 3205, 128}, {16, 3829, 4104}};
  for (const auto& [rows, n, k] : shapes) {
    if (rows > MostRows()) continue;
    ExpectIntegerProduct({GetParam(), GetParam(), rows, n, k, true, {}, {}});
    if (HasFatalFailure()) return;
  }
}

// Bit for bit: a row in a batch of any size equals the row alone.
TEST_P(GemvTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kN = 70, kK = 1096;
  CudaBench bench(LinearLimits(16, kN, kK));
  DeviceWeight w(*bench.device, GetParam(), kN, kK, kernel_test::RandomFloats(kN * kK, 1));
  DeviceArray<float> bias(kernel_test::RandomFloats(kN, 2));
  DeviceMatrix x(GetParam(), MostRows(), kK), alone(GetParam(), MostRows(), kN);
  x.Randomize(3);
  for (int64_t r = 0; r < MostRows(); ++r) {
    Linear(*bench.device, x.view(r, 1), w.weight, bias.data(), alone.view(r, 1));
  }
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int64_t rows = 2; rows <= MostRows(); ++rows) {
    DeviceMatrix y(GetParam(), rows, kN);
    const int64_t begin = MostRows() - rows;
    Linear(*bench.device, x.view(begin, rows), w.weight, bias.data(), y.view());
    ASSERT_TRUE(bench.device->Synchronize().ok());
    for (int64_t r = 0; r < rows; ++r)
      ASSERT_EQ(y.Bytes(r), alone.Bytes(begin + r)) << rows << " rows, row " << r;
  }
}

// A kernel starts while the previous kernel runs, and must not read that kernel's sums too early, nor write
// memory that the previous kernel still reads.
TEST_P(GemvTest, OneAfterAnother) {
  constexpr int64_t kK = 72, kRows = 3;
  CudaBench bench(LinearLimits(kRows, kK, kK));
  const std::vector<float> first = RandomIntegers(kK * kK, 1, 1), second = RandomIntegers(kK * kK, 2, 3);
  DeviceWeight w1(*bench.device, GetParam(), kK, kK, first), w2(*bench.device, GetParam(), kK, kK, second);
  DeviceMatrix middle(GetParam(), kRows, kK);
  std::vector<std::unique_ptr<DeviceMatrix>> xs, ys;
  for (int i = 0; i < 4; ++i) {
    xs.push_back(std::make_unique<DeviceMatrix>(GetParam(), kRows, kK));
    ys.push_back(std::make_unique<DeviceMatrix>(DataType::kF32, kRows, kK));
    const std::vector<float> x = RandomIntegers(kRows * kK, 10 + i, 3);  // The first sums are at most 216.
    for (int64_t j = 0; j < kRows * kK; ++j) xs[i]->Set(j / kK, j % kK, x[j]);
  }
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int i = 0; i < 4; ++i) {
    Linear(*bench.device, xs[i]->view(), w1.weight, nullptr, middle.view());
    Linear(*bench.device, middle.view(), w2.weight, nullptr, ys[i]->view());
  }
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int i = 0; i < 4; ++i) {
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<float> sums(kK);
      for (int64_t n = 0; n < kK; ++n) {
        for (int64_t j = 0; j < kK; ++j) sums[n] += xs[i]->Get(r, j) * first[n * kK + j];
      }
      for (int64_t n = 0; n < kK; ++n) {
        float sum = 0;
        for (int64_t j = 0; j < kK; ++j) sum += sums[j] * second[n * kK + j];
        ASSERT_EQ(ys[i]->Get(r, n), sum) << "product " << i << ", row " << r << ", column " << n;
      }
    }
  }
}

TEST_P(GemvTest, NanAndInfStayInTheirRow) {
  constexpr int64_t kN = 20, kK = 72;
  CudaBench bench(LinearLimits(8, kN, kK));
  DeviceWeight w(*bench.device, GetParam(), kN, kK, kernel_test::RandomFloats(kN * kK, 1));
  DeviceMatrix x(GetParam(), 8, kK), clean(GetParam(), 8, kN), y(GetParam(), 8, kN);
  x.Randomize(2);
  Linear(*bench.device, x.view(), w.weight, nullptr, clean.view());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  x.Set(3, 71, NAN);
  x.Set(5, 0, INFINITY);
  Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int64_t r = 0; r < 8; ++r) {
    for (int64_t n = 0; n < kN; ++n) {
      if (r == 3) {
        EXPECT_TRUE(std::isnan(y.Get(r, n)));
      } else if (r == 5) {
        EXPECT_FALSE(std::isfinite(y.Get(r, n)));
      } else {
        EXPECT_EQ(y.Get(r, n), clean.Get(r, n));
      }
    }
  }
}

// Real numbers against the CPU's op. An f32 sum of k products of unit normals is some sqrt(k) large and
// rounded k times: off by about 6e-8 * k at most, in any order, on either side; then the sum is rounded once
// to the result's type.
TEST_P(GemvTest, IsNearTheCpusOp) {
  constexpr int64_t kN = 48, kK = 1536;
  CudaBench bench(LinearLimits(8, kN, kK));
  const std::vector<float> rows = kernel_test::RandomFloats(kN * kK, 1),
                           bias_values = kernel_test::RandomFloats(kN, 2);
  kernel_test::Bench cpu(CpuIsa::kBest, 1, LinearLimits(8, kN, kK));
  kernel_test::Packed cpu_w(*cpu.device, GetParam(), kN, kK, rows);
  kernel_test::Matrix cpu_x(GetParam(), 8, kK), expected(DataType::kF32, 8, kN);
  DeviceWeight w(*bench.device, GetParam(), kN, kK, rows);
  DeviceArray<float> bias(bias_values);
  DeviceMatrix x(GetParam(), 8, kK);
  x.Randomize(3, 1, &cpu_x);
  Linear(*cpu.device, cpu_x.view(), cpu_w.weight, bias_values.data(), expected.view());
  for (const DataType out : SumTypes(GetParam())) {
    DeviceMatrix y(out, 8, kN);
    Linear(*bench.device, x.view(), w.weight, bias.data(), y.view());
    ASSERT_TRUE(bench.device->Synchronize().ok());
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t n = 0; n < kN; ++n) {
        const double want = expected.Get(r, n);
        const double rounding = out == DataType::kF32 ? 0 : kernel_test::Epsilon(out) * std::fabs(want);
        ASSERT_NEAR(y.Get(r, n), want, 2 * 6e-8 * kK + rounding) << "row " << r << ", column " << n;
      }
    }
  }
}

}  // namespace
}  // namespace somnus::cuda_test
