// ArgMax against the CPU's: bit by bit, for all kinds of logits.

#include "tests/cuda/logits_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

void ExpectEqualsTheCpu(int64_t n, Layout layout, uint64_t seed) {
  std::vector<std::vector<float>> kinds = KindsOfLogits(n, 1);
  kinds.push_back(kernel_test::RandomFloats(n, 9));
  kinds.back()[n / 2] = kInf;
  kinds.back()[n - 1] = kInf;
  const int64_t rows = static_cast<int64_t>(kinds.size());
  CudaBench bench(LogitLimits(rows, n), seed);
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  LogitPair x(rows, n, layout);
  for (int64_t r = 0; r < rows; ++r) x.Set(r, kinds[r]);
  std::vector<ScoredToken> want(rows);
  ArgMax(*Oracle(), x.host.view(), 1000, want.data());
  DeviceBuffer best(rows * static_cast<int64_t>(sizeof(ScoredToken)));
  ArgMax(*bench.device, x.device.view(), 1000, best.device<ScoredToken>());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int64_t r = 0; r < rows; ++r) {
    const ScoredToken got = best.Values<ScoredToken>()[r];
    EXPECT_EQ(got.id, want[r].id) << "row " << r << " of " << n;
    EXPECT_TRUE(got.value == want[r].value || (std::isnan(got.value) && std::isnan(want[r].value)))
        << "row " << r << " of " << n << ": " << got.value << ", not " << want[r].value;
  }
}

TEST(ArgMaxTest, EqualsTheCpu) {
  for (const int64_t n : {1, 7, 128, 1000, 2047, 2048, 2049, 32000}) {
    for (const Layout layout : kLayouts) ExpectEqualsTheCpu(n, layout, static_cast<uint64_t>(n));
  }
}

TEST(ArgMaxTest, SmallVocabulary) { ExpectEqualsTheCpu(9, {}, 1); }

TEST(ArgMaxTest, LargeVocabulary) { ExpectEqualsTheCpu(151936, {}, 1); }

TEST(ArgMaxTest, ANanInAnyChunkIsSeen) {
  constexpr int64_t kVocab = 5000;
  const std::vector<int64_t> at = {0, 2047, 2048, 4999};
  const int64_t rows = static_cast<int64_t>(at.size());
  CudaBench bench(LogitLimits(rows, kVocab));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  DeviceMatrix x(DataType::kF32, rows, kVocab);
  x.Randomize(1);
  for (int64_t r = 0; r < rows; ++r) x.Set(r, at[r], NAN);
  DeviceBuffer best(rows * static_cast<int64_t>(sizeof(ScoredToken)));
  ArgMax(*bench.device, x.view(), 0, best.device<ScoredToken>());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_TRUE(std::isnan(best.Values<ScoredToken>()[r].value)) << "row " << r;
    EXPECT_EQ(best.Values<ScoredToken>()[r].id, -1) << "row " << r;
  }
}

TEST(ArgMaxTest, CombineEqualsTheCpu) {
  constexpr int64_t kRanks = 3, kRows = 6;
  const std::vector<ScoredToken> all = {{1, 3}, {2, 4}, {-kInf, -1}, {5, 1},    {1, 0},    {-kInf, -1},
                                        {4, 9}, {2, 8}, {-9, 11},    {NAN, -1}, {kInf, 9}, {-kInf, -1},
                                        {2, 7}, {1, 6}, {-kInf, -1}, {9, 12},   {0, 14},   {-kInf, -1}};
  CudaBench bench(LogitLimits(kRows, 16));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  DeviceArray<ScoredToken> device_all(all);
  DeviceBuffer tokens(kRows * 4);
  CombineArgMax(*bench.device, device_all.data(), kRanks, kRows, tokens.device<int32_t>());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  std::vector<int32_t> want(kRows);
  CombineArgMax(*Oracle(), all.data(), kRanks, kRows, want.data());
  for (int64_t r = 0; r < kRows; ++r) EXPECT_EQ(tokens.Values<int32_t>()[r], want[r]) << "row " << r;
}

TEST(ArgMaxTest, SmallestVocabularyIsEmpty) {
  CudaBench bench(LogitLimits(3, 8));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  DeviceBuffer best(3 * static_cast<int64_t>(sizeof(ScoredToken)));
  ArgMax(*bench.device, {.data = nullptr, .rows = 3, .cols = 0, .stride = 0}, 5, best.device<ScoredToken>());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(best.Values<ScoredToken>()[r].id, -1);
    EXPECT_EQ(best.Values<ScoredToken>()[r].value, -kInf);
  }
}

TEST(ArgMaxTest, ATooSmallWorkspaceIsAnError) {
  CudaBench bench(LogitLimits(1, 100));
  SOMNUS_SKIP_WITHOUT_GPU(bench.device);
  DeviceMatrix x(DataType::kF32, 4, 9000);
  DeviceBuffer best(4 * static_cast<int64_t>(sizeof(ScoredToken)));
  bench.device->SetWorkspace(bench.workspace->device<void>(), 64);
  ArgMax(*bench.device, x.view(), 0, best.device<ScoredToken>());
  EXPECT_EQ(bench.device->Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(bench.device->Synchronize().ok());
}

}  // namespace
}  // namespace somnus
