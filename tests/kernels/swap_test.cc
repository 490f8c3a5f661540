// Swaps of cache blocks with a pool in host memory, on the CPU: bytes of all layers, there and back.

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

constexpr int64_t kLayers = 3, kBlocks = 7, kHostBlocks = 4;

class SwapTest : public testing::TestWithParam<DataType> {
 protected:
  SwapTest()
      : device_(MakeDevice(CpuIsa::kBest, 2)),
        bytes_(KvBlockBytes(*device_, GetParam(), 16, 2, 24)),
        pool_(kHostBlocks * kLayers * bytes_) {
    for (int64_t l = 0; l < kLayers; ++l) {
      memory_.push_back(std::make_unique<Buffer>(kBlocks * bytes_));
      for (int64_t i = 0; i < kBlocks * bytes_; ++i) memory_[l]->as<char>()[i] = static_cast<char>(random_());
      layers_.push_back({memory_[l]->as<void>(), GetParam(), kBlocks, 16, 2, 24});
    }
  }
  void Swap(SwapDirection direction, const std::vector<BlockSwap>& swaps) {
    SwapBlocks(*device_, layers_.data(), kLayers, {pool_.as<void>(), kHostBlocks}, direction, swaps.data(),
               static_cast<int64_t>(swaps.size()));
  }
  std::string Cached(int64_t layer, int64_t block) {
    return {memory_[layer]->as<char>() + block * bytes_, static_cast<size_t>(bytes_)};
  }
  std::string Pooled(int64_t layer, int64_t block) {
    return {pool_.as<char>() + (block * kLayers + layer) * bytes_, static_cast<size_t>(bytes_)};
  }

  std::mt19937 random_{1};
  std::unique_ptr<Device> device_;
  int64_t bytes_;
  Buffer pool_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<KvCacheView> layers_;
};

TEST_P(SwapTest, OutAndBackIntoOtherBlocks) {
  const std::string zeros(static_cast<size_t>(bytes_), '\0');
  Swap(SwapDirection::kToHost, {{6, 3}, {0, 1}});
  for (int64_t l = 0; l < kLayers; ++l) {
    EXPECT_EQ(Pooled(l, 3), Cached(l, 6)) << l;
    EXPECT_EQ(Pooled(l, 1), Cached(l, 0)) << l;
    EXPECT_EQ(Pooled(l, 0), zeros) << l;
    EXPECT_EQ(Pooled(l, 2), zeros) << l;
  }
  const std::string untouched = Cached(1, 5);
  Swap(SwapDirection::kToDevice, {{2, 3}, {4, 3}, {3, 1}});
  for (int64_t l = 0; l < kLayers; ++l) {
    EXPECT_EQ(Cached(l, 2), Cached(l, 6)) << l;
    EXPECT_EQ(Cached(l, 4), Cached(l, 6)) << l;
    EXPECT_EQ(Cached(l, 3), Cached(l, 0)) << l;
    EXPECT_NE(Cached(l, 1), Cached(l, 0)) << l;
  }
  EXPECT_EQ(Cached(1, 5), untouched);
}

TEST_P(SwapTest, NothingToSwap) {
  const std::string before = Cached(0, 1);
  Swap(SwapDirection::kToDevice, {});
  SwapBlocks(*device_, nullptr, 0, {nullptr, 0}, SwapDirection::kToHost, nullptr, 0);
  EXPECT_EQ(Cached(0, 1), before);
}

TEST_P(SwapTest, BlocksThatAreNotThereAreABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const BlockSwap bad :
       {BlockSwap{kBlocks, 0}, BlockSwap{-1, 0}, BlockSwap{0, kHostBlocks}, BlockSwap{0, -1}}) {
    EXPECT_DEATH(Swap(SwapDirection::kToHost, {{1, 1}, bad}), "broken invariant");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SwapTest,
                         testing::Values(DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF8E4M3,
                                         DataType::kI8));

}  // namespace
}  // namespace somnus
