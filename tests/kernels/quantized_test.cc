// Linear and Embedding with quantized weights: against sums in double over the values of the files' blocks,
// and independent of the batch.

#include "checkpoint/dequantize.h"
#include "checkpoint/storage_type.h"
#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class QuantizedTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, QuantizedTest, testing::ValuesIn(AvailableIsas()), IsaName);

struct QuantType {
  DataType type;
  StorageType stored;
  int scale_at;         // where a block has its f16 scale, or MXFP4 its exponent
  int minimum_at = -1;  // f16, where there is one
  // The largest numbers that multiply them and the sum of roundings of a block of 32 activations.
  float times = 1;
  int parts = 1;
};
constexpr QuantType kTypes[] = {{DataType::kQ8_0, StorageType::kQ8_0, 0},
                                {DataType::kQ4_0, StorageType::kQ4_0, 0},
                                {DataType::kQ4_1, StorageType::kQ4_1, 0, 2},
                                {DataType::kQ5_0, StorageType::kQ5_0, 0},
                                {DataType::kQ5_1, StorageType::kQ5_1, 0, 2},
                                {DataType::kIQ4_NL, StorageType::kIQ4_NL, 0},
                                {DataType::kMXFP4, StorageType::kMXFP4, 0},
                                {DataType::kQ2_K, StorageType::kQ2_K, 80, 82, 15, 2},
                                {DataType::kQ3_K, StorageType::kQ3_K, 108, -1, 32, 2},
                                {DataType::kQ4_K, StorageType::kQ4_K, 0, 2, 63},
                                {DataType::kQ5_K, StorageType::kQ5_K, 0, 2, 63},
                                {DataType::kQ6_K, StorageType::kQ6_K, 208, -1, 128, 2}};

// Sets the scale and the minimum of a stored block.
void SetScales(const QuantType& type, float scale, float minimum, uint8_t* block) {
  if (type.type == DataType::kMXFP4) {
    block[type.scale_at] = static_cast<uint8_t>(128 + std::lround(std::log2(std::fabs(scale) + 1e-3f)));
    return;
  }
  const uint16_t d = F16Of(scale), m = F16Of(minimum);
  std::memcpy(block + type.scale_at, &d, 2);
  if (type.minimum_at >= 0) std::memcpy(block + type.minimum_at, &m, 2);
}

OpsLimits Limits(int64_t tokens, int64_t n, int64_t k) {
  return {.max_tokens = tokens, .max_k = k, .max_n = n};
}

// A weight of random blocks: every pattern of the values' bits, scales and minima of either sign.
struct QuantizedWeight {
  QuantizedWeight(const Device& device, const QuantType& type, int64_t n, int64_t k, uint32_t seed)
      : values(n * k),
        buffer(PackedWeightBytes(device, type.type, n, k)),
        weight{buffer.as<void>(), type.type, n, k} {
    const int64_t block_bytes = QuantBlockBytes(type.type), blocks = n * k / QuantBlockValues(type.type);
    EXPECT_EQ(block_bytes, BlockSizeOf(type.stored).bytes);
    EXPECT_EQ(QuantBlockValues(type.type), BlockSizeOf(type.stored).elements);
    std::vector<uint8_t> stored(blocks * block_bytes);
    std::mt19937 random(seed);
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
    for (int64_t b = 0; b < blocks; ++b) {
      SetScales(type, std::normal_distribution<float>(0, 0.02f)(random) / type.times,
                std::normal_distribution<float>(0, 0.1f)(random) / type.times, &stored[b * block_bytes]);
    }
    DequantizeBlocks(type.stored, stored.data(), blocks, values.data());
    // In two pieces that come out of order.
    const int64_t row_bytes = MatrixRowBytes(type.type, k), cut = n / 3;
    PackQuantizedRows(device, weight, cut, n - cut, stored.data() + cut * row_bytes);
    PackQuantizedRows(device, weight, 0, cut, stored.data());
  }

  std::vector<float> values;  // [n, k]
  Buffer buffer;
  LinearWeight weight;
};

// A block of activations as ops.h's Linear takes it: rounded to multiples of a 127th of its largest
// magnitude.
std::vector<double> RoundedRow(Matrix& x, int64_t t, int64_t k, std::vector<double>* largest) {
  std::vector<double> row(k);
  for (int64_t b = 0; b < k; b += kQuantBlock) {
    float max = 0;
    for (int64_t i = b; i < b + kQuantBlock; ++i) max = std::max(max, std::fabs(x.Get(t, i)));
    const float inverse = max == 0 ? 0 : 127.0f / max;
    for (int64_t i = b; i < b + kQuantBlock; ++i) {
      row[i] = std::nearbyint(x.Get(t, i) * inverse) * static_cast<double>(max / 127.0f);
      largest->push_back(max);
    }
  }
  return row;
}

// Two bounds. Beside the sum over rounded activations only f32 rounding is allowed: for each part of a block
// three roundings, and a chain of two additions a part. Beside the sum over the activations themselves each
// activation may be off by half a step, a 254th of the block's largest.
void ExpectProduct(Matrix& x, const std::vector<float>& w, const float* bias, Matrix& y, int64_t k,
                   int parts) {
  for (int64_t t = 0; t < y.rows(); ++t) {
    std::vector<double> largest;
    const std::vector<double> rounded = RoundedRow(x, t, k, &largest);
    for (int64_t n = 0; n < y.cols(); ++n) {
      double sum = bias == nullptr ? 0 : bias[n], exact = sum, magnitude = std::fabs(sum), half_steps = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double weight = w[n * k + i];
        sum += rounded[i] * weight;
        exact += x.Get(t, i) * weight;
        half_steps += largest[i] / 254 * std::fabs(weight);
        // Scale times value and minimum are added up apart; the minima here are below 1.
        magnitude += std::fabs(rounded[i]) * (std::fabs(weight) + 2);
      }
      const double rounding = 1e-6 + magnitude * 6e-8 * (2.0 * parts * k / kQuantBlock + 3);
      ASSERT_NEAR(y.Get(t, n), sum, rounding) << "token " << t << ", column " << n;
      ASSERT_NEAR(y.Get(t, n), exact, 1.0001 * half_steps + rounding) << "token " << t << ", column " << n;
    }
  }
}

TEST_P(QuantizedTest, EqualsTheSumInDouble) {
  const struct {
    int64_t n, blocks;
  } shapes[] = {{1, 1}, {7, 2}, {31, 1}, {32, 3}, {33, 5}, {65, 1}, {200, 18}};
  for (const QuantType& type : kTypes) {
    for (const auto& [n, blocks] : shapes) {
      const int64_t values = QuantBlockValues(type.type), k = values * std::min(blocks, 576 / values);
      for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33}) {
        SCOPED_TRACE(testing::Message()
                     << StorageTypeName(type.stored) << " n " << n << " k " << k << " T " << tokens);
        Bench bench(GetParam(), 2, Limits(tokens, n, k));
        const QuantizedWeight w(*bench.device, type, n, k, 1);
        const std::vector<float> bias = RandomFloats(n, 2);
        const DataType act = tokens % 3 == 0   ? DataType::kF32
                             : tokens % 3 == 1 ? DataType::kBF16
                                               : DataType::kF16;
        Matrix x(act, tokens, k, 5), y(DataType::kF32, tokens, n, 3);
        x.Randomize(3, static_cast<float>(tokens));
        const float* b = tokens % 2 == 0 ? bias.data() : nullptr;
        Linear(*bench.device, x.view(), w.weight, b, y.view());
        ExpectProduct(x, w.values, b, y, k, type.parts);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The largest sums that bytes can give: nothing may overflow or saturate on the way. Sums of K types are
// rounded, but by less than a unit of an integer sum.
TEST_P(QuantizedTest, ExtremeValuesAreExact) {
  constexpr int64_t kN = 32;
  for (const QuantType& type : kTypes) {
    const int64_t values = QuantBlockValues(type.type), k = std::max<int64_t>(values, 64);
    for (const int fill : {0x00, 0x7f, 0x80, 0x81, 0xff}) {
      Bench bench(GetParam(), 1, Limits(8, kN, k));
      QuantizedWeight w(*bench.device, type, kN, k, 1);
      const int64_t block_bytes = QuantBlockBytes(type.type), blocks = kN * k / values;
      std::vector<uint8_t> stored(blocks * block_bytes, static_cast<uint8_t>(fill));
      for (int64_t b = 0; b < blocks; ++b) SetScales(type, 1, -2, &stored[b * block_bytes]);
      DequantizeBlocks(type.stored, stored.data(), blocks, w.values.data());
      PackQuantizedRows(*bench.device, w.weight, 0, kN, stored.data());
      for (const int64_t tokens : {2, 8}) {
        Matrix x(DataType::kF32, tokens, k), y(DataType::kF32, tokens, kN);
        for (int64_t i = 0; i < tokens * k; ++i) x.Set(i / k, i % k, i / k % 2 == 0 ? 127 : -127);
        Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
        for (int64_t i = 0; i < tokens * kN; ++i) {
          double sum = 0;
          for (int64_t j = 0; j < k; ++j) sum += 127.0 * w.values[i % kN * k + j];
          if (i / kN % 2 == 1) sum = -sum;
          ASSERT_NEAR(y.Get(i / kN, i % kN), sum, values == 256 ? std::fabs(sum) * 3e-7 : 0)
              << StorageTypeName(type.stored) << " of bytes " << fill;
        }
      }
    }
  }
}

TEST_P(QuantizedTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kTokens = 400, kN = 333;  // more than one block of rows
  for (const QuantType& type : kTypes) {
    const int64_t k = QuantBlockValues(type.type) == 256 ? 1280 : 1120;
    Bench alone(GetParam(), 1, Limits(kTokens, kN, k));
    const QuantizedWeight w(*alone.device, type, kN, k, 4);
    ExpectRowsDoNotDependOnTheBatch(GetParam(), alone, w.weight, DataType::kBF16, kTokens, /*rounds=*/30);
    if (HasFatalFailure()) return;
  }
}

TEST_P(QuantizedTest, NanAndInfStayInTheirRow) {
  for (const QuantType& type : kTypes) {
    SCOPED_TRACE(StorageTypeName(type.stored));
    Bench bench(GetParam(), 2, Limits(20, 70, 256));
    const QuantizedWeight w(*bench.device, type, 70, 256, 7);
    ExpectNanAndInfStayInTheirRow(bench, w.weight, DataType::kBF16);
  }
}

// Blocks of zeros and of the smallest numbers: no scale may become infinite.
TEST_P(QuantizedTest, TinyActivationsGiveNothing) {
  constexpr int64_t kN = 32, kK = 256;
  for (const QuantType& type : kTypes) {
    Bench bench(GetParam(), 1, Limits(3, kN, kK));
    const QuantizedWeight w(*bench.device, type, kN, kK, 9);
    Matrix x(DataType::kF32, 3, kK), y(DataType::kF32, 3, kN);
    for (int64_t i = 0; i < kK; ++i) {
      x.Set(1, i, 1e-44f);
      x.Set(2, i, i < kQuantBlock ? 1e-38f : 1.0f);
    }
    Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
    for (int64_t n = 0; n < kN; ++n) {
      EXPECT_EQ(y.Get(0, n), 0);
      EXPECT_NEAR(y.Get(1, n), 0, 1e-25);
      EXPECT_TRUE(std::isfinite(y.Get(2, n)));
    }
  }
}

TEST_P(QuantizedTest, EmbeddingReadsWhatIsStored) {
  constexpr int64_t kHidden = 768;
  for (const QuantType& type : kTypes) {
    SCOPED_TRACE(StorageTypeName(type.stored));
    Bench bench(GetParam(), 2, Limits(IdsAroundAShard().size(), kVocab, kHidden));
    const QuantizedWeight table(*bench.device, type, kVocab, kHidden, 10);
    ExpectEmbeddingReads(bench, table.weight, table.values);
  }
}

TEST_P(QuantizedTest, TakesNoMoreMemoryThanTheFile) {
  Bench bench(GetParam(), 1, Limits(1, 32, 32));
  for (const QuantType& type : kTypes) {
    EXPECT_TRUE(ComputesQuantized(*bench.device, type.type));
    EXPECT_EQ(PackedWeightBytes(*bench.device, type.type, 64, 768),
              64 * 768 / BlockSizeOf(type.stored).elements * BlockSizeOf(type.stored).bytes);
  }
}

}  // namespace
}  // namespace somnus
