// Norms, activations and row copies against formulas in double; rows independent of the batch.

#include <functional>

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class RowsTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, RowsTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
constexpr int64_t kWidths[] = {1, 3, 15, 16, 17, 31, 64, 100, 576};

double Allowed(DataType type, double value, double f32_error = 3e-6) {
  return f32_error * (1 + std::fabs(value)) +
         (type == DataType::kF32 ? 0 : Epsilon(type) * std::fabs(value) + 1e-7);
}

TEST_P(RowsTest, RmsNormAndLayerNorm) {
  constexpr double kEps = 1e-5;
  for (const DataType type : kTypes) {
    for (const int64_t n : kWidths) {
      for (const bool with_delta : {false, true}) {
        for (const bool layer_norm : {false, true}) {
          Bench bench(GetParam(), 2, {});
          constexpr int64_t kRows = 37;
          const std::vector<float> w = RandomFloats(n, 1), b = RandomFloats(n, 2);
          Matrix residual(DataType::kF32, kRows, n, 1), delta(DataType::kF32, kRows, n, 2),
              out(type, kRows, n, 3);
          Matrix before(DataType::kF32, kRows, n);
          residual.Randomize(3);
          before.Randomize(3);
          delta.Randomize(4);
          const TensorView d = with_delta ? delta.view() : TensorView{};
          if (layer_norm) {
            AddLayerNorm(*bench.device, residual.view(), d, w.data(), b.data(), kEps, out.view());
          } else {
            AddRmsNorm(*bench.device, residual.view(), d, w.data(), kEps, out.view());
          }
          for (int64_t r = 0; r < kRows; ++r) {
            double sum = 0, squares = 0;
            std::vector<double> x(n);
            for (int64_t i = 0; i < n; ++i) {
              x[i] = before.Get(r, i) + (with_delta ? delta.Get(r, i) : 0.0f);
              ASSERT_EQ(residual.Get(r, i), static_cast<float>(x[i]));
              x[i] = residual.Get(r, i);
              sum += x[i];
            }
            const double mean = layer_norm ? sum / n : 0;
            for (double v : x) squares += (v - mean) * (v - mean);
            for (int64_t i = 0; i < n; ++i) {
              const double want =
                  (x[i] - mean) / std::sqrt(squares / n + kEps) * w[i] + (layer_norm ? b[i] : 0);
              // The mean's rounding is magnified where the variance is small: n = 1 has only eps left.
              const double magnified = 3e-6 + (layer_norm ? 3e-7 / std::sqrt(squares / n + kEps) : 0);
              ASSERT_NEAR(out.Get(r, i), want, Allowed(type, want, magnified))
                  << "width " << n << ", row " << r;
            }
          }
        }
      }
    }
  }
}

TEST_P(RowsTest, Activations) {
  const struct {
    UnaryActivation f;
    std::function<double(double)> want;
  } cases[] = {
      {UnaryActivation::kIdentity, [](double x) { return x; }},
      {UnaryActivation::kRelu, [](double x) { return std::max(x, 0.0); }},
      {UnaryActivation::kGelu, [](double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }},
      {UnaryActivation::kGeluTanh,
       [](double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }},
  };
  for (const DataType type : kTypes) {
    for (const int64_t n : kWidths) {
      Bench bench(GetParam(), 2, {});
      Matrix x(DataType::kF32, 9, n, 1), out(type, 9, n, 1);
      x.Randomize(1, 4);
      for (const auto& [f, want] : cases) {
        Activate(*bench.device, x.view(), f, out.view());
        for (int64_t r = 0; r < 9; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            const double w = want(x.Get(r, i));
            ASSERT_NEAR(out.Get(r, i), w, Allowed(type, w)) << x.Get(r, i);
          }
        }
      }
    }
  }
}

TEST_P(RowsTest, SiluAndMulAlsoAtTheEnds) {
  for (const DataType type : kTypes) {
    for (const int64_t n : kWidths) {
      Bench bench(GetParam(), 2, {});
      constexpr int64_t kRows = 21;
      Matrix x(DataType::kF32, kRows, 2 * n, 1), out(type, kRows, n);
      x.Randomize(1, 5);
      const float ends[] = {-1000, -104, -90, -88, -87, 0, 87, 90, 1000};
      for (int64_t r = 0; r < 9; ++r) x.Set(r, n / 2, ends[r]);
      SiluAndMul(*bench.device, x.view(), out.view());
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = x.Get(r, i), want = g / (1 + std::exp(-g)) * x.Get(r, n + i);
          ASSERT_NEAR(out.Get(r, i), want, Allowed(type, want)) << "gate " << g;
        }
      }
    }
  }
}

TEST_P(RowsTest, GeluTanhAndMul) {
  for (const DataType type : kTypes) {
    for (const int64_t n : kWidths) {
      Bench bench(GetParam(), 2, {});
      Matrix x(DataType::kF32, 5, 2 * n, 1), out(type, 5, n);
      x.Randomize(1, 5);
      GeluTanhAndMul(*bench.device, x.view(), out.view());
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = x.Get(r, i);
          const double gelu = g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
          ASSERT_NEAR(out.Get(r, i), gelu * x.Get(r, n + i), Allowed(type, gelu * x.Get(r, n + i)));
        }
      }
    }
  }
}

TEST_P(RowsTest, ClampedSwigluAndMul) {
  const ClampedSwiglu unit{.alpha = 1.3f, .limit = 4};
  for (const DataType type : kTypes) {
    for (const int64_t n : kWidths) {
      Bench bench(GetParam(), 2, {});
      Matrix x(DataType::kF32, 5, 2 * n, 1), out(type, 5, n);
      x.Randomize(1, 5);
      x.Set(0, 0, NAN);
      x.Set(1, n, NAN);
      ClampedSwigluAndMul(*bench.device, x.view(), unit, out.view());
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          if (r < 2 && i == 0) {
            EXPECT_TRUE(std::isnan(out.Get(r, i)));
            continue;
          }
          const double g = std::min(4.0, double{x.Get(r, i)}), up = x.Get(r, n + i);
          const double want = (std::clamp(up, -4.0, 4.0) + 1) * g / (1 + std::exp(-double{unit.alpha} * g));
          ASSERT_NEAR(out.Get(r, i), want, Allowed(type, want));
        }
      }
    }
  }
}

TEST_P(RowsTest, ScaleAndCap) {
  for (const int64_t n : kWidths) {
    Bench bench(GetParam(), 2, {});
    for (const float cap : {0.0f, 2.0f, 30.0f}) {
      Matrix x(DataType::kF32, 5, n, 1), before(DataType::kF32, 5, n);
      x.Randomize(1, 50);
      before.Randomize(1, 50);
      ScaleAndCap(*bench.device, x.view(), 0.5f, cap);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double scaled = 0.5 * before.Get(r, i);
          ASSERT_NEAR(x.Get(r, i), cap > 0 ? cap * std::tanh(scaled / cap) : scaled, 1e-6 * (1 + cap));
        }
      }
    }
  }
}

// In one op, and in two with squares of half of the width, as of two ranks.
TEST_P(RowsTest, RmsNormInPlace) {
  constexpr double kEps = 1e-5;
  for (const int64_t n : kWidths) {
    Bench bench(GetParam(), 2, {});
    const std::vector<float> w = RandomFloats(n, 1);
    Matrix before(DataType::kF32, 7, n), x(DataType::kF32, 7, n, 1), y(DataType::kF32, 7, n, 1),
        squares(DataType::kF32, 7, 2);
    for (Matrix* matrix : {&before, &x, &y}) matrix->Randomize(3);
    TensorView second = squares.view();
    second.data = squares.view().row<float>(0) + 1;
    second.cols = 1;
    RmsNorm(*bench.device, x.view(), w.data(), kEps);
    SumSquares(*bench.device, y.view(), second);
    RmsNormBySquares(*bench.device, y.view(), second, 2 * n, w.data(), kEps);
    for (int64_t r = 0; r < 7; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::pow(before.Get(r, i), 2);
      for (int64_t i = 0; i < n; ++i) {
        const double value = before.Get(r, i) * w[i];
        const double whole = value / std::sqrt(sum / n + kEps),
                     half = value / std::sqrt(sum / (2 * n) + kEps);
        ASSERT_NEAR(x.Get(r, i), whole, Allowed(DataType::kF32, whole));
        ASSERT_NEAR(y.Get(r, i), half, Allowed(DataType::kF32, half));
      }
    }
  }
}

TEST_P(RowsTest, NanComesOutAsNan) {
  Bench bench(GetParam(), 1, {});
  for (const DataType type : kTypes) {
    Matrix x(DataType::kF32, 1, 40), out(type, 1, 20);
    x.Randomize(1);
    x.Set(0, 3, NAN);
    SiluAndMul(*bench.device, x.view(), out.view());
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(out.Get(0, i)), i == 3);
    Matrix same(type, 1, 40);
    for (UnaryActivation f : {UnaryActivation::kIdentity, UnaryActivation::kRelu, UnaryActivation::kGelu,
                              UnaryActivation::kGeluTanh}) {
      Activate(*bench.device, x.view(), f, same.view());
      for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(same.Get(0, i)), i == 3);
    }
  }
}

TEST_P(RowsTest, AddGatherAndPositions) {
  Bench bench(GetParam(), 3, {});
  for (const int64_t n : kWidths) {
    Matrix a(DataType::kF32, 70, n, 1), before(DataType::kF32, 70, n), b(DataType::kF32, 70, n, 2);
    a.Randomize(1);
    before.Randomize(1);
    b.Randomize(2);
    Add(*bench.device, a.view(), b.view());
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < 70; ++t) positions.push_back((t * 31) % 68);
    AddPositionEmbedding(*bench.device, positions.data(), b.view(), 2, a.view());
    for (int64_t r = 0; r < 70; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(a.Get(r, i), before.Get(r, i) + b.Get(r, i) + b.Get(positions[r] + 2, i));
      }
    }
    for (const DataType type : kTypes) {
      Matrix x(type, 70, n, 1), out(type, 70, n, 4);
      x.Randomize(5);
      GatherRows(*bench.device, x.view(), positions.data(), out.view());
      for (int64_t r = 0; r < 70; ++r) ASSERT_EQ(out.Bytes(r), x.Bytes(positions[r]));
    }
  }
}

TEST_P(RowsTest, PooledRowsAreSumsInOrder) {
  for (const int64_t n : kWidths) {
    for (const DataType type : kTypes) {
      for (const int threads : {1, 3}) {
        Bench bench(GetParam(), threads, {});
        Matrix x(type, 70, n, 1), out(DataType::kF32, 5, n, 2);
        x.Randomize(7);
        out.Randomize(8);
        Matrix before(DataType::kF32, 5, n);
        before.Randomize(8);
        const std::vector<PooledRows> pools = {
            {3, 1, 4, false, 1}, {0, 70, 0, false, 70}, {5, 20, 2, true, 31}, {69, 1, 1, true, 1}};
        PoolRows(*bench.device, x.view(), pools.data(), static_cast<int64_t>(pools.size()), out.view());
        for (const PooledRows& pool : pools) {
          for (int64_t i = 0; i < n; ++i) {
            float sum = pool.continues ? before.Get(pool.out_row, i) : 0.0f;
            for (int32_t r = 0; r < pool.num_rows; ++r) sum += x.Get(pool.first_row + r, i);
            ASSERT_EQ(out.Get(pool.out_row, i), sum / pool.divisor) << n << ": row " << pool.out_row;
          }
        }
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(out.Get(3, i), before.Get(3, i)) << "nothing is pooled there";
      }
    }
  }
}

TEST_P(RowsTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kRows = 300, kWidth = 203;
  const std::vector<float> w = RandomFloats(kWidth, 1);
  Matrix x(DataType::kF32, kRows, 2 * kWidth), delta(DataType::kF32, kRows, kWidth);
  x.Randomize(2);
  delta.Randomize(3);
  const auto run = [&](int threads, int64_t begin, int64_t rows) {
    Bench bench(GetParam(), threads, {});
    Matrix residual(DataType::kF32, kRows, kWidth), out(DataType::kBF16, rows, kWidth);
    residual.Randomize(4);
    std::vector<std::string> bytes(rows);
    const auto collect = [&] {
      for (int64_t r = 0; r < rows; ++r) bytes[r] += out.Bytes(r);
    };
    AddRmsNorm(*bench.device, residual.view(begin, rows), delta.view(begin, rows), w.data(), 1e-6,
               out.view());
    collect();
    AddLayerNorm(*bench.device, residual.view(begin, rows), {}, w.data(), w.data(), 1e-6, out.view());
    collect();
    SiluAndMul(*bench.device, x.view(begin, rows), out.view());
    collect();
    return bytes;
  };
  const std::vector<std::string> expected = run(1, 0, kRows);
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const int64_t rows = 1 + random() % 100, begin = random() % (kRows - rows + 1);
    const std::vector<std::string> got = run(1 + round % 4, begin, rows);
    for (int64_t r = 0; r < rows; ++r) ASSERT_EQ(got[r], expected[begin + r]);
  }
}

}  // namespace
}  // namespace somnus
