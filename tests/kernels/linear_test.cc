// Linear, packing and embedding against sums in double, and independent of the batch.

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class LinearTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, LinearTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};

OpsLimits Limits(int64_t tokens, int64_t n, int64_t k) {
  return {.max_tokens = tokens, .max_k = k, .max_n = n};
}

void ExpectProduct(Matrix& x, const std::vector<float>& w, const float* bias, Matrix& y, DataType type,
                   int64_t k) {
  for (int64_t t = 0; t < y.rows(); ++t) {
    for (int64_t n = 0; n < y.cols(); ++n) {
      double sum = bias == nullptr ? 0 : bias[n], magnitude = std::fabs(sum);
      for (int64_t i = 0; i < k; ++i) {
        const double term = static_cast<double>(x.Get(t, i)) * Round(type, w[n * k + i]);
        sum += term;
        magnitude += std::fabs(term);
      }
      // A chain of k additions in f32.
      ASSERT_NEAR(y.Get(t, n), sum, 1e-6 + magnitude * 6e-8 * (k + 2)) << "token " << t << ", column " << n;
    }
  }
}

// Sums of random x and weights, for these numbers of rows of x; an odd number goes without a bias.
void ExpectSums(CpuIsa isa, DataType type, int64_t n, int64_t k, const std::vector<int64_t>& all_tokens) {
  for (const int64_t tokens : all_tokens) {
    SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << " n " << n << " k " << k << " T "
                                    << tokens);
    Bench bench(isa, 2, Limits(tokens, n, k));
    const std::vector<float> w = RandomFloats(n * k, 1), bias = RandomFloats(n, 2);
    Packed packed(*bench.device, type, n, k, w);
    Matrix x(type, tokens, k, 5), y(DataType::kF32, tokens, n, 3);
    x.Randomize(3);
    const float* b = tokens % 2 == 0 ? bias.data() : nullptr;
    Linear(*bench.device, x.view(), packed.weight, b, y.view());
    ExpectProduct(x, w, b, y, type, k);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(LinearTest, EqualsTheSumInDouble) {
  const struct {
    int64_t n, k;
  } shapes[] = {{1, 1}, {7, 3}, {31, 16}, {32, 17}, {33, 64}, {65, 31}, {96, 130}, {200, 77}};
  for (const DataType type : kTypes) {
    for (const auto& [n, k] : shapes) {
      ExpectSums(GetParam(), type, n, k, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 29, 33});
      if (HasFatalFailure()) return;
    }
  }
}

// So many that weights are expanded before, in several pieces of k.
TEST_P(LinearTest, ManyRowsEqualTheSumInDouble) {
  for (const DataType type : kTypes) {
    ExpectSums(GetParam(), type, 45, 515, {129, 130});
    if (HasFatalFailure()) return;
    ExpectSums(GetParam(), type, 64, 512, {128});
    if (HasFatalFailure()) return;
  }
}

// As a router's, of experts.
TEST_P(LinearTest, WeightsOfF32TakeActivationsOf16Bits) {
  constexpr int64_t kN = 37, kK = 130;
  for (const DataType type : {DataType::kBF16, DataType::kF16}) {
    for (const int64_t tokens : {1, 9, 40}) {
      Bench bench(GetParam(), 2, Limits(tokens, kN, kK));
      Packed packed(*bench.device, DataType::kF32, kN, kK, RandomFloats(kN * kK, 4));
      Matrix x(type, tokens, kK, 6), same(DataType::kF32, tokens, kK), y(DataType::kF32, tokens, kN);
      Matrix expected(DataType::kF32, tokens, kN);
      x.Randomize(5);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < kK; ++i) same.Set(t, i, x.Get(t, i));
      }
      Linear(*bench.device, x.view(), packed.weight, nullptr, y.view());
      Linear(*bench.device, same.view(), packed.weight, nullptr, expected.view());
      for (int64_t t = 0; t < tokens; ++t) ASSERT_EQ(y.Bytes(t), expected.Bytes(t)) << "token " << t;
    }
  }
}

TEST_P(LinearTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kTokens = 600, kN = 333, kK = 515;
  for (const DataType type : kTypes) {
    Bench alone(GetParam(), 1, Limits(kTokens, kN, kK));
    Packed packed(*alone.device, type, kN, kK, RandomFloats(kN * kK, 4));
    ExpectRowsDoNotDependOnTheBatch(GetParam(), alone, packed.weight, type, kTokens, /*rounds=*/40);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LinearTest, NanAndInfStayInTheirRow) {
  for (const DataType type : kTypes) {
    Bench bench(GetParam(), 2, Limits(20, 70, 33));
    Packed packed(*bench.device, type, 70, 33, RandomFloats(70 * 33, 7));
    ExpectNanAndInfStayInTheirRow(bench, packed.weight, type, /*keeps_nan=*/true);
  }
}

TEST_P(LinearTest, PackingRoundsToNearestEven) {
  constexpr int64_t kN = 3;
  const std::vector<float> values = {1.0f,      -2.5f,        1.00390625f, 1.01171875f, 3.0e-8f, 6.0e-5f,
                                     65504.0f,  65519.9f,     65520.0f,    1.0e-40f,    -0.0f,   3.38e38f,
                                     0.333333f, 2.98023e-08f, 1.00048828f, -1.00146484f};
  const int64_t k = values.size();
  std::vector<float> rows;
  for (int64_t n = 0; n < kN; ++n) rows.insert(rows.end(), values.begin(), values.end());
  for (const DataType type : kTypes) {
    Bench bench(GetParam(), 1, Limits(1, kN, k));
    Packed packed(*bench.device, type, kN, k, rows);
    Matrix out(DataType::kF32, 1, k);
    const int32_t id = 2;
    Embedding(*bench.device, &id, packed.weight, 0, kN, out.view());
    for (int64_t i = 0; i < k; ++i) EXPECT_EQ(out.Get(0, i), Round(type, values[i])) << values[i];
  }
}

TEST_P(LinearTest, EmbeddingLooksUpItsShardAndZeroesTheRest) {
  constexpr int64_t kHidden = 45;
  const std::vector<float> table = RandomFloats(kVocab * kHidden, 9);
  for (const DataType type : kTypes) {
    Bench bench(GetParam(), 2, Limits(IdsAroundAShard().size(), kVocab, kHidden));
    Packed packed(*bench.device, type, kVocab, kHidden, table);
    std::vector<float> rounded;
    for (const float value : table) rounded.push_back(Round(type, value));
    ExpectEmbeddingReads(bench, packed.weight, rounded);
  }
}

}  // namespace
}  // namespace somnus
