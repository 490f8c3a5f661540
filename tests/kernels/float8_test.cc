// Linear and Embedding with fp8 weights: against sums in double over the values of numbers and scales, and
// independent of the batch.

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class Float8Test : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, Float8Test, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

constexpr DataType kType = DataType::kF8E4M3;
constexpr DataType kActs[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
constexpr int64_t kBlockBytes = QuantBlockBytes(kType);

OpsLimits Limits(int64_t tokens, int64_t n, int64_t k) {
  return {.max_tokens = tokens, .max_k = k, .max_n = n};
}

// The numbers that share a scale.
enum class Scales {
  kRows,    // each row has a scale
  kBlocks,  // blocks of 32 x 32
  kMixed,   // blocks of 32 x 128 next to each other may have the same, so that runs have different lengths
};

// A weight of random numbers, every code but NaN among them.
struct Float8Weight {
  Float8Weight(const Device& device, Scales scales, int64_t n, int64_t k, uint32_t seed)
      : values(n * k),
        stored(n * k / kQuantBlock * kBlockBytes),
        buffer(PackedWeightBytes(device, kType, n, k)),
        weight{buffer.as<void>(), kType, n, k} {
    std::mt19937 random(seed);
    const std::vector<float> factors = RandomFloats(n + (n / 32 + 1) * (k / 32), seed + 1, 0.01f);
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t b = 0; b < k / kQuantBlock; ++b) {
        const int64_t tile = row / 32 * (k / 32) + b;
        const float scale = scales == Scales::kRows     ? factors[row]
                            : scales == Scales::kBlocks ? factors[tile]
                            : b / 4 % 3 == 0            ? 0.5f
                                                        : factors[row / 32 * (k / 32) + b / 4];
        uint8_t* const block = &stored[(row * (k / kQuantBlock) + b) * kBlockBytes];
        std::memcpy(block, &scale, 4);
        for (int64_t i = 0; i < kQuantBlock; ++i) {
          uint8_t code = static_cast<uint8_t>(random());
          if ((code & 0x7f) == 0x7f) code ^= 1;
          block[4 + i] = code;
          values[row * k + b * kQuantBlock + i] = static_cast<float>(F8ToDouble(code)) * scale;
        }
      }
    }
    Pack(device);
  }

  // In two pieces that come out of order, cut within a panel.
  void Pack(const Device& device) {
    const int64_t row_bytes = MatrixRowBytes(kType, weight.k), cut = weight.n / 3;
    PackQuantizedRows(device, weight, cut, weight.n - cut, stored.data() + cut * row_bytes);
    PackQuantizedRows(device, weight, 0, cut, stored.data());
  }

  std::vector<float> values;  // [n, k]
  std::vector<uint8_t> stored;
  Buffer buffer;
  LinearWeight weight;
};

// Only f32 rounding is allowed: products are exact or rounded once, and the sum is a chain.
void ExpectProduct(Matrix& x, const std::vector<float>& w, const float* bias, Matrix& y, int64_t k) {
  for (int64_t t = 0; t < y.rows(); ++t) {
    for (int64_t n = 0; n < y.cols(); ++n) {
      double sum = bias == nullptr ? 0 : bias[n], magnitude = std::fabs(sum);
      for (int64_t i = 0; i < k; ++i) {
        const double product = static_cast<double>(x.Get(t, i)) * w[n * k + i];
        sum += product;
        magnitude += std::fabs(product);
      }
      ASSERT_NEAR(y.Get(t, n), sum, 1e-6 + magnitude * 6e-8 * (static_cast<double>(k) / 8 + 8))
          << "token " << t << ", column " << n;
    }
  }
}

TEST_P(Float8Test, EqualsTheSumInDouble) {
  const struct {
    int64_t n, k;
  } shapes[] = {{1, 32}, {7, 64}, {31, 32}, {32, 96}, {33, 160}, {65, 32}, {200, 576}, {40, 2048}};
  for (const Scales scales : {Scales::kRows, Scales::kBlocks, Scales::kMixed}) {
    for (const auto& [n, k] : shapes) {
      for (const int64_t tokens : {1, 2, 3, 4, 5, 8, 9, 13, 33}) {
        SCOPED_TRACE(testing::Message()
                     << "scales " << static_cast<int>(scales) << " n " << n << " k " << k << " T " << tokens);
        Bench bench(GetParam(), 2, Limits(tokens, n, k));
        const Float8Weight w(*bench.device, scales, n, k, 1);
        const std::vector<float> bias = RandomFloats(n, 2);
        Matrix x(kActs[tokens % 3], tokens, k, 5), y(DataType::kF32, tokens, n, 3);
        x.Randomize(3);
        const float* b = tokens % 2 == 0 ? bias.data() : nullptr;
        Linear(*bench.device, x.view(), w.weight, b, y.view());
        ExpectProduct(x, w.values, b, y, k);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Each code alone, including subnormal numbers and negative zero, for few and for many rows.
TEST_P(Float8Test, EveryNumberIsExact) {
  constexpr int64_t kN = 32, kK = 256;
  Bench bench(GetParam(), 1, Limits(kK, kN, kK));
  Float8Weight w(*bench.device, Scales::kRows, kN, kK, 1);
  for (int64_t row = 0; row < kN; ++row) {
    const float scale = std::ldexp(1.0f, static_cast<int>(row) - 16);
    for (int64_t k = 0; k < kK; ++k) {
      uint8_t* const block = &w.stored[(row * (kK / kQuantBlock) + k / kQuantBlock) * kBlockBytes];
      std::memcpy(block, &scale, 4);
      block[4 + k % kQuantBlock] = static_cast<uint8_t>((k & 0x7f) == 0x7f ? 0 : k);
    }
  }
  w.Pack(*bench.device);
  for (const DataType act : kActs) {
    Matrix x(act, kK, kK), y(DataType::kF32, kK, kN);
    for (int64_t k = 0; k < kK; ++k) x.Set(k, k, 2);
    for (const int64_t rows : {int64_t{1}, kK}) {
      for (int64_t t = 0; t < kK; t += rows)
        Linear(*bench.device, x.view(t, rows), w.weight, nullptr, y.view(t, rows));
      for (int64_t k = 0; k < kK; ++k) {
        const double number = (k & 0x7f) == 0x7f ? 0 : F8ToDouble(static_cast<uint8_t>(k));
        for (int64_t n = 0; n < kN; ++n)
          ASSERT_EQ(y.Get(k, n), std::ldexp(2 * number, static_cast<int>(n) - 16)) << "code " << k;
      }
    }
  }
}

TEST_P(Float8Test, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kTokens = 400, kN = 333, kK = 1120;  // more than one block of rows
  for (const Scales scales : {Scales::kRows, Scales::kBlocks, Scales::kMixed}) {
    for (const DataType act : kActs) {
      Bench alone(GetParam(), 1, Limits(kTokens, kN, kK));
      const Float8Weight w(*alone.device, scales, kN, kK, 4);
      ExpectRowsDoNotDependOnTheBatch(GetParam(), alone, w.weight, act, kTokens, /*rounds=*/12);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Float8Test, NanAndInfStayInTheirRow) {
  for (const DataType act : kActs) {
    Bench bench(GetParam(), 2, Limits(20, 70, 256));
    const Float8Weight w(*bench.device, Scales::kBlocks, 70, 256, 7);
    ExpectNanAndInfStayInTheirRow(bench, w.weight, act);
  }
}

// A row whose scale is NaN, which a NaN among the weights that were quantized makes, spoils no other row.
TEST_P(Float8Test, NanOfAWeightStaysInItsColumn) {
  constexpr int64_t kN = 64, kK = 128;
  Bench bench(GetParam(), 1, Limits(9, kN, kK));
  Float8Weight w(*bench.device, Scales::kRows, kN, kK, 7);
  for (int64_t b = 0; b < kK / kQuantBlock; ++b)
    std::memcpy(&w.stored[(33 * (kK / kQuantBlock) + b) * kBlockBytes], "\0\0\xc0\x7f", 4);
  w.Pack(*bench.device);
  Matrix x(DataType::kBF16, 9, kK), y(DataType::kF32, 9, kN);
  x.Randomize(8);
  Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t n = 0; n < kN; ++n) EXPECT_EQ(std::isnan(y.Get(t, n)), n == 33);
  }
}

TEST_P(Float8Test, EmbeddingReadsWhatIsStored) {
  constexpr int64_t kHidden = 96;
  for (const Scales scales : {Scales::kRows, Scales::kBlocks}) {
    Bench bench(GetParam(), 2, Limits(IdsAroundAShard().size(), kVocab, kHidden));
    const Float8Weight table(*bench.device, scales, kVocab, kHidden, 10);
    ExpectEmbeddingReads(bench, table.weight, table.values);
  }
}

TEST_P(Float8Test, TakesAByteForAWeight) {
  Bench bench(GetParam(), 1, Limits(1, 32, 32));
  EXPECT_TRUE(ComputesQuantized(*bench.device, kType));
  for (const int64_t k : {576, 2048, 8192}) {
    const int64_t weights = 1024 * k;
    EXPECT_LE(PackedWeightBytes(*bench.device, kType, 1024, k), weights + weights / 50);
  }
}

}  // namespace
}  // namespace somnus
