// Fused norms against the CPU's, whose output stays f32 here so that nothing is rounded twice.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

constexpr double kEps = 1e-5;

class NormsTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, NormsTest, testing::ValuesIn(kActTypes), TypeName);

struct Case {
  int64_t rows, cols;
  Layout layout;
  bool with_delta;
  DataType delta_type;
  bool layer_norm;
};

// A stream that is normalized itself is f32 whatever the delta is (OPT-350m).
std::vector<DataType> DeltaTypes(DataType out) {
  if (out == DataType::kF32) return {DataType::kF32, DataType::kBF16, DataType::kF16};
  return SumTypes(out);
}

// The sums' orders differ: a few roundings of f32 in the scale. LayerNorm's mean is off by as much, magnified
// where the variance is small.
double ScaleError(Matrix& residual, int64_t r, bool layer_norm) {
  if (!layer_norm) return 3e-6;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < residual.cols(); ++i) sum += residual.Get(r, i);
  const double mean = sum / static_cast<double>(residual.cols());
  for (int64_t i = 0; i < residual.cols(); ++i) squares += std::pow(residual.Get(r, i) - mean, 2);
  return 3e-6 + 6e-7 / std::sqrt(squares / static_cast<double>(residual.cols()) + kEps);
}

void Compare(DataType type, const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", pad " << c.layout.pad << ", offset "
                                  << c.layout.offset << ", delta "
                                  << (c.with_delta ? NameOf(c.delta_type) : "none")
                                  << (c.layer_norm ? ", layer norm" : ", rms norm"));
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  DeviceArray<float> w(kernel_test::RandomFloats(c.cols, 1)), b(kernel_test::RandomFloats(c.cols, 2));
  DeviceMatrix residual(DataType::kF32, c.rows, c.cols, c.layout),
      delta(c.delta_type, c.rows, c.cols, c.layout), out(type, c.rows, c.cols, c.layout);
  Matrix host_residual(DataType::kF32, c.rows, c.cols), host_delta(DataType::kF32, c.rows, c.cols),
      want(DataType::kF32, c.rows, c.cols);
  residual.Randomize(3, 1, &host_residual);
  delta.Randomize(4, 1, &host_delta);
  const TensorView d = c.with_delta ? delta.view() : TensorView{};
  const TensorView host_d = c.with_delta ? host_delta.view() : TensorView{};
  if (c.layer_norm) {
    AddLayerNorm(*device, residual.view(), d, w.data(), b.data(), kEps, out.view());
    AddLayerNorm(*cpu, host_residual.view(), host_d, w.On(*cpu), b.On(*cpu), kEps, want.view());
  } else {
    AddRmsNorm(*device, residual.view(), d, w.data(), kEps, out.view());
    AddRmsNorm(*cpu, host_residual.view(), host_d, w.On(*cpu), kEps, want.view());
  }
  ASSERT_TRUE(device->Synchronize().ok());
  for (int64_t r = 0; r < c.rows; ++r) {
    ASSERT_EQ(residual.Bytes(r), host_residual.Bytes(r)) << "row " << r;
    const double error = ScaleError(host_residual, r, c.layer_norm);
    for (int64_t i = 0; i < c.cols; ++i) {
      ASSERT_NEAR(out.Get(r, i), want.Get(r, i), Allowed(type, want.Get(r, i), error))
          << "row " << r << ", " << i;
    }
  }
}

// Norms of sums, in place: in one op, and in two ops with squares of rows that lie apart.
void CompareInPlace(DataType sum, int64_t cols, Layout layout, bool by_squares) {
  SCOPED_TRACE(testing::Message() << NameOf(sum) << ", " << cols << " columns, by squares " << by_squares);
  constexpr int64_t kRows = 3;
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  DeviceArray<float> w(kernel_test::RandomFloats(cols, 1));
  DeviceMatrix x(sum, kRows, cols, layout), squares(DataType::kF32, kRows, 2, {});
  Matrix host(DataType::kF32, kRows, cols), host_squares(DataType::kF32, kRows, 2);
  x.Randomize(3, 1, &host);
  const auto run = [&](Device& on, const TensorView& view, TensorView sums) {
    if (!by_squares) return RmsNorm(on, view, w.On(on), kEps);
    sums.cols = 1;
    SumSquares(on, view, sums);
    RmsNormBySquares(on, view, sums, 2 * cols, w.On(on), kEps);
  };
  run(*device, x.view(), squares.view());
  ASSERT_TRUE(device->Synchronize().ok());
  run(*cpu, host.view(), host_squares.view());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < cols; ++i)
      ASSERT_NEAR(x.Get(r, i), host.Get(r, i), Allowed(sum, host.Get(r, i), 3e-6)) << r << ", " << i;
  }
}

void CompareAdd(DataType delta_type, int64_t rows, int64_t cols, Layout layout) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  DeviceMatrix residual(DataType::kF32, rows, cols, layout), delta(delta_type, rows, cols, layout);
  Matrix host_residual(DataType::kF32, rows, cols), host_delta(DataType::kF32, rows, cols);
  residual.Randomize(1, 1, &host_residual);
  delta.Randomize(2, 1, &host_delta);
  Add(*device, residual.view(), delta.view());
  ASSERT_TRUE(device->Synchronize().ok());
  Add(*cpu, host_residual.view(), host_delta.view());
  for (int64_t r = 0; r < rows; ++r) ASSERT_EQ(residual.Bytes(r), host_residual.Bytes(r)) << cols;
}

// A row that a block keeps in registers, and one that it reads twice.
TEST_P(NormsTest, InPlaceEqualsTheCpu) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const DataType sum : SumTypes(GetParam())) {
    for (const int64_t cols : {1, 8, 100, 576, 2052}) {
      for (const bool by_squares : {false, true}) CompareInPlace(sum, cols, {}, by_squares);
    }
  }
}

TEST_P(NormsTest, SmallestRowsOfEachKernel) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t cols : {64, 16388}) {
    for (const bool layer_norm : {false, true})
      Compare(GetParam(), {1, cols, {}, true, GetParam(), layer_norm});
  }
  CompareAdd(GetParam(), 1, 64, {});
  CompareInPlace(SumTypes(GetParam()).front(), 64, {}, /*by_squares=*/true);
}

TEST_P(NormsTest, EqualTheCpu) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t cols : {1, 3, 4, 64, 100, 576, 1000, 2052, 4096 + 8}) {
    for (const Layout layout : kLayouts) {
      for (const bool layer_norm : {false, true}) {
        Compare(GetParam(), {3, cols, layout, false, DataType::kF32, layer_norm});
        for (const DataType sum : DeltaTypes(GetParam())) {
          for (const int64_t rows : {1, 3}) Compare(GetParam(), {rows, cols, layout, true, sum, layer_norm});
        }
      }
    }
  }
}

// At the edges of what a block keeps in registers, and beyond.
TEST_P(NormsTest, LongRowsEqualTheCpu) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t cols : {4096, 8192, 8196, 16380, 16384, 16388, 20001}) {
    for (const bool layer_norm : {false, true}) {
      for (const DataType sum : DeltaTypes(GetParam()))
        Compare(GetParam(), {2, cols, {}, true, sum, layer_norm});
    }
  }
  Compare(GetParam(), {1, 16384, {0, 1}, false, DataType::kF32, true});
}

TEST_P(NormsTest, NoRowsAreNoWork) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceArray<float> w(std::vector<float>(64, 1.0f));
  const TensorView none{nullptr, DataType::kF32, 0, 64, 64}, out{nullptr, GetParam(), 0, 64, 64};
  AddRmsNorm(*device, none, none, w.data(), kEps, out);
  AddLayerNorm(*device, none, {}, w.data(), w.data(), kEps, out);
  Add(*device, none, out);
  EXPECT_TRUE(device->Synchronize().ok());
}

// A row's bits do not depend on the rows beside it.
TEST_P(NormsTest, RowsDoNotDependOnTheBatch) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  constexpr int64_t kRows = 40, kCols = 1032;
  DeviceArray<float> w(kernel_test::RandomFloats(kCols, 1));
  const auto run = [&](int64_t begin, int64_t rows) {
    DeviceMatrix residual(DataType::kF32, kRows, kCols), delta(GetParam(), kRows, kCols),
        out(GetParam(), rows, kCols);
    residual.Randomize(2);
    delta.Randomize(3);
    std::vector<std::string> bytes(rows);
    for (const bool layer_norm : {false, true}) {
      if (layer_norm) {
        AddLayerNorm(*device, residual.view(begin, rows), delta.view(begin, rows), w.data(), w.data(), kEps,
                     out.view());
      } else {
        AddRmsNorm(*device, residual.view(begin, rows), delta.view(begin, rows), w.data(), kEps, out.view());
      }
      EXPECT_TRUE(device->Synchronize().ok());
      for (int64_t r = 0; r < rows; ++r) bytes[r] += out.Bytes(r);
    }
    return bytes;
  };
  const std::vector<std::string> all = run(0, kRows);
  for (int64_t r = 0; r < kRows; r += 13) EXPECT_EQ(run(r, 1)[0], all[r]);
  const std::vector<std::string> some = run(7, 20);
  for (int64_t r = 0; r < 20; ++r) EXPECT_EQ(some[r], all[r + 7]);
}

TEST_P(NormsTest, ANanStaysInItsRow) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const int64_t cols : {5, 576}) {
    DeviceArray<float> w(std::vector<float>(cols, 1.0f));
    DeviceMatrix residual(DataType::kF32, 3, cols), out(GetParam(), 3, cols);
    residual.Randomize(1);
    residual.Set(1, cols / 2, NAN);
    AddRmsNorm(*device, residual.view(), {}, w.data(), kEps, out.view());
    ASSERT_TRUE(device->Synchronize().ok());
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < cols; ++i) ASSERT_EQ(std::isnan(out.Get(r, i)), r == 1);
    }
  }
}

TEST_P(NormsTest, AddIsExact) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t cols : {1, 3, 64, 100, 576, 4104, 16384}) {
    for (const Layout layout : kLayouts) {
      for (const int64_t rows : {1, 5}) CompareAdd(GetParam(), rows, cols, layout);
    }
  }
}

}  // namespace
}  // namespace somnus
