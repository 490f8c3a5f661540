// Swaps of cache blocks with a pool in pinned host memory, in both directions: the bytes of all layers, and
// nothing else.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

// A cache of several layers, `offset` bytes past an aligned start, and a pool as far past an aligned start;
// random bytes.
class Swapped {
 public:
  Swapped(Device& device, int64_t num_layers, const KvCacheView& shape, int64_t host_blocks, int64_t offset)
      : device_(device),
        bytes_(KvBlockBytes(device, shape.dtype, shape.block_size, shape.num_kv_heads, shape.head_dim)),
        pool_bytes_(host_blocks * num_layers * bytes_),
        offset_(offset) {
    auto memory = device.AllocatePinned(pool_bytes_ + offset + kGuard);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *memory;
    pool_ = {static_cast<char*>(memory_) + offset, host_blocks};
    want_pool_ = RandomBytes(pool_bytes_ + kGuard);
    std::copy(want_pool_.begin(), want_pool_.end(), static_cast<char*>(pool_.data));
    for (int64_t l = 0; l < num_layers; ++l) {
      buffers_.push_back(std::make_unique<DeviceBuffer>(offset + shape.num_blocks * bytes_));
      want_.push_back(RandomBytes(shape.num_blocks * bytes_));
      views_.push_back(shape);
      views_.back().data = buffers_.back()->device<char>() + offset;
      buffers_.back()->Write(offset, want_.back().data(), shape.num_blocks * bytes_);
    }
  }
  ~Swapped() { device_.FreePinned(memory_); }

  void SwapAndCheck(SwapDirection direction, const std::vector<BlockSwap>& swaps) {
    SwapBlocks(device_, views_.data(), static_cast<int64_t>(views_.size()), pool_, direction, swaps.data(),
               static_cast<int64_t>(swaps.size()));
    ASSERT_TRUE(device_.Synchronize().ok());
    for (const BlockSwap& swap : swaps) {
      for (size_t l = 0; l < views_.size(); ++l) {
        const size_t in_pool = (swap.host_block * views_.size() + l) * bytes_;
        const size_t in_cache = swap.device_block * bytes_;
        if (direction == SwapDirection::kToHost) {
          want_pool_.replace(in_pool, bytes_, want_[l].substr(in_cache, bytes_));
        } else {
          want_[l].replace(in_cache, bytes_, want_pool_.substr(in_pool, bytes_));
        }
      }
    }
    // The guard behind the pool too.
    ASSERT_EQ(std::string(static_cast<char*>(pool_.data), want_pool_.size()), want_pool_);
    for (size_t l = 0; l < views_.size(); ++l) {
      ASSERT_EQ(buffers_[l]->Bytes(offset_, static_cast<int64_t>(want_[l].size())), want_[l])
          << "layer " << l;
    }
  }

 private:
  static constexpr int64_t kGuard = 64;

  std::string RandomBytes(int64_t n) {
    std::string bytes(n, '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    return bytes;
  }

  Device& device_;
  const int64_t bytes_, pool_bytes_, offset_;
  std::mt19937 random_{1};
  void* memory_ = nullptr;
  KvHostPool pool_;
  std::string want_pool_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<KvCacheView> views_;
  std::vector<std::string> want_;
};

TEST(SwapTest, SmallBlocks) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const int64_t offset : {0, 2}) {  // by words of 16 bytes, and by bytes
    Swapped swapped(*device, 2, {nullptr, DataType::kBF16, 4, 1, 1, 8}, 3, offset);
    swapped.SwapAndCheck(SwapDirection::kToHost, {{1, 2}});
    swapped.SwapAndCheck(SwapDirection::kToDevice, {{3, 2}});
  }
}

TEST(SwapTest, MovesWholeBlocksOfAllLayersBothWays) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const KvCacheView& shape : kMovedShapes) {
    for (const int64_t num_layers : {1, 3}) {
      for (const int64_t offset : {0, 2}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << shape.head_dim << ", " << num_layers << " layers, offset " << offset);
        Swapped swapped(*device, num_layers, shape, 4, offset);
        swapped.SwapAndCheck(SwapDirection::kToHost, {{8, 0}});
        swapped.SwapAndCheck(SwapDirection::kToHost, {{3, 3}, {8, 1}, {3, 2}});  // the same source twice
        swapped.SwapAndCheck(SwapDirection::kToDevice, {{1, 3}, {0, 0}, {7, 3}, {8, 2}});
        swapped.SwapAndCheck(SwapDirection::kToHost, {});
        swapped.SwapAndCheck(SwapDirection::kToDevice, {});
      }
    }
  }
}

// Ops before a swap have written the blocks that the swap reads; ops behind AwaitSwaps write after the swap
// has read; blocks that the swap brings back are there for later ops.
TEST(SwapTest, HasItsPlaceAmongOps) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  constexpr int64_t kBytes = 4096;
  const KvCacheView shape = {nullptr, DataType::kBF16, 4, 16, 1, 64};
  ASSERT_EQ(KvBlockBytes(*device, shape.dtype, shape.block_size, shape.num_kv_heads, shape.head_dim), kBytes);
  DeviceBuffer cache(4 * kBytes);
  for (int block = 0; block < 4; ++block)
    cache.Write(block * kBytes, std::string(kBytes, static_cast<char>('a' + block)).data(), kBytes);
  KvCacheView view = shape;
  view.data = cache.device<void>();
  void* const memory = *device->AllocatePinned(2 * kBytes);
  const KvHostPool pool = {memory, 2};
  const auto block_is = [&](int64_t block, char c) {
    return cache.Bytes(block * kBytes, kBytes) == std::string(kBytes, c);
  };
  const auto pooled_is = [&](int64_t block, char c) {
    return std::string(static_cast<char*>(memory) + block * kBytes, kBytes) == std::string(kBytes, c);
  };
  const auto swap = [&](SwapDirection direction, BlockSwap blocks) {
    SwapBlocks(*device, &view, 1, pool, direction, &blocks, 1);
  };
  DeviceArray<int32_t> ids({0, 1, 2, 3});
  const auto copy = [&](int from, int to) {
    CopyBlocks(*device, &view, 1, ids.data() + from, ids.data() + to, 1);
  };
  copy(0, 1);                            // a
  swap(SwapDirection::kToHost, {1, 0});  // a
  swap(SwapDirection::kToHost, {3, 1});  // d
  copy(3, 2);                            // beside the swap: d, which the swap reads
  device->AwaitSwaps();
  copy(2, 1);                              // d
  swap(SwapDirection::kToDevice, {3, 0});  // a
  copy(3, 0);                              // a
  swap(SwapDirection::kToHost, {1, 0});    // d, where a was read
  ASSERT_TRUE(device->Synchronize().ok()) << "which waits for swaps, too";
  EXPECT_TRUE(pooled_is(0, 'd'));
  EXPECT_TRUE(pooled_is(1, 'd'));
  EXPECT_TRUE(block_is(0, 'a'));
  EXPECT_TRUE(block_is(1, 'd'));
  EXPECT_TRUE(block_is(2, 'd'));
  EXPECT_TRUE(block_is(3, 'a'));
  device->AwaitSwaps();  // of none
  device->FreePinned(memory);
}

TEST(SwapTest, MoreLayersAndSwapsThanALaunchTakes) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const int64_t num_layers : {256, 257, 600}) {
    Swapped swapped(*device, num_layers, {nullptr, DataType::kBF16, 4, 1, 1, 8}, 3, 0);
    swapped.SwapAndCheck(SwapDirection::kToHost, {{1, 2}, {3, 0}});
    swapped.SwapAndCheck(SwapDirection::kToDevice, {{2, 0}, {0, 2}});
  }
  for (const int32_t count : {127, 128, 129, 300}) {
    std::vector<BlockSwap> swaps;
    for (int32_t i = 0; i < count; ++i) swaps.push_back({i, count - 1 - i});
    Swapped swapped(*device, 2, {nullptr, DataType::kF8E4M3, count, 1, 1, 16}, count, 0);
    swapped.SwapAndCheck(SwapDirection::kToHost, swaps);
    swapped.SwapAndCheck(SwapDirection::kToDevice, swaps);
  }
}

TEST(SwapTest, BlocksThatAreNotThereAreABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  Swapped swapped(*device, 2, {nullptr, DataType::kBF16, 4, 1, 1, 8}, 3, 0);
  for (const BlockSwap bad : {BlockSwap{4, 0}, BlockSwap{-1, 0}, BlockSwap{0, 3}, BlockSwap{0, -1}}) {
    for (const SwapDirection direction : {SwapDirection::kToHost, SwapDirection::kToDevice}) {
      EXPECT_DEATH(swapped.SwapAndCheck(direction, {{0, 0}, bad}), "broken invariant");
    }
  }
}

TEST(SwapTest, APoolThatIsNotPinnedIsAnError) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceBuffer cache(4 * 32);
  const KvCacheView view{cache.device<void>(), DataType::kBF16, 4, 1, 1, 8};
  std::vector<char> pageable(32);
  const BlockSwap swap{1, 0};
  SwapBlocks(*device, &view, 1, {pageable.data(), 1}, SwapDirection::kToHost, &swap, 1);
  const absl::Status status = device->Synchronize();
  EXPECT_NE(status.message().find("pinned"), std::string::npos) << status;
}

TEST(SwapTest, NoLayersAreNoWork) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  SwapBlocks(*device, nullptr, 0, {nullptr, 0}, SwapDirection::kToHost, nullptr, 0);
  EXPECT_TRUE(device->Synchronize().ok());
}

}  // namespace
}  // namespace somnus
