// LogProbs against the CPU's: ranks and tokens are equal, values but for the roundings of sums of
// exponentials.

#include "tests/cuda/logits_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

// The error of the logarithm of a sum whose f32 parts are off by some 2e-7, on top of the largest logit's own
// rounding.
constexpr double kError = 2e-6;

void ExpectNear(float got, float want, const char* what) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << what << " is " << got;
  } else if (std::isinf(want)) {
    EXPECT_EQ(got, want) << what;
  } else {
    EXPECT_NEAR(got, want, kError * (1 + std::fabs(want))) << what;
  }
}

void ExpectEqualsTheCpu(int64_t n, int64_t k, Layout layout, uint64_t seed, size_t num_kinds = 100) {
  SCOPED_TRACE(testing::Message() << "vocabulary " << n << ", k " << k);
  std::vector<std::vector<float>> kinds = KindsOfLogits(n, static_cast<uint32_t>(n));
  if (kinds.size() > num_kinds) kinds.resize(num_kinds);
  const int64_t rows = static_cast<int64_t>(kinds.size());
  CudaBench bench(LogitLimits(rows, n), seed);
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  LogitPair x(rows, n, layout);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) {
    x.Set(r, kinds[r]);
    ids.push_back(static_cast<int32_t>(r * 7919 % n));
  }
  std::vector<float> logprob(rows);
  std::vector<int32_t> rank(rows);
  std::vector<ScoredToken> top(rows * k);
  LogProbs(*Oracle(), x.host.view(), ids.data(), k, logprob.data(), rank.data(), top.data());

  DeviceArray<int32_t> device_ids(ids);
  DeviceBuffer got_logprob(rows * 4), got_rank(rows * 4), got_top(rows * k * 8 + 8);
  LogProbs(*bench.device, x.device.view(), device_ids.data(), k, got_logprob.device<float>(),
           got_rank.device<int32_t>(), k > 0 ? got_top.device<ScoredToken>() : nullptr);
  ASSERT_TRUE(bench.device->Synchronize().ok());
  const std::vector<float> logprobs = got_logprob.Values<float>();
  const std::vector<int32_t> ranks = got_rank.Values<int32_t>();
  const std::vector<ScoredToken> tops = got_top.Values<ScoredToken>();
  for (int64_t r = 0; r < rows; ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r);
    ExpectNear(logprobs[r], logprob[r], "the token's");
    EXPECT_EQ(ranks[r], rank[r]);
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_EQ(tops[r * k + i].id, top[r * k + i].id) << "place " << i;
      ExpectNear(tops[r * k + i].value, top[r * k + i].value, "a likely one's");
    }
  }
}

TEST(LogProbsTest, SmallVocabulary) { ExpectEqualsTheCpu(7, 5, {}, 1); }

TEST(LogProbsTest, EqualsTheCpu) {
  int turn = 0;
  for (const int64_t n : {1, 7, 2048, 2049, 5003}) {
    for (const int64_t k : {0, 5, 64}) {
      ExpectEqualsTheCpu(n, k, kLayouts[turn % 4], static_cast<uint64_t>(turn));
      ++turn;
    }
  }
}

TEST(LogProbsTest, LargeVocabularies) {
  ExpectEqualsTheCpu(32000, 20, {}, 1, 5);
  ExpectEqualsTheCpu(151936, 1, {3, 1}, 2, 2);
}

// A row's bits do not depend on where it is in a batch.
TEST(LogProbsTest, IndependentOfTheBatch) {
  constexpr int64_t kVocab = 6000;
  std::string first;
  for (const int64_t rows : {1, 5}) {
    CudaBench bench(LogitLimits(rows, kVocab), static_cast<uint64_t>(rows));
    SOMNUS_SKIP_WITHOUT_GPU(bench.device);
    DeviceMatrix x(DataType::kF32, rows, kVocab, {rows == 1 ? 0 : 1, 0});
    x.Randomize(3);
    const std::vector<float> row = kernel_test::RandomFloats(kVocab, 4, 3);
    x.SetRow(rows - 1, row);
    DeviceArray<int32_t> ids(std::vector<int32_t>(rows, 17));
    DeviceBuffer logprob(rows * 4), rank(rows * 4), top(rows * 3 * 8);
    LogProbs(*bench.device, x.view(), ids.data(), 3, logprob.device<float>(), rank.device<int32_t>(),
             top.device<ScoredToken>());
    ASSERT_TRUE(bench.device->Synchronize().ok());
    const std::string bytes = logprob.Bytes((rows - 1) * 4, 4) + top.Bytes((rows - 1) * 24, 24);
    if (rows == 1) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

}  // namespace
}  // namespace somnus
