// Copies of cache blocks: the bytes of all layers, and nothing else.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

// Layers of one cache, each in a separate array, `offset` bytes past an aligned start.
class Layers {
 public:
  Layers(const Device& device, int64_t num_layers, const KvCacheView& shape, int64_t offset)
      : block_bytes_(KvBlockBytes(device, shape.dtype, shape.block_size, shape.num_kv_heads, shape.head_dim)),
        offset_(offset) {
    std::mt19937 random(1);
    for (int64_t l = 0; l < num_layers; ++l) {
      buffers_.push_back(std::make_unique<DeviceBuffer>(offset + shape.num_blocks * block_bytes_));
      want_.push_back(std::string(shape.num_blocks * block_bytes_, '\0'));
      for (char& c : want_.back()) c = static_cast<char>(random());
      buffers_.back()->Write(offset, want_.back().data(), shape.num_blocks * block_bytes_);
      views_.push_back(shape);
      views_.back().data = buffers_.back()->device<char>() + offset;
    }
  }

  void CopyAndCheck(Device& device, const std::vector<int32_t>& src, const std::vector<int32_t>& dst) {
    DeviceArray<int32_t> from(src), to(dst);
    CopyBlocks(device, views_.data(), static_cast<int64_t>(views_.size()), from.data(), to.data(),
               static_cast<int64_t>(src.size()));
    ASSERT_TRUE(device.Synchronize().ok());
    for (size_t l = 0; l < views_.size(); ++l) {
      for (size_t i = 0; i < src.size(); ++i) {
        want_[l].replace(dst[i] * block_bytes_, block_bytes_,
                         want_[l].substr(src[i] * block_bytes_, block_bytes_));
      }
      ASSERT_EQ(buffers_[l]->Bytes(offset_, static_cast<int64_t>(want_[l].size())), want_[l])
          << "layer " << l;
    }
  }

 private:
  int64_t block_bytes_, offset_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<KvCacheView> views_;
  std::vector<std::string> want_;
};

TEST(BlocksTest, SmallBlocks) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const int64_t offset : {0, 2})  // by words of 16 bytes, and by bytes
    Layers(*device, 2, {nullptr, DataType::kBF16, 4, 1, 1, 8}, offset).CopyAndCheck(*device, {1}, {3});
}

TEST(BlocksTest, CopiesWholeBlocksOfAllLayers) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const KvCacheView& shape : kMovedShapes) {
    for (const int64_t num_layers : {1, 3}) {
      for (const int64_t offset : {0, 2}) {
        Layers layers(*device, num_layers, shape, offset);
        layers.CopyAndCheck(*device, {1}, {8});
        layers.CopyAndCheck(*device, {3, 8, 3, 2}, {4, 5, 6, 7});  // The same source twice.
        layers.CopyAndCheck(*device, {}, {});
      }
    }
  }
}

TEST(BlocksTest, MoreLayersThanALaunchTakes) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const int64_t num_layers : {256, 257, 600}) {
    Layers layers(*device, num_layers, {nullptr, DataType::kBF16, 4, 1, 1, 8}, 0);
    layers.CopyAndCheck(*device, {1, 2}, {3, 0});
  }
}

TEST(BlocksTest, NoLayersAreNoWork) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceArray<int32_t> ids({1});
  CopyBlocks(*device, nullptr, 0, ids.data(), ids.data(), 1);
  EXPECT_TRUE(device->Synchronize().ok());
}

}  // namespace
}  // namespace somnus
