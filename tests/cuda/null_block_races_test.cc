// The race detector in a KV cache: the rows that pad a batch write to one place of the null block on purpose.
// Two rows at one place of another block are a race. Builds with a sanitizer do not observe kernels.

#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {
namespace {

constexpr int64_t kBlocks = 3, kBlockSize = 4, kRows = 2;

std::unique_ptr<Device> ObservingDevice() {
  auto device = CreateEmulatedCudaDevice({.find_races = true});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

class NullBlockRaces : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "kernels are not observed";
#endif
  }
  void QueueAndWait(const std::function<void(const AttentionBatch&)>& op, int32_t place) {
    DeviceArray<int32_t> places({place, place}), positions({0, 0});
    op({.num_tokens = kRows, .positions = positions.data(), .slot_mapping = places.data()});
    EXPECT_TRUE(device_->Synchronize().ok());
  }
  // `op` writes two rows of a batch to a cache of kBlocks.
  void Check(const std::function<void(const AttentionBatch&)>& op) {
    for (const int32_t place : {0, 3}) QueueAndWait(op, place);
    EXPECT_DEATH(QueueAndWait(op, /*place=*/kBlockSize), "race in global memory");
  }

  const std::unique_ptr<Device> device_ = ObservingDevice();
};

TEST_F(NullBlockRaces, OfAttention) {
  constexpr int64_t kDims = 8;
  for (const DataType type : {DataType::kF32, DataType::kF8E4M3, DataType::kI8}) {
    SCOPED_TRACE(static_cast<int>(type));
    DeviceBuffer cache(kBlocks * KvBlockBytes(*device_, type, kBlockSize, 1, kDims));
    DeviceMatrix qkv(DataType::kF32, kRows, 3 * kDims);
    Check([&](const AttentionBatch& batch) {
      QkNormRopeAndCache(*device_, qkv.view(), 1, nullptr, nullptr, 0, {}, batch,
                         {cache.device<void>(), type, kBlocks, kBlockSize, 1, kDims});
    });
  }
}

TEST_F(NullBlockRaces, OfLatentAttention) {
  const LatentShape shape{.nope = 4, .rope = 4, .latent = 8};
  const int64_t dims = shape.latent + shape.rope;
  DeviceBuffer cache(kBlocks * KvBlockBytes(*device_, DataType::kF32, kBlockSize, 1, dims, true));
  DeviceMatrix row(DataType::kF32, kRows, dims), queries(DataType::kF32, kRows, shape.nope + shape.rope),
      out(DataType::kF32, kRows, dims);
  DeviceArray<float> norm(std::vector<float>(static_cast<size_t>(shape.latent), 1)), angles({0, 0});
  Check([&](const AttentionBatch& batch) {
    LatentRopeAndCache(*device_, row.view(), norm.data(), 0, queries.view(), 1, shape,
                       {angles.data(), angles.data()}, batch,
                       {.data = cache.device<void>(),
                        .dtype = DataType::kF32,
                        .num_blocks = kBlocks,
                        .block_size = kBlockSize,
                        .num_kv_heads = 1,
                        .head_dim = dims,
                        .latent = true},
                       out.view());
  });
}

}  // namespace
}  // namespace somnus::cuda_test
