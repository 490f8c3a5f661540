#include "worker/model/rope_table.h"

#include <cmath>

#include "gtest/gtest.h"

namespace somnus {
namespace {

constexpr int64_t kMaxModelLen = 4096;

TEST(RopeTableTest, MatchesTheFormulaFarOut) {
  const std::vector<double> frequencies = RopeFrequencies(RopeConfig{.theta = 500000}, 64, kMaxModelLen);
  ASSERT_EQ(frequencies.size(), 32u);
  const int64_t positions = 5000;
  std::vector<float> cos(positions * 32), sin(positions * 32);
  FillRopeTable(frequencies, 1.0, positions, cos.data(), sin.data());
  for (int64_t p : {0, 1, 63, 64, 65, 4095, 4999}) {
    for (int64_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(p) * std::pow(500000.0, -static_cast<double>(i) / 32);
      EXPECT_NEAR(cos[p * 32 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(sin[p * 32 + i], std::sin(angle), 1e-7);
    }
  }
}

TEST(RopeTableTest, LinearDividesPositions) {
  RopeConfig plain, linear;
  linear.type = RopeConfig::Type::kLinear;
  linear.factor = 4;
  EXPECT_DOUBLE_EQ(RopeFrequencies(linear, 8, kMaxModelLen)[2] * 4,
                   RopeFrequencies(plain, 8, kMaxModelLen)[2]);
}

TEST(RopeTableTest, Llama3SlowsLongWavesOnly) {
  RopeConfig plain, scaled;
  plain.theta = scaled.theta = 500000;
  scaled.type = RopeConfig::Type::kLlama3;
  scaled.factor = 32;
  scaled.low_freq_factor = 1;
  scaled.high_freq_factor = 4;
  scaled.original_max_position_embeddings = 8192;
  const std::vector<double> before = RopeFrequencies(plain, 64, kMaxModelLen),
                            after = RopeFrequencies(scaled, 64, kMaxModelLen);
  EXPECT_DOUBLE_EQ(after[0], before[0]);
  EXPECT_DOUBLE_EQ(after[31] * 32, before[31]);
  bool blended = false;
  for (size_t i = 0; i < after.size(); ++i)
    blended |= after[i] < before[i] * 0.999 && after[i] > before[i] / 32 * 1.001;
  EXPECT_TRUE(blended);
}

TEST(RopeTableTest, YarnSlowsLongWavesAndScalesBoth) {
  RopeConfig plain, yarn;
  yarn.type = RopeConfig::Type::kYarn;
  yarn.factor = 16;
  yarn.original_max_position_embeddings = 2048;
  const std::vector<double> before = RopeFrequencies(plain, 64, kMaxModelLen),
                            after = RopeFrequencies(yarn, 64, kMaxModelLen);
  EXPECT_DOUBLE_EQ(after[0], before[0]);
  EXPECT_DOUBLE_EQ(after[31] * 16, before[31]);
  // Pairs 8 and 20.1 turn 32 times and once over 2048 positions, to begin with.
  EXPECT_DOUBLE_EQ(after[8], before[8]);
  EXPECT_LT(after[9], before[9]);
  EXPECT_GT(after[20] * 16, before[20]);
  EXPECT_DOUBLE_EQ(after[21] * 16, before[21]);
  float cos[4], sin[4];
  FillRopeTable({1.0, 0.5}, 1.25, 2, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], 1.25f);
  EXPECT_FLOAT_EQ(cos[2], static_cast<float>(1.25 * std::cos(1.0)));
  EXPECT_FLOAT_EQ(sin[3], static_cast<float>(1.25 * std::sin(0.5)));
}

TEST(RopeTableTest, FactorsDivideAndNoneMeansNone) {
  RopeConfig rope{.freq_factors = {1, 2, 4, 8}};
  const std::vector<double> with = RopeFrequencies(rope, 8, kMaxModelLen);
  rope.freq_factors.clear();
  EXPECT_DOUBLE_EQ(with[3] * 8, RopeFrequencies(rope, 8, kMaxModelLen)[3]);
  rope.type = RopeConfig::Type::kNone;
  EXPECT_TRUE(RopeFrequencies(rope, 8, kMaxModelLen).empty());
}

}  // namespace
}  // namespace somnus
