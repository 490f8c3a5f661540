// Blocks of quantized weights: the distance from the weights, and odd values.

#include "worker/model/quantize_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float8.h"
#include "base/half_float.h"
#include "checkpoint/dequantize.h"

namespace somnus {
namespace {

constexpr int64_t kBlock = kQuantBlock;

StorageType StoredAs(DataType type) {
  return type == DataType::kQ8_0   ? StorageType::kQ8_0
         : type == DataType::kQ4_1 ? StorageType::kQ4_1
                                   : StorageType::kF8E4M3;
}

std::vector<float> Normal(int64_t count, float deviation, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<float> There(DataType type, const std::vector<float>& values) {
  const int64_t blocks = static_cast<int64_t>(values.size()) / kBlock;
  std::vector<uint8_t> bytes(static_cast<size_t>(blocks * QuantBlockBytes(type)));
  QuantizeRows(type, values.data(), 1, blocks * kBlock, bytes.data());
  std::vector<float> back(values.size());
  DequantizeBlocks(StoredAs(type), bytes.data(), blocks, back.data());
  return back;
}

// Root of the mean squared error, by the values' deviation.
double RelativeError(DataType type, const std::vector<float>& values) {
  const std::vector<float> back = There(type, values);
  double error = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(back[i]) - values[i], 2);
    size += std::pow(static_cast<double>(values[i]), 2);
  }
  return std::sqrt(error / size);
}

TEST(QuantizeRows, ErrorsAreThoseOfTheSteps) {
  for (const float deviation : {1e-3f, 0.02f, 3.0f}) {
    const std::vector<float> values = Normal(kBlock * 512, deviation);
    // The largest of 32 is two deviations away: steps of 2 / 127, and of 4 / 15, whose error is uniform.
    EXPECT_LT(RelativeError(DataType::kQ8_0, values), 0.006);
    EXPECT_LT(RelativeError(DataType::kQ4_1, values), 0.085);
    EXPECT_GT(RelativeError(DataType::kQ4_1, values), 0.05);
    // Three bits of mantissa behind the first bit: steps of an eighth to a sixteenth.
    EXPECT_LT(RelativeError(DataType::kF8E4M3, values), 0.03);
    EXPECT_GT(RelativeError(DataType::kF8E4M3, values), 0.015);
  }
}

// Q4_1 can represent every value that Q4_0 can represent, up to the rounding of the minimum.
TEST(QuantizeRows, FourBitsKeepEverySymmetricGrid) {
  std::vector<float> values;
  for (int i = 0; i < kBlock; ++i) values.push_back(static_cast<float>(i % 16 - 8) * 0.25f);
  EXPECT_EQ(There(DataType::kQ4_1, values), values);
}

TEST(QuantizeRows, AnOutlierDoesNotTakeTheOthersSteps) {
  std::vector<float> values = Normal(kBlock, 0.01f);
  for (float& value : values) value = std::clamp(value, -0.01f, 0.01f);
  values[5] = 0.03f;
  const float widest = 0.04f / 15;  // a step with the outlier at the end
  const std::vector<float> back = There(DataType::kQ4_1, values);
  double error = 0;
  for (int i = 0; i < kBlock; ++i) error += std::pow(static_cast<double>(back[i]) - values[i], 2);
  EXPECT_LT(error / kBlock, widest * widest / 12 * 1.2);
}

TEST(QuantizeRows, BlocksOfOneValue) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_1, DataType::kF8E4M3}) {
    for (const float value : {0.0f, 1.0f, -0.5f}) {
      for (const float back : There(type, std::vector<float>(kBlock, value)))
        EXPECT_NEAR(back, value, std::fabs(value) / 1000);
    }
  }
}

// A NaN or an infinity stays in one block, and no other block changes.
TEST(QuantizeRows, WhatIsNoNumberStaysInItsBlock) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_1}) {
    const std::vector<float> good = Normal(kBlock * 3, 0.1f);
    const std::vector<float> want = There(type, good);
    for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), 3e38f}) {
      std::vector<float> values = good;
      values[kBlock + 3] = odd;
      const std::vector<float> got = There(type, values);
      for (int i = 0; i < kBlock; ++i) {
        EXPECT_EQ(got[i], want[i]);
        EXPECT_EQ(got[2 * kBlock + i], want[2 * kBlock + i]);
      }
      EXPECT_FALSE(std::isfinite(got[kBlock + 3]));
    }
  }
}

TEST(QuantizeRows, InPlaceIsTheSame) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_1, DataType::kF8E4M3}) {
    std::vector<float> values = Normal(kBlock * 7, 0.1f);
    std::vector<uint8_t> apart(static_cast<size_t>(7 * QuantBlockBytes(type)));
    QuantizeRows(type, values.data(), 1, kBlock * 7, apart.data());
    QuantizeRows(type, values.data(), 1, kBlock * 7, values.data());
    EXPECT_EQ(std::memcmp(values.data(), apart.data(), apart.size()), 0);
  }
}

// The largest value is 448 by definition, so that the scale is a power of two.
std::vector<float> Float8Row(float scale, const std::vector<float>& values) {
  std::vector<float> row(kBlock);
  row[0] = 448 * scale;
  std::copy(values.begin(), values.end(), row.begin() + 1);
  return There(DataType::kF8E4M3, row);
}

TEST(QuantizeRows, EveryFloat8IsItsOwn) {
  for (const float scale : {1.0f, 0x1p-20f}) {
    for (int code = 0; code < 256; ++code) {
      const uint8_t bits = static_cast<uint8_t>(code);
      if (IsFloat8Nan(bits)) continue;
      const float value = Float8ToFloat(bits) * scale;
      const float back = Float8Row(scale, {value})[1];
      EXPECT_EQ(back, value);
      EXPECT_EQ(std::signbit(back), std::signbit(value));
    }
  }
}

TEST(QuantizeRows, Float8TakesTheNearestAndOfTwoTheEvenOne) {
  const std::vector<float> back =
      Float8Row(1, {1.0625f, 1.1875f, std::nextafter(1.0625f, 2.0f), 432, 431, -17, 0x1p-10f, 3 * 0x1p-10f,
                    std::nextafter(0x1p-10f, 1.0f), 0.0156f});
  const std::vector<float> want = {1.0f, 1.25f, 1.125f, 448, 416, -16, 0, 0x1p-8f, 0x1p-9f, 0x1p-6f};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(back[i + 1], want[i]) << i;
}

// The other row has a different scale.
TEST(QuantizeRows, ARowOfFloat8WithoutANumberIsNaN) {
  constexpr int64_t kCols = 3 * kBlock;
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = Normal(2 * kCols, 0.1f);
    values[kBlock + 3] = odd;
    std::vector<uint8_t> bytes(static_cast<size_t>(2 * MatrixRowBytes(DataType::kF8E4M3, kCols)));
    QuantizeRows(DataType::kF8E4M3, values.data(), 2, kCols, bytes.data());
    std::vector<float> back(values.size());
    DequantizeBlocks(StorageType::kF8E4M3, bytes.data(), 2 * kCols / kBlock, back.data());
    for (int64_t i = 0; i < kCols; ++i) {
      EXPECT_TRUE(std::isnan(back[i]));
      EXPECT_NEAR(back[kCols + i], values[kCols + i], std::fabs(values[kCols + i]) / 16 + 1e-6);
    }
  }
}

TEST(QuantizeRows, APartOfAFloat8RowIsAsInTheWholeOne) {
  constexpr int64_t kCols = 5 * kBlock, kBytes = QuantBlockBytes(DataType::kF8E4M3);
  std::vector<float> row = Normal(kCols, 0.1f);
  row[kCols - 1] = 3;  // which only the last part has
  std::vector<uint8_t> whole(5 * kBytes), part(2 * kBytes);
  QuantizeRows(DataType::kF8E4M3, row.data(), 1, kCols, whole.data());
  QuantizeFloat8Part(row.data(), kCols, kBlock, 3 * kBlock, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + kBytes));
  // A part of a row that ends within a block.
  QuantizeFloat8Part(row.data(), kCols - 1, kBlock, 3 * kBlock, part.data());
  float scale;
  std::memcpy(&scale, part.data(), sizeof(scale));
  EXPECT_LT(scale, 1.0f / 448);
}

TEST(RoundToHalf, EveryHalfIsItsOwn) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint8_t bytes[] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    const float value = LoadHalf(bytes);
    if (std::isnan(value)) {
      EXPECT_EQ(RoundToHalf(value) & 0x7c00, 0x7c00);
      continue;
    }
    ASSERT_EQ(RoundToHalf(value), bits);
  }
}

TEST(RoundToHalf, TakesTheNearestAndOfTwoTheEvenOne) {
  EXPECT_EQ(RoundToHalf(1 + 0x1p-11f), 0x3c00);      // between 1 and 1 + 2^-10
  EXPECT_EQ(RoundToHalf(1 + 3 * 0x1p-11f), 0x3c02);  // between the next two
  EXPECT_EQ(RoundToHalf(std::nextafter(1 + 0x1p-11f, 2.0f)), 0x3c01);
  EXPECT_EQ(RoundToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(RoundToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(RoundToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(RoundToHalf(0x1p-25f), 0);
  EXPECT_EQ(RoundToHalf(1.5f * 0x1p-24f), 2);
}

}  // namespace
}  // namespace somnus
