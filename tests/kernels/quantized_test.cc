// Linear and Embedding with quantized weights: against sums in double over what the files' blocks say, and
// their independence of the batch.

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
};
constexpr QuantType kTypes[] = {{DataType::kQ8_0, StorageType::kQ8_0},
                                {DataType::kQ4_0, StorageType::kQ4_0},
                                {DataType::kQ4_1, StorageType::kQ4_1},
                                {DataType::kQ5_0, StorageType::kQ5_0},
                                {DataType::kQ5_1, StorageType::kQ5_1}};

OpsLimits Limits(int64_t tokens, int64_t n, int64_t k) {
  return {.max_tokens = tokens, .max_k = k, .max_n = n};
}

// A weight of random blocks: every pattern of the values' bits, scales and minima of either sign.
struct QuantizedWeight {
  QuantizedWeight(const Device& device, const QuantType& type, int64_t n, int64_t k, uint32_t seed)
      : values(n * k),
        buffer(PackedWeightBytes(device, type.type, n, k)),
        weight{buffer.as<void>(), type.type, n, k} {
    const int64_t block_bytes = QuantBlockBytes(type.type), blocks = n * k / kQuantBlock;
    EXPECT_EQ(block_bytes, BlockSizeOf(type.stored).bytes);
    std::vector<uint8_t> stored(blocks * block_bytes);
    std::mt19937 random(seed);
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
    const bool has_minimum = type.type == DataType::kQ4_1 || type.type == DataType::kQ5_1;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int i = 0; i < (has_minimum ? 2 : 1); ++i) {
        const uint16_t scale = F16Of(std::normal_distribution<float>(0, i == 0 ? 0.02f : 0.1f)(random));
        std::memcpy(&stored[b * block_bytes + 2 * i], &scale, 2);
      }
    }
    DequantizeBlocks(type.stored, stored.data(), blocks, values.data());
    // In two pieces that come out of order.
    const int64_t row_bytes = k / kQuantBlock * block_bytes, cut = n / 3;
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

// Two bounds. Beside the sum over rounded activations only f32 rounding is allowed: for each block three
// roundings of its own, and a chain of two additions a block. Beside the sum over the activations themselves
// each may be off by half a step, a 254th of its block's largest.
void ExpectProduct(Matrix& x, const std::vector<float>& w, const float* bias, Matrix& y, int64_t k) {
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
      const double rounding = 1e-6 + magnitude * 6e-8 * (2.0 * k / kQuantBlock + 3);
      ASSERT_NEAR(y.Get(t, n), sum, rounding) << "token " << t << ", column " << n;
      ASSERT_NEAR(y.Get(t, n), exact, 1.0001 * half_steps + rounding) << "token " << t << ", column " << n;
    }
  }
}

TEST_P(QuantizedTest, EqualsTheSumInDouble) {
  const struct {
    int64_t n, k;
  } shapes[] = {{1, 32}, {7, 64}, {31, 32}, {32, 96}, {33, 160}, {65, 32}, {200, 576}};
  for (const QuantType& type : kTypes) {
    for (const auto& [n, k] : shapes) {
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
        ExpectProduct(x, w.values, b, y, k);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The largest sums that bytes can give: nothing may overflow or saturate on the way.
TEST_P(QuantizedTest, ExtremeValuesAreExact) {
  constexpr int64_t kN = 32, kK = 64;
  for (const QuantType& type : kTypes) {
    for (const int fill : {0x00, 0x7f, 0x80, 0x81, 0xff}) {
      Bench bench(GetParam(), 1, Limits(2, kN, kK));
      QuantizedWeight w(*bench.device, type, kN, kK, 1);
      const int64_t block_bytes = QuantBlockBytes(type.type), blocks = kN * kK / kQuantBlock;
      std::vector<uint8_t> stored(blocks * block_bytes, static_cast<uint8_t>(fill));
      const bool has_minimum = type.type == DataType::kQ4_1 || type.type == DataType::kQ5_1;
      for (int64_t b = 0; b < blocks; ++b) {
        const uint16_t scales[] = {F16Of(1), F16Of(-2)};
        std::memcpy(&stored[b * block_bytes], scales, has_minimum ? 4 : 2);
      }
      DequantizeBlocks(type.stored, stored.data(), blocks, w.values.data());
      PackQuantizedRows(*bench.device, w.weight, 0, kN, stored.data());
      Matrix x(DataType::kF32, 2, kK), y(DataType::kF32, 2, kN);
      for (int64_t i = 0; i < kK; ++i) {
        x.Set(0, i, 127);
        x.Set(1, i, -127);
      }
      Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
      for (int64_t n = 0; n < kN; ++n) {
        double sum = 0;
        for (int64_t i = 0; i < kK; ++i) sum += 127.0 * w.values[n * kK + i];
        ASSERT_EQ(y.Get(0, n), sum) << StorageTypeName(type.stored) << " of bytes " << fill;
        ASSERT_EQ(y.Get(1, n), -sum) << StorageTypeName(type.stored) << " of bytes " << fill;
      }
    }
  }
}

TEST_P(QuantizedTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kTokens = 400, kN = 333, kK = 1120;  // more than one block of rows
  for (const QuantType& type : kTypes) {
    Bench alone(GetParam(), 1, Limits(kTokens, kN, kK));
    const QuantizedWeight w(*alone.device, type, kN, kK, 4);
    ExpectRowsDoNotDependOnTheBatch(GetParam(), alone, w.weight, DataType::kBF16, kTokens, /*rounds=*/30);
    if (HasFatalFailure()) return;
  }
}

TEST_P(QuantizedTest, NanAndInfStayInTheirRow) {
  constexpr int64_t kN = 70, kK = 64;
  for (const QuantType& type : kTypes) {
    Bench bench(GetParam(), 2, Limits(20, kN, kK));
    const QuantizedWeight w(*bench.device, type, kN, kK, 7);
    Matrix x(DataType::kBF16, 20, kK), clean(DataType::kF32, 20, kN), y(DataType::kF32, 20, kN);
    x.Randomize(8);
    Linear(*bench.device, x.view(), w.weight, nullptr, clean.view());
    x.Set(3, 5, NAN);
    x.Set(9, 63, INFINITY);
    Linear(*bench.device, x.view(), w.weight, nullptr, y.view());
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t n = 0; n < kN; ++n) {
        if (t == 3 || t == 9) {
          EXPECT_FALSE(std::isfinite(y.Get(t, n)));
        } else {
          EXPECT_EQ(y.Get(t, n), clean.Get(t, n));
        }
      }
    }
  }
}

// Blocks of zeros and of the smallest numbers: no scale may become infinite.
TEST_P(QuantizedTest, TinyActivationsGiveNothing) {
  constexpr int64_t kN = 32, kK = 64;
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
  constexpr int64_t kVocab = 77, kHidden = 96, kBegin = 100;
  std::vector<int32_t> ids = {100, 176, 177, 99, 0, 132, 131, -1, 2000000000};
  for (int i = 0; i < 100; ++i) ids.push_back(90 + i);
  for (const QuantType& type : kTypes) {
    Bench bench(GetParam(), 2, Limits(ids.size(), kVocab, kHidden));
    const QuantizedWeight table(*bench.device, type, kVocab, kHidden, 10);
    Matrix out(DataType::kF32, ids.size(), kHidden, 2);
    out.Randomize(1);
    Embedding(*bench.device, ids.data(), table.weight, kBegin, kBegin + kVocab, out.view());
    for (size_t t = 0; t < ids.size(); ++t) {
      const bool mine = ids[t] >= kBegin && ids[t] < kBegin + kVocab;
      for (int64_t i = 0; i < kHidden; ++i) {
        ASSERT_EQ(out.Get(t, i), mine ? table.values[(ids[t] - kBegin) * kHidden + i] : 0)
            << StorageTypeName(type.stored) << ", token " << ids[t];
      }
    }
  }
}

TEST_P(QuantizedTest, TakesNoMoreMemoryThanTheFile) {
  Bench bench(GetParam(), 1, Limits(1, 32, 32));
  for (const QuantType& type : kTypes) {
    EXPECT_TRUE(ComputesQuantized(*bench.device, type.type));
    EXPECT_EQ(PackedWeightBytes(*bench.device, type.type, 64, 96), 64 * 3 * BlockSizeOf(type.stored).bytes);
  }
}

}  // namespace
}  // namespace somnus
